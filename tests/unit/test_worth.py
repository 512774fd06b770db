"""One number a layer: what it predicts, and that fitting finds it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.home.worth import Sample, Worth, chance_of, fit, tokens_per_pass

LAYERS = (0, 1, 2, 3)
TRUE = Worth(0.01, {0: 0.61, 1: 0.22, 2: 0.24, 3: 0.39}, 8)


def sample(worth: Worth, missing: dict[int, float], passes: int = 500) -> Sample:
    return Sample(missing, worth.tokens_per_pass(missing), passes)


@given(st.floats(0.03, 0.99), st.integers(1, 15))
def test_chance_and_tokens(chance: float, drafts: int) -> None:
    assert chance_of(tokens_per_pass(chance, drafts), drafts) == pytest.approx(chance, abs=1e-6)


def test_a_layer_less_each_tells_all_sets() -> None:
    tried = [sample(TRUE, {layer: float(layer == gone) for layer in LAYERS}) for gone in (None, *LAYERS)]
    found = fit(LAYERS, tried, 8)
    for size in range(5):
        for gone in itertools.combinations(LAYERS, size):
            missing = {layer: float(layer in gone) for layer in LAYERS}
            assert found.tokens_per_pass(missing) == pytest.approx(TRUE.tokens_per_pass(missing), rel=0.05)


def test_layers_that_were_not_tried_are_like_the_others() -> None:
    tried = [sample(TRUE, {layer: float(layer == gone) for layer in LAYERS}) for gone in (1, 2)]
    found = fit(LAYERS, tried, 8)
    assert found.layers[0] == pytest.approx(found.layers[3]) == pytest.approx(0.23, abs=0.03)
    assert found.layers[1] < found.layers[0] < found.layers[2]


def test_nothing_tried_and_nothing_lost() -> None:
    assert set(fit(LAYERS, [], 8).layers.values()) == {0.25}
    perfect = [Sample({layer: float(layer == gone) for layer in LAYERS}, 9.0, 100) for gone in LAYERS]
    assert all(0 <= worth < 0.02 for worth in fit(LAYERS, perfect, 8).layers.values())


@settings(max_examples=40)
@given(st.lists(st.tuples(*[st.floats(0, 1)] * 4, st.floats(1, 9), st.integers(1, 1000)), max_size=12))
def test_whatever_was_seen_the_numbers_make_sense(seen: list[tuple[float, ...]]) -> None:
    samples = [Sample(dict(zip(LAYERS, each[:4], strict=True)), each[4], int(each[5])) for each in seen]
    found = fit(LAYERS, samples, 8)
    assert found.base >= 0 and all(0 <= worth < 4 for worth in found.layers.values())
    assert 1 <= found.tokens_per_pass(dict.fromkeys(LAYERS, 1.0)) <= 9
