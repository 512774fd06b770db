"""Quotes in adverts: what a server asks for a pair, cell by cell (docs/protocol.md, "Quotes").

1. A quote stands in a signed advert and counts as signed with it. It is named by the peer, and a number that
   grows with each quote of that peer, whatever the model.
2. A layer's prices are runs from expert 0 on, each one number: experts less 1, times the quote's prices and
   1 more, plus which of these each costs, counted from 1. A cell with a price of its own takes a byte.
   Cells that are not named (0, or beyond the last run, or in no run of layers) cost `Quote.other`: the middle
   one of its prices. So both sides know what a cell costs that the server took after the quote was made.
3. It may be paid by until its own end, which is after that of the advert that carries it.

Pure, bounded, validated: `quote_fault` says what msgspec's bounds cannot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from routing.wire.holdings import MAX_LAYER_RUNS
from routing.wire.limits import MAX_EXPERT

MAX_QUOTES = 64
"""One for each model that a node serves (`holdings.MAX_SLICES`)."""

MAX_PRICE = 1_000_000_000
"""Micro-credits a pair: a thousand credits, 100,000 times what a cell of today's largest models costs. 65,536
pairs at this price are far from 2^63."""

MAX_PRICES = 255
"""Different prices in a quote: a grid of 9 % from a floor to 1,024 times the floor has 81."""

MAX_NUMBER = 2**53
"""Integers above this are not exact everywhere; milliseconds since 1970 reach it in the year 287,396."""

MAX_QUOTE_SECONDS = 7_500
"""From an advert's issue to the end of a quote in it: two of the longest lifetimes, and a bit. What an owner
has once offered must not bind it for days."""

MAX_RUNS = 1_024
"""Of experts in a layer: also where every second one of 1,024 is held."""

_Layer = Annotated[int, msgspec.Meta(ge=0, le=MAX_EXPERT)]
_Run = Annotated[int, msgspec.Meta(ge=0, lt=(MAX_EXPERT + 1) * (MAX_PRICES + 1))]
_Price = Annotated[int, msgspec.Meta(ge=1, le=MAX_PRICE)]
_Runs = Annotated[list[_Run], msgspec.Meta(min_length=1, max_length=MAX_RUNS)]


class Quote(msgspec.Struct, frozen=True):
    """What a server asks for its cells of one model.

    Attributes:
        model_id: 64 hex digits, lower case.
        number: names it among the quotes of its peer; a later one has a higher number.
        until: unix time in seconds, by the clock of its peer, after which it may not be paid by.
        prices: micro-credits a pair, ascending.
        layers: [layer first, layer last, runs] each, ascending and apart; a run is (experts - 1) x (number of
            prices + 1) + which price (0: not named).
    """

    model_id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}\\Z")]
    number: Annotated[int, msgspec.Meta(ge=1, le=MAX_NUMBER)]
    until: Annotated[int, msgspec.Meta(ge=0, le=2**40)]
    prices: Annotated[list[_Price], msgspec.Meta(min_length=1, max_length=MAX_PRICES)]
    layers: Annotated[
        list[tuple[_Layer, _Layer, _Runs]], msgspec.Meta(min_length=1, max_length=MAX_LAYER_RUNS)
    ]

    @property
    def other(self) -> int:
        """What a cell costs that is not named."""
        return self.prices[len(self.prices) // 2]

    def runs(self, layer: int) -> Iterator[tuple[int, int, int]]:
        """(first expert, last expert, price) of a layer's runs that are named."""
        for first, last, numbers in self.layers:
            if first <= layer <= last:
                start = 0
                for number in numbers:
                    more, which = divmod(number, len(self.prices) + 1)
                    if which:
                        yield start, start + more, self.prices[which - 1]
                    start += more + 1
                return

    def asks_the_same(self, other: Quote) -> bool:
        """Whether the prices are the same, whatever number and end."""
        mine, others = (self.model_id, self.prices, self.layers), (other.model_id, other.prices, other.layers)
        return mine == others


def quote_fault(quote: Quote) -> str:
    """What is wrong with a quote's prices and runs; "" if nothing."""
    if any(later <= price for price, later in zip(quote.prices, quote.prices[1:], strict=False)):
        return "its prices are not ascending"
    end = -1
    for first, last, numbers in quote.layers:
        if first <= end or last < first:
            return "its runs of layers are not ascending and apart"
        end = last
        experts = sum(number // (len(quote.prices) + 1) + 1 for number in numbers)
        if experts > MAX_EXPERT + 1:
            return f"layer {first}: its runs have {experts} experts"
    return ""


def lasting(quotes: Sequence[Quote], issued_at: int, lifetime: int) -> list[Quote]:
    """Those that an advert may carry: a clock that was set anew may have ended others, or put them far
    ahead."""
    return [quote for quote in quotes if _lasts(quote, issued_at, lifetime)]


def quotes_fault(quotes: Sequence[Quote], issued_at: int, lifetime: int) -> str:
    """What is wrong with the quotes of an advert; "" if nothing.

    Args:
        issued_at, lifetime: the advert's.
    """
    if len({quote.model_id for quote in quotes}) < len(quotes):
        return "two quotes are for one model"
    if len({quote.number for quote in quotes}) < len(quotes):
        return "two quotes have one number"
    for quote in quotes:
        if not _lasts(quote, issued_at, lifetime):
            return (
                f"quote {quote.number} ends {quote.until - issued_at} s after the advert was issued: "
                f"allowed are {lifetime} (the advert's lifetime) to {MAX_QUOTE_SECONDS} s"
            )
        fault = quote_fault(quote)
        if fault:
            return f"quote {quote.number}: {fault}"
    return ""


def _lasts(quote: Quote, issued_at: int, lifetime: int) -> bool:
    return lifetime <= quote.until - issued_at <= MAX_QUOTE_SECONDS
