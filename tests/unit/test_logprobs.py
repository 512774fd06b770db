"""Log probabilities against long-hand arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.engine.logprobs import MOST_TOP, Logprob, logprob_of

LOGITS = st.lists(st.floats(-60, 60, width=32), min_size=1, max_size=50)


@given(LOGITS, st.integers(0, 49), st.integers(0, 30))
def test_against_sums_by_hand(values: list[float], token: int, top: int) -> None:
    token %= len(values)
    found = logprob_of(np.array(values, np.float32), token, top)
    logsum = math.log(math.fsum(math.exp(value) for value in values))
    assert found.token == token
    assert found.logprob == pytest.approx(values[token] - logsum, abs=1e-9)
    best = sorted(range(len(values)), key=lambda each: (-values[each], each))[: min(top, MOST_TOP)]
    assert [each for each, _ in found.top] == best
    assert all(logprob == pytest.approx(values[each] - logsum, abs=1e-9) for each, logprob in found.top)
    assert all(logprob == found.logprob for each, logprob in found.top if each == token)


def test_ties_go_by_number_also_at_the_edge() -> None:
    logits = np.zeros(1000, np.float32)
    logits[[900, 17]] = 1
    assert [token for token, _ in logprob_of(logits, 5, 4).top] == [17, 900, 0, 1]


def test_large_logits_neither_overflow_nor_vanish() -> None:
    found = logprob_of(np.array([3e38, 3e38, -3e38], np.float32), 2, 2)
    assert [token for token, _ in found.top] == [0, 1]
    assert [logprob for _, logprob in found.top] == pytest.approx([-math.log(2)] * 2)
    assert found.logprob < -1e38


def test_what_the_model_excludes() -> None:
    found = logprob_of(np.array([0, -math.inf], np.float32), 1, 2)
    assert found == Logprob(1, -math.inf, ((0, 0.0), (1, -math.inf)))


def test_a_large_vocabulary_sums_to_one() -> None:
    logits = np.random.default_rng(1).normal(0, 4, 151_936).astype(np.float32)
    some = [logprob_of(logits, token, 0).logprob for token in range(0, len(logits), 20_000)]
    exact = math.log(math.fsum(math.exp(value) for value in logits.tolist()))
    for token, logprob in zip(range(0, len(logits), 20_000), some, strict=True):
        assert logprob == pytest.approx(float(logits[token]) - exact, abs=1e-9)
