"""Peers that do not compute, or are not computed for, before they are paid: for people to look at. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

MAX_PEERS = 256
"""Peers remembered, the one refused longest ago forgotten first: as many as are ever connected."""


class Unpaid:
    """The last refusal of each peer for which credit was lacking, until a call goes through again."""

    def __init__(self) -> None:
        self._why: OrderedDict[str, str] = OrderedDict()

    def refused(self, peer_id: str, why: str) -> None:
        """A call was refused; `why` is one line for a person."""
        self._why[peer_id] = why
        self._why.move_to_end(peer_id)
        if len(self._why) > MAX_PEERS:
            self._why.popitem(last=False)

    def served(self, peer_id: str) -> None:
        """A call went through."""
        if self._why:
            self._why.pop(peer_id, None)

    def told(self) -> Mapping[str, str]:
        """Why, by peer id."""
        return self._why
