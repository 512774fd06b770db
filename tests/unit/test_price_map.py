"""What the swarm asks for cells, as a matrix, and how scarce that makes them."""

from __future__ import annotations

import numpy as np
import pytest

from market.quotes import OwnQuotes
from node.market.price_map import LAID_OUT_AT_ONCE, LOOK_SECONDS, PriceMap
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


def test_many_quotes_are_laid_out_over_several_looks() -> None:
    prices = price_map()
    rows = [row(f"peer {number}", quote([100])) for number in range(LAID_OUT_AT_ONCE)]
    rows.append(row("last", quote([100, 200])))
    first = prices.height(rows, 0.0)
    assert first is not None and first[1, 1] == 0
    second = prices.height(rows, LOOK_SECONDS)
    assert second is not None and second[1, 1] == pytest.approx(0.5)


def test_a_cell_is_scarce_by_lacking_replicas_or_by_its_price() -> None:
    replicas = np.array([[0, 1, 3, 200]], np.uint8)
    none = np.zeros((1, 4))
    assert scarcity(replicas, 3, none).tolist() == [[255, 170, 0, 0]]
    assert scarcity(replicas, 3, none + 0.8).tolist() == [[255, 204, 204, 204]]
