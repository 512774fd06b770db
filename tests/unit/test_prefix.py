"""How much of a cache a prompt takes, and which place it gets."""

from __future__ import annotations

import pytest

from node.decode.continuous.prefix import Past, Reuse, Seat, choose_seat

GRID = 8
EXACT = Reuse(GRID, exact=True, can_rewind=True)
LOOSE = Reuse(GRID, exact=False, can_rewind=True)
STATE = Reuse(GRID, exact=True, can_rewind=False)


def past(prompt: int, written: int = 0, *, start: int = 0) -> Past:
    """A prompt of so many tokens, start, start + 1, ..., read in chunks, and an answer."""
    made, tokens = Past(), list(range(start, start + prompt))
    for begin in range(0, prompt, GRID):
        made.read(tokens[begin : begin + GRID], GRID)
    made.wrote(range(start + prompt, start + prompt + written))
    return made


def test_what_passes_leave() -> None:
    made = past(19, 3)
    assert len(made) == 22 and made.aligned == 16 and made.answer == 19
    assert made.ends == [8, 16, 19, 20, 21, 22]
    made.read(range(8), GRID)  # a further turn: its chunks are counted from where it begins
    assert made.aligned == 16 and made.ends[-1] == 30


@pytest.mark.parametrize(
    ("length", "ends", "aligned", "answer"),
    [(22, [8, 16, 19, 20, 21, 22], 16, 19), (20, [8, 16, 19, 20], 16, 19), (19, [8, 16, 19], 16, None),
     (12, [8, 12], 8, None), (8, [8], 8, None), (0, [], 0, None)],
)  # fmt: skip
def test_cut(length: int, ends: list[int], aligned: int, answer: int | None) -> None:
    made = past(19, 3)
    made.cut(length, GRID)
    assert (made.tokens, made.ends) == (list(range(length)), ends)
    assert (made.aligned, made.answer) == (aligned, answer)


def test_another_prompt_takes_whole_chunks() -> None:
    made = past(19, 3)
    assert EXACT.of(made, [*range(18), 99]) == 16
    assert EXACT.of(made, [*range(15), 99]) == 8
    assert EXACT.of(made, [*range(7), 99]) == 0
    # The same prompt again, or one that goes on where that ended: its last piece is read with its own rows.
    assert EXACT.of(made, range(19)) == 16
    assert EXACT.of(made, [*range(19), 99, 98]) == 16
    assert EXACT.of(past(16), range(16)) == 8  # something has to be computed for the output


def test_a_further_turn_takes_the_answer_as_well() -> None:
    made = past(19, 6)
    assert EXACT.of(made, [*range(25), 99]) == 25
    assert EXACT.of(made, [*range(22), 99]) == 22  # it was cut short
    assert EXACT.of(made, range(25)) == 24
    made.read([50, 51, 52], GRID)
    made.wrote([53])
    # Within what the second turn read only whole passes.
    assert EXACT.of(made, [*range(25), 50, 51, 99]) == 25
    assert EXACT.of(made, [*range(25), 50, 51, 52, 99]) == 28


def test_all_that_is_common_where_bits_may_differ() -> None:
    made = past(19, 3)
    assert LOOSE.of(made, [*range(13), 99]) == 13
    assert LOOSE.of(made, range(13)) == 12
    assert LOOSE.of(Past(), range(13)) == 0


def test_a_state_is_taken_as_a_whole_or_not() -> None:
    made = past(19, 3)
    assert STATE.of(made, [*range(22), 99]) == 22
    assert STATE.of(made, [*range(21), 99]) == 0  # one token too far
    assert STATE.of(made, range(22)) == 0
    assert STATE.of(past(16), range(20)) == 16
    assert STATE.of(past(19), range(24)) == 0  # its last piece would have had other rows
    assert Reuse(GRID, exact=False, can_rewind=False).of(past(19), range(24)) == 19


def test_promises() -> None:
    assert EXACT.promised(range(19), range(19)) == 19
    assert EXACT.promised(range(19), [*range(12), 99]) == 8
    assert LOOSE.promised(range(19), [*range(12), 99]) == 12
    assert STATE.promised(range(19), [*range(12), 99]) == 0 and STATE.promised(range(19), range(19)) == 19


def test_a_chat_gets_its_own_old_place() -> None:
    pasts = [past(19, 6), past(19, 6, start=100), Past()]
    prompt = [*range(25), 99]
    assert choose_seat(prompt, pasts, [2, 1, 0], EXACT, 1) == Seat(0, None, 25)


def test_what_others_may_come_back_to_is_copied() -> None:
    # A long talk begins with the same instructions: it is not given up for them.
    pasts = [past(16, 60), past(30, start=100), Past()]
    prompt = [*range(16), 98, 99]
    assert choose_seat(prompt, pasts, [2, 1, 0], EXACT, 4) == Seat(2, 0, 16)
    # It is, if it is the next to be given up anyway; and copying has to be worth it.
    assert choose_seat(prompt, pasts, [0, 1, 2], EXACT, 4) == Seat(0, None, 16)
    assert choose_seat(prompt, pasts, [2, 1, 0], EXACT, 17) == Seat(2, None, 0)


def test_sequences_under_way_are_copied_from() -> None:
    pasts = [past(32), Past()]
    assert choose_seat([*range(24), 99], pasts, [1], EXACT, 4) == Seat(1, 0, 24)


def test_the_place_not_used_for_longest_is_given_up() -> None:
    pasts = [past(16), past(16, start=100)]
    assert choose_seat([7, 7, 7], pasts, [1, 0], EXACT, 4) == Seat(1, None, 0)
