"""What peers have signed about each other, as far as it is remembered and counts. Pure.

1. Who vouches has a budget, shared in proportion by all for whom it vouches: what it gives them together is
   never more, however many they are and however much it signs.
2. Memory is bounded on both sides. Whoever is heard of only so takes no place from those this node has dealt
   with itself (market.reputation).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container
from typing import NamedTuple

MAX_VOUCHERS = 64
"""Peers whose words are kept, those heard last: as many as are asked (node.market.vouching)."""

MAX_VOUCHED = 64
"""Peers that one may vouch for, those heard of last: twice what it tells at once, so 4,096 words in all."""


class Share(NamedTuple):
    """What counts for a peer: credits, and of how many vouchers."""

    credits: float
    vouchers: int


NOTHING = Share(0.0, 0)


class Hearsay:
    """Who has signed that who has done how much for it."""

    def __init__(self) -> None:
        self._told: OrderedDict[str, OrderedDict[str, float]] = OrderedDict()  # by voucher, then vouched

    def note(self, voucher: str, peer_id: str, credits: float) -> None:
        """So much in all; less than is known changes nothing."""
        if voucher == peer_id or not credits > 0:
            return
        told = self._told.setdefault(voucher, OrderedDict())
        self._told.move_to_end(voucher)
        told[peer_id] = max(credits, told.get(peer_id, 0.0))
        told.move_to_end(peer_id)
        if len(told) > MAX_VOUCHED:
            told.popitem(last=False)
        if len(self._told) > MAX_VOUCHERS:
            self._told.popitem(last=False)

    def of(self, peer_id: str, budget: Callable[[str], float], without: Container[str] = ()) -> float:
        """Credits that count for a peer.

        Args:
            budget: what a voucher has to give, at least 0.
            without: vouchers that are left out.
        """
        return sum(
            told[peer_id] * _share(budget(voucher), told)
            for voucher, told in self._told.items()
            if peer_id in told and voucher not in without
        )

    def shares(self, budget: Callable[[str], float]) -> dict[str, Share]:
        """`of` everybody for whom somebody vouches that has something to give."""
        found: dict[str, Share] = {}
        for voucher, told in self._told.items():
            part = _share(budget(voucher), told)
            if part > 0:
                for peer_id, credits in told.items():
                    known = found.get(peer_id, NOTHING)
                    found[peer_id] = Share(known.credits + credits * part, known.vouchers + 1)
        return found


def _share(budget: float, told: OrderedDict[str, float]) -> float:
    """How much of a voucher's words its budget covers."""
    return min(1.0, budget / sum(told.values()))
