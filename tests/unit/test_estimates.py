"""Estimates: seconds and faults together, and the budget of hedges."""

from __future__ import annotations

import pytest

from routing.estimates import HEDGE_BURST, HEDGE_RESERVE, HEDGE_SHARE, Estimates, Fault, HedgeBudget


def answered(estimates: Estimates, now: float, *, load: float = 0.0) -> None:
    estimates.answered("a", "direct", now, wait=0.1, compute=0.0, rtt=0.05, nbytes=9000, pairs=4, load=load)


def test_a_queue_is_not_free_and_costs() -> None:
    estimates = Estimates()
    answered(estimates, 0.9)
    answered(estimates, 1.0, load=0.5)
    assert not estimates.free("a", "direct", 1.5) and estimates.free("a", "direct", 2.5)
    assert estimates.cost("a", "direct", 1.5, rtt=0.05).of(4) == pytest.approx(0.6, abs=0.01)


def test_who_refuses_for_load_is_asked_last_and_not_hedged_to() -> None:
    estimates = Estimates()
    estimates.overloaded("a", "direct", 0.5, 0.0)
    assert estimates.doubted("a", "direct", 0.4) and not estimates.free("a", "direct", 0.4)
    assert not estimates.doubted("a", "direct", 1.1) and estimates.free("a", "direct", 1.1)


def test_an_answer_takes_back_what_was_held_against_it() -> None:
    estimates = Estimates()
    estimates.late("a", "direct", 1.0)
    assert estimates.doubted("a", "direct", 1.1) and estimates.changes == 1
    answered(estimates, 1.2)
    assert not estimates.doubted("a", "direct", 1.3) and estimates.changes > 1
    estimates.failed("a", "direct", Fault.GONE, 2.0)
    assert estimates.doubted("a", "direct", 2.1)


def test_hedges_are_a_share_of_all_requests() -> None:
    budget = HedgeBudget()
    spent = 0
    for _ in range(2000):
        budget.earn()
        spent += budget.spend(1)
    assert spent == pytest.approx(HEDGE_BURST - HEDGE_RESERVE + 2000 * HEDGE_SHARE, abs=2)
    assert not budget.spend(2)
    budget.give_back(2)
    assert budget.spend(2)


def test_what_is_urgent_finds_a_reserve() -> None:
    budget = HedgeBudget()
    while budget.spend(1):
        pass
    urgent = 0
    while budget.spend(1, urgent=True):
        urgent += 1
    assert urgent == HEDGE_RESERVE
