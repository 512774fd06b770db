"""Whose turn it is: reading or writing, users, those who wait, those who have to be neighbours."""

from __future__ import annotations

import pytest

from node.decode.continuous.admission import LEAST_RETRY, MOST_RETRY, UNKNOWN_RETRY, WaitingRoom
from node.decode.continuous.rate import WINDOW, Rate
from node.decode.continuous.schedule import MOST_MISSED, MOST_USERS, RoundRobin, Turns, to_swap, window


def test_reading_and_writing_take_turns_by_time() -> None:
    turns = Turns(0.5)
    assert turns.reads(1, 7)
    turns.spent(3.0, reading=True)
    for _ in range(3):  # passes of a second each
        assert not turns.reads(1, 7)
        turns.spent(1.0, reading=False)
    assert turns.reads(1, 7)


def test_many_who_read_have_a_part_each() -> None:
    turns = Turns(0.5)
    passes = []
    for _ in range(40):
        passes.append(turns.reads(3, 1))
        turns.spent(1.0, reading=passes[-1])
    assert passes.count(True) == 30
    assert not any(passes[n : n + 2] == [False, False] for n in range(39))


def test_who_is_alone_owes_nothing() -> None:
    turns = Turns(0.5)
    for _ in range(10):
        assert turns.reads(1, 0)
        turns.spent(5.0, reading=True)
    assert not turns.reads(0, 1)
    turns.spent(100.0, reading=False)
    assert not turns.reads(0, 1) and not turns.reads(0, 0)
    assert turns.reads(1, 1)


def test_prompts_first() -> None:
    turns = Turns(1.0)
    for _ in range(5):
        assert turns.reads(1, 9)
        turns.spent(1.0, reading=True)


def test_users_in_turn() -> None:
    turns = RoundRobin()
    taken = []
    for _ in range(6):
        taken.append(turns.next(["b", "a", "c"]))
        turns.took(taken[-1])
    assert taken == ["b", "a", "c", "b", "a", "c"]
    assert turns.next(["c", "b"]) == "b" and turns.next(["c", "new"]) == "new"
    assert turns.next(["a", "b"], {"a": 1, "b": 2}.__getitem__) == "a"


def test_users_are_forgotten() -> None:
    turns = RoundRobin()
    for number in range(2 * MOST_USERS):
        turns.took(str(number))
    assert len(turns._last) == MOST_USERS and turns.next(["0", str(MOST_USERS)]) == "0"


@pytest.mark.parametrize(
    ("count", "passes"),
    [
        (0, [range(0)]),
        (1, [range(1)]),
        (7, [range(7)]),
        (8, [range(7), range(1, 8)]),
        (14, [range(7), range(7, 14)]),
        (15, [range(7), range(4, 11), range(8, 15)]),
    ],
)
def test_passes_are_full_and_everybody_is_in_one(count: int, passes: list[range]) -> None:
    waited = [1] * count
    for expected in passes * 3:
        taken = window(waited, 7)
        assert taken == expected
        waited = [0 if index in taken else each + 1 for index, each in enumerate(waited)]


def test_the_ends_change_places() -> None:
    assert to_swap([0] * 8, 7) is None
    assert to_swap([], 7) is None and to_swap([99, 0], 7) is None  # all are in every pass
    missed = [MOST_MISSED - 1, *[0] * 6, MOST_MISSED]
    assert to_swap(missed, 7) == (7, 1)
    # Who is in the middle now is not moved again, however much it has missed.
    assert to_swap([0, 99, 5, 4, 5, 5, 5, 3], 7) is None
    assert to_swap([99, *[0] * 13], 7) is None  # nobody is in more passes


def test_one_user_does_not_keep_others_waiting() -> None:
    room: WaitingRoom[int] = WaitingRoom(10)
    for number in range(4):
        room.add("greedy", number)
    room.add("modest", 10)
    taken: list[tuple[str, int]] = []
    while (following := room.peek(user for user, _ in taken)) is not None:
        assert room.take(following[0]) == following[1]
        taken.append(following)
    assert taken == [("greedy", 0), ("modest", 10), ("greedy", 1), ("greedy", 2), ("greedy", 3)]


def test_the_queue_has_an_end() -> None:
    room: WaitingRoom[str] = WaitingRoom(2)
    assert not room.is_full(free=1)
    for item in ("x", "y", "z"):
        room.add("a", item)
    assert room.is_full(free=1) and not room.is_full(free=2)
    assert room.remove("a", "y") and not room.remove("a", "y") and not room.remove("b", "x")
    assert not room.is_full(free=1) and len(room) == 2
    assert room.drain() == ["x", "z"] and room.peek([]) is None


def test_when_to_come_back() -> None:
    room: WaitingRoom[str] = WaitingRoom(0)
    assert room.is_full(free=0) and room.retry_after(8) == UNKNOWN_RETRY
    for seconds in (10.0, 30.0):
        room.answered(seconds)
    assert room.retry_after(4) == 5.0
    room.answered(0.0)
    assert room.retry_after(1000) == LEAST_RETRY
    room.answered(1e6)
    assert room.retry_after(1) == MOST_RETRY


def test_rate() -> None:
    rate = Rate()
    assert rate.per_second(5.0) == 0.0
    for second in range(20):
        rate.add(3, float(second))
    assert rate.per_second(19.0) == pytest.approx(3.0, rel=0.15)
    assert rate.per_second(19.0 + 2 * WINDOW) == 0.0
