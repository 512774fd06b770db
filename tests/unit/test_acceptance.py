"""How likely guesses are to be right: learnt online, kept between runs, proof against senseless numbers."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.decode.drafting.acceptance import (
    FEATURES,
    LEAST,
    MAX_SOURCES,
    MOST,
    PRIOR_DEVIATIONS,
    Acceptance,
    AcceptanceNumbers,
    SourceNumbers,
)
from node.decode.drafting.draft import Draft


def model(probability: float) -> Draft:
    return Draft(7, probability, source="model")


def at_home(probability: float, mean: float, worst: float) -> Draft:
    return Draft(7, probability, mean, worst, source="self")


def test_before_anything_is_learnt_a_guesser_is_nearly_as_good_as_it_says() -> None:
    acceptance = Acceptance()
    for probability in (0.1, 0.5, 0.9):
        assert acceptance.estimate(model(probability), 0) == pytest.approx(probability, abs=0.03)


def test_self_drafts_are_the_worse_the_more_is_missing() -> None:
    acceptance = Acceptance()
    chances = [
        acceptance.estimate(at_home(0.6, mean, worst), 0)
        for mean, worst in ((0.0, 0.0), (0.1, 0.3), (0.5, 1.0), (1.0, 1.0))
    ]
    assert chances == sorted(chances, reverse=True) and chances[0] > 0.9 and chances[-1] < 0.65


def truth(draft: Draft, depth: int) -> float:
    odds = math.log(draft.probability / (1 - draft.probability))
    return 1 / (
        1 + math.exp(-(2.0 + 0.7 * odds - 2 * draft.missing_mean - 1.5 * draft.missing_max - 0.2 * depth))
    )


def some(rng: random.Random) -> tuple[Draft, int]:
    worst = rng.random()
    return at_home(rng.uniform(0.1, 0.95), worst * rng.random(), worst), rng.randrange(6)


def test_it_comes_close_to_the_truth_within_some_hundred_guesses() -> None:
    rng = random.Random(1)
    acceptance, errors = Acceptance(), dict[int, float]()
    for count in range(1, 601):
        draft, depth = some(rng)
        acceptance.learn(draft, depth, rng.random() < truth(draft, depth))
        if count in (100, 600):
            errors[count] = (
                sum(
                    abs(acceptance.estimate(*pair) - truth(*pair)) for pair in (some(rng) for _ in range(300))
                )
                / 300
            )
    assert errors[100] < 0.1 and errors[600] < 0.08


def test_a_dozen_answers_tell_a_bad_guesser() -> None:
    acceptance = Acceptance()
    for _ in range(12):
        acceptance.learn(model(0.8), 0, False)
    assert acceptance.estimate(model(0.8), 0) < 0.3


def test_a_text_that_has_changed_is_followed() -> None:
    acceptance = Acceptance()
    for _ in range(2000):
        acceptance.learn(model(0.7), 0, True)
    for _ in range(40):
        acceptance.learn(model(0.7), 0, False)
    assert acceptance.estimate(model(0.7), 0) < 0.5


def test_sources_do_not_mix() -> None:
    acceptance = Acceptance()
    before = acceptance.estimate(model(0.7), 1)
    for _ in range(50):
        acceptance.learn(Draft(7, 0.7, source="ngram"), 1, False)
    assert acceptance.estimate(model(0.7), 1) == before
    for number in range(3 * MAX_SOURCES):  # and no peer of config makes them without end
        acceptance.learn(Draft(7, 0.7, source=f"s{number}"), 1, True)
    assert len(acceptance.numbers().sources) == MAX_SOURCES


def test_what_is_known_survives_being_kept() -> None:
    rng = random.Random(2)
    acceptance = Acceptance()
    for _ in range(100):
        draft, depth = some(rng)
        acceptance.learn(draft, depth, rng.random() < truth(draft, depth))
    kept = msgspec.json.decode(msgspec.json.encode(acceptance.numbers()), type=AcceptanceNumbers)
    again = Acceptance(kept)
    for _ in range(50):
        draft, depth = some(rng)
        assert again.estimate(draft, depth) == acceptance.estimate(draft, depth)
        right = rng.random() < 0.5
        again.learn(draft, depth, right)
        acceptance.learn(draft, depth, right)


def identity(scale: float) -> list[float]:
    return [
        scale * deviation**2 if i == j else 0.0
        for i, deviation in enumerate(PRIOR_DEVIATIONS)
        for j in range(FEATURES)
    ]


@pytest.mark.parametrize(
    "numbers",
    [
        SourceNumbers((), ()),
        SourceNumbers((1.0,) * FEATURES, (1.0,) * FEATURES),
        SourceNumbers((math.nan,) * FEATURES, tuple(identity(1.0))),
        SourceNumbers((1e308,) * FEATURES, tuple(identity(1.0))),
        SourceNumbers((1.0,) * FEATURES, tuple(identity(-1.0))),
        SourceNumbers((1.0,) * FEATURES, tuple(identity(100.0))),
        SourceNumbers((1.0,) * FEATURES, (math.inf,) * FEATURES**2),
        SourceNumbers((1.0,) * FEATURES, tuple(entry or 9.0 for entry in identity(1.0))),
    ],
)
def test_numbers_that_make_no_sense_count_as_nothing(numbers: SourceNumbers) -> None:
    acceptance = Acceptance(AcceptanceNumbers({"model": numbers}))
    assert acceptance.estimate(model(0.6), 2) == Acceptance().estimate(model(0.6), 2)


@given(
    st.lists(st.floats(-20, 20), min_size=FEATURES, max_size=FEATURES),
    st.lists(st.floats(-1, 1), min_size=FEATURES**2, max_size=FEATURES**2),
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.integers(0, 15), st.booleans()), max_size=30),
)
def test_whatever_was_kept_estimates_stay_chances(
    weights: list[float], covariance: list[float], guesses: list[tuple[float, float, int, bool]]
) -> None:
    acceptance = Acceptance(AcceptanceNumbers({"self": SourceNumbers(tuple(weights), tuple(covariance))}))
    for probability, missing, depth, right in guesses:
        draft = at_home(probability, missing / 2, missing)
        acceptance.learn(draft, depth, right)
        assert LEAST <= acceptance.estimate(draft, depth) <= MOST
