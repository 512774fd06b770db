"""How much a peer may owe: what it has earned by giving, and what strangers are welcomed with. Pure.

1. *Earned*: half of what a peer has given us (its work for us, and payments), at most the configured line.
   It depends on what *we* received and signed for, on nothing that others say.
2. *Granted*: who owes more than it has earned draws on one pool, of `per_day` credits each day, that all
   peers share. A grant is for good: a debt that was worked off may be made again.
3. So identities are worth nothing by themselves. For a history split over several, what they have earned
   together is at most what one would have, while that is below the cap; and the pool is the same for all.
   Only who has given more than twice the cap gets more line by splitting: never more than half of what it
   gave itself, and MOST_LINES lines in all.
4. Addresses cost more than identities: one subnet gets at most a SUBNET_SHARE-th of a day's pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SECONDS_A_DAY = 86_400

GIVEN_PER_LINE = 2
"""Credits received from a peer for each that it may owe: who leaves with its debt has given twice as much."""

SUBNET_SHARE = 4
"""One subnet's part of a day's pool is one in so many: a visitor with one address leaves something."""

MAX_SUBNETS = 4_096
"""Subnets counted a day; what comes from further ones counts together as one."""

MOST_LINES = 64
"""All debts together are at most so many full lines: more that are full at once than a home node knows."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How much credit a node gives, µcr.

    Attributes:
        credit_line: most that one peer may owe.
        newcomers: a day, to all who have earned too little, together.
    """

    credit_line: int
    newcomers: int


def earned_line(received: int, cap: int) -> int:
    """What a peer may owe for what it has given.

    Args:
        received: µcr that we got from it, work and payments (`Standing.received`).
        cap: most that it may owe, config `credit_line`.
    """
    return min(received // GIVEN_PER_LINE, cap)


class NewcomerPool:
    """What those who have earned too little may owe: so much a day for all of them.

    Args:
        per_day: µcr.
        drawn: of this and earlier days, by day and subnet, as `drawn` gave it.
    """

    def __init__(self, per_day: int, drawn: Mapping[tuple[int, str], int] | None = None) -> None:
        self._per_day = per_day
        self._day = 0
        self._total = 0
        self._drawn: dict[str, int] = {}
        for (day, subnet), credits in sorted((drawn or {}).items()):
            self._turn(day)
            if day == self._day:
                self._count(subnet, credits)

    def take(self, credits: int, subnet: str, now: float) -> bool:
        """Draw on the pool of the day: all of it or nothing.

        Args:
            subnet: where the peer is; "" if that is not known: then no share of a subnet limits it.
        """
        if credits > self.left(subnet, now):
            return False
        self._turn(int(now) // SECONDS_A_DAY)
        self._count(subnet, credits)
        return True

    def give_back(self, credits: int, subnet: str, since: float) -> None:
        """What was drawn has not been used. Of an earlier day's pool nothing is left to be given.

        Args:
            since: when it was drawn.
        """
        if int(since) // SECONDS_A_DAY == self._day:
            key = self._key(subnet)
            back = min(credits, self._drawn.get(key, 0))
            if back > 0:
                self._drawn[key] -= back
                self._total -= back

    def left(self, subnet: str, now: float) -> int:
        """µcr that a peer of this subnet could still draw on this day. To look changes nothing."""
        is_used = not self._is_another(int(now) // SECONDS_A_DAY)
        rest = self._per_day - (self._total if is_used else 0)
        if subnet:
            drawn = self._drawn.get(self._key(subnet), 0) if is_used else 0
            rest = min(rest, self._per_day // SUBNET_SHARE - drawn)
        return max(0, rest)

    def drawn(self) -> dict[tuple[int, str], int]:
        """What was drawn on the latest day, to be kept."""
        return {(self._day, subnet): credits for subnet, credits in self._drawn.items()}

    def _is_another(self, day: int) -> bool:
        # A clock that is put back a little gives no second pool; one that was years ahead is believed again.
        return day > self._day or day < self._day - 1

    def _turn(self, day: int) -> None:
        if self._is_another(day):
            self._day, self._total, self._drawn = day, 0, {}

    def _count(self, subnet: str, credits: int) -> None:
        key = self._key(subnet)
        self._drawn[key] = self._drawn.get(key, 0) + credits
        self._total += credits

    def _key(self, subnet: str) -> str:
        return subnet if subnet in self._drawn or len(self._drawn) < MAX_SUBNETS else "others"
