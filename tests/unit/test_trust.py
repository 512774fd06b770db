"""Trust: whom to ask last, and for how long."""

from __future__ import annotations

import math

import pytest

from routing.trust import (
    FIRST_DISTRUST,
    FIRST_DOUBT,
    FORGET_DOUBT,
    LAST_DISTRUST,
    LAST_DOUBT,
    MAX_REMEMBERED,
    STEADY_ANSWERS,
    Fault,
    Trust,
)


def answers(trust: Trust, count: int, *, start: float = 0.0) -> None:
    for number in range(count):
        trust.answered("a", "direct", start + number / 100)


def until(trust: Trust, path: str = "direct", start: float = 0.0) -> float:
    """When the doubt ends, to a tenth of a second."""
    for tenth in range(200_000):
        if not trust.doubted("a", path, start + tenth / 10):
            return start + tenth / 10
    return math.inf


def test_doubt_doubles_with_each_fault_after_it_has_ended() -> None:
    trust, now, spans = Trust(), 0.0, []
    for _ in range(9):
        trust.failed("a", "direct", Fault.GONE, now)
        after = until(trust, start=now)
        spans.append(after - now)
        now = after
    assert spans[0] == pytest.approx(FIRST_DOUBT, abs=0.11)
    assert spans[:5] == pytest.approx([FIRST_DOUBT * 2**n for n in range(5)], abs=0.11)
    assert max(spans) == pytest.approx(LAST_DOUBT, abs=0.11)


def test_many_calls_that_fail_at_once_are_one_fault() -> None:
    trust = Trust()
    for _ in range(20):
        trust.failed("a", "direct", Fault.GONE, 5.0)
        trust.late("a", "direct", 5.0)
    assert until(trust, start=5.0) == pytest.approx(5.0 + FIRST_DOUBT, abs=0.11)


def test_doubt_is_of_the_path() -> None:
    trust = Trust()
    trust.failed("a", "relayed via r", Fault.GONE, 0.0)
    assert trust.doubted("a", "relayed via r", 0.5) and not trust.doubted("a", "direct", 0.5)


def test_an_answer_that_comes_late_takes_the_doubt_back_as_if_it_had_not_been() -> None:
    trust = Trust()
    answers(trust, 5)
    for now in range(10, 20):
        trust.late("a", "direct", float(now))
        assert trust.doubted("a", "direct", now + 0.1)
        answers(trust, 1, start=float(now))
        assert not trust.doubted("a", "direct", now + 0.5)
    trust.late("a", "direct", 30.0)
    assert until(trust, start=30.0) == pytest.approx(30.0 + FIRST_DOUBT, abs=0.11)


def test_a_steady_path_is_forgiven_a_late_answer_but_not_two_in_a_row() -> None:
    trust = Trust()
    answers(trust, STEADY_ANSWERS)
    for now in range(10, 15):  # each time the next answer is there in time
        trust.late("a", "direct", float(now))
        assert not trust.doubted("a", "direct", float(now))
        answers(trust, 1, start=now + 0.5)
    assert trust.changes == 0
    trust.late("a", "direct", 20.0)
    trust.late("a", "direct", 20.1)
    assert until(trust, start=20.1) == pytest.approx(20.1 + FIRST_DOUBT, abs=0.11)
    answers(trust, 1, start=20.5)  # it is there after all
    assert not trust.doubted("a", "direct", 20.6)
    trust.late("a", "direct", 21.0)
    assert not trust.doubted("a", "direct", 21.0)


def test_a_path_that_is_not_steady_is_doubted_at_its_first_late_answer() -> None:
    trust = Trust()
    answers(trust, STEADY_ANSWERS - 1)
    trust.late("a", "direct", 1.0)
    assert trust.doubted("a", "direct", 1.0)


