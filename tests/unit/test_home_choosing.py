"""Which cells a plan and heat in use come to: layers by what was measured, hot cells by what is used."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.home.choosing import (
    LEAST_GAIN,
    PLAN_TOKENS,
    UNMEASURED,
    Prediction,
    choose,
    heat_now,
    moved,
    predict,
)
from node.home.estimate import Estimator
from node.home.heat import HALF_LIFE, Heat, HeatNumbers
from node.home.home_set import HomeSet, LayerShape, Shapes, total_bytes
from node.home.plan_file import HomePlan, MeasuredSet, PlanLayer

N = 32
SHAPES: Shapes = {layer: LayerShape(layer, N, 3200) for layer in range(4)}
BUDGET = total_bytes(SHAPES) // 2
NOTHING = HomeSet()
RNG = np.random.default_rng(4)
POPULAR = {layer: RNG.permutation(np.geomspace(1, 0.03, N)) for layer in SHAPES}
"""How often each expert is chosen in varied text: widely, as a router is trained to choose."""


def plan(*measured: tuple[HomeSet, float, float, float]) -> HomePlan:
    """A plan with these sets: home, trips, trips without guesses, tokens a pass."""
    return HomePlan(
        version=1, model_id="0" * 64, made_at=1.0, seconds=1.0, seed=0, text="varied", text_tokens=1000,
        drafts=8, n_used=4, base=0.02,
        layers=tuple(
            PlanLayer(layer, 0.4, tuple((1000 * POPULAR[layer]).tolist())) for layer in SHAPES
        ),
        measured=tuple(
            MeasuredSet(home.as_ranges(), home.n_bytes(SHAPES), trips, plain, tokens, 1000)
            for home, trips, plain, tokens in measured
        ),
        budgets=(),
    )  # fmt: skip


OUTER = HomeSet.whole([0, 3], SHAPES)
PLAN = plan(
    (OUTER, 0.19, 0.5, 2.6),
    (HomeSet.whole([1, 2], SHAPES), 0.3, 0.5, 1.67),
    (HomeSet.whole([0, 1, 2], SHAPES), 0.07, 0.25, 3.5),
)


def repeated(tokens: int) -> Heat:
    """One sentence of a dozen tokens again and again, each of which always chooses the same experts."""
    rng = np.random.default_rng(1)
    heat = Heat(SHAPES)
    sentence = {
        layer: np.array([rng.choice(N, 4, replace=False, p=shares / shares.sum()) for _ in range(12)])
        for layer, shares in POPULAR.items()
    }
    heat.add([(layer, np.tile(ids, (tokens // 12, 1))) for layer, ids in sentence.items()])
    return heat


def turned(tokens: float) -> Heat:
    """Text as varied as the plan's, of another kind: what was rare is common."""
    return Heat(
        SHAPES, HeatNumbers(tokens, {layer: tuple((1.03 - p).tolist()) for layer, p in POPULAR.items()})
    )


def permuted(tokens: float) -> Heat:
    """The same, with the plan's own spread: the rarest are now the commonest."""
    counts = {}
    for layer, shares in POPULAR.items():
        order = np.argsort(shares)
        found = np.zeros(N)
        found[order] = shares[order[::-1]]
        counts[layer] = tuple((1000 * found).tolist())
    return Heat(SHAPES, HeatNumbers(tokens, counts))


def chosen(heat: Heat | None, budget: int, known: HomePlan = PLAN) -> HomeSet:
    prediction = predict(known, SHAPES, heat)
    return moved(prediction, choose(prediction, budget, NOTHING), NOTHING)


