"""Who answers, whatever happens in whatever order."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from market.answering import (
    ANSWER_HOLDS,
    LEAST_SHARE,
    MOST_DOUBLINGS,
    REFRESH_SECONDS,
    SURE_ANSWERS,
    Answering,
)
from market.view import STRANGER

NAMES = [f"peer {number}" for number in range(8)]
NETWORKS = ["", "192.0.2.0/24", "203.0.113.0/24"]

events = st.lists(
    st.tuples(
        st.sampled_from(["answered", "failed", "untold", "forgotten"]),
        st.sampled_from(NAMES),
        st.sampled_from(NETWORKS),
        st.floats(0, ANSWER_HOLDS),  # seconds since the event before
    ),
    max_size=60,
)


def played(happened: list[tuple[str, str, str, float]]) -> tuple[Answering, dict[str, list[float]], float]:
    """What is known after that; when each that is not forgotten answered last; the time."""
    known, now, answered = Answering(), 0.0, dict[str, list[float]]()
    for what, name, network, passed in happened:
        now += passed
        if what == "answered":
            known.answered(name, network, now)
            answered[name] = [now]
        elif what == "failed":
            known.failed(name, now)
        elif what == "untold":
            known.untold(name, now)
        else:
            known.keep({each: 1 for each in NAMES if each != name})
            answered.pop(name, None)
    return known, answered, now


@given(events, st.floats(0, 2 * ANSWER_HOLDS))
def test_only_who_answered_within_the_hour_counts(
    happened: list[tuple[str, str, str, float]], later: float
) -> None:
    known, answered, now = played(happened)
    now += later
    answers = known.answers(now)
    assert answers.counted <= answers.answered.keys() and not answers.answered.keys() & answers.silent
    for name in answers.answered:
        assert now - answered[name][0] < ANSWER_HOLDS
    assert {answers.weight(name) for name in NAMES} <= {0.0, answers.stranger, 1.0}
    assert 0 < answers.stranger <= STRANGER
    assert bool(answers.counted) == bool(answers.answered)


@given(events)
def test_silence_is_believed_only_where_others_answer(happened: list[tuple[str, str, str, float]]) -> None:
    known, _, now = played(happened)
    answers = known.answers(now)
    if answers.silent:
        asked = len(answers.answered) + len(answers.silent)
        assert len(answers.answered) >= min(SURE_ANSWERS, LEAST_SHARE * asked)


@given(events, st.integers(0, 2**32))
def test_an_answer_is_worth_a_whole_holder_whatever_was_before(
    happened: list[tuple[str, str, str, float]], seed: int
) -> None:
    known, _, now = played(happened)
    name = random.Random(seed).choice(NAMES)
    known.answered(name, "", now)
    assert known.answers(now).weight(name) == 1.0
    known.failed(name, now)
    assert known.answers(now).weight(name) == 1.0


@given(events, st.integers(0, 2**32))
def test_everybody_is_asked_in_time(happened: list[tuple[str, str, str, float]], seed: int) -> None:
    """Asked one after the other, all are within the longest pause and a turn each, and nobody twice."""
    known, _, now = played(happened)
    rng, asked = random.Random(seed), list[str]()
    now += REFRESH_SECONDS * 2**MOST_DOUBLINGS
    while (name := known.next(NAMES, now, rng)) is not None:
        known.answered(name, "", now)
        asked.append(name)
    assert sorted(asked) == NAMES
    assert known.pause(NAMES, now, rng) > 0
