"""Prompt look-up against a naive search, and what it makes of its experience."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from node.decode.drafting.draft import Draft
from node.decode.drafting.ngram import LENGTHS, NgramDrafter
from node.engine.sampler import Sampler

NO_SAMPLER = cast(Sampler, None)  # look-up draws nothing

texts = st.lists(st.integers(0, 3), max_size=60)


def naive(tokens: Sequence[int], limit: int) -> list[int]:
    """What follows the latest occurrence of the longest n-gram, found by looking everywhere."""
    for length in LENGTHS:
        for place in range(len(tokens) - 1, length - 1, -1):
            if len(tokens) >= length and tokens[place - length : place] == tokens[len(tokens) - length :]:
                text = list(tokens)
                for i in range(limit):
                    text.append(text[place + i])
                return text[len(tokens) :]
    return []


def guesses(drafter: NgramDrafter, tokens: Sequence[int], limit: int = 8) -> list[Draft]:
    return list(drafter.drafts(tokens, NO_SAMPLER, limit))


@settings(max_examples=150)
@given(st.lists(st.tuples(st.integers(0, 60), texts, st.integers(0, 15)), min_size=1, max_size=8))
def test_it_finds_what_a_naive_search_finds_however_the_text_changes(
    steps: list[tuple[int, list[int], int]],
) -> None:
    drafter, text = NgramDrafter(), list[int]()
    for kept, more, limit in steps:
        text = text[:kept] + more
        found = guesses(drafter, text, limit)
        assert [draft.token for draft in found] == naive(text, limit)
        assert all(0 < draft.probability < 1 and draft.source == "ngram" for draft in found)


@given(st.lists(st.integers(0, 1), max_size=200))
def test_token_by_token_is_as_all_at_once(text: list[int]) -> None:
    drafter = NgramDrafter()
    for end in range(len(text)):
        assert [draft.token for draft in guesses(drafter, text[:end])] == naive(text[:end], 8)


def test_longer_matches_go_before_later_ones() -> None:
    #        1 2 3 -> 7           9 2 3 -> 8, later but shorter
    text = [1, 2, 3, 7, 5, 6, 9, 2, 3, 8, 4, 1, 2, 3]
    assert guesses(NgramDrafter(), text, 1)[0].token == 7


def test_a_guess_may_be_given_up_halfway() -> None:
    drafter = NgramDrafter()
    text = [1, 2, 3, 4, 5, 1, 2, 3]
    half = drafter.drafts(text, NO_SAMPLER, 8)
    assert [next(half).token, next(half).token] == [4, 5]
    half.close()
    assert [draft.token for draft in guesses(drafter, text)] == naive(text, 8)


def run(drafter: NgramDrafter, text: list[int], come_true: bool, times: int) -> float:
    """Follow guesses, or never what was guessed; returns the last chance it gave its first guess."""
    chance = 0.0
    for i in range(times):
        found = guesses(drafter, text, 4)
        chance = found[0].probability
        text += [draft.token for draft in found] if come_true else [1000 + i, 1, 2]
    return chance


def test_what_came_true_is_believed_and_what_did_not_is_not() -> None:
    start = [1, 2, 3, 4, 5, 6, 1, 2]
    first = guesses(NgramDrafter(), start)[0].probability
    assert run(NgramDrafter(), list(start), True, 40) > max(first, 0.9)
    assert run(NgramDrafter(), list(start), False, 40) < min(first, 0.15)


def test_what_nobody_saw_is_not_judged() -> None:
    drafter = NgramDrafter()
    text = [1, 2, 3, 4, 5, 6, 1, 2]
    before = guesses(drafter, text)[0].probability
    for _ in range(50):  # the same again, and another text in between: nothing followed the guess
        assert guesses(drafter, text)[0].probability == before
        guesses(drafter, text[:4])


def test_only_as_much_is_judged_as_came_true_before() -> None:
    drafter = NgramDrafter()
    text = [1, 2, 3, 4, 5, 6, 1, 2]
    before = [draft.probability for draft in guesses(drafter, text, 4)]
    guesses(drafter, [*text, 3, 9, 9, 9])
    after = [draft.probability for draft in guesses(drafter, text, 4)]
    assert after[0] > before[0] and after[1] < before[1] and after[2:] == before[2:]
