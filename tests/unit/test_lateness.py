"""Lateness: by how much a path counts slower for being late now and then."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from routing.lateness import HALF_LIFE, MOST, WINDOW, Everybody, Lateness

OVERRUN = 0.1


def given(lateness: Lateness, late: Sequence[bool], *, now: float = 0.0) -> None:
    for each in late:
        lateness.answered(now, OVERRUN if each else 0.0)


def some(count: int, of: int) -> list[bool]:
    """So many late ones, evenly spread."""
    return [number * count // of != (number + 1) * count // of for number in range(of)]


def paths(*late: Sequence[bool]) -> list[Lateness]:
    """Of one swarm."""
    everybody = Everybody()
    found = [Lateness(everybody) for _ in late]
    for lateness, each in zip(found, late, strict=True):
        given(lateness, each)
    return found


def test_a_path_that_is_never_late_or_once_is_not_slower() -> None:
    never, once = paths(some(0, 500), some(1, 100))
    assert never.seconds(0.0) == once.seconds(0.0) == 0.0


def test_two_late_answers_of_few_are_enough_and_more_count_up_to_the_most() -> None:
    found = [paths(some(count, 60))[0].seconds(0.0) for count in range(9)]
    assert found[2] >= 0.25 * OVERRUN
    assert found == sorted(found)
    assert found[3:] == [pytest.approx(MOST * OVERRUN)] * 6


def test_late_answers_are_forgotten_after_so_many_in_time() -> None:
    (path,) = paths(some(10, 20) + [False] * (WINDOW - 20))
    assert path.seconds(0.0) > 0 and path.everybody == Everybody(WINDOW, 10)
    given(path, [False] * 20)
    assert path.seconds(0.0) == 0.0 and path.everybody == Everybody(WINDOW, 0)


def test_late_answers_are_forgotten_with_time() -> None:
    (path,) = paths(some(6, WINDOW))
    found = [path.seconds(each * HALF_LIFE) for each in range(6)]
    assert found[0] == pytest.approx(MOST * OVERRUN)
    assert found == sorted(found, reverse=True) and found[3] == 0.0
    # Then one more is enough again.
    given(path, [True], now=2 * HALF_LIFE)
    assert path.seconds(2 * HALF_LIFE) >= 0.1 * OVERRUN


def test_what_all_suffer_is_held_against_nobody() -> None:
    rng = np.random.default_rng(1)
    found = []
    for _ in range(200):
        late = rng.random((8, WINDOW)) < 0.014
        found += [path.seconds(0.0) for path in paths(*late.tolist())]
    assert np.mean(found) <= 0.02 * OVERRUN
    # What all suffer is known from seven others only: of 1,600 windows of honest paths, 1 in 29 would have a
    # replica preferred that is an eighth farther away.
    assert np.mean(np.array(found) > OVERRUN / 8) <= 0.05
    # Three times as often as the others is another matter.
    *others, often = paths(*[some(2, WINDOW)] * 7, some(8, WINDOW))
    assert often.seconds(0.0) >= 0.3 * OVERRUN
    assert all(path.seconds(0.0) == 0.0 for path in others)


def test_one_that_hangs_excuses_no_other_nor_is_it_excused() -> None:
    often, hung, *calm = paths(some(6, WINDOW), some(5, 5), *[some(0, WINDOW)] * 5)
    assert hung.seconds(0.0) == often.seconds(0.0) == pytest.approx(MOST * OVERRUN)
    assert not any(path.seconds(0.0) for path in calm)


def test_one_answer_that_is_late_beyond_measure_is_not_what_is_usual() -> None:
    (path,) = paths(some(5, WINDOW))
    path.answered(0.0, 3600.0)
    assert path.seconds(0.0) == pytest.approx(MOST * OVERRUN)


def test_a_path_that_is_forgotten_counts_no_more() -> None:
    first, second = paths(some(9, 3 * WINDOW), some(2, 40))
    first.forgotten()
    assert second.everybody == Everybody(40, 2)
    second.forgotten()
    assert second.everybody == Everybody(0, 0)
