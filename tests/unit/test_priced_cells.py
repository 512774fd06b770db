"""A model's cells on one node: which keep their prices, and what new ones begin with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from market.answering import Answers
from market.quote_runs import quote_of
from market.scarcity import Levels
from node.market.others import MOST_QUOTES, Others
from node.market.priced_cells import PricedCells
from routing.adverts import AdvertTable
from routing.wire.advert import sign_advert
from routing.wire.holdings import Slice
from routing.wire.quote import Quote
from tests.adverts import MODEL, NOW, SWARM, advert, identity

BASE = 100


def cells(layers: Sequence[int], experts: Sequence[int]) -> PricedCells:
    flat = np.array([(layer, expert) for layer in layers for expert in experts], np.int64)
    return PricedCells(flat[:, 0], flat[:, 1], np.full(len(flat), BASE, np.int64), Levels.at_base(len(flat)))


def nobody() -> Sequence[Quote]:
    raise AssertionError("nothing is new: what others ask need not be looked at")


def test_cells_that_stay_or_go_are_not_priced_anew() -> None:
    before = cells((3, 4), range(8))
    before = before.at(Levels(np.arange(16), np.arange(16) * 2))
    same = before.following(before, nobody)
    fewer = cells((4,), range(2, 8)).following(before, nobody)
    assert same.levels.level.tolist() == list(range(16))
    assert fewer.levels.level.tolist() == list(range(10, 16))
    assert fewer.levels.shown.tolist() == list(range(20, 32, 2))


def test_new_cells_begin_at_the_mean_of_what_is_asked() -> None:
    rng = np.random.default_rng(5)
    quotes = []
    for number in range(1, 12):
        layers = np.flatnonzero(rng.random(9) < 0.6).tolist() or [0]
        alike, wide = rng.integers(1, 5), int(rng.integers(1, 40))
        asked = {
            layer: (np.flatnonzero(rng.random(wide) < 0.8), np.zeros(0, np.int64)) for layer in layers
        } | {layers[0]: (np.arange(wide), np.zeros(0, np.int64))}
        priced = {
            layer: (experts, (rng.integers(50, 400, len(experts)) // (50 * alike) + 1) * 50)
            for layer, (experts, _) in asked.items()
        }
        quotes.append(quote_of(MODEL, number, int(NOW), priced, 4_000))
    quotes.append(Quote(MODEL, 12, int(NOW), [60, 90], [(0, 1, [3 * 3 + 1, 0, 2 * 3 + 2]), (4, 60, [900])]))
    new = cells((0, 1, 4, 7, 50), range(0, 32, 3)).following(None, lambda: quotes)
    for place, (layer, expert) in enumerate(zip(new.layers, new.experts, strict=True)):
        prices = [
            price
            for quote in quotes
            for first, last, price in quote.runs(int(layer))
            if first <= expert <= last
        ]
        mean = sum(prices) // len(prices) if prices else BASE
        expected = Levels.of(np.array([BASE]), np.array([mean]))
        assert new.levels.level[place] == expected.level[0], (layer, expert, prices)


@pytest.mark.parametrize("known", [True, False])
def test_of_thousands_of_servers_some_quotes_are_enough(known: bool) -> None:
    table = AdvertTable(SWARM, str(identity("me").peer_id), 9, lambda advert, now: "")
    slices = [Slice("experts", MODEL, "qwen3moe", experts=[(0, 0, [(0, 7)])])]
    quotes = [Quote(MODEL, 1, int(NOW) + 1_320, [400], [(0, 0, [7 * 2 + 1])])]
    peers = {}
    for number in range(MOST_QUOTES + 6):
        value = advert(f"peer {number}", slices=slices, quotes=quotes, issued_at=int(NOW))
        assert table.offer(sign_advert(value, identity(f"peer {number}")), NOW, from_peer="").changed
        peers[value.peer_id] = ""
    others = Others(table, lambda: Answers.of(peers if known else {}))
    assert len(others.quotes(MODEL)) == (MOST_QUOTES if known else 0)
