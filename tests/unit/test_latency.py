"""Latencies: when an answer is late, and what is expected of a peer."""

from __future__ import annotations

import math

import numpy as np
import pytest

from routing.latency import (
    FIRST_FEW,
    KNOWN_ELSEWHERE,
    KNOWN_OVERRUNS,
    LESS_UNKNOWN,
    MAX_PATHS,
    OVERRUNS,
    PAUSE,
    SPREADS,
    STALE_SECONDS,
    UNKNOWN_COST,
    UNKNOWN_WAIT,
    WINDOW,
    Latencies,
)
from routing.lateness import Everybody, Lateness

SMALL, LARGE = 10_000, 30_000_000


def answers(
    known: Latencies,
    waits: list[float],
    peer: str = "a",
    path: str = "direct",
    *,
    start: float = 0.0,
    nbytes: int = SMALL,
    pairs: int = 4,
    compute: float = 0.0,
    rtt: float = 0.0,
    overrun: float = 0.0,
) -> float:
    now = start
    for wait in waits:
        now += wait
        known.answered(
            peer, path, now, wait=wait, compute=compute, rtt=rtt, nbytes=nbytes, pairs=pairs, overrun=overrun
        )
    return now


def patience(known: Latencies, path: str = "direct", *, nbytes: int = SMALL, pairs: int = 4) -> float:
    return known.patience("a", path, rtt=0.0, nbytes=nbytes, pairs=pairs)


def share_late(waits: list[float], after: int = WINDOW) -> float:
    """Which share of the answers is late, judged by those before each."""
    known, late = Latencies(), 0
    for number, wait in enumerate(waits):
        late += number >= after and wait > patience(known)
        answers(known, [wait])
    return late / (len(waits) - after)


# --- late ---


def test_what_was_never_measured_gets_a_wide_constant_that_grows_with_its_size() -> None:
    known = Latencies()
    assert UNKNOWN_WAIT <= patience(known) < UNKNOWN_WAIT + 0.2
    assert patience(known, nbytes=LARGE, pairs=4096) > 100
    assert known.patience("a", "direct", rtt=0.6, nbytes=100, pairs=1) > UNKNOWN_WAIT + 1


def test_what_was_measured_seldom_gets_less_with_each_answer() -> None:
    known = Latencies()
    for number in range(1, 12):
        answers(known, [0.04])
        assert patience(known) == pytest.approx(0.04 + PAUSE + UNKNOWN_WAIT / LESS_UNKNOWN**number)


def test_what_is_known_of_other_sizes_counts_a_little() -> None:
    known = Latencies()
    answers(known, [0.04] * 50)
    answers(known, [0.05], nbytes=10 * SMALL)
    expected = 0.05 + PAUSE + UNKNOWN_WAIT / LESS_UNKNOWN ** (1 + KNOWN_ELSEWHERE)
    assert patience(known, nbytes=10 * SMALL) == pytest.approx(expected)


def test_a_steady_path_is_late_soon_and_an_unsteady_one_later() -> None:
    rng = np.random.default_rng(0)
    steady, unsteady = Latencies(), Latencies()
    answers(steady, [0.04] * 100)
    answers(unsteady, rng.exponential(0.2, 400).tolist())
    assert patience(steady) == pytest.approx(0.04 + PAUSE, abs=0.001)
    assert patience(unsteady) > 0.4


def test_a_path_is_not_quicker_than_its_round_trip() -> None:
    known = Latencies()
    answers(known, [0.04] * 50)
    assert known.patience("a", "direct", rtt=0.3, nbytes=SMALL, pairs=4) == pytest.approx(0.3 + PAUSE)


@pytest.mark.parametrize(
    ("what", "most"),
    [("uniform 5 ms", 0.0), ("normal 5 ms", 0.005), ("exponential 200 ms", 0.035), ("gamma 50 ms", 0.025)],
)
def test_few_answers_of_an_honest_path_are_late(what: str, most: float) -> None:
    rng = np.random.default_rng(1)
    jitter = {
        "uniform 5 ms": rng.uniform(-0.005, 0.005, 4000),
        "normal 5 ms": rng.normal(0.0, 0.005, 4000),
        "exponential 200 ms": rng.exponential(0.2, 4000),
        "gamma 50 ms": rng.gamma(2, 0.05, 4000),
    }[what]
    assert share_late((0.08 + jitter).tolist()) <= most


