"""Which servers to ask for the experts of a call: the set with the smallest expected slowest answer. Pure.

A server is expected to answer in its cost + its seconds a pair x the pairs it is given. The holders come
ordered by what they would need for one pair.

1. The *bar* is the smallest such time at which the servers below it together hold all that is needed. No set
   of servers is expected to be through sooner than that.
2. One server that holds all of it is taken unless it is clearly slower than the bar: it is one message, has
   no straggler, and its sum has the same bytes whoever serves it.
3. Otherwise the set with the smallest expected slowest answer, where each server in it counts SERVER_SECONDS
   more. Tried are the smallest covers below the bar and below what is just not clearly slower; a cover is as
   small as a greedy one gets: each step takes the server that holds the most of what is left; among equals
   the quickest, then the one that holds more of the layer, then the one named first.
4. Where computing makes that clearly slower than the bar, each expert may as well go to the server that would
   be through with it first. An expert is never split; nor is a run of experts where runs must not be.

The bar is exact. Smallest covers and the best spreads are not (both are NP-hard): how far off they are is in
tests/unit/test_choice.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from routing.dispatch.holders import HOME, Holder, runs_of

CLEAR_SHARE = 0.1
CLEAR_SECONDS = 0.003
"""From which difference on an answer is clearly slower than another: the greater of both. Below it the jitter
of a good line decides who is first, and the table does not take note of changes (routing.table)."""

SERVER_SECONDS = 0.001
"""What one more server in a call has to save: 0.4 ms (measured) to make, send and check request and answer,
and as much for being one more of which 1 answer in 100 is some 50 ms late."""

Cover = list[tuple[Holder, int]]
"""Servers, each with its experts as bits."""


class Choice:
    """The choice among holders for those of the needed experts that any of them holds.

    Args:
        holders: ordered by `least`; `HOME` is passed over.
        needed: experts as bits.
        pairs: of each needed expert; None if computing is not weighed.
        run_length: experts of a run that one server must have together, and every holder holds whole or not
            at all; 0 if each expert may be anywhere.
    """

    def __init__(
        self,
        holders: Sequence[Holder],
        needed: int,
        pairs: Mapping[int, int] | None,
        run_length: int = 0,
    ) -> None:
        self._pairs = pairs
        self._run_length = run_length
        self._useful: list[Holder] = []
        missing, bar = needed, 0.0
        for holder in holders:
            mine = holder.held & needed
            if mine and holder.peer_id != HOME:
                self._useful.append(holder)
                if mine & missing:
                    missing &= ~mine
                    bar = holder.cost + holder.per_pair
        self._needed = needed & ~missing
        self._bar = bar
        # Level k: the experts with more than k pairs. What a server computes is then a matter of a few ands.
        self._levels = [self._needed] if pairs else []
        if pairs and (most := max(pairs.values())) > 1:
            self._levels += [
                sum(1 << expert for expert, count in pairs.items() if count > level)
                for level in range(1, most)
            ]

    def best(self) -> Cover:
        """The servers to ask; none if nobody holds anything."""
        if not self._needed:
            return []
        whole = self._whole()
        limit = self._bar + clear(self._bar)
        if whole is not None and self._expected(whole, self._needed) <= limit:
            return [(whole, self._needed)]
        best = self._cover(self._within(self._bar))
        if len(best) > 2:  # one server is not enough below the limit
            best = min(best, self._cover(self._within(limit)), key=self._price)
        slowest = self._slowest(best)
        if slowest > limit:
            best = min(best, self._spread(slowest), key=self._price)
            slowest = self._slowest(best)
            if whole is not None and self._expected(whole, self._needed) <= slowest + clear(slowest):
                return [(whole, self._needed)]
        return best

    def _whole(self) -> Holder | None:
        """The quickest that holds all that is needed."""
        best: Holder | None = None
        seconds = 0.0
        for holder in self._useful:
            if not self._needed & ~holder.held:
                expected = self._expected(holder, self._needed)
                if best is None or (expected, -holder.held.bit_count()) < (seconds, -best.held.bit_count()):
                    best, seconds = holder, expected
        return best

    def _within(self, bar: float) -> list[Holder]:
        return [holder for holder in self._useful if holder.cost + holder.per_pair <= bar]

    def _cover(self, candidates: list[Holder]) -> Cover:
        left = self._needed
        chosen: Cover = []
        while left:
            best, most = candidates[0], 0
            for holder in candidates:
                covered = (holder.held & left).bit_count()
                if covered > most or (
                    covered == most
                    and holder.least == best.least
                    and holder.held.bit_count() > best.held.bit_count()
                ):
                    best, most = holder, covered
            chosen.append((best, best.held & left))
            left &= ~best.held
        return chosen

    def _spread(self, seconds: float) -> Cover:
        """Each expert or run to whoever is through with it first; those few hold, and large ones, come first.

        Args:
            seconds: by then all should have answered; who could not is passed over.
        """
        pairs = self._pairs
        assert pairs is not None  # without it no computing is weighed
        candidates = self._within(seconds)
        units = runs_of(self._needed, self._run_length)
        held_by = {
            unit: [number for number, holder in enumerate(candidates) if not unit & ~holder.held]
            for unit in units
        }
        work = {unit: sum(pairs[expert] for expert in numbers(unit)) for unit in units}
        shares = [0] * len(candidates)
        ready = [holder.cost + SERVER_SECONDS for holder in candidates]
        for unit in sorted(held_by, key=lambda each: (len(held_by[each]), -work[each])):
            soonest, first = math.inf, 0
            for number in held_by[unit]:
                done = ready[number] + candidates[number].per_pair * work[unit]
                if done < soonest:
                    soonest, first = done, number
            ready[first] = soonest if shares[first] else soonest - SERVER_SECONDS
            shares[first] |= unit
        return [(holder, share) for holder, share in zip(candidates, shares, strict=True) if share]

    def _expected(self, holder: Holder, mine: int) -> float:
        """Seconds in which it should answer for these experts."""
        pairs = 0
        for level in self._levels:
            pairs += (mine & level).bit_count()
        return holder.cost + holder.per_pair * max(pairs, 1)

    def _slowest(self, cover: Cover) -> float:
        return max(self._expected(holder, mine) for holder, mine in cover)

    def _price(self, cover: Cover) -> float:
        return self._slowest(cover) + SERVER_SECONDS * len(cover)


def clear(seconds: float) -> float:
    """By how much an answer must be slower than this to be clearly slower."""
    return max(seconds * CLEAR_SHARE, CLEAR_SECONDS)


def numbers(bits: int) -> list[int]:
    """The set bits' positions, ascending."""
    found = []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return found
