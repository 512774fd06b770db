"""Rates out of counters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.status.rates import Rate, Share


def test_nothing_is_known_before_the_second_sample() -> None:
    rate = Rate(5.0)
    assert rate.per_second is None
    rate.note(100, 0.0)
    assert rate.per_second is None and rate.grown == 0


def test_it_is_of_the_last_seconds() -> None:
    rate = Rate(5.0)
    for second in range(20):
        rate.note(1000 * min(second, 10), float(second))
    assert rate.per_second == 0.0  # nothing came in the last nine
    rate.note(12_500, 20.0)
    assert rate.per_second == pytest.approx(500.0)


def test_a_counter_that_goes_back_begins_anew() -> None:
    rate = Rate(5.0)
    rate.note(1_000_000, 0.0)
    rate.note(1_000_100, 1.0)
    rate.note(50, 2.0)
    assert rate.per_second is None
    rate.note(150, 3.0)
    assert rate.per_second == pytest.approx(100.0)


@given(st.lists(st.tuples(st.floats(0.001, 3.0), st.integers(0, 10_000)), min_size=2, max_size=60))
def test_rate_is_growth_over_the_time_looked_back(steps: list[tuple[float, int]]) -> None:
    rate = Rate(5.0)
    now, value, samples = 0.0, 0, []
    for pause, growth in steps:
        now, value = now + pause, value + growth
        rate.note(value, now)
        samples.append((now, value))
    per_second = rate.per_second
    assert per_second is not None
    # there is a sample from which on it is right, and it lies within the window and one pause of it
    spans = [
        (value - before, now - then) for then, before in samples[:-1] if now - then <= 5.0 + 2 * 3.0 + 0.5
    ]
    assert any(abs(per_second - grown / span) < 1e-6 * (1 + per_second) for grown, span in spans)


def test_a_share_needs_a_whole() -> None:
    share = Share(60.0, 5.0)
    share.note(0, 0, 0.0)
    share.note(0, 0, 10.0)
    assert share.value is None
    share.note(3, 100, 20.0)
    assert share.value == pytest.approx(0.03)
    for step in range(1, 20):  # a minute without loss: forgotten
        share.note(3, 100 + 10 * step, 20.0 + 5 * step)
    assert share.value == 0.0
