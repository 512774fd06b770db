"""Quotes as the status tells them: sums over cells, and no more of them than one can read."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from market.quote_runs import quote_of
from node.market.quote_told import MAX_TOLD_RUNS, quote_told
from routing.wire.quote import MAX_PRICE, MAX_RUNS, Quote, quote_fault
from tests.adverts import MODEL, NOW, advert

PRICES = st.lists(st.integers(1, MAX_PRICE), min_size=1, max_size=6)


@given(
    prices=PRICES,
    held=st.dictionaries(st.integers(0, 5), st.sets(st.integers(0, 40), min_size=1), min_size=1),
)
@settings(deadline=None)
def test_sums_are_those_of_the_cells(prices: list[int], held: dict[int, set[int]]) -> None:
    cells = {
        layer: (
            np.array(sorted(experts)),
            np.array([prices[expert % len(prices)] for expert in sorted(experts)]),
        )
        for layer, experts in held.items()
    }
    told = quote_told(None, quote_of(MODEL, 3, int(NOW), cells, 6_000), by_cell=True)
    asked = np.concatenate([prices for _, prices in cells.values()])
    assert (told.cells, told.lowest, told.highest) == (len(asked), asked.min(), asked.max())
    assert told.mean == round(int(asked.sum()) / len(asked), 1)
    named = [
        (layer, expert)
        for layer, runs in told.layers
        for low, high, _ in runs
        for expert in range(low, high + 1)
    ]
    assert named == sorted((layer, expert) for layer, experts in held.items() for expert in experts)


def test_whose_quote_it_is() -> None:
    value = advert("ana", name="attic")
    told = quote_told(value, Quote(MODEL, 3, 50, [7], [(0, 0, [1])]), by_cell=False)
    assert (told.peer, told.name, told.model, told.number, told.until) == (
        value.peer_id,
        "attic",
        MODEL,
        3,
        50.0,
    )
    assert told.layers == []


def test_a_short_quote_that_names_everything_makes_no_long_answer() -> None:
    """1,145 bytes of an advert would be 800 MB of JSON."""
    quote = Quote(MODEL, 1, int(NOW), [5, 6], [(0, 65_535, [1 + each % 2 for each in range(MAX_RUNS)])])
    assert quote_fault(quote) == "" and len(msgspec.msgpack.encode(quote)) < 1_200
    told = quote_told(None, quote, by_cell=True)
    assert told.cells == 65_536 * MAX_RUNS and told.mean == 5.5
    assert sum(len(runs) for _, runs in told.layers) == MAX_TOLD_RUNS
    assert len(msgspec.json.encode(told)) < 2 * 2**20
