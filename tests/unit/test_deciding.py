"""What a node decides by itself is what its owner is told, with the device's line and its prices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import trio

from market.answering import Answers
from market.quote_runs import quote_of
from node.config import MarketConfig
from node.config.shape import MarketMode
from node.device.cell_sources import servable_layers
from node.device.serving_choice import Servable
from node.home.home_set import HomeSet, shapes_of, total_bytes
from node.market.advice_report import AdviceReport
from node.market.advising import Asked, Heard, advise_on
from node.market.advisor import Advisor
from node.market.base_prices import base_prices
from routing.advert_rows import Row
from routing.wire.holdings import Slice
from tests.adverts import NOW, advert
from tests.model_parts import ModelParts

Parts = Callable[..., ModelParts]

HOLDERS = 5
HOT = range(6)


def heard(parts: ModelParts) -> Heard:
    """Enough hold everything; who has quotes asks four times as much for the first half of each layer."""
    model_id, bases = parts.stored.model_id, base_prices(parts.manifest)
    slices = [Slice("experts", model_id, "qwen3moe", experts=[(0, max(bases), [(0, 11)])])]
    asked = {layer: (np.arange(12), np.repeat([base * 4, base // 2], 6)) for layer, base in bases.items()}
    quotes = [quote_of(model_id, 1, int(NOW) + 3_000, asked, 4_000)]
    rows = [
        Row(advert(f"peer {number}", slices=slices, quotes=quotes), b"", NOW, NOW + 600, "", False)
        for number in range(HOLDERS)
    ]
    return Heard(rows, Answers.of({row.advert.peer_id: "" for row in rows}))


def told(
    parts: ModelParts, market: MarketConfig, memory: int, serving: HomeSet | None = None, hot: float = 1.0
) -> AdviceReport:
    """By the command.

    Args:
        hot: how many times as often as others the experts of the first half were asked for.
    """
    shapes = shapes_of(parts.manifest)
    served = {layer: np.repeat([1e4 * hot, 1e4], 6) for layer in shapes} if serving else {}
    asked = Asked(market, parts.stored, memory, serving or HomeSet(), served)
    return advise_on(asked, heard(parts), "me", parts.store)


def decided(parts: ModelParts, market: MarketConfig, memory: int) -> HomeSet:
    """By a node."""
    there, shapes = heard(parts), shapes_of(parts.manifest)
    servable = Servable(servable_layers(parts.manifest, HomeSet.whole(shapes, shapes), memory), "me")
    advisor = Advisor(market, "me", parts.store, lambda model: {}, lambda: 0.0, lambda: there.answers)
    model_id = parts.stored.model_id

    async def main() -> HomeSet:
        found = await advisor.look(model_id, parts.manifest, servable, memory, HomeSet(), there.rows)
        assert found is not None
        return found[0]

    return trio.run(main)


SLOW = 500.0
"""Bits a second: far from what a million tokens a day take."""


@pytest.fixture(autouse=True)
def _one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """In which a peer's draws are the same."""
    monkeypatch.setattr("time.time", lambda: NOW)


@pytest.mark.parametrize("mode", ["scarcity", "fixed"])
def test_a_node_does_what_the_command_says(parts: Parts, mode: MarketMode) -> None:
    demo = parts("demo")
    memory = total_bytes(shapes_of(demo.manifest)) // 3
    kept = []
    for uplink in (None, SLOW):
        market = MarketConfig(mode=mode, price=150, uplink=uplink)
        kept.append(decided(demo, market, memory))
        assert kept[-1].as_ranges() == told(demo, market, memory).hold
    assert kept[0] != kept[1], "a line counts"


def test_a_slow_line_leaves_what_is_asked_for_most_to_others(parts: Parts) -> None:
    demo = parts("demo")
    shapes = shapes_of(demo.manifest)
    memory, whole = total_bytes(shapes) // 8, HomeSet.whole(shapes, shapes)  # of half a layer

    def hot(uplink: float | None) -> float:
        found = told(demo, MarketConfig(mode="fixed", uplink=uplink), memory, whole, hot=50.0)
        chosen = HomeSet.from_ranges(found.hold, shapes).experts()
        return sum(expert in HOT for each in chosen.values() for expert in each) / 6

    assert hot(None) == hot(1e9) == 1.0 and hot(SLOW) == 0.0


def test_where_prices_are_fixed_income_is_by_this_nodes_own(parts: Parts) -> None:
    demo = parts("demo")
    memory = 2 * total_bytes(shapes_of(demo.manifest))
    once, thrice = (told(demo, MarketConfig(mode="fixed", price=price), memory) for price in (100, 300))
    assert once.income > 0 and thrice.income == pytest.approx(3 * once.income, rel=1e-3)
    dear = told(demo, MarketConfig(mode="scarcity"), memory)
    assert dear.income > 1.5 * once.income, "there others' quotes count"
