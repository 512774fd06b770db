"""The choice among holders whose answers have a price. Pure.

A set of servers is waited for as long as for its slowest answer, and costs the sum of what they ask. Both are
seconds here (`Holder.price`), so a set *counts* its slowest answer + its prices + what each server in it has
to save.

1. A set that is slower than slack allows is not taken; the one that would be chosen if nobody had a price
   always may be.
2. One server that holds all that is needed is taken unless it is clearly slower, or clearly dearer, than
   what can be.
3. Otherwise the set that counts least of those tried: each expert at whoever asks least for it, among all
   that are quick enough and among the quicker ones only; one server after another, each the one at which an
   expert comes to least; and what would be chosen without prices, as it is and with its experts moved to
   where they are cheaper. Servers that are not worth being one more message are left out of each.

The best of all is NP-hard: how far off this is stands in tests/unit/test_priced_choice.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from routing.dispatch.choice import CLEAR_SHARE, SERVER_SECONDS, Choice, Cover, clear, numbers
from routing.dispatch.holders import Holder, Slack, runs_of

SERVER_SHARE = 0.02
"""What one more server in a call has to save of the least that the call can cost, besides SERVER_SECONDS: two
servers whose prices differ by less take no notice of each other."""

MOST_BARS = 6
"""How many sets of quicker servers are tried besides that of all."""

SMALL_LEVELS = 32
"""Pairs of an expert up to which pairs are counted by ands of bits; above, one expert after another."""


class PricedChoice(Choice):
    """As `Choice`, where holders have prices.

    Args:
        amounts: pairs of each needed expert, for the price; also where computing is not weighed.
        slack: how much slower a set may be for its price.
    """

    def __init__(
        self,
        holders: Sequence[Holder],
        needed: int,
        pairs: Mapping[int, int] | None,
        run_length: int,
        amounts: Mapping[int, int],
        slack: Slack,
    ) -> None:
        super().__init__(holders, needed, pairs, run_length)
        self._amounts = amounts
        self._amount_levels = self._levels
        if not self._levels and (most := max(amounts.values())) <= SMALL_LEVELS:
            self._amount_levels = [
                sum(1 << expert for expert, count in amounts.items() if count > level)
                for level in range(most)
            ]
        self._limit = slack.limit(self._bar)
        self._cheap: list[Holder] = []
        self._each = 0.0

    def best(self) -> Cover:
        """The servers to ask; none if nobody holds anything."""
        if not self._needed:
            return []
        if (only := self._no_choice()) is not None:
            return only
        self._look()
        floor = self._floor(self._limit)
        self._each = SERVER_SECONDS + SERVER_SHARE * floor
        whole = self._cheapest_whole()
        if whole is not None and (
            self._is_near(whole, self._bar, floor)
            or self._counts(whole) <= self._bar + floor + 2 * self._each
        ):
            return whole
        quickest = super().best()
        if self._slowest(quickest) > self._limit:
            self._limit = self._slowest(quickest)
            self._look()
        best = min(self._tried(quickest), key=self._counts)
        if whole is not None and (
            self._counts(whole) <= self._counts(best)
            or self._is_near(whole, self._slowest(best), self._asked(best))
        ):
            return whole
        return best

    def _no_choice(self) -> Cover | None:
        """The only set there is, where nobody holds what another does; then nothing has to be weighed."""
        seen = 0
        for holder in self._useful:
            mine = holder.held & self._needed
            if mine & seen:
                return None
            seen |= mine
        return [(holder, holder.held & self._needed) for holder in self._useful]

    def _look(self) -> None:
        """Note who is quick enough, the cheapest first."""
        self._cheap = sorted(self._within(self._limit), key=lambda each: each.price)
        every = self._pairs and sum(self._pairs.values())
        self._is_roomy = not every or all(
            holder.cost + holder.per_pair * every <= self._limit for holder in self._cheap
        )

    # --- what a set comes to ---

    def _amount(self, mine: int) -> int:
        """Pairs of these experts."""
        if not self._amount_levels:
            return sum(self._amounts[expert] for expert in numbers(mine))
        pairs = 0
        for level in self._amount_levels:
            pairs += (mine & level).bit_count()
        return pairs

    def _asked(self, cover: Cover) -> float:
        return sum(holder.price * self._amount(mine) for holder, mine in cover)

    def _counts(self, cover: Cover) -> float:
        return self._slowest(cover) + self._asked(cover) + self._each * len(cover)

    def _floor(self, bar: float) -> float:
        """The least that these experts can cost at servers that are so quick."""
        return self._asked(self._taken(self._needed, [each for each in self._cheap if each.least <= bar]))

    def _is_near(self, whole: Cover, seconds: float, asked: float) -> bool:
        """Whether it is neither clearly slower nor clearly dearer than this."""
        if self._asked(whole) > asked * (1 + CLEAR_SHARE):
            return False
        return self._slowest(whole) <= seconds + clear(seconds)

    # --- sets to try ---

    def _cheapest_whole(self) -> Cover | None:
        """Of the servers that hold all of it, the one that counts least, if it is quick enough."""
        wholes: list[Cover] = [
            [(holder, self._needed)]
            for holder in self._useful
            if not self._needed & ~holder.held and self._expected(holder, self._needed) <= self._limit
        ]
        return min(wholes, key=self._counts, default=None)

    def _tried(self, quickest: Cover) -> Iterable[Cover]:
        yield quickest
        if self._is_roomy:
            tried = [self._few(), self._taken(self._needed, self._cheap)]
        else:
            tried = [self._moved(quickest), self._few(), self._moved_all(self._cheap)]
        least = self._counts(quickest)
        for cover in tried:
            fewer = self._without_the_dispensable(cover)
            if fewer and self._slowest(fewer) <= self._limit:
                least = min(least, self._counts(fewer))
                yield fewer
        for bar in self._bars():
            if self._bar + self._floor(bar) + self._each < least:
                quicker = [each for each in self._cheap if each.least <= bar]
                cover = self._taken(self._needed, quicker) if self._is_roomy else self._moved_all(quicker)
                fewer = self._without_the_dispensable(cover)
                if fewer and self._slowest(fewer) <= self._limit:
                    least = min(least, self._counts(fewer))
                    yield fewer

    def _bars(self) -> Iterable[float]:
        """Times by which some servers are through, together all of it, and others not."""
        times = sorted({each.least for each in self._cheap if each.least >= self._bar})[:-1]
        step = max(-(-len(times) // MOST_BARS), 1)
        return times[::step]

    def _taken(self, wanted: int, ordered: Iterable[Holder]) -> Cover:
        """These experts, each at the first that holds it."""
        cover: Cover = []
        for holder in ordered:
            if mine := holder.held & wanted:
                cover.append((holder, mine))
                wanted &= ~mine
                if not wanted:
                    break
        return cover

    def _few(self) -> Cover:
        """Servers one after another, each the one at which an expert comes to least."""
        left = self._needed
        chosen: Cover = []
        while left:
            best, least = self._cheap[0], math.inf
            for holder in self._cheap:
                if mine := holder.held & left:
                    counts = (self._each + holder.price * self._amount(mine)) / mine.bit_count()
                    if counts < least:
                        best, least = holder, counts
            chosen.append((best, best.held & left))
            left &= ~best.held
        return chosen

    def _moved_all(self, ordered: Sequence[Holder]) -> Cover:
        """Each expert or run at the first that holds it and is still quick enough; nothing if none is."""
        shares = [0] * len(ordered)
        for unit in runs_of(self._needed, self._run_length):
            for number, holder in enumerate(ordered):
                mine = shares[number] | unit
                if not unit & ~holder.held and self._expected(holder, mine) <= self._limit:
                    shares[number] = mine
                    break
            else:
                return []
        return [(holder, mine) for holder, mine in zip(ordered, shares, strict=True) if mine]

    def _moved(self, cover: Cover) -> Cover:
        """The same with experts moved to cheaper servers, where these are quick enough."""
        shares = {holder.peer_id: mine for holder, mine in cover}
        for holder, all_mine in cover:
            for unit in runs_of(all_mine, self._run_length):
                for other in self._cheap:
                    if other.price >= holder.price:
                        break
                    mine = shares.get(other.peer_id, 0) | unit
                    if not unit & ~other.held and self._expected(other, mine) <= self._limit:
                        shares[other.peer_id] = mine
                        shares[holder.peer_id] &= ~unit
                        break
        return [(each, shares[each.peer_id]) for each in self._cheap if shares.get(each.peer_id)]

    def _without_the_dispensable(self, cover: Cover) -> Cover:
        """The same without servers whose part others in it may as well do."""
        if len(cover) < 2:
            return cover
        counts = self._counts(cover)
        for holder, _ in sorted(cover, key=lambda each: self._amount(each[1])):
            mine = next(mine for each, mine in cover if each is holder)
            fewer: Cover = []
            for other, its in sorted(
                (each for each in cover if each[0] is not holder), key=lambda each: each[0].price
            ):
                fewer.append((other, its | mine & other.held))
                mine &= ~other.held
            if not mine and fewer and self._slowest(fewer) <= self._limit:
                now = self._counts(fewer)
                if now <= counts:
                    cover, counts = fewer, now
        return cover
