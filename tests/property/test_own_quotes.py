"""A server's quotes over time: numbers, ends, what may be paid by, what survives a restart."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from market.quotes import QUOTE_MARGIN, OwnQuotes, is_over
from routing.wire.advert import CLOCK_SKEW
from routing.wire.quote import Quote, lasting
from tests.adverts import MODEL, NOW

LIFETIME = 600
OTHER_MODEL = "00" * 32
ROOM = 4_000

Prices = dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]


def priced(price: int, experts: int = 8) -> Prices:
    """A layer of cells, each a bit dearer than the one before."""
    return {3: (np.arange(experts), price + np.arange(experts))}


class OwnQuotesOverTime(RuleBasedStateMachine):
    """Against a list of all quotes that were ever issued."""

    @initialize()
    def begin(self) -> None:
        self.now = NOW
        self.own = OwnQuotes(LIFETIME)
        self.issued: list[Quote] = []

    def _note(self) -> None:
        known = {quote.number for quote in self.issued}
        self.issued += [quote for quote in self.own.current if quote.number not in known]

    @rule(model_id=st.sampled_from([MODEL, OTHER_MODEL]), price=st.integers(1, 5), experts=st.integers(1, 9))
    def issue(self, model_id: str, price: int, experts: int) -> None:
        before = {quote.model_id: quote for quote in self.own.current}.get(model_id)
        is_news = self.own.issue(model_id, priced(price, experts), self.now, ROOM)
        after = {quote.model_id: quote for quote in self.own.current}[model_id]
        assert is_news == (before is None or not before.asks_the_same(after))
        if before is not None:
            assert after.number >= before.number
        assert list(after.runs(3)) == [(each, each, price + each) for each in range(experts)]
        self._note()
        assert lasting([after], int(self.now), LIFETIME) == [after]

    @rule(model_id=st.sampled_from([MODEL, OTHER_MODEL]))
    def withdraw(self, model_id: str) -> None:
        self.own.withdraw(model_id)
        assert model_id not in {quote.model_id for quote in self.own.current}

    @rule(seconds=st.integers(0, 1_500))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def restart(self) -> None:
        self.own = OwnQuotes.restored(self.own.encoded(), self.now, LIFETIME)
        assert self.own.current == []  # the cells may be others now

    @invariant()
    def numbers_name_one_quote_each(self) -> None:
        numbers = [quote.number for quote in self.issued]
        assert len(set(numbers)) == len(numbers)

    @invariant()
    def every_quote_that_is_not_over_may_be_paid_by_and_no_other(self) -> None:
        for quote in self.issued:
            why = self.own.refusal(quote.number, self.now)
            assert self.own.valid(quote.number, self.now) is (not why)
            assert bool(why) is is_over(quote, self.now)
            assert why == "" or ("\n" not in why and str(quote.number) in why)
        unknown = max((quote.number for quote in self.issued), default=0) + 1
        assert "was never this server's" in self.own.refusal(unknown, self.now)

    @invariant()
    def the_least_is_the_least_of_all_that_may_be_paid_by(self) -> None:
        pairs = np.array([0, 3, 3, 8, 20], np.uint16)
        for model_id in (MODEL, OTHER_MODEL):
            totals = []
            for quote in self.issued:
                current = quote in self.own.current
                if quote.model_id == model_id and (current or not is_over(quote, self.now)):
                    named = {first: price for first, _, price in quote.runs(3)}
                    totals.append(sum(named.get(int(expert), quote.other) for expert in pairs))
            assert self.own.total_lowest(model_id, 3, pairs, self.now) == min(totals, default=0)


OwnQuotesOverTime.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestOwnQuotesOverTime = OwnQuotesOverTime.TestCase


def test_the_same_prices_are_the_same_quote_until_it_has_to_be_replaced() -> None:
    own = OwnQuotes(LIFETIME)
    assert own.issue(MODEL, priced(5), NOW, ROOM)
    first = own.current[0]
    assert first.number == int(NOW * 1000) and first.until == int(NOW) + 2 * LIFETIME + QUOTE_MARGIN
    assert not own.issue(MODEL, priced(5), NOW + LIFETIME, ROOM) and own.current == [first]
    assert own.is_due(MODEL, NOW + LIFETIME + 1)
    assert not own.issue(MODEL, priced(5), NOW + LIFETIME + 1, ROOM)  # no news, but another number
    second = own.current[0]
    assert second.number > first.number and second.until == first.until + LIFETIME + 1
    assert own.valid(first.number, NOW + LIFETIME + 1) and own.valid(second.number, NOW + LIFETIME + 1)


def test_refusals_say_which_quote_and_what_to_do() -> None:
    own = OwnQuotes(LIFETIME)
    assert own.refusal(7, NOW) == "quote 7 was never this server's; it asks none"
    own.issue(MODEL, priced(5), NOW, ROOM)
    first = own.current[0]
    own.issue(MODEL, priced(6), NOW + 1_000, ROOM)
    newest = own.current[0].number
    late = first.until + CLOCK_SKEW + 40
    assert own.refusal(first.number, late) == (
        f"quote {first.number} ended 340 s ago; the newest is {newest}: read this server's advert again"
    )
    own.total_lowest(MODEL, 3, np.array([0], np.uint16), late)  # forgets it
    assert own.refusal(first.number, late).startswith(
        f"quote {first.number} is over, or was never this server's"
    )


def test_a_clock_that_is_put_back_makes_new_quotes_with_higher_numbers() -> None:
    own = OwnQuotes(LIFETIME)
    own.issue(MODEL, priced(5), NOW, ROOM)
    before = own.current[0]
    earlier = NOW - 5_000
    assert lasting(own.current, int(earlier), LIFETIME) == [before] and own.is_due(MODEL, earlier)
    own.issue(MODEL, priced(5), earlier, ROOM)
    assert own.current[0].number == before.number + 1
    assert own.current[0].until == int(earlier) + 2 * LIFETIME + QUOTE_MARGIN


def test_a_damaged_memory_is_none() -> None:
    own = OwnQuotes(LIFETIME)
    own.issue(MODEL, priced(5), NOW, ROOM)
    good = own.encoded()
    number = own.current[0].number
    assert OwnQuotes.restored(good, NOW, LIFETIME).valid(number, NOW)
    assert not OwnQuotes.restored(good, NOW + 3_000, LIFETIME).valid(number, NOW + 3_000)
    for data in (b"", good[:-1], b"\xff" * 40):
        assert OwnQuotes.restored(data, NOW, LIFETIME).current == []
    content = msgspec.msgpack.decode(good)
    for change in ({"until": int(NOW) + 10**6}, {"layers": [[5, 4, [1, 1]]]}, {"number": number + 5}):
        damaged = content | {"quotes": [content["quotes"][0] | change]}
        own = OwnQuotes.restored(msgspec.msgpack.encode(damaged), NOW, LIFETIME)
        assert own.refusal(number, NOW) and own.total_lowest(MODEL, 3, np.array([0], np.uint16), NOW) == 0