@pytest.mark.parametrize("budget", [BUDGET, BUDGET + 1600, BUDGET // 2 - 100])
@pytest.mark.parametrize("tokens", [600, 10_000, 200_000])
def test_a_sentence_repeated_moves_nothing(budget: int, tokens: int) -> None:
    assert chosen(repeated(tokens), budget) == chosen(None, budget)


@pytest.mark.parametrize("heat", [turned, permuted])
def test_text_of_another_kind_moves_hot_cells_and_no_layers(heat: object) -> None:
    assert callable(heat)
    for budget in (BUDGET, BUDGET + 1600):
        after = chosen(heat(25_000.0), budget)
        assert after.whole_layers(SHAPES) == [0, 3]
        assert after.n_bytes(SHAPES) == chosen(None, budget).n_bytes(SHAPES)
    small = BUDGET // 2 - 100  # less than a layer: hot cells only
    before, after = chosen(None, small), chosen(permuted(25_000.0), small)
    assert before != after and before.n_bytes(SHAPES) == after.n_bytes(SHAPES)
    now = predict(PLAN, SHAPES, permuted(25_000.0)).now
    assert now is not None and now.trips(after) <= (1 - LEAST_GAIN) * now.trips(before)
    assert chosen(permuted(PLAN_TOKENS / 10), small) == before  # of a few answers it is too early to tell


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.floats(0.02, 5), st.floats(1, HALF_LIFE * 2))
def test_whatever_is_counted_no_measured_layer_goes(seed: int, evenness: float, tokens: float) -> None:
    rng = np.random.default_rng(seed)
    counts = {layer: tuple((rng.dirichlet(np.full(N, evenness)) * 1e4).tolist()) for layer in SHAPES}
    heat = Heat(SHAPES, HeatNumbers(tokens, counts))
    assert chosen(heat, BUDGET) == OUTER
    bigger = chosen(heat, BUDGET + 1600)
    assert bigger | OUTER == bigger and bigger.n_bytes(SHAPES) <= BUDGET + 1600
    assert bigger.whole_layers(SHAPES) == [0, 3]


def test_sets_that_were_not_measured_must_promise_clearly_more() -> None:
    def with_worth(last: float) -> Prediction:
        worth = {0: 0.5, 1: 0.45, 2: 0.3, 3: last}
        layers = tuple(PlanLayer(each.layer, worth[each.layer], each.choices) for each in PLAN.layers)
        return predict(msgspec.structs.replace(PLAN, layers=layers), SHAPES)

    # By their worth layers 0 and 1 promise less than 0.19, but not by a quarter.
    close = with_worth(0.1)
    assert 0.19 / UNMEASURED < close.trips(HomeSet.whole([0, 1], SHAPES)) < 0.19
    assert choose(close, BUDGET, NOTHING) == OUTER
    clear = with_worth(0.02)
    assert clear.trips(choose(clear, BUDGET, NOTHING)) < 0.19 / UNMEASURED
    # One that was tried and is far worse than all that is expected of others does not bind.
    bad = plan((HomeSet.whole([1, 2], SHAPES), 0.49, 0.5, 1.02))
    assert choose(predict(bad, SHAPES), BUDGET, NOTHING) != HomeSet.whole([1, 2], SHAPES)


def test_what_a_measured_set_leaves_is_filled() -> None:
    prediction = predict(plan((HomeSet.whole([0], SHAPES), 0.2, 0.75, 3.7)), SHAPES)
    found = choose(prediction, BUDGET, NOTHING)
    assert found | HomeSet.whole([0], SHAPES) == found
    assert found.n_bytes(SHAPES) > BUDGET - 100
    assert prediction.trips(found) <= 0.2  # more at home is never worse


def test_nothing_at_home_is_a_trip_for_every_layer() -> None:
    # Plans were made that had measured guesses by the trunk alone.
    prediction = predict(plan((NOTHING, 0.58, 1.0, 1.72), (OUTER, 0.19, 0.5, 2.6)), SHAPES)
    assert choose(prediction, 50, NOTHING) == NOTHING
    assert prediction.trips(NOTHING) == prediction.trips_now(NOTHING) == 1.0
    estimator = prediction.estimator
    assert isinstance(estimator, Estimator)
    assert estimator.trips(NOTHING) == estimator.tokens_per_pass(NOTHING) == 1.0


def test_heat_in_use_counts_by_tokens_and_variety() -> None:
    def share_of_use(heat: Heat) -> float:
        now = heat_now(SHAPES, PLAN, heat)
        return (now.tokens - PLAN_TOKENS) / now.tokens

    assert share_of_use(permuted(PLAN_TOKENS)) == pytest.approx(0.5)
    assert share_of_use(permuted(100.0)) < 0.01
    assert share_of_use(repeated(20_000)) == 0
    nothing = Heat(SHAPES)
    assert predict(PLAN, SHAPES, nothing).now is None
    assert heat_now(SHAPES, None, nothing) is nothing
