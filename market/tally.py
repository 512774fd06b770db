"""How the audits of each peer went, in numbers that people look at. Pure: nothing is decided by them.

What follows from an audit goes by marks, strikes and standing (market.audit, market.quarantine,
market.reputation).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace

MAX_REMEMBERED = 4_096
"""Peers counted, as many as have standing (market.reputation). Whoever was not audited for longest is
forgotten first."""


@dataclass(frozen=True)
class Tally:
    """Of one peer.

    Attributes:
        checked: answers of it that were held against another's, those of canaries included.
        agreed: of them, with what came again, or with what this node or an arbiter computed.
        build: its class, as it said last, printable and short (market.build_class, routing.wire.holdings).
    """

    checked: int = 0
    agreed: int = 0
    build: str = ""

    @property
    def differed(self) -> int:
        """Answers that did not agree. Of two that differ one may be right."""
        return self.checked - self.agreed


class Tallies:
    """Of all peers.

    Args:
        known: from an earlier run, by peer, whoever was audited longest ago first.
    """

    def __init__(self, known: Iterable[tuple[str, Tally]] = ()) -> None:
        self._known: OrderedDict[str, Tally] = OrderedDict(known)

    def count(self, peer_id: str, build: str, *, agreed: bool) -> None:
        """An answer was held against another's."""
        before = self.of(peer_id)
        self._known[peer_id] = replace(
            before,
            checked=before.checked + 1,
            agreed=before.agreed + agreed,
            build=build or before.build,
        )
        self._known.move_to_end(peer_id)
        if len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)

    def of(self, peer_id: str) -> Tally:
        """A peer's; zeros for one that was never audited."""
        return self._known.get(peer_id, Tally())

    def all(self) -> list[tuple[str, Tally]]:
        """Everybody's, whoever was audited longest ago first."""
        return list(self._known.items())