def test_one_late_answer_in_twenty_does_not_make_the_next_one_wait_longer() -> None:
    rng = np.random.default_rng(2)
    waits = 0.05 + rng.uniform(-0.005, 0.005, 8000)
    late = rng.random(waits.size) < 0.05
    waits[late] += 0.5
    known, widest, caught = Latencies(), [], 0
    for wait, outlier in zip(waits.tolist(), late.tolist(), strict=True):
        if outlier:
            widest.append(patience(known))
            caught += widest[-1] < 0.1
        answers(known, [wait])
    assert caught / len(widest) > 0.98
    assert np.median(widest) < 0.05 + SPREADS * 0.005


def test_late_answers_that_nobody_waits_for_do_not_make_it_longer_either() -> None:
    rng = np.random.default_rng(3)
    known, now = Latencies(), 0.0
    for outlier in (rng.random(4000) < 0.05).tolist():
        now += 0.05
        if outlier:
            known.beaten("a", "direct", now, wait=0.13, rtt=0.05, nbytes=SMALL, pairs=4, overrun=0.07)
        else:
            answers(known, [0.05 + float(rng.uniform(-0.005, 0.005))], start=now)
    assert patience(known) < 0.09


@pytest.mark.parametrize("slower", [0.03, 0.1, 0.5])
def test_a_path_that_has_become_slower_is_learnt_within_some_tens_of_answers(slower: float) -> None:
    rng = np.random.default_rng(4)
    known = Latencies()
    answers(known, (0.02 + rng.uniform(-0.002, 0.002, 100)).tolist())
    late = 0
    for _ in range(40):
        wait = 0.02 + slower + float(rng.uniform(-0.002, 0.002))
        late += wait > patience(known)
        answers(known, [wait])
    assert late <= 10
    assert 0.02 + slower < patience(known) < 0.02 + slower + 2 * PAUSE  # and no longer than it should be


def test_small_calls_do_not_make_large_ones_late_nor_the_other_way_round() -> None:
    known = Latencies()
    answers(known, [0.02] * 50)
    assert patience(known, nbytes=LARGE, pairs=4096) > 100
    answers(known, [4.0] * 20, nbytes=LARGE, pairs=4096)
    assert patience(known, nbytes=LARGE, pairs=4096) < 5.0
    assert patience(known) == pytest.approx(0.02 + PAUSE, abs=0.001)


def test_a_claimed_compute_time_changes_no_deadline() -> None:
    honest, liar = Latencies(), Latencies()
    answers(honest, [0.1] * 30, compute=0.06)
    answers(liar, [0.1] * 30, compute=1e9)
    assert patience(liar) == pytest.approx(patience(honest))
    costs = [each.cost("a", "direct", 3.0, rtt=0.0).of(4) for each in (honest, liar)]
    assert costs[0] == pytest.approx(costs[1])


def test_paths_are_measured_apart() -> None:
    known = Latencies()
    answers(known, [0.01] * 20)
    answers(known, [0.3] * 20, path="relayed via r")
    assert patience(known) < 0.2 < patience(known, "relayed via r")


# --- by how much ---


def test_by_how_much_late_answers_are_late() -> None:
    known = Latencies()
    for number in range(KNOWN_OVERRUNS):
        assert known.overrun("a", "direct") == math.inf
        answers(known, [0.06], overrun=0.01 + number / 1000)
    answers(known, [0.05] * 50)
    assert known.overrun("a", "direct") == pytest.approx(0.012)
    for _ in range(OVERRUNS):
        known.beaten("a", "direct", 9.0, wait=0.1, rtt=0.05, nbytes=SMALL, pairs=4, overrun=0.04)
    assert known.overrun("a", "direct") == math.inf  # nobody knows when they would have come


# --- cost ---


