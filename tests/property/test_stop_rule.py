"""The stop rule in worlds of seeded chance (tests/guessing_world.py): it guesses where that pays."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.decode.drafting.acceptance import Acceptance
from node.decode.drafting.draft import Draft
from node.decode.drafting.pass_costs import PassCosts
from node.decode.drafting.rule import PassOutcome
from node.decode.drafting.stop_rule import StopRule
from node.decode.exactness import LEAST_ROWS
from tests.guessing_world import World

RTTS = (0.001, 0.01, 0.1)
CHANCES = (0.2, 0.5, 0.8, 0.95)
DRAFTS = (0.0, 0.005, 0.05)
SEEDS = range(2)


def rule(most_rows: int = 16, acceptance: Acceptance | None = None) -> StopRule:
    return StopRule(most_rows, acceptance or Acceptance(), PassCosts(LEAST_ROWS))


def over_best_fixed(**world: Any) -> float:
    """Speed of a new rule over 500 tokens, against the best fixed number of guesses."""
    shares = []
    for seed in SEEDS:
        made = World(seed, **world)
        shares.append(made.best_fixed() / made.run(rule(), 500))
    return sum(shares) / len(shares)


@pytest.mark.slow
@pytest.mark.parametrize("layers", [(1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 0.5, 0.0), (0.5, 0.5, 0.5, 0.5)])
def test_it_is_never_worse_than_the_best_fixed_number_of_guesses(layers: tuple[float, ...]) -> None:
    """None included. What it must learn, it learns in these 500 tokens."""
    poor = {
        case: share
        for case in product(RTTS, CHANCES, DRAFTS)
        if (share := over_best_fixed(rtt=case[0], chance=case[1], draft=case[2], layers=layers)) < 0.95
    }
    assert not poor


def test_where_guesses_differ_it_is_better_than_any_fixed_number() -> None:
    for rtt, draft in ((0.08, 0.02), (0.02, 0.005), (0.02, 0.02)):
        assert over_best_fixed(rtt=rtt, chance=0.7, draft=draft, spread=0.5) > 1.02


def test_where_trips_are_dear_it_guesses_far() -> None:
    world = World(1, rtt=0.08, chance=0.9, draft=0.002, layers=(1.0,) * 4)
    world.run(rule(), 500)
    far = [made for made, _, _ in world.passes[5:] if made]
    assert sum(far) / len(far) > 10
    assert max(far) == 15  # of 16 rows one is the last token


def test_where_it_does_not_pay_it_turns_itself_off() -> None:
    """5 ms on slow cores: a guess takes half as long as a pass."""
    world = World(1, rtt=0.005, chance=0.4, draft=0.15, base=0.15, row=0.05)
    took = world.run(rule(), 500)
    late = world.passes[50:]
    assert sum(made > 0 for made, _, _ in late) < 0.06 * len(late)
    assert took < 1.03 * world.fixed(0)


def test_a_rule_that_is_wrong_about_costs_still_finds_out() -> None:
    """Passes with guesses take three times as long as without, however few rows they have."""

    class Steep(World):
        def step(self, rule: Any) -> None:
            super().step(_Slowed(rule, self))

    class _Slowed:
        def __init__(self, inner: StopRule, world: World) -> None:
            self.inner, self.world = inner, world
            self.begin, self.wants, self.keep = inner.begin, inner.wants, inner.keep

        def learn(self, outcome: PassOutcome) -> None:
            more = 0.2 if outcome.kept else 0.0
            self.world.seconds += more
            self.inner.learn(
                PassOutcome(
                    outcome.made,
                    outcome.kept,
                    outcome.accepted,
                    outcome.draft_seconds,
                    outcome.pass_seconds + more,
                    outcome.waited,
                    outcome.trips,
                )
            )

    world = Steep(2, rtt=0.02, chance=0.6, draft=0.002)
    assert world.run(rule(), 500) < 1.05 * World(2, 0.02, 0.6, 0.002).fixed(0)


def test_it_follows_a_network_and_a_text_that_change() -> None:
    same = rule()
    world = World(3, rtt=0.005, chance=0.7, draft=0.02, base=0.05, row=0.03, layers=(1.0, 1.0, 0.3, 0.0))
    for world.rtt, world.chance in (
        (0.005, 0.7),
        (0.08, 0.7),
        (0.005, 0.7),
        (0.08, 0.15),
        (0.08, 0.9),
        (0.001, 0.2),
    ):
        took = world.run(same, 300)
        assert took < world.best_fixed() / 0.9, (world.rtt, world.chance)


def test_what_was_learnt_of_a_guesser_helps_the_next_session() -> None:
    def first_tokens(acceptance: Acceptance) -> float:
        return sum(
            World(seed, rtt=0.005, chance=0.15, draft=0.05, source="self").run(
                rule(acceptance=acceptance), 30
            )
            for seed in range(20)
        )

    known = Acceptance()
    for seed in range(5):
        World(seed, rtt=0.08, chance=0.15, draft=0.001, source="self").run(rule(acceptance=known), 200)
    assert first_tokens(Acceptance(known.numbers())) < first_tokens(Acceptance())


def test_a_pass_without_a_beginning_is_a_plain_one() -> None:
    """At the end of the context there is no room for a guess, and nobody asks whether to begin."""
    some = rule()
    assert some.begin()
    draft = Draft(1, 0.9, source="model", seconds=0.01)
    some.wants([draft])
    some.learn(PassOutcome((draft,), some.keep([draft]), 1, 0.01, 0.1, 0.05, 2))
    some.learn(PassOutcome((), 0, 0, 0.0, 0.1, 0.05, 2))
    some.begin()
    some.learn(PassOutcome((), 0, 0, 0.0, 0.1, 0.05, 2))  # begun, but the guesser knew nothing


def test_with_one_row_there_is_nothing_to_begin() -> None:
    assert not rule(most_rows=1).begin()


seconds = st.floats(0, 100)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.floats(0, 1), seconds), max_size=8),
            st.integers(0, 8),
            seconds,
            seconds,
            st.integers(0, 50),
        ),
        max_size=40,
    ),
    st.integers(1, 9),
)
def test_whatever_it_is_told_it_keeps_its_bounds(
    passes: list[tuple[list[tuple[float, float]], int, float, float, int]], most_rows: int
) -> None:
    some = rule(most_rows)
    for guesses, right, took, waited, trips in passes:
        drafts = list[Draft]()
        if some.begin():
            for probability, each in guesses:
                drafts.append(Draft(1, probability, source="model", seconds=each))
                if not some.wants(drafts):
                    break
        assert len(drafts) < max(most_rows, 1)
        kept = some.keep(drafts)
        assert 0 <= kept <= len(drafts)
        some.learn(PassOutcome(tuple(drafts), kept, min(right, kept), 0.0, took + waited, waited, trips))
