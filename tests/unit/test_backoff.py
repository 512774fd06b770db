"""Pauses after failures: they grow, end, and are forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from routing.backoff import Backoff


def test_each_failure_doubles_the_pause_up_to_the_longest() -> None:
    backoff = Backoff(1.0, 5.0, 100.0)
    assert [backoff.failed("a", now) for now in (0.0, 1.0, 2.0, 3.0)] == [1.0, 2.0, 4.0, 5.0]
    assert backoff.ready_at("a", 4.0) == 8.0
    assert backoff.ready_at("a", 9.0) == 9.0
    assert backoff.ready_at("b", 4.0) == 4.0


def test_success_and_time_forgive() -> None:
    backoff = Backoff(1.0, 50.0, 10.0)
    backoff.failed("a", 0.0)
    backoff.failed("a", 1.0)
    backoff.worked("a")
    assert backoff.ready_at("a", 1.0) == 1.0
    assert backoff.failed("a", 2.0) == 1.0
    assert backoff.failed("a", 30.0) == 1.0


def test_what_is_not_kept_is_forgotten() -> None:
    backoff = Backoff(1.0, 50.0, 10.0)
    backoff.failed("a", 0.0)
    backoff.failed("b", 0.0)
    backoff.forget({"b"})
    assert backoff.ready_at("a", 0.0) == 0.0 and backoff.ready_at("b", 0.0) == 1.0


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=200))
def test_a_pause_never_exceeds_the_longest(times: list[float]) -> None:
    backoff = Backoff(0.25, 5.0, 600.0)
    for now in sorted(times):
        assert 0.25 <= backoff.failed("a", now) <= 5.0
        assert now <= backoff.ready_at("a", now) <= now + 5.0