def test_an_answer_ends_the_doubt_and_a_run_of_them_clears_the_record() -> None:
    for run, expected in ((1, 4 * FIRST_DOUBT), (STEADY_ANSWERS, FIRST_DOUBT)):
        trust = Trust()
        for now in (0.0, 2.0):
            trust.failed("a", "direct", Fault.GONE, now)
        answers(trust, run, start=2.5)
        assert not trust.doubted("a", "direct", 2.6)
        trust.failed("a", "direct", Fault.GONE, 10.0)
        assert until(trust, start=10.0) == pytest.approx(10.0 + expected, abs=0.11)


def test_quiet_time_takes_doublings_back() -> None:
    trust = Trust()
    for now in (0.0, 10.0, 20.0):
        trust.failed("a", "direct", Fault.REFUSED, now)
    later = 20.0 + 2 * FORGET_DOUBT
    trust.failed("a", "direct", Fault.REFUSED, later)
    assert until(trust, start=later) == pytest.approx(later + 2 * FIRST_DOUBT, abs=0.11)


def test_garbage_is_held_against_the_peer_on_every_path_and_no_answer_excuses_it() -> None:
    trust = Trust()
    trust.failed("a", "direct", Fault.WRONG, 0.0)
    answers(trust, 100, start=1.0)
    assert trust.doubted("a", "direct", 3.0) and trust.doubted("a", "relayed via r", 3.0)
    assert not trust.free("a", "another", 3.0)
    assert until(trust) == pytest.approx(FIRST_DISTRUST, abs=0.11)
    now, spans = FIRST_DISTRUST, []
    for _ in range(9):
        trust.failed("a", "direct", Fault.WRONG, now)
        spans.append(until(trust, "new", now) - now)
        now += spans[-1]
    assert spans[0] == pytest.approx(2 * FIRST_DISTRUST, abs=0.11)
    assert spans[-1] == pytest.approx(LAST_DISTRUST, abs=0.11)


def test_overload_is_believed_for_a_while_and_is_no_fault() -> None:
    trust = Trust()
    trust.overloaded("a", "direct", 2.0, 0.0)
    assert trust.doubted("a", "direct", 1.9) and not trust.doubted("a", "direct", 2.1)
    assert not trust.free("a", "direct", 1.9)
    trust.overloaded("a", "direct", 60.0, 10.0)
    assert until(trust, start=10.0) <= 15.1
    trust.failed("a", "direct", Fault.GONE, 20.0)
    assert until(trust, start=20.0) == pytest.approx(20.0 + FIRST_DOUBT, abs=0.11)


def test_a_hedge_may_go_to_the_doubted_but_not_right_after_its_fault() -> None:
    trust = Trust()
    assert trust.free("a", "direct", 0.0)
    for now in (0.0, 10.0, 20.0):
        trust.late("a", "direct", now)
    assert trust.doubted("a", "direct", 22.0)
    assert not trust.free("a", "direct", 20.5) and trust.free("a", "direct", 22.0)


def test_a_hedge_may_go_to_who_was_late_once_but_not_to_who_failed_or_was_late_again() -> None:
    for faults, free in (([Fault.LATE], True), ([Fault.GONE], False), ([Fault.LATE, Fault.GONE], False)):
        trust = Trust()
        for fault in faults:
            if fault is Fault.LATE:
                trust.late("a", "direct", 0.0)
            else:
                trust.failed("a", "direct", fault, 0.0)
        assert trust.doubted("a", "direct", 0.1)
        assert trust.free("a", "direct", 0.1) is free, faults
    trust = Trust()
    trust.late("a", "direct", 0.0)
    trust.late("a", "direct", FIRST_DOUBT)
    assert not trust.free("a", "direct", FIRST_DOUBT + 0.1)


def test_peers_without_end_take_no_memory_without_end() -> None:
    trust = Trust()
    for number in range(3 * MAX_REMEMBERED):
        trust.failed(f"p{number}", "direct", Fault.WRONG, 0.0)
        trust.answered(f"q{number}", "direct", 0.0)
    assert len(trust._paths) <= MAX_REMEMBERED and len(trust._distrust) <= MAX_REMEMBERED
