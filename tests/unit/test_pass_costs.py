"""Running estimates of what passes and guesses cost."""

from __future__ import annotations

import random

import pytest

from node.decode.drafting.draft import Draft
from node.decode.drafting.pass_costs import PassCosts
from node.decode.drafting.rule import PassOutcome

BASE, ROW = 0.05, 0.03


def outcome(rows: int, rtt: float, layers: list[float], rng: random.Random) -> PassOutcome:
    trips = sum(rng.random() < 1 - (1 - each) ** rows for each in layers)
    waited = trips * rtt * rng.uniform(0.9, 1.1)
    computed = (BASE + ROW * max(2, rows)) * rng.uniform(0.9, 1.1)
    drafts = tuple(Draft(1, 0.5, source="self", seconds=0.02) for _ in range(rows - 1))
    return PassOutcome(drafts, rows - 1, 0, 0.02 * (rows - 1) + 0.004, computed + waited, waited, trips)


def learn(costs: PassCosts, passes: int, *, rtt: float = 0.08, seed: int = 1, rows: int = 0) -> None:
    rng = random.Random(seed)
    for _ in range(passes):
        costs.learn(outcome(rows or rng.randint(1, 8), rtt, [1, 1, 0.5, 0], rng))


def expected(rows: int, rtt: float = 0.08) -> float:
    return BASE + ROW * max(2, rows) + (3 - 0.5**rows) * rtt


def test_seconds_of_a_pass_by_its_rows() -> None:
    costs = PassCosts(2)
    assert not costs.known and costs.pass_seconds(3) == 0
    learn(costs, 60)
    assert costs.known
    for rows in (1, 2, 3, 5, 8):
        assert costs.pass_seconds(rows) == pytest.approx(expected(rows), rel=0.1)
        assert costs.compute_seconds(rows) == pytest.approx(BASE + ROW * max(2, rows), rel=0.1)
        assert costs.trips(rows) == pytest.approx(3 - 0.5**rows, rel=0.1)


def test_the_first_pass_already_says_something() -> None:
    costs = PassCosts(2)
    learn(costs, 1, rows=1)
    assert costs.pass_seconds(1) == pytest.approx(expected(1), rel=0.3)
    assert costs.pass_seconds(4) > costs.pass_seconds(2) >= costs.pass_seconds(1)


def test_a_first_guess_costs_no_row_where_a_pass_has_two_anyway() -> None:
    in_company, alone = PassCosts(2), PassCosts(1)
    learn(in_company, 1, rows=1)
    learn(alone, 1, rows=1)
    assert in_company.compute_seconds(2) == pytest.approx(in_company.compute_seconds(1))
    assert alone.compute_seconds(2) > alone.compute_seconds(1)


def test_a_network_that_changes_is_followed_in_a_few_passes() -> None:
    for rtt, before in ((0.08, 0.005), (0.005, 0.08)):
        costs = PassCosts(2)
        learn(costs, 100, rtt=before)
        learn(costs, 16, rtt=rtt, seed=5)
        for rows in (1, 4, 8):
            # What is left of the old network is a tenth of the difference.
            assert costs.trip_seconds(rows) == pytest.approx(rtt, abs=0.1 * abs(rtt - before))


def test_what_rows_cost_is_not_forgotten_while_they_do_not_vary() -> None:
    costs = PassCosts(2)
    learn(costs, 60)
    before = costs.pass_seconds(8) - costs.pass_seconds(1)
    for rtt in (0.08, 0.02, 0.1, 0.08):
        learn(costs, 300, rtt=rtt, rows=1)
    assert costs.pass_seconds(8) - costs.pass_seconds(1) == pytest.approx(before, rel=0.25)


def test_one_server_that_hangs_is_not_the_network() -> None:
    costs = PassCosts(2)
    learn(costs, 60)
    costs.learn(PassOutcome((), 0, 0, 0.0, 10.1, 10.0, 3))
    assert costs.pass_seconds(1) < 2 * expected(1)
    learn(costs, 8, seed=7)
    assert costs.pass_seconds(1) == pytest.approx(expected(1), rel=0.15)


def test_rows_that_make_trips_longer_are_learnt() -> None:
    costs, rng = PassCosts(2), random.Random(3)
    for _ in range(300):
        rows = rng.randint(1, 8)
        trip = 0.05 * (1 + 0.2 * (rows - 1)) * rng.uniform(0.9, 1.1)
        costs.learn(PassOutcome((), rows - 1, 0, 0.0, 0.1 + 4 * trip, 4 * trip, 4))
    assert costs.trip_seconds(8) / costs.trip_seconds(1) == pytest.approx(2.4, rel=0.25)


def test_guesses_are_timed_by_who_guessed_before() -> None:
    costs = PassCosts(2)
    for _ in range(20):
        costs.learn_draft("", 0.03)
        costs.learn_draft("self", 0.02)
        costs.learn_draft("ngram", 0.0)
    assert costs.draft_seconds("") == pytest.approx(0.03)
    assert costs.draft_seconds("self") == pytest.approx(0.02)
    assert costs.draft_seconds("ngram") == 0
    assert costs.draft_seconds("model") == costs.draft_seconds("")


def test_what_surrounds_guesses_is_counted_but_not_a_prompt_that_was_read() -> None:
    costs = PassCosts(2)
    costs.learn_draft("", 0.02)
    drafts = (Draft(1, 0.5, seconds=0.02),)
    costs.learn(PassOutcome(drafts, 1, 0, 5.02, 0.1, 0.0, 0))
    assert costs.around_seconds() < 0.02
    for _ in range(40):
        costs.learn(PassOutcome(drafts, 1, 0, 0.024, 0.1, 0.0, 0))
    assert costs.around_seconds() == pytest.approx(0.004, rel=0.05)


def test_with_everything_at_home_there_is_nothing_to_wait_for() -> None:
    costs = PassCosts(2)
    for _ in range(10):
        costs.learn(PassOutcome((), 0, 0, 0.0, 0.1, 0.0, 0))
    assert costs.trips(8) == 0 and costs.pass_seconds(1) == pytest.approx(0.1)