def test_cost_follows_round_trip_computing_and_load() -> None:
    known = Latencies()
    now = answers(known, [0.08] * 50, rtt=0.04, compute=0.02)
    known.loaded("a", "direct", 0.1, now)
    cost = known.cost("a", "direct", now, rtt=0.04)
    assert (cost.seconds, cost.per_pair) == pytest.approx((0.16, 0.005))
    assert cost.of(4) == pytest.approx(0.18)
    assert known.cost("a", "direct", now + 2, rtt=0.04).of(4) < 0.081
    assert known.cost("a", "direct", now + 2, rtt=0.24).of(4) > 0.27
    assert known.cost("b", "direct", now, rtt=0.04).of(4) == pytest.approx(0.04 + UNKNOWN_COST)


def test_a_late_answer_counts_as_lateness_and_not_as_a_queue() -> None:
    known = Latencies()
    now = answers(known, [0.05] * 50, rtt=0.04, compute=0.008)
    before = known.cost("a", "direct", now, rtt=0.04)
    costs = []
    for _ in range(3):
        known.beaten("a", "direct", now, wait=0.13, rtt=0.04, nbytes=SMALL, pairs=4, overrun=0.08)
        costs.append(known.cost("a", "direct", now, rtt=0.04))
    assert before.of(4) == pytest.approx(0.05)
    assert costs[0].of(4) == pytest.approx(0.05)  # the first is excused
    lateness = Lateness(Everybody())
    for overrun in [0.0] * 50 + [0.08] * 3:
        lateness.answered(now, overrun)
    assert costs[2].of(4) == pytest.approx(0.05 + lateness.seconds(now))
    assert costs[2].of(4) > costs[1].of(4) > 0.06
    assert costs[2].per_pair == before.per_pair
    # An answer that came after all counts the same.
    waited = Latencies()
    now = answers(waited, [0.05] * 50, rtt=0.04, compute=0.008)
    answers(waited, [0.13] * 3, start=now - 0.39, rtt=0.04, compute=0.008, overrun=0.08)
    assert waited.cost("a", "direct", now, rtt=0.04).of(4) == pytest.approx(costs[2].of(4))


def test_one_bad_answer_of_the_first_few_is_not_held_against_a_peer() -> None:
    known = Latencies()
    now = answers(known, [1.0], rtt=0.04)
    assert known.cost("a", "direct", now, rtt=0.04).of(4) == pytest.approx(0.04 + UNKNOWN_COST)
    now = answers(known, [0.05] * (FIRST_FEW - 2), start=now, rtt=0.04)
    assert known.cost("a", "direct", now, rtt=0.04).of(4) == pytest.approx(0.05)
    now = answers(known, [0.05], start=now, rtt=0.04)
    assert known.cost("a", "direct", now, rtt=0.04).of(4) == pytest.approx(0.05 + 0.95 / FIRST_FEW)
    two = Latencies()
    now = answers(two, [1.0] * 2, rtt=0.04)
    assert two.cost("a", "direct", now, rtt=0.04).of(4) == pytest.approx(1.0)


def test_a_queue_of_long_ago_is_forgotten() -> None:
    known = Latencies()
    now = answers(known, [2.0] * 20, rtt=0.01)
    assert known.cost("a", "direct", now, rtt=0.01).of(4) == pytest.approx(2.0)
    assert known.cost("a", "direct", now + 10 * STALE_SECONDS, rtt=0.01).of(4) < 0.02


def test_large_calls_do_not_make_a_peer_look_slow() -> None:
    known = Latencies()
    now = answers(known, [0.02] * 20, rtt=0.01)
    before = known.cost("a", "direct", now, rtt=0.01)
    answers(known, [9.0], start=now - 9.0, compute=5.0, rtt=0.01, nbytes=LARGE, pairs=4096)
    assert known.cost("a", "direct", now, rtt=0.01) == before


def test_paths_without_end_take_no_memory_without_end() -> None:
    known = Latencies()
    for number in range(3 * MAX_PATHS):
        answers(known, [0.01], f"q{number}")
        known.beaten("b", f"q{number}", 1.0, wait=1.0, rtt=0.0, nbytes=1, pairs=1, overrun=1.0)
    assert len(known._paths) <= MAX_PATHS
    # And what they did no longer counts.
    assert known._everybody == Everybody(MAX_PATHS, MAX_PATHS // 2)
