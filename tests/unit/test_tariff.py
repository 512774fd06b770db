"""Prices on their way into plans: who asks what, noticed in steps, weighed as is preferred."""

from __future__ import annotations

import numpy as np
import pytest

from market.preference import Prefer, tariff
from routing.dispatch.holders import LayerHolders
from routing.dispatch.plan import assign
from routing.estimates import Estimates
from routing.latency import Cost
from routing.table import CallShape, HolderTable
from routing.tariff import COMPETITORS, DEARER_SECONDS, TEASER, Prices, Tariff, surcharges
from routing.weighing import PRICE_SECONDS, WEIGH_SECONDS, Weighing
from routing.wire.holdings import Holdings, Slice

MODEL = "ab" * 32
SECOND = 10_000_000
ONES = dict.fromkeys(range(8), 1)


def told() -> Holdings:
    held = [Slice(kind="experts", model_id=MODEL, architecture="test", experts=[(0, 1, [(0, 7)])])]
    return Holdings([1], "", held, ["f32"], ["rows"], 16)


def table_of(*peers: str) -> HolderTable:
    table = HolderTable(MODEL, {(0, 0): CallShape(8, 8), (0, 1): CallShape(4, 8), (1, 0): CallShape(8, 8)})
    for peer in peers:
        table.connected(peer, told())
    return table


def asks(**prices: float) -> Prices:
    return lambda peer_id, layer: prices[peer_id]


def prices_of(holders: LayerHolders) -> dict[str, float]:
    return {each.peer_id: each.price for each in holders.holders}


def asked(table: HolderTable) -> str:
    ((peer, _),) = assign(range(8), table.holders(0, 0), ONES, ONES)
    return peer


def test_without_a_tariff_nobody_asks_for_anything() -> None:
    table = table_of("a", "b")
    assert not table.holders(0, 0).is_priced
    table.price(tariff("cheap", SECOND, asks(a=100, b=50)))
    assert table.holders(0, 0).is_priced and asked(table) == "b"
    table.price(None)
    assert not table.holders(0, 0).is_priced


def test_a_layers_further_calls_are_in_its_price() -> None:
    table = table_of("a", "b")
    table.price(tariff("cheap", SECOND, asks(a=100, b=50)))
    assert prices_of(table.holders(0, 0))["a"] == 2 * prices_of(table.holders(0, 0))["b"] > 0
    assert set(prices_of(table.holders(0, 1)).values()) == {0.0}


def test_layers_have_their_own_prices() -> None:
    table = table_of("a", "b")
    prices = {("a", 0): 100.0, ("b", 0): 50.0, ("a", 1): 10.0, ("b", 1): 0.0}
    table.price(tariff("balanced", SECOND, lambda peer_id, layer: prices[peer_id, layer]))
    assert prices_of(table.holders(0, 0)) == pytest.approx({"a": 1e-5, "b": 5e-6})
    assert prices_of(table.holders(1, 0)) == pytest.approx({"a": 1e-6, "b": 0.0})


def test_who_came_just_now_is_not_cheaper_than_the_known() -> None:
    table = table_of("a", "b")
    table.price(tariff("cheap", SECOND, asks(a=100, b=50)))
    table.connected("c", told())
    found = prices_of(table.holders(0, 0))
    assert found["c"] == found["a"] > found["b"]


def test_who_asks_for_nothing_is_cheapest() -> None:
    table = table_of("a", "b")
    table.weigh({"a": Cost(0.01, 0), "b": Cost(0.1, 0)}, [])
    table.price(tariff("cheap", SECOND, asks(a=1, b=0)))
    assert asked(table) == "b"


