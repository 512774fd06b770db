"""What a node believes: others' word goes so far and no further."""

from __future__ import annotations

import numpy as np
import pytest

from market.scarcity import REPLICA_FLOOR
from market.view import (
    CLAIM_BOUND,
    LONE_CLAIM,
    STRANGER,
    believed_demand,
    believed_prices,
    counted_replicas,
)

BASE = np.array([100.0, 100.0, 200.0])


def believed(*entries: tuple[int, float, float]) -> list[float]:
    """By (unit, price, weight)."""
    rows = np.array(entries, np.float64).reshape(-1, 3)
    found = believed_prices(rows[:, 0].astype(np.int64), rows[:, 1], rows[:, 2], BASE, floor=25, cap=1600)
    return [float(each) for each in found]


def test_what_nobody_quotes_costs_its_base_price() -> None:
    assert believed() == [100.0, 100.0, 200.0]


def test_three_who_agree_are_believed() -> None:
    assert believed(*[(1, 400.0, 1.0)] * 3) == pytest.approx([100.0, 400.0, 200.0])


def test_one_who_stands_alone_moves_it_a_part_of_the_way() -> None:
    assert believed((0, 500.0, 1.0))[0] == pytest.approx(100 + LONE_CLAIM * 400)
    assert believed((0, 10**9, 1.0))[0] == pytest.approx(100 + LONE_CLAIM * 1500), (
        "and no further than the cap"
    )
    assert believed((0, 1.0, 1.0))[0] == pytest.approx(100 - LONE_CLAIM * 75)


def test_one_among_several_does_not_move_the_median() -> None:
    honest = [(0, 120.0, 1.0), (0, 130.0, 1.0), (0, 140.0, 1.0)]
    with_a_liar = believed(*honest, (0, 10**9, 1.0))[0]
    assert 120.0 <= with_a_liar <= 140.0


def test_ten_strangers_are_outweighed_by_three_who_have_answered() -> None:
    honest = [(0, 100.0, 1.0)] * 3
    assert believed(*honest, *[(0, 1600.0, STRANGER)] * 10)[0] == pytest.approx(100.0)


def test_who_weighs_nothing_says_nothing() -> None:
    assert believed((0, 1600.0, 0.0), (2, 1.0, 0.0)) == [100.0, 100.0, 200.0]


def test_the_weight_of_a_word_never_falls_as_more_say_so() -> None:
    prices = [believed(*[(0, 800.0, 0.5)] * count)[0] for count in range(12)]
    assert prices == sorted(prices) and prices[0] == 100.0 and prices[-1] == 800.0


HELD = np.array([True, True, False, False])
SERVED = np.array([4e4, 1e4, 0.0, 0.0])
REPLICAS = np.array([1.0, 1.0, 2.0, 2.0])


def test_demand_of_what_is_held_is_what_was_paid_for() -> None:
    demand = believed_demand(SERVED, HELD, REPLICAS)
    assert demand[:2] == pytest.approx([8e4, 2e4], rel=0.02)
    assert demand[2] == demand[3] == pytest.approx(SERVED[:2].mean() * 2)


def test_what_is_held_and_not_asked_for_is_known_to_be_cold() -> None:
    demand = believed_demand(np.array([4e4, 0.0, 0.0, 0.0]), HELD, REPLICAS)
    assert demand[1] < 0.02 * demand[0]


def test_claims_move_demand_so_far_and_no_further() -> None:
    calm = believed_demand(SERVED, HELD, REPLICAS, claimed=np.ones(4))
    wild = believed_demand(SERVED, HELD, REPLICAS, claimed=np.array([1e6, 1e6, 1e6, 1e-6]))
    assert wild[2] == pytest.approx(CLAIM_BOUND * calm[2]) and wild[3] == pytest.approx(calm[3] / CLAIM_BOUND)
    assert wild[:2] == pytest.approx(calm[:2], rel=0.05), "own signed calls say what they said"


def test_own_use_tells_of_what_is_not_held() -> None:
    shares = np.array([0.4, 0.1, 0.3, 0.2])
    demand = believed_demand(SERVED, HELD, REPLICAS, shares=shares, claimed=np.full(4, 1e6))
    assert demand == pytest.approx(np.array([8e4, 2e4, 6e4, 4e4]), rel=0.02)


def test_before_anything_is_served_only_proportions_mean_anything() -> None:
    nothing = np.zeros(4)
    assert believed_demand(nothing, HELD, REPLICAS, shares=np.array([0.4, 0.1, 0.3, 0.2])) == pytest.approx(
        np.array([1.6, 0.4, 1.2, 0.8])
    )
    assert (believed_demand(nothing, np.zeros(4, np.bool_), REPLICAS) > 0).all()


def test_who_never_answered_counts_only_up_to_the_floor() -> None:
    answered = np.array([0.0, 1.0, 2.0, 3.0, 20.0])
    for heard in (0.0, 10 * STRANGER, 4096 * STRANGER):
        counted = counted_replicas(answered, heard)
        assert (counted >= answered).all() and (counted <= np.maximum(answered, REPLICA_FLOOR)).all()
        assert counted[3:].tolist() == [3.0, 20.0], "claims are nothing beside enough that answered"
    assert counted_replicas(answered, 10 * STRANGER).tolist() == [1.5, 2.5, 3.0, 3.0, 20.0]
