"""Servers that ask for something: against every way to share a call out, and nothing new where none does."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from market.preference import HOPELESS_SECONDS, Prefer, tariff
from routing.dispatch.choice import CLEAR_SHARE, SERVER_SECONDS, Choice, Cover, clear, numbers
from routing.dispatch.holders import HOME, Holder, LayerHolders, Slack
from routing.dispatch.plan import COMPARED_PAIRS, assign, plan
from routing.dispatch.priced import SERVER_SHARE, PricedChoice

SECOND = 10_000_000
PREFERENCES: list[Prefer] = ["fast", "cheap", "balanced"]


def slack_of(prefer: Prefer) -> Slack:
    return tariff(prefer, SECOND, lambda peer_id, layer: 0.0).slack


def bits(experts: Iterable[int]) -> int:
    return Holder.of("", experts).held


def holder(name: str, experts: Iterable[int], cost: float, price: float, per_pair: float = 0.0) -> Holder:
    return Holder(name, bits(experts), cost, per_pair, price)


def ordered(holders: Iterable[Holder]) -> list[Holder]:
    """As the table has them."""
    return sorted(holders, key=lambda each: each.least)


def choose(
    holders: Iterable[Holder], pairs: Mapping[int, int], slack: Slack, run_length: int = 0
) -> dict[str, list[int]]:
    found = PricedChoice(ordered(holders), bits(pairs), pairs, run_length, pairs, slack).best()
    return {each.peer_id: numbers(mine) for each, mine in found}


def seconds_of(cover: Cover, pairs: Mapping[int, int]) -> float:
    return max(
        each.cost + each.per_pair * sum(pairs[expert] for expert in numbers(mine)) for each, mine in cover
    )


def asked_of(cover: Cover, pairs: Mapping[int, int]) -> float:
    return sum(each.price * sum(pairs[expert] for expert in numbers(mine)) for each, mine in cover)


def every_cover(holders: Sequence[Holder], pairs: Mapping[int, int]) -> list[Cover]:
    """Every way to give each expert to one holder."""
    options = [[each for each in holders if each.held >> expert & 1] for expert in pairs]
    found = []
    for owners in itertools.product(*options):
        shares: dict[str, int] = {}
        for owner, expert in zip(owners, pairs, strict=True):
            shares[owner.peer_id] = shares.get(owner.peer_id, 0) | 1 << expert
        found.append([(each, shares[each.peer_id]) for each in holders if each.peer_id in shares])
    return found


def bar_of(holders: Sequence[Holder], needed: int) -> float:
    """The smallest time by which servers that are through hold all of it."""
    held = 0
    for each in holders:
        held |= each.held
        if not needed & ~held:
            return each.least
    raise AssertionError("not covered")


def random_question(rng: np.random.Generator, price: float) -> tuple[list[Holder], dict[int, int]]:
    """Four holders of parts, one of everything; five of six experts."""
    per_pair = float(rng.choice([0.0, 0.003]))
    holders = [
        Holder(
            f"p{n}",
            int(rng.integers(1, 64)) if n else 63,
            float(rng.choice([0.004, 0.02, 0.08])) * float(rng.uniform(0.7, 1.3)),
            per_pair * float(rng.uniform()),
            price * float(rng.uniform(0.3, 3)),
        )
        for n in range(5)
    ]
    return ordered(holders), {expert: int(rng.integers(1, 4)) for expert in rng.permutation(6)[:5].tolist()}


@pytest.mark.parametrize("prefer", PREFERENCES)
@pytest.mark.parametrize("price", [0.0001, 0.003, 0.05, 1.0])
def test_choices_are_near_the_best_of_all_ways_to_share_a_call_out(prefer: Prefer, price: float) -> None:
    rng = np.random.default_rng(7)
    slack = slack_of(prefer)
    ratios = []
    for _ in range(40):
        holders, pairs = random_question(rng, price)
        needed = bits(pairs)
        found = PricedChoice(holders, needed, pairs, 0, pairs, slack).best()
        assert sum(mine for _, mine in found) == needed
        unpriced = seconds_of(Choice(holders, needed, pairs).best(), pairs)
        limit = max(slack.limit(bar_of(holders, needed)), unpriced) + 1e-12
        assert seconds_of(found, pairs) <= limit
        allowed = [cover for cover in every_cover(holders, pairs) if seconds_of(cover, pairs) <= limit]
        each = SERVER_SECONDS + SERVER_SHARE * min(asked_of(cover, pairs) for cover in allowed)
        counted = [seconds_of(c, pairs) + asked_of(c, pairs) + each * len(c) for c in allowed]
        best = allowed[int(np.argmin(counted))]
        most = min(counted)
        if len(found) == 1:  # the fewest messages, for what is not clearly more
            most += clear(seconds_of(best, pairs)) + CLEAR_SHARE * asked_of(best, pairs)
        ratios.append((seconds_of(found, pairs) + asked_of(found, pairs) + each * len(found)) / most)
    assert max(ratios) < 1.35
    assert np.mean(np.array(ratios) <= 1 + 1e-9) >= 0.8


part = st.tuples(st.integers(1, 2**8 - 1), st.integers(1, 40), st.integers(0, 4), st.integers(0, 5))


@st.composite
def questions(draw: st.DrawFn) -> tuple[list[Holder], dict[int, int]]:
    """Up to six holders of eight experts, and the pairs of those that are needed."""
    holders = [
        Holder(f"p{n}", held, cost / 200, per_pair / 1000, price / 50)
        for n, (held, cost, per_pair, price) in enumerate(draw(st.lists(part, min_size=1, max_size=6)))
    ]
    needed = draw(st.sets(st.integers(0, 7), min_size=1))
    return ordered(holders), {expert: draw(st.integers(1, 4)) for expert in sorted(needed)}


@given(questions(), st.sampled_from(PREFERENCES), st.booleans())
def test_every_choice_is_a_cover_that_is_not_too_slow(
    question: tuple[list[Holder], dict[int, int]], prefer: Prefer, computing: bool
) -> None:
    holders, pairs = question
    if not computing:
        holders = ordered(replace(each, per_pair=0.0) for each in holders)
    slack, weighed = slack_of(prefer), pairs if computing else None
    choice = PricedChoice(holders, bits(pairs), weighed, 0, pairs, slack)
    found = choice.best()
    held = 0
    for each in holders:
        held |= each.held
    reachable = bits(pairs) & held
    assert sum(mine for _, mine in found) == reachable
    assert all(mine and not mine & ~each.held for each, mine in found)
    assert len({each.peer_id for each, _ in found}) == len(found)
    assert found == PricedChoice(holders, bits(pairs), weighed, 0, pairs, slack).best()
    if found:
        unpriced = Choice(holders, bits(pairs), weighed).best()
        limit = max(slack.limit(bar_of(holders, reachable)), seconds_of(unpriced, pairs))
        assert seconds_of(found, pairs) <= limit + 1e-9


@given(questions(), st.sampled_from(PREFERENCES))
def test_where_nobody_asks_for_anything_nothing_is_chosen_otherwise(
    question: tuple[list[Holder], dict[int, int]], prefer: Prefer
) -> None:
    holders = [replace(each, price=0.0) for each in question[0]]
    ids = np.array([[expert for expert, count in question[1].items() for _ in range(count)]], np.int32)
    free = LayerHolders(3, tuple(holders), slack=slack_of(prefer))
    assert not free.is_priced
    held = 0
    for each in holders:
        held |= each.held
    if bits(question[1]) & ~held:
        return
    expected = Choice(holders, bits(question[1]), question[1]).best()
    called = plan(ids, free)
    assert [(call.peer_id, sorted(set(call.experts.tolist()))) for call in called] == [
        (each.peer_id, numbers(mine)) for each, mine in expected
    ]


# --- what is preferred ---

ONE = dict.fromkeys(range(8), 1)


def two(near: float, far: float, near_asks: float, far_asks: float, prefer: Prefer) -> str:
    """Who of two that hold everything is asked, at these seconds and micro-credits a pair."""
    weighed = tariff(prefer, SECOND, lambda peer_id, layer: 0.0)
    asks = {"near": near_asks, "far": far_asks}
    unit = weighed.per_unit(asks)
    (name,) = choose(
        [holder("near", range(8), near, unit * near_asks), holder("far", range(8), far, unit * far_asks)],
        ONE,
        weighed.slack,
    )
    return name


@pytest.mark.parametrize("scale", [0.01, 2600.0, 1e6])  # models differ by so much
def test_cheap_takes_the_cheap_one_however_near_the_other_is(scale: float) -> None:
    assert two(0.001, 0.25, 2 * scale, scale, "cheap") == "far"
    assert two(0.001, 0.25, scale, scale, "cheap") == "near"
    assert two(0.001, 0.25, 1.01 * scale, scale, "cheap") == "near"  # for a hundredth nobody waits
    assert two(0.02, 0.15, 2 * scale, scale, "fast") == "near"
    assert two(0.02, 0.021, 2 * scale, scale, "fast") == "far"  # as good as equal
    assert two(0.02, 0.02, scale, 2 * scale, "fast") == "near"


def test_cheap_does_not_wait_for_the_hopeless() -> None:
    assert two(0.001, 0.001 + 0.99 * HOPELESS_SECONDS, 100.0, 1.0, "cheap") == "far"
    assert two(0.001, 0.001 + 1.01 * HOPELESS_SECONDS, 100.0, 1.0, "cheap") == "near"
    assert two(0.2, 1.99, 100.0, 1.0, "cheap") == "far"  # where all are slow, ten times as slow
    assert two(0.2, 2.01, 100.0, 1.0, "cheap") == "near"


def test_balanced_weighs_credits_by_what_a_second_is_worth() -> None:
    # Eight pairs: 0.08 credits less, which are 8 ms.
    assert two(0.020, 0.0279, 20_000, 10_000, "balanced") == "far"
    assert two(0.020, 0.0351, 20_000, 10_000, "balanced") == "near"
    assert two(0.020, 0.500, 20, 10, "balanced") == "near"
    assert two(0.020, 0.500, 2e6, 1e6, "balanced") == "far"


def test_each_part_at_who_asks_least_for_it() -> None:
    holders = [
        holder("whole", range(8), 0.01, 3.0),
        holder("low", range(4), 0.02, 1.0),
        holder("high", range(4, 8), 0.02, 1.0),
    ]
    assert choose(holders, ONE, slack_of("cheap")) == {"low": [0, 1, 2, 3], "high": [4, 5, 6, 7]}
    assert choose(holders, ONE, slack_of("fast")) == {"whole": list(range(8))}


def test_a_server_more_for_a_trifle_is_one_message_too_many() -> None:
    parts = [holder(f"p{n}", [n], 0.01, 1.0) for n in range(8)]
    assert choose([holder("whole", range(8), 0.01, 1.05), *parts], ONE, slack_of("cheap")) == {
        "whole": list(range(8))
    }
    split = [holder("low", range(4), 0.01, 1.01), holder("high", range(4, 8), 0.01, 1.01)]
    assert len(choose([*split, *parts], ONE, slack_of("cheap"))) == 2


def test_runs_stay_together() -> None:
    holders = [holder("a", range(8), 0.01, 2.0), holder("b", range(4, 8), 0.01, 1.0)]
    assert choose(holders, dict.fromkeys([1, 2, 5, 6], 1), slack_of("cheap"), run_length=4) == {
        "a": [1, 2],
        "b": [5, 6],
    }


def test_large_calls_are_weighed_by_price_and_not_by_computing() -> None:
    both = tuple(
        ordered([holder("near", range(8), 0.005, 2.0, 0.004), holder("far", range(8), 0.05, 1.0, 0.004)])
    )
    ids = np.tile(np.array([[0, 2, 4, 6]], np.int32), (COMPARED_PAIRS, 1))
    expected: list[tuple[Prefer, str]] = [("cheap", "far"), ("fast", "near")]
    for prefer, name in expected:
        (call,) = plan(ids, LayerHolders(0, both, slack=slack_of(prefer)))
        assert (call.peer_id, call.pairs.size) == (name, ids.size)


def test_home_and_reserve_keep_their_places() -> None:
    holders = LayerHolders(
        0,
        (Holder(HOME, 0b1), holder("dear", [0, 1], 0.01, 9.0)),
        reserve=(holder("cheap", range(4), 0.01, 1.0),),
        slack=slack_of("cheap"),
    )
    ones = dict.fromkeys(range(4), 1)
    assert assign(range(4), holders, ones, ones) == [(HOME, [0]), ("dear", [1]), ("cheap", [2, 3])]