@pytest.mark.parametrize("prefer", ["fast", "cheap", "balanced"])
def test_replicas_do_not_take_turns_at_small_changes_of_prices(prefer: Prefer) -> None:
    rng = np.random.default_rng(1)
    table = table_of("a", "b")
    table.weigh({"a": Cost(0.05, 0), "b": Cost(0.05, 0)}, [])
    table.price(tariff(prefer, SECOND, asks(a=1000, b=1020)))
    before = table.holders(0, 0)
    assert asked(table) == "a"
    now = {"a": 1000.0, "b": 1020.0}
    moving = tariff(prefer, SECOND, lambda peer_id, layer: now[peer_id])
    for _ in range(100):
        noise = rng.uniform(-99, 99, 2)
        now.update(a=1000 + noise[0], b=1020 + noise[1])
        table.price(moving)
        assert prices_of(table.holders(0, 0)) == prices_of(before) and asked(table) == "a"
    now.update(a=1130.0, b=1020.0)
    table.price(moving)
    assert asked(table) == "b"
    now.update(a=1030.0)  # back, but not by so much that it is noticed
    table.price(moving)
    assert asked(table) == "b"


class Way:
    path = "direct"
    rtt = 0.05


def test_prices_are_looked_at_now_and_then_and_when_somebody_comes() -> None:
    table = table_of("a")
    looks: list[str] = []

    def prices(peer_id: str, layer: int) -> float:
        looks.append(peer_id)
        return 5.0

    weighing = Weighing(table, Estimates(), lambda peer_id: Way())
    weighing.look(100.0)
    assert not looks
    weighing.tariff = Tariff(prices, 1.0, False, table.holders(0, 0).slack)
    now = 100.0
    for _ in range(3):
        now += WEIGH_SECONDS
        weighing.look(now)
    assert looks == ["a", "a"]  # both layers, once
    table.connected("b", told())
    weighing.look(now + WEIGH_SECONDS)
    assert looks[2:].count("b") == 2
    looks.clear()
    weighing.look(now + WEIGH_SECONDS + PRICE_SECONDS)
    assert len(looks) == 4
    ready = table.holders(0, 0)
    weighing.prices_changed()
    weighing.look(now + 2 * WEIGH_SECONDS + PRICE_SECONDS)
    assert len(looks) == 8 and table.holders(0, 0) is ready, "nothing else is asked: nothing is made anew"
    weighing.tariff = None
    weighing.look(now + 3 * WEIGH_SECONDS + PRICE_SECONDS)
    assert not table.holders(0, 0).is_priced


def test_asking_twice_as_much_counts_as_being_so_much_slower() -> None:
    asked = np.array([100.0, 200.0, 400.0, 100.0, 150.0, 0.0])
    found = surcharges(asked)
    assert found[:4] == pytest.approx([0.0, DEARER_SECONDS, 2 * DEARER_SECONDS, 0.0])
    assert 0 < found[4] < DEARER_SECONDS and found[5] == 0.0
    assert (np.diff(found[np.argsort(asked)]) >= 0).all()


def test_few_servers_are_not_compared() -> None:
    few = np.append(np.full(COMPETITORS - 2, 100.0), [1600.0, 0.0])
    assert not surcharges(few).any() and not surcharges(np.zeros(0)).any()


def test_one_teaser_does_not_make_all_others_dear() -> None:
    asked = np.append(np.full(9, 100.0), 1.0)
    assert surcharges(asked) == pytest.approx([*[DEARER_SECONDS * np.log2(TEASER)] * 9, 0.0])


def test_who_asks_more_than_many_others_is_taken_for_slower() -> None:
    peers = "abcdef"
    table = table_of(*peers)
    table.weigh({peer: Cost(0.05, 0) for peer in peers} | {"a": Cost(0.03, 0)}, [])
    prices = dict.fromkeys(peers, 100.0)
    table.price(tariff("fast", SECOND, lambda peer_id, layer: prices[peer_id]))
    assert asked(table) == "a"
    prices["a"] = 400.0
    table.price(tariff("fast", SECOND, lambda peer_id, layer: prices[peer_id]))
    assert asked(table) != "a"
    assert {each.peer_id: each.cost for each in table.holders(0, 0).holders}["a"] == pytest.approx(0.09)
    table.price(None)
    assert asked(table) == "a"
