"""What the swarm asks for cells, as a matrix, and how scarce that makes them."""

from __future__ import annotations

import numpy as np
import pytest

from market.quotes import OwnQuotes
from node.market.price_map import LOOK_SECONDS, MOST_QUOTES, RANGES_AT_ONCE, PriceMap
from node.status.market_facts import scarcity
from routing.advert_rows import Row
from routing.wire.quote import Quote
from tests.adverts import MODEL, NOW, advert

BASE = 100
EXPERTS = 8
LAYERS = (2, 3)


def quote(prices: list[int], model: str = MODEL) -> Quote:
    """Of layer 3's first experts."""
    own = OwnQuotes()
    assert own.issue(model, {3: (np.arange(len(prices)), np.array(prices, np.int64))}, NOW, 4_000)
    return own.current[0]


def row(who: str, *quotes: Quote) -> Row:
    return Row(advert(who, quotes=list(quotes)), b"", NOW, NOW + 600, "", False)


def price_map() -> PriceMap:
    return PriceMap(MODEL, LAYERS, EXPERTS, {2: BASE, 3: BASE}, 25, 1600)


def test_a_price_lies_between_floor_and_cap_by_its_logarithm() -> None:
    height = price_map().height([row("ana", quote([25, 200, 1600, 1600 * 8]))], 0.0)
    assert height is not None
    assert height.shape == (2, EXPERTS)
    assert height[1, :4] == pytest.approx([0.0, 0.5, 1.0, 1.0])
    assert not height[1, 4:].any() and not height[0].any(), "nobody quotes these"


def test_the_mean_of_those_who_quote_counts() -> None:
    height = price_map().height([row("ana", quote([100])), row("bob", quote([300, 200]))], 0.0)
    assert height is not None
    assert height[1, :2] == pytest.approx([0.5, 0.5])


def test_without_quotes_there_is_no_matrix() -> None:
    assert price_map().height([row("ana"), row("bob", quote([100], "cd" * 32))], 0.0) is None


def test_it_is_the_same_object_until_it_is_looked_again() -> None:
    prices = price_map()
    first = prices.height([row("ana", quote([100]))], 0.0)
    assert prices.height([], LOOK_SECONDS / 2) is first
    assert prices.height([], LOOK_SECONDS) is None


def large(number: int, layers: int = 128) -> Quote:
    """Of layer 3, and of so many more that are none of the model's: other prices in each."""
    ranges = [(layer, layer, [0 if layer % 2 else 1]) for layer in range(3, 3 + layers)]
    return Quote(MODEL, number, int(NOW) + 600, [100], ranges)


def test_large_quotes_are_added_over_several_looks() -> None:
    prices = price_map()
    rows = [row(f"peer {number}", large(number + 1)) for number in range(RANGES_AT_ONCE // 128)]
    rows.append(row("last", quote([100, 200])))
    first = prices.height(rows, 0.0)
    assert first is None or not first[1, 1]
    second = prices.height(rows, LOOK_SECONDS)
    assert second is not None and second[1, 1] == pytest.approx(0.5)


def test_what_is_kept_does_not_grow_with_the_swarm() -> None:
    """Laid out, each large quote took 49 KB: with an advert from everybody, 200 MB."""
    prices = price_map()
    rows = [row(f"peer {number}", quote([100 + number])) for number in range(2 * MOST_QUOTES)]
    for look in range(4):
        height = prices.height(rows, look * LOOK_SECONDS)
    assert height is not None and len(prices._counted) == MOST_QUOTES
    assert all(kept is rows[place].advert.quotes[0] for place, kept in enumerate(prices._counted.values()))


def test_of_quotes_that_are_over_nothing_is_left() -> None:
    prices = price_map()
    rows = [row(f"peer {number}", quote([1600 + number, 25])) for number in range(100)]
    prices.height(rows, 0.0)
    after = prices.height([row("ana", quote([200]))], LOOK_SECONDS)
    assert after is not None and after[1, 0] == pytest.approx(0.5) and not after[1, 1:].any()
    assert prices.height([], 2 * LOOK_SECONDS) is None
    assert not prices._asked.any() and not prices._quoting.any()


def test_runs_that_are_not_named_or_reach_beyond_the_model_count_nothing() -> None:
    said = Quote(MODEL, 1, int(NOW) + 600, [25, 1600], [(0, 3, [0, 2, 5 * 3, 1, (10 * EXPERTS - 1) * 3 + 2])])
    assert [run[:2] for run in said.runs(3)] == [(1, 1), (8, 8), (9, 88)]
    height = price_map().height([row("ana", said)], 0.0)
    assert height is not None and height[0].tolist() == height[1].tolist() == [0, 1, 0, 0, 0, 0, 0, 0]


def test_a_cell_is_scarce_by_lacking_replicas_or_by_its_price() -> None:
    replicas = np.array([[0, 1, 3, 200]], np.uint8)
    none = np.zeros((1, 4))
    assert scarcity(replicas, 3, none).tolist() == [[255, 170, 0, 0]]
    assert scarcity(replicas, 3, none + 0.8).tolist() == [[255, 204, 204, 204]]
