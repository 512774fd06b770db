"""What bench_holding makes of what it saw."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scripts.bench.holding_figures import (
    Sample,
    at_random,
    central,
    held_after,
    largest_load,
    least_coverage,
    median_prices,
    price_distances,
    rank_correlation,
    taken_up,
    whole_layers,
    worst_loss,
)
from scripts.simulate.world import BoolArray

LIVE = np.array([True, True, True])


def held(*rows: str) -> BoolArray:
    """Of servers, a character a cell."""
    return np.array([[each == "x" for each in row] for row in rows])


def sample(at: float, *rows: str, live: BoolArray = LIVE) -> Sample:
    return Sample(at, held(*rows), live)


def test_when_all_is_held_and_when_it_is_lost() -> None:
    samples = [
        sample(1.0, "x...", "....", "...."),
        sample(2.0, "xx..", "..xx", "...."),
        sample(3.0, "xx..", "..xx", "xxxx"),
        sample(4.0, "xx..", "..xx", "xxxx", live=np.array([True, False, False])),
        sample(5.0, "xx..", "..xx", "xxxx", live=np.array([False, False, True])),
    ]
    assert held_after(samples, 0.0, 1) == 2.0
    assert held_after(samples, 0.5, 2) == 2.5
    assert held_after(samples, 0.0, 3) is None
    assert held_after(samples, 3.5, 1) == 1.5
    assert least_coverage(samples, 2.0, 5.0) == 0.5
    assert least_coverage(samples, 2.0, 3.0, 2) == 0.0
    assert math.isnan(least_coverage(samples, 6.0, 7.0))


def test_what_is_taken_up_counts_at_who_lives_before_and_after() -> None:
    samples = [
        sample(1.0, "....", "....", "...."),
        sample(2.0, "xx..", "..xx", "x..."),
        sample(3.0, ".xx.", "..xx", "xxxx", live=np.array([True, True, False])),
    ]
    cells, moves = taken_up(samples, 0.0, 3.0)
    assert cells == pytest.approx(6 / 2.5)
    assert moves == 4
    assert taken_up(samples, 2.0, 3.0) == (0.5, 1)
    assert taken_up(samples, 9.0, 10.0) == (0.0, 0)


def test_ranks_of_equals_are_averaged() -> None:
    assert rank_correlation(np.array([1, 2, 3, 4]), np.array([10, 20, 30, 1000])) == pytest.approx(1.0)
    assert rank_correlation(np.array([4, 3, 2, 1]), np.array([10, 20, 30, 1000])) == pytest.approx(-1.0)
    assert rank_correlation(np.array([1, 1, 2, 2]), np.array([1, 2, 1, 2])) == pytest.approx(0.0)
    assert math.isnan(rank_correlation(np.array([2, 2, 2]), np.array([1, 2, 3])))


def test_the_worst_loss_is_of_all_holders_of_a_cell() -> None:
    placed = held("xx..", "x..x", "xx.x", "..x.", "..x.")
    assert worst_loss(placed, 1) == []
    assert worst_loss(placed, 2) == [0, 2]
    assert worst_loss(placed, 4) == [0, 1, 2]
    assert worst_loss(placed, 5) == [0, 1, 2, 3, 4]


def test_whole_layers_of_all_servers() -> None:
    assert whole_layers(held("xx..", "x.xx", "xxxx"), 2) == 4


def test_the_largest_load_is_what_no_split_can_avoid() -> None:
    demand = np.array([8.0, 1.0, 1.0, 2.0])
    assert largest_load(held("x...", ".xxx"), demand) == pytest.approx(8 / 6)
    assert largest_load(held("xxxx", "xxxx"), demand) == pytest.approx(1.0)
    even = np.array([3.0, 1.0, 1.0, 1.0])
    assert largest_load(central(np.array([1, 3]), even), even) == pytest.approx(1.0)


def test_random_placement_fills_each_memory() -> None:
    found = at_random(np.array([2, 5, 40]), 3, 4, seed=7)
    assert found.sum(axis=1).tolist() == [2, 5, 12]
    assert (found == at_random(np.array([2, 5, 40]), 3, 4, seed=7)).all()
    assert (found != at_random(np.array([2, 5, 40]), 3, 4, seed=8)).any()


def test_how_far_prices_were_from_their_end() -> None:
    demand = np.array([3.0, 1.0])
    rising = [np.array([100.0 + each, 100.0]) for each in range(31)]
    swarm, cell = price_distances(rising, demand)
    final = 128.0  # the mean of the last five
    assert cell == pytest.approx(1 - 120 / final)
    assert swarm == pytest.approx(1 - (0.75 * 120 + 25) / (0.75 * final + 25))
    assert all(math.isnan(each) for each in price_distances(rising[:25], demand))


def test_the_lower_median_of_who_asks_anything() -> None:
    nan = math.nan
    found = median_prices([np.array([1.0, nan, 5.0]), np.array([3.0, nan, nan]), np.array([9.0, nan, 7.0])])
    assert found[[0, 2]].tolist() == [3.0, 5.0]
    assert math.isnan(found[1])
