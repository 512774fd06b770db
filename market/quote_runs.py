"""From prices of cells to a quote that an advert has room for. Pure.

Cells side by side at one price are a run. Where the quote is too large, prices that are near each other
become one: first within 9 %, then more and more, and gaps between cells no longer end a run. A run costs the
mean of its cells, or the price of the quote nearest to it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from market.price import PriceArray
from routing.wire.holdings import MAX_LAYER_RUNS
from routing.wire.quote import MAX_PRICE, MAX_PRICES, MAX_RUNS, Quote

CellPrices = Mapping[int, tuple[npt.NDArray[np.int64], PriceArray]]
"""By layer: experts ascending, and what a pair through each costs."""

NEARNESS = (100, 110, 119, 130, 142, 155, 169, 184, 201, 239, 284, 338, 402, 568, 804, 1_608, 102_400)
"""Per cent that the dearest cell of a run may cost of its cheapest; the least that
fits. Steps of the grid of prices, then coarser."""

_Runs = list[tuple[int, int, int]]  # first expert, last expert, price


def quote_of(model_id: str, number: int, until: int, cells: CellPrices, room: int) -> Quote:
    """A quote for these cells, at least one.

    Args:
        room: bytes it may take. One price for everything is the least that can be said, in some 150 bytes.
    """
    bounded = {
        layer: (experts.tolist(), np.clip(prices, 1, MAX_PRICE).tolist())
        for layer, (experts, prices) in sorted(cells.items())
        if len(experts)
    }
    listed = sorted({price for _, prices in bounded.values() for price in prices})
    listed = listed[:: -(-len(listed) // MAX_PRICES)]

    def at(nearness: int) -> Quote | None:
        runs = {
            layer: _runs(experts, prices, listed, nearness) for layer, (experts, prices) in bounded.items()
        }
        quote = _written(model_id, number, until, runs)
        return quote if _fits(quote, room) else None

    best = at(NEARNESS[0])
    if best is None:  # halving: a large server's six thousand cells take a while each time
        low, high = 0, len(NEARNESS)
        while high - low > 1:
            middle = (low + high) // 2
            found = at(NEARNESS[middle])
            if found is None:
                low = middle
            else:
                best, high = found, middle
    return best or _one_price(model_id, number, until, bounded)


def _runs(experts: Sequence[int], prices: Sequence[int], listed: Sequence[int], nearness: int) -> _Runs:
    runs: _Runs = []
    first = begun = 0
    low = high = prices[0]
    for place in range(1, len(experts) + 1):
        if place < len(experts):
            price = prices[place]
            joined = nearness > NEARNESS[0] or experts[place] == experts[place - 1] + 1
            if joined and max(high, price) * 100 <= min(low, price) * nearness:
                low, high = min(low, price), max(high, price)
                continue
        mean = (2 * sum(prices[begun:place]) + place - begun) // (2 * (place - begun))
        runs.append((experts[first], experts[place - 1], _nearest(listed, mean)))
        if place < len(experts):
            first = begun = place
            low = high = prices[place]
    return runs


def _nearest(listed: Sequence[int], price: int) -> int:
    place = bisect_left(listed, price)
    around = listed[max(0, place - 1) : place + 1]
    return min(around, key=lambda each: abs(each - price))


def _written(model_id: str, number: int, until: int, runs: Mapping[int, _Runs]) -> Quote:
    used = sorted({price for layer in runs.values() for _, _, price in layer})
    which = {price: place for place, price in enumerate(used, 1)}
    layers: list[tuple[int, int, list[int]]] = []
    for layer, of_layer in runs.items():
        named = ((first, last, which[price]) for first, last, price in of_layer)
        numbers = [(count - 1) * (len(used) + 1) + number for count, number in _counted(named)]
        if layers and layers[-1][1] == layer - 1 and layers[-1][2] == numbers:
            layers[-1] = (layers[-1][0], layer, numbers)
        else:
            layers.append((layer, layer, numbers))
    return Quote(model_id, number, until, used, layers)


def _counted(runs: Iterable[tuple[int, int, int]]) -> Iterable[tuple[int, int]]:
    """How many experts, and which price, from expert 0 on."""
    end, before = 0, -1
    length = 0
    for first, last, which in runs:
        if first == end and which == before:
            length += last + 1 - first
        else:
            if length:
                yield length, before
            if first > end:
                yield first - end, 0
            length, before = last + 1 - first, which
        end = last + 1
    yield length, before


def _fits(quote: Quote, room: int) -> bool:
    return (
        len(quote.prices) <= MAX_PRICES
        and len(quote.layers) <= MAX_LAYER_RUNS
        and all(len(numbers) <= MAX_RUNS for *_, numbers in quote.layers)
        and len(msgspec.msgpack.encode(quote)) <= room
    )


def _one_price(
    model_id: str, number: int, until: int, cells: Mapping[int, tuple[list[int], list[int]]]
) -> Quote:
    prices = [price for _, of_layer in cells.values() for price in of_layer]
    mean = (2 * sum(prices) + len(prices)) // (2 * len(prices))
    last = max(experts[-1] for experts, _ in cells.values())
    return Quote(model_id, number, until, [mean], [(min(cells), max(cells), [2 * last + 1])])
