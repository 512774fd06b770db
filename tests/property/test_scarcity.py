"""Scarcity prices: whole, bounded, monotone, settled in 20 periods from anywhere, calm under noise."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from market.levels import OCTAVE
from market.price import percent_of
from market.scarcity import GRID, PLAY, Levels, Need, Scarcity, is_trifle
from routing.errors import LocalError

quick = settings(max_examples=150, deadline=None)
long = settings(max_examples=40, deadline=None)

SETTLED = 20
"""Periods after which a price is within a tenth of where it ends."""

Cells = npt.NDArray[np.int64]

rules = st.tuples(st.integers(1, 200), st.integers(1, 1_024), st.integers(0, 5)).map(
    lambda given: Scarcity(given[0], min(given[0] * given[1], 100_000), given[2])
)
work = st.integers(0, 10**9)
needs = st.builds(
    lambda demand, rest, capacity, held, replicas: Need(demand, demand + rest, capacity, held, replicas),
    work,
    work,
    work,
    st.integers(1, 100_000),
    st.integers(0, 50),
)
bases = st.integers(1, 10**7)
starts = st.lists(st.integers(-20 * OCTAVE, 20 * OCTAVE), min_size=1, max_size=8)


def cells(*values: int) -> Cells:
    return np.array(values, np.int64)


def levels_at(numbers: list[int]) -> Levels:
    """Anywhere, also out of bounds: a config may have changed."""
    return Levels(cells(*numbers), cells(*(number // GRID * GRID for number in numbers)))


def more(need: Need, field: str, by: int) -> Need:
    change: dict[str, Any] = {field: getattr(need, field) + by}
    return replace(need, **change)


# ---- one step -----------------------------------------------------------------------------------


@quick
@given(rules, needs, starts, bases)
def test_prices_are_whole_and_within_floor_and_cap(
    rule: Scarcity, need: Need, numbers: list[int], base: int
) -> None:
    levels = levels_at(numbers)
    for _ in range(3):
        prices = rule.price(np.full(len(numbers), base), levels)
        assert prices.dtype == np.int64 and prices.min() >= 1
        assert percent_of(base, rule.floor) <= prices.min() and prices.max() <= percent_of(base, rule.cap)
        levels = rule.next(levels, need)
        assert rule.lowest <= levels.level.min() and levels.level.max() <= rule.highest


@quick
@given(rules, needs, st.sampled_from(["demand", "load", "held"]), work)
def test_more_need_never_lowers_the_target(rule: Scarcity, need: Need, field: str, by: int) -> None:
    assert rule.target(more(need, field, by)) >= rule.target(need)


@quick
@given(rules, needs, st.sampled_from(["capacity", "replicas"]), work)
def test_more_supply_never_raises_the_target(rule: Scarcity, need: Need, field: str, by: int) -> None:
    assert rule.target(more(need, field, by)) <= rule.target(need)


@quick
@given(rules, needs, starts, st.sampled_from(["demand", "load"]), work, bases)
def test_a_step_is_monotone_in_the_price_before_and_in_demand(
    rule: Scarcity, need: Need, numbers: list[int], field: str, by: int, base: int
) -> None:
    before = levels_at(sorted(numbers))
    now = rule.next(before, need)
    prices = rule.price(np.full(len(numbers), base), now)
    assert (
        (np.diff(now.level) >= 0).all() and (np.diff(now.shown) >= 0).all() and (np.diff(prices) >= 0).all()
    )
    dearer = rule.next(before, more(need, field, by))
    assert (dearer.level >= now.level).all() and (dearer.shown >= now.shown).all()


@quick
@given(rules, needs, starts)
def test_a_step_is_bounded(rule: Scarcity, need: Need, numbers: list[int]) -> None:
    before = levels_at(numbers)
    before = Levels(np.clip(before.level, rule.lowest, rule.highest), before.shown)
    after = rule.next(before, need)
    assert np.abs(after.level - before.level).max() <= rule.step
    once_more = rule.next(after, need)
    assert np.abs(once_more.shown - after.shown).max() <= rule.step + GRID
    assert np.abs(after.shown - after.level).max() <= PLAY


@quick
@given(rules, st.lists(needs, min_size=1, max_size=6), st.integers(-600, 1_200))
def test_cells_do_not_look_at_their_neighbours(rule: Scarcity, each: list[Need], start: int) -> None:
    def column(field: str) -> Cells:
        return cells(*(getattr(need, field) for need in each))

    together = Need(*(column(field) for field in ("demand", "load", "capacity", "held", "replicas")))
    at_once = rule.next(levels_at([start] * len(each)), together)
    alone = [rule.next(levels_at([start]), need) for need in each]
    assert at_once.level.tolist() == [int(levels.level[0]) for levels in alone]
    assert at_once.shown.tolist() == [int(levels.shown[0]) for levels in alone]


def test_scarce_cells_are_dearer_without_any_demand() -> None:
    rule = Scarcity()
    replicas = np.arange(6)
    levels = rule.target(Need(0, 0, 10**6, 100, replicas))
    assert levels.tolist() == [OCTAVE, 0, -OCTAVE, -2 * OCTAVE, -2 * OCTAVE, -2 * OCTAVE]


def test_a_server_that_is_half_busy_asks_the_base_price() -> None:
    need = Need(demand=5_000, load=500_000, capacity=10**6, held=100, replicas=3)
    assert Scarcity().target(need) == 0


def test_the_busier_server_and_the_hotter_cell_are_dearer() -> None:
    load = np.array([100_000, 500_000, 500_000])
    demand = np.array([1_000, 5_000, 20_000])
    idle, busy, hot = Scarcity().target(Need(demand, load, 10**6, 100, 3)).tolist()
    assert idle < busy < hot


def test_a_server_that_does_not_know_what_it_can_asks_about_the_base_price() -> None:
    assert Scarcity().target(Need(0, 0, 0, 100, 3)) == 0


@pytest.mark.parametrize(("floor", "cap"), [(0, 100), (200, 100), (1, 1_025)])
def test_bounds_between_which_nothing_settles_are_refused(floor: int, cap: int) -> None:
    with pytest.raises(LocalError, match="floor"):
        Scarcity(floor, cap)


# ---- many steps ---------------------------------------------------------------------------------


@long
@given(rules, needs, starts)
def test_from_any_start_prices_are_within_a_tenth_of_their_end_after_20_periods(
    rule: Scarcity, need: Need, numbers: list[int]
) -> None:
    base = np.full(len(numbers), 1_000_000)
    levels = levels_at(numbers)
    prices = []
    for _ in range(SETTLED + 40):
        levels = rule.next(levels, need)
        prices.append(rule.price(base, levels))
    final = prices[-1]
    for later in prices[SETTLED:]:
        assert np.abs(later / final - 1).max() <= 0.1
    assert (prices[-1] == prices[-5]).all()  # and it ends: no cycle
    assert (np.abs(levels.level - rule.target(need)) <= 2).all()


@long
@given(needs, st.integers(-512, 1_024), st.integers(-512, 1_024))
def test_where_it_ends_hardly_depends_on_where_it_began(need: Need, one: int, other: int) -> None:
    rule, levels = Scarcity(), levels_at([one, other])
    for _ in range(SETTLED + 40):
        levels = rule.next(levels, need)
    assert np.abs(np.diff(levels.shown)).max() <= 2 * PLAY


@long
@given(
    st.integers(100, 10**6),
    st.lists(st.integers(70, 130), min_size=30, max_size=80),
    st.integers(-512, 1_024),
)
def test_no_noise_of_30_per_cent_however_malicious_pushes_a_price_further_than_itself(
    demand: int, noise: list[int], start: int
) -> None:
    rule = Scarcity()

    def need(percent: int) -> Need:
        return Need(demand * percent // 100, demand * 100 * percent // 100, 200 * demand, 100, 3)

    lowest, highest = int(rule.target(need(70))), int(rule.target(need(130)))
    levels = levels_at([start])
    for number, percent in enumerate(noise):
        levels = rule.next(levels, need(percent))
        if number >= SETTLED:
            slack = 0.14 * OCTAVE  # a tenth: what is left of the start
            assert lowest - slack <= int(levels.level[0]) <= highest + slack
            assert lowest - slack - PLAY <= int(levels.shown[0]) <= highest + slack + PLAY


@pytest.mark.parametrize("is_shared", [False, True], ids=["each cell its own", "all cells the same"])
@pytest.mark.parametrize(
    ("kind", "steps", "mostly", "changing"), [("even", 3, 1, 0.06), ("normal", 8, 2, 0.2)]
)
def test_prices_do_not_swing_under_noise_of_30_per_cent(
    is_shared: bool, kind: str, steps: int, mostly: int, changing: float
) -> None:
    """1,000 cells, 300 periods, demand times a random number in each: from 0.7 to 1.3, or of a lognormal
    distribution with a standard deviation of 0.3.

    Args:
        steps: of the grid (9 %), from the highest to the lowest price that is ever seen.
        mostly: steps from a cell's median price that 95 % of all prices are within.
        changing: share of prices that a period changes, at most.
    """
    rng, rule, n = np.random.default_rng(5), Scarcity(), 1_000
    demand = np.exp(rng.normal(6, 1, n)).astype(np.int64)
    load = int(demand.sum())
    levels = levels_at([0] * n)
    shown = []
    for period in range(330):
        size = 1 if is_shared else n
        noise = rng.uniform(0.7, 1.3, size) if kind == "even" else rng.lognormal(-0.045, 0.3, size)
        now = (demand * noise).astype(np.int64)
        levels = rule.next(levels, Need(now, int(now.sum()), 2 * load, n, 3))
        if period >= 30:
            shown.append(levels.shown)
    history = np.array(shown)
    assert (history.max(axis=0) - history.min(axis=0)).max() <= steps * GRID
    assert np.mean(np.abs(history - np.median(history, axis=0)) <= mostly * GRID) >= 0.95
    assert (np.diff(history, axis=0) != 0).mean() <= changing


def test_the_same_numbers_give_the_same_prices_everywhere() -> None:
    rule, number = Scarcity(), np.arange(5_000)
    levels, base = Levels.at_base(5_000), number * 48_271 % 9_973 + 1
    for period in range(10):
        demand = (number + period) * 69_621 % 100_003
        levels = rule.next(levels, Need(demand, demand * 7, 300_000, 64, (number + period) % 9))
    digest = hashlib.sha256(rule.price(base, levels).astype("<i8").tobytes()).hexdigest()
    assert digest == "c929e1a2e3deff821ff8763ee6a99cdb61af506ed059316c3301a692a48442a7"


def test_trifles() -> None:
    before = np.zeros(8, np.int64)
    assert is_trifle(before, before)
    one = before.copy()
    one[3] = GRID
    assert is_trifle(before, one) and not is_trifle(before, 2 * one) and not is_trifle(before, before - GRID)
