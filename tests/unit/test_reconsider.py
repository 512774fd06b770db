"""When a home set in use is changed, and how far at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.home.choosing import Factors, Prediction
from node.home.estimate import Estimator
from node.home.heat import Heat, HeatNumbers
from node.home.home_set import HomeSet, LayerShape, Shapes, total_bytes
from node.home.reconsider import (
    LEAST_AGE,
    LEAST_PASSES,
    LEAST_TOKENS,
    MOST_CHANGED,
    STEP_SECONDS,
    Reconsideration,
    fall_short,
    step,
)
from node.home.worth import Worth, tokens_per_pass

SHAPES: Shapes = {layer: LayerShape(layer, 4, 400) for layer in range(8)}
NOTHING = HomeSet()
EARLY, ENOUGH = LEAST_AGE + 1, float(LEAST_TOKENS)


def prediction(worth: dict[int, float], heat: Heat | None = None) -> Prediction:
    estimator = Estimator(SHAPES, heat or Heat(SHAPES), Worth(0.02, worth, 8), 2)
    return Prediction(estimator, (), Factors({}, SHAPES), Factors({}, SHAPES))


BEST_ARE_0_TO_3 = prediction({layer: 0.5 if layer < 4 else 0.05 for layer in SHAPES})
ALIKE = prediction(dict.fromkeys(SHAPES, 0.2))
WORST = HomeSet.whole([4, 5, 6, 7], SHAPES)
BEST = HomeSet.whole([0, 1, 2, 3], SHAPES)


def test_nothing_changes_too_early_or_on_few_tokens_or_for_little() -> None:
    for now, tokens, known in (
        (LEAST_AGE - 1, ENOUGH, BEST_ARE_0_TO_3),
        (EARLY, ENOUGH - 1, BEST_ARE_0_TO_3),
        (EARLY, ENOUGH, ALIKE),
    ):
        assert Reconsideration(0.0).look(now, WORST, known, 1600, NOTHING, tokens) is None


def test_a_better_set_comes_in_steps() -> None:
    watch, home, now, steps = Reconsideration(0.0), WORST, EARLY, 0
    while True:
        found = watch.look(now, home, BEST_ARE_0_TO_3, 1600, NOTHING, ENOUGH)
        if found is None:
            break
        assert found.after < 0.9 * found.before and found.target == BEST
        came = (found.home - home).n_bytes(SHAPES)
        assert 0 < came <= max(MOST_CHANGED * 1600, 400)
        assert found.home.n_bytes(SHAPES) <= 1600
        assert watch.look(now + 1, found.home, BEST_ARE_0_TO_3, 1600, NOTHING, ENOUGH) is None
        home, steps, now = found.home, steps + 1, now + STEP_SECONDS
    assert home == BEST and steps == 4
    # Steps follow each other; the next change has to wait again.
    assert watch.look(now + LEAST_AGE, home, BEST_ARE_0_TO_3, 1600, NOTHING, ENOUGH) is None


def test_a_new_plan_starts_the_clock_again() -> None:
    watch = Reconsideration(0.0)
    watch.changed(EARLY)
    assert watch.look(EARLY + 1, WORST, BEST_ARE_0_TO_3, 1600, NOTHING, ENOUGH) is None


def test_guesses_are_held_against_the_plan() -> None:
    # 0.6 a guess: 4 guesses are expected to bring 0.6 + 0.36 + 0.216 + 0.1296 right ones.
    told = tokens_per_pass(0.6, 8)
    passes = LEAST_PASSES
    assert fall_short(told, 8, passes, 4 * passes, int(0.6 * passes)) == pytest.approx(1.3056, abs=0.01)
    assert fall_short(told, 8, passes, 4 * passes, int(1.2 * passes)) is None
    assert fall_short(told, 8, passes - 1, 4 * passes, 0) is None  # too few
    assert fall_short(told, 8, passes, 0, 0) is None  # nothing was guessed: the network may be quick
    assert fall_short(told, 8, 2 * passes, passes, int(0.05 * passes)) == pytest.approx(0.3, abs=0.01)


homes = st.dictionaries(st.integers(0, 7), st.sets(st.integers(0, 3))).map(HomeSet.of)


@settings(max_examples=60)
@given(homes, homes, homes)
def test_steps_stay_within_the_budget_and_arrive(current: HomeSet, target: HomeSet, free: HomeSet) -> None:
    current, target = current | free, target | free
    budget = max((current - free).n_bytes(SHAPES), (target - free).n_bytes(SHAPES))
    heat = Heat(SHAPES, HeatNumbers(1.0, dict.fromkeys(SHAPES, (4.0, 3.0, 2.0, 1.0))))
    known = prediction(dict.fromkeys(SHAPES, 0.2), heat)
    for _ in range(len(SHAPES) + 1):
        after = step(current, target, SHAPES, budget, free, known)
        assert (after - free).n_bytes(SHAPES) <= budget
        assert after | free == after
        assert (after - current - target).count() == 0  # nothing comes that is not wanted
        current = after
    assert current == target
    assert budget <= total_bytes(SHAPES)
