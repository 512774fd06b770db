"""What a device is advised to hold, case by case."""

from __future__ import annotations

import math

import numpy as np
import pytest

from market.advice import Advice, Means, Reason, advise
from market.ground import Bools, Floats, Ground
from market.own_order import own_draws
from market.view import STRANGER, View

LAYERS, EXPERTS = 4, 8
N = LAYERS * EXPERTS
GROUND = Ground.of(np.repeat(np.arange(LAYERS), EXPERTS), np.full(N, 10), np.arange(N) // 4)
NOTHING = np.zeros(N, np.bool_)


def among(
    replicas: Floats | float,
    *,
    price: Floats | float = 100.0,
    demand: Floats | float = 1.0,
    servers: float = 1.0,
) -> View:
    full = [np.broadcast_to(np.asarray(each, np.float64), (N,)).copy() for each in (replicas, price, demand)]
    return View(full[0], full[1], full[2], servers, before=np.zeros(N))


def advised(
    view: View, memory: int, held: Bools = NOTHING, *, uplink: float = math.inf, peer: str = "me"
) -> Advice:
    return advise(GROUND, view, Means(memory, uplink), held, own_draws(peer, 0.0, GROUND))


def only(*units: int) -> Bools:
    return np.isin(np.arange(N), units)


def layers_of(cells: Bools) -> list[int]:
    return [int(layer) for layer in np.unique(GROUND.layer[cells])]


def test_the_first_in_a_swarm_takes_whole_layers() -> None:
    found = advised(among(0.0, demand=0.0), 160)
    assert found.cells.sum() == 16 and len(layers_of(found.cells)) == 2
    assert set(found.reason[found.cells]) == {Reason.NEED} and found.changes and found.hurry


def test_several_firsts_take_different_layers() -> None:
    assert len({tuple(layers_of(advised(among(0.0), 80, peer=f"peer {i}").cells)) for i in range(12)}) > 2


def test_less_than_a_layer_is_of_one_layer_and_in_groups() -> None:
    found = advised(among(0.0), 40)
    assert len(np.unique(GROUND.group[found.cells])) == 1


def test_the_rarest_come_first() -> None:
    replicas = np.full(N, 2.0)
    replicas[[3, 17]] = 1.0
    replicas[30] = 0.0
    assert np.flatnonzero(advised(among(replicas), 10).cells).tolist() == [30]
    assert np.flatnonzero(advised(among(replicas), 30).cells).tolist() == [3, 17, 30]


def test_income_counts_where_nothing_is_needed() -> None:
    demand = np.ones(N)
    demand[[5, 20]] = 50.0
    price = np.full(N, 100.0)
    price[11] = 6400.0
    found = advised(among(4.0, price=price, demand=demand), 30)
    assert np.flatnonzero(found.cells).tolist() == [5, 11, 20]
    assert found.income[5] == pytest.approx(100 * 50 / 5) and found.income[0] == pytest.approx(20.0)
    assert not found.needed.any()


def test_need_comes_before_any_income() -> None:
    replicas = np.full(N, 9.0)
    replicas[7] = 2.0
    price = np.full(N, 1.0)
    price[8:16] = 1e9
    assert advised(among(replicas, price=price), 10).cells[7]


def test_a_slow_uplink_leaves_what_is_asked_for_most_to_others() -> None:
    demand = np.ones(N)
    demand[:8] = 1000.0
    fast = advised(among(4.0, demand=demand), 80)
    slow = advised(among(4.0, demand=demand), 80, uplink=8.0)
    assert fast.cells[:8].all() and not slow.cells[:8].any()
    assert slow.income[0] == pytest.approx(100 * 1.0), "no more than an eighth of what it can send"


def test_a_whole_layer_is_worth_more_than_as_many_cells_of_several() -> None:
    demand = np.ones(N)
    demand[[8, 16, 24]] = 3.0
    found = advised(among(4.0, demand=demand, servers=1000.0), 80)
    assert len(layers_of(found.cells)) == 1
    assert set(found.reason[found.cells]) == {Reason.LAYER}


def test_nothing_is_changed_for_a_trifle() -> None:
    held = GROUND.layer == 1
    demand = np.where(GROUND.layer == 2, 1.1, 1.0)
    kept = advised(among(4.0, demand=demand), 80, held)
    assert not kept.changes and (kept.cells == held).all()
    demand = np.where(GROUND.layer == 2, 3.0, 1.0)
    changed = advised(among(4.0, demand=demand), 80, held)
    assert changed.changes and layers_of(changed.cells) == [2] and not changed.hurry


def test_the_last_holder_keeps_what_nobody_else_has() -> None:
    replicas = np.full(N, 9.0)
    replicas[0] = 0.0
    price = np.where(np.arange(N) == 1, 1e9, 1.0)
    assert not advised(among(replicas, price=price), 10, only(0)).changes


def test_ten_identities_that_never_answered_take_no_cell_from_its_last_holder() -> None:
    replicas = np.full(N, 9.0)
    replicas[0] = 10 * STRANGER
    price = np.where(np.arange(N) == 1, 1e9, 1.0)
    assert not advised(among(replicas, price=price), 10, only(0)).changes


def test_by_turns_only_one_of_the_last_two_gives_way_to_a_gap() -> None:
    replicas = np.full(N, 3.0)
    replicas[0], replicas[9] = 1.0, 0.0
    view = among(replicas)
    first = advised(view, 10, only(0))
    assert first.cells.tolist() == only(9).tolist()
    assert view.before is not None
    view.before[0] = 1.0
    assert not advised(view, 10, only(0)).changes


def test_what_is_held_beyond_a_smaller_memory_goes() -> None:
    found = advised(among(4.0), 20, only(0, 1, 2, 3))
    assert found.cells.sum() == 2 and found.changes


def test_a_device_with_room_for_all_holds_all() -> None:
    found = advised(among(50.0), N * 10)
    assert found.cells.all() and set(found.reason) == {Reason.LAYER}


def test_units_of_several_sizes_fill_what_there_is() -> None:
    ground = Ground.of(np.array([0, 0, 1]), np.array([7, 7, 2]))
    view = View(np.zeros(3), np.ones(3), np.ones(3), 0.0)
    found = advise(ground, view, Means(9, math.inf), np.zeros(3, np.bool_), own_draws("me", 0.0, ground))
    assert ground.size[found.cells].sum() == 9


@pytest.mark.parametrize(
    ("layer", "size", "group"),
    [
        ([], [], None),
        ([1, 1], [1, 1], None),
        ([0, 2], [1, 1], None),
        ([0, 0], [1], None),
        ([0, 0], [1, 0], None),
        ([0, 1], [1, 1], [5, 5]),
    ],
)
def test_a_ground_is_layer_by_layer(layer: list[int], size: list[int], group: list[int] | None) -> None:
    with pytest.raises(ValueError):
        Ground.of(
            np.array(layer, np.int64), np.array(size), None if group is None else np.array(group, np.int64)
        )
