"""Estimates: when an answer is late, whom to ask last and for how long, what a peer costs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from routing.estimates import (
    FIRST_DISTRUST,
    FIRST_DOUBT,
    FORGET_DOUBT,
    HEDGE_BURST,
    HEDGE_SHARE,
    LAST_DISTRUST,
    LAST_DOUBT,
    MARGIN,
    MAX_PATHS,
    STALE_SECONDS,
    STEADY_ANSWERS,
    UNKNOWN_COST,
    UNKNOWN_WAIT,
    Estimates,
    Fault,
    HedgeBudget,
)

SMALL, LARGE = 10_000, 30_000_000


def answers(
    estimates: Estimates,
    waits: list[float],
    peer: str = "a",
    path: str = "direct",
    *,
    start: float = 0.0,
    nbytes: int = SMALL,
    pairs: int = 4,
    compute: float = 0.0,
    rtt: float = 0.0,
    load: float = 0.0,
) -> float:
    now = start
    for wait in waits:
        now += wait
        estimates.answered(
            peer, path, now, wait=wait, compute=compute, rtt=rtt, nbytes=nbytes, pairs=pairs, load=load
        )
    return now


def patience(estimates: Estimates, path: str = "direct", *, nbytes: int = SMALL, pairs: int = 4) -> float:
    return estimates.patience("a", path, rtt=0.0, nbytes=nbytes, pairs=pairs)


# --- late ---


def test_what_was_never_measured_gets_a_wide_constant_that_grows_with_its_size() -> None:
    estimates = Estimates()
    assert UNKNOWN_WAIT <= patience(estimates) < UNKNOWN_WAIT + 0.2
    assert patience(estimates, nbytes=LARGE, pairs=4096) > 100
    assert estimates.patience("a", "direct", rtt=0.6, nbytes=100, pairs=1) > UNKNOWN_WAIT + 1


def test_a_steady_path_is_late_soon_and_an_unsteady_one_later() -> None:
    rng = np.random.default_rng(0)
    steady, unsteady = Estimates(), Estimates()
    answers(steady, [0.04] * 100)
    waits = rng.exponential(0.2, 400)
    answers(unsteady, waits.tolist())
    assert patience(steady) == pytest.approx(0.04 + MARGIN, abs=0.001)
    late = float((rng.exponential(0.2, 4000) > patience(unsteady)).mean())
    assert late < 0.05


def test_few_answers_on_a_jittery_path_are_late() -> None:
    rng = np.random.default_rng(1)
    estimates, late = Estimates(), 0
    waits = 0.08 + rng.gamma(2, 0.05, 2000)
    for wait in waits.tolist():
        late += wait > patience(estimates)
        answers(estimates, [wait])
    assert late < 0.05 * len(waits)


def test_a_path_that_has_become_slower_is_learnt() -> None:
    estimates = Estimates()
    answers(estimates, [0.02] * 50)
    answers(estimates, [0.5] * 30)
    assert 0.5 < patience(estimates) < 1.2


def test_small_calls_do_not_make_large_ones_late_nor_the_other_way_round() -> None:
    estimates = Estimates()
    answers(estimates, [0.02] * 50)
    unknown = patience(estimates, nbytes=LARGE, pairs=4096)
    assert unknown > 100
    answers(estimates, [4.0] * 20, nbytes=LARGE, pairs=4096)
    assert patience(estimates, nbytes=LARGE, pairs=4096) < 5.0
    assert patience(estimates) == pytest.approx(0.02 + MARGIN, abs=0.001)


def test_a_claimed_compute_time_changes_no_deadline() -> None:
    honest, liar = Estimates(), Estimates()
    answers(honest, [0.1] * 30, compute=0.06)
    answers(liar, [0.1] * 30, compute=1e9)
    assert patience(liar) == pytest.approx(patience(honest))
    assert liar.cost("a", "direct", 3.0, rtt=0.0) == pytest.approx(honest.cost("a", "direct", 3.0, rtt=0.0))


def test_paths_are_measured_apart() -> None:
    estimates = Estimates()
    answers(estimates, [0.01] * 20)
    answers(estimates, [0.3] * 20, path="relayed via r")
    assert patience(estimates) < 0.2 < patience(estimates, "relayed via r")


# --- doubt ---


def until(estimates: Estimates, path: str = "direct", start: float = 0.0) -> float:
    """When the doubt ends, to a tenth of a second."""
    for tenth in range(200_000):
        if not estimates.doubted("a", path, start + tenth / 10):
            return start + tenth / 10
    return math.inf


def test_doubt_doubles_with_each_fault_after_it_has_ended() -> None:
    estimates, now, spans = Estimates(), 0.0, []
    for _ in range(9):
        estimates.failed("a", "direct", Fault.GONE, now)
        after = until(estimates, start=now)
        spans.append(after - now)
        now = after
    assert spans[0] == pytest.approx(FIRST_DOUBT, abs=0.11)
    assert spans[:5] == pytest.approx([FIRST_DOUBT * 2**n for n in range(5)], abs=0.11)
    assert max(spans) == pytest.approx(LAST_DOUBT, abs=0.11)


def test_many_calls_that_fail_at_once_are_one_fault() -> None:
    estimates = Estimates()
    for _ in range(20):
        estimates.failed("a", "direct", Fault.GONE, 5.0)
        estimates.late("a", "direct", 5.0)
    assert until(estimates, start=5.0) == pytest.approx(5.0 + FIRST_DOUBT, abs=0.11)


def test_doubt_is_of_the_path() -> None:
    estimates = Estimates()
    estimates.failed("a", "relayed via r", Fault.GONE, 0.0)
    assert estimates.doubted("a", "relayed via r", 0.5) and not estimates.doubted("a", "direct", 0.5)


def test_an_answer_that_comes_late_takes_the_doubt_back_as_if_it_had_not_been() -> None:
    estimates = Estimates()
    answers(estimates, [0.02] * 5)
    for now in range(10, 20):
        estimates.late("a", "direct", float(now))
        assert estimates.doubted("a", "direct", now + 0.1)
        answers(estimates, [0.5], start=float(now))
        assert not estimates.doubted("a", "direct", now + 0.5)
    estimates.late("a", "direct", 30.0)
    assert until(estimates, start=30.0) == pytest.approx(30.0 + FIRST_DOUBT, abs=0.11)


def test_an_answer_ends_the_doubt_and_a_run_of_them_clears_the_record() -> None:
    for run, expected in ((1, 4 * FIRST_DOUBT), (STEADY_ANSWERS, FIRST_DOUBT)):
        estimates = Estimates()
        for now in (0.0, 2.0):
            estimates.failed("a", "direct", Fault.GONE, now)
        answers(estimates, [0.01] * run, start=2.5)
        assert not estimates.doubted("a", "direct", 2.6)
        estimates.failed("a", "direct", Fault.GONE, 10.0)
        assert until(estimates, start=10.0) == pytest.approx(10.0 + expected, abs=0.11)


def test_quiet_time_takes_doublings_back() -> None:
    estimates = Estimates()
    for now in (0.0, 10.0, 20.0):
        estimates.failed("a", "direct", Fault.REFUSED, now)
    later = 20.0 + 2 * FORGET_DOUBT
    estimates.failed("a", "direct", Fault.REFUSED, later)
    assert until(estimates, start=later) == pytest.approx(later + 2 * FIRST_DOUBT, abs=0.11)


def test_garbage_is_held_against_the_peer_on_every_path_and_no_answer_excuses_it() -> None:
    estimates = Estimates()
    estimates.failed("a", "direct", Fault.WRONG, 0.0)
    answers(estimates, [0.01] * 100, start=1.0)
    assert estimates.doubted("a", "direct", 3.0) and estimates.doubted("a", "relayed via r", 3.0)
    assert not estimates.free("a", "another", 3.0)
    assert until(estimates) == pytest.approx(FIRST_DISTRUST, abs=0.11)
    now, spans = FIRST_DISTRUST, []
    for _ in range(9):
        estimates.failed("a", "direct", Fault.WRONG, now)
        spans.append(until(estimates, "new", now) - now)
        now += spans[-1]
    assert spans[0] == pytest.approx(2 * FIRST_DISTRUST, abs=0.11)
    assert spans[-1] == pytest.approx(LAST_DISTRUST, abs=0.11)


def test_overload_is_believed_for_a_while_and_is_no_fault() -> None:
    estimates = Estimates()
    estimates.overloaded("a", "direct", 2.0, 0.0)
    assert estimates.doubted("a", "direct", 1.9) and not estimates.doubted("a", "direct", 2.1)
    assert not estimates.free("a", "direct", 1.9)
    estimates.overloaded("a", "direct", 60.0, 10.0)
    assert until(estimates, start=10.0) <= 15.1
    estimates.failed("a", "direct", Fault.GONE, 20.0)
    assert until(estimates, start=20.0) == pytest.approx(20.0 + FIRST_DOUBT, abs=0.11)


def test_a_hedge_may_go_to_the_doubted_but_not_right_after_its_fault() -> None:
    estimates = Estimates()
    assert estimates.free("a", "direct", 0.0)
    for now in (0.0, 10.0, 20.0):
        estimates.late("a", "direct", now)
    assert estimates.doubted("a", "direct", 22.0)
    assert not estimates.free("a", "direct", 20.5) and estimates.free("a", "direct", 22.0)


def test_a_queue_is_not_free() -> None:
    estimates = Estimates()
    now = answers(estimates, [0.1], load=0.5)
    assert not estimates.free("a", "direct", now + 0.5) and estimates.free("a", "direct", now + 1.5)


# --- cost ---


def test_cost_follows_round_trip_computing_and_load() -> None:
    estimates = Estimates()
    now = answers(estimates, [0.08] * 50, rtt=0.04, compute=0.02, load=0.1)
    assert estimates.cost("a", "direct", now, rtt=0.04) == pytest.approx(0.18)
    assert estimates.cost("a", "direct", now + 2, rtt=0.04) < 0.081
    assert estimates.cost("a", "direct", now + 2, rtt=0.24) > 0.27
    assert estimates.cost("b", "direct", now, rtt=0.04) == pytest.approx(0.04 + UNKNOWN_COST)


def test_a_queue_of_long_ago_is_forgotten() -> None:
    estimates = Estimates()
    now = answers(estimates, [2.0] * 20, rtt=0.01)
    assert estimates.cost("a", "direct", now, rtt=0.01) == pytest.approx(2.0)
    assert estimates.cost("a", "direct", now + 10 * STALE_SECONDS, rtt=0.01) < 0.02


def test_large_calls_do_not_make_a_peer_look_slow() -> None:
    estimates = Estimates()
    now = answers(estimates, [0.02] * 20, rtt=0.01)
    before = estimates.cost("a", "direct", now, rtt=0.01)
    estimates.answered(
        "a", "direct", now, wait=9.0, compute=5.0, rtt=0.01, nbytes=LARGE, pairs=4096, load=0.0
    )
    assert estimates.cost("a", "direct", now, rtt=0.01) == before


# --- bounds ---


def test_hedges_are_a_share_of_all_requests() -> None:
    budget = HedgeBudget()
    spent = 0
    for _ in range(1000):
        budget.earn()
        spent += budget.spend(1)
    assert spent == pytest.approx(HEDGE_BURST + 1000 * HEDGE_SHARE, abs=2)
    assert not budget.spend(2)
    budget.give_back(2)
    assert budget.spend(2)


def test_peers_without_end_take_no_memory_without_end() -> None:
    estimates = Estimates()
    for number in range(3 * MAX_PATHS):
        estimates.failed(f"p{number}", "direct", Fault.WRONG, 0.0)
        answers(estimates, [0.01], f"q{number}")
    assert len(estimates._paths) <= MAX_PATHS and len(estimates._distrust) <= MAX_PATHS
