"""Quotes laid out all at once say what they say run by run."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from market.quote_rows import quote_rows
from node.device.serving_choice import Servable, ServableLayer
from node.market.bonds import Bonds
from node.market.seen import _asked
from node.market.units import Units
from routing.wire.quote import Quote, quote_fault
from tests.adverts import MODEL, NOW, advert

WIDTH = 12
LAYERS = (1, 2, 4, 7)


@st.composite
def quotes(draw: st.DrawFn) -> Quote:
    """Any that an advert may carry, around the model's layers and experts."""
    prices = sorted(draw(st.sets(st.integers(1, 100), min_size=1, max_size=4)))
    edges = sorted(draw(st.sets(st.integers(0, 9), min_size=2, max_size=8)))
    runs = st.lists(st.integers(0, 5 * (len(prices) + 1) - 1), min_size=1, max_size=6)
    layers = [(first, last - 1, draw(runs)) for first, last in zip(edges[::2], edges[1::2], strict=False)]
    quote = Quote(MODEL, 1, int(NOW) + 600, prices, layers)
    assert not quote_fault(quote)
    return quote


@settings(max_examples=150, deadline=None)
@given(quotes())
def test_each_expert_costs_what_its_run_says(quote: Quote) -> None:
    found = np.zeros((len(LAYERS), WIDTH), np.int64)
    run_of = np.full((len(LAYERS), WIDTH), -1)
    for places, asked, run in quote_rows(quote, np.array(LAYERS), WIDTH):
        assert len(asked) == len(run) <= WIDTH and not found[places].any()
        found[places, : len(asked)], run_of[places, : len(run)] = asked, run
    expected = np.zeros_like(found)
    for place, layer in enumerate(LAYERS):
        for first, last, price in quote.runs(layer):
            expected[place, first : last + 1] = price
            assert len(set(run_of[place, first : last + 1])) <= 1
    assert (found == expected).all()


def units() -> Units:
    """Pairs of experts, and what is left over; not all can be served."""
    grains = (0b11, 0b110000, 0b1000, 0b101 << 8)
    made = Units.of(
        Servable({layer: ServableLayer(layer, grains, (1,) * len(grains)) for layer in LAYERS}, "me"), Bonds()
    )
    assert made is not None
    return made


@settings(max_examples=100, deadline=None)
@given(st.lists(quotes(), max_size=3))
def test_a_peer_has_one_word_about_a_unit_in_each_run(asked: list[Quote]) -> None:
    """In the same order as if they were read one by one: sums of what follows from it stay the same."""
    known = units()
    weighed = [(1.0 / (1 + at), advert(f"peer {at}", quotes=[quote])) for at, quote in enumerate(asked)]
    unit_of = {
        (int(place), int(expert)): unit
        for unit, (first, end) in enumerate(zip(known.first_cell, [*known.first_cell[1:], None], strict=True))
        for place, expert in zip(known.cell_place[first:end], known.cell_expert[first:end], strict=True)
    }
    expected = [
        (unit, float(price), weight)
        for weight, each in weighed
        for place, layer in enumerate(known.layers)
        for first, last, price in each.quotes[0].runs(layer)
        for unit in sorted({unit_of[at] for at in unit_of if at[0] == place and first <= at[1] <= last})
    ]
    found = _asked(known, MODEL, [*weighed, (1.0, advert("who quotes nothing"))])
    assert list(zip(*(each.tolist() for each in found), strict=True)) == expected
