"""What is left to fetch and of whom, without any network."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.home.call_bits import CallKey, first_run, numbers, run_bits
from node.share.work import EVERY, FAILURES, FAILURES_UNHEARD, LAST_REST, RATE_SECONDS, Source, Work

A, B = (0, 0), (5, 0)


def work(
    lacking: Mapping[CallKey, int],
    held: Mapping[str, Mapping[CallKey, int]],
    askable: Callable[[CallKey, str], int] = lambda key, peer_id: EVERY,
) -> Work[CallKey]:
    def holders(key: CallKey) -> list[tuple[str, int]]:
        return [(peer, cells[key]) for peer, cells in held.items() if key in cells]

    return Work(lacking, holders, askable)


def at_most(most: int) -> Callable[[CallKey, int, int], int]:
    return lambda key, first, count: min(count, most)


def anybody(peer_id: str) -> bool:
    return True


@given(st.integers(1, 1 << 40))
def test_the_first_run(bits: int) -> None:
    first, count = first_run(bits)
    held = numbers(bits)
    assert first == held[0] and count >= 1
    assert numbers(run_bits(first, count)) == held[:count]
    assert first + count not in held


def test_cells_are_taken_once_in_order_and_come_back() -> None:
    def most(key: CallKey, first: int, count: int) -> int:
        return min(count, {A: 2, B: 9}[key])

    left = work({A: 0b10111, B: 0b11}, {"x": {A: 0b11111, B: 0b01}, "y": {A: 0b00100, B: 0b11}})
    assert [each.peer_id for each in left.useful(anybody)] == ["x", "y"]
    x, y = left.sources["x"], left.sources["y"]
    assert left.take(x, most) == (A, 0, 2)
    assert left.take(y, most) == (A, 2, 1)
    assert left.take(x, most) == (A, 4, 1)
    assert left.take(x, most) == (B, 0, 1)
    assert left.take(x, most) is None and left.useful(anybody) == [y]
    left.give_back(A, 0b100)
    assert left.left() == {A: 0b100, B: 0b10}
    assert left.take(x, most) == (A, 2, 1)


def test_who_may_not_be_asked() -> None:
    left = work({A: 0b1}, {"x": {A: 1}, "y": {A: 1}, "z": {A: 0b10}})
    assert [each.peer_id for each in left.useful(lambda peer: peer != "y")] == ["x"]
    left.sources["x"].given_up = "lied"
    assert [each.peer_id for each in left.useful(anybody)] == ["y"]
    left.sources["y"].refuse(A, 0b1, 0)
    assert left.useful(anybody) == [] and left.take(left.sources["y"], at_most(1)) is None
    assert left.left() == {A: 0b1}


def test_what_a_source_refuses_it_is_not_asked_again() -> None:
    left = work({A: 0b1111}, {"x": {A: 0b1111}})
    (source,) = left.useful(anybody)
    assert left.take(source, at_most(4)) == (A, 0, 4)
    source.refuse(A, 0b1111, 0b0010 | 1 << 60)
    left.give_back(A, 0b1111)
    assert left.take(source, at_most(4)) == (A, 0, 1)
    assert left.take(source, at_most(4)) == (A, 2, 2)
    assert left.take(source, at_most(4)) is None and left.left() == {A: 0b10}


def test_what_must_come_before_is_waited_for() -> None:
    open_now = {A: 0b11, B: 0}
    held = {"x": {A: 0b11, B: 0b111}, "y": {B: 0b111}}
    left = work({A: 0b11, B: 0b111}, held, lambda key, peer_id: open_now[key])
    x, y = left.useful(anybody)
    assert left.can_take(x) and not left.can_take(y) and left.take(y, at_most(9)) is None
    assert left.take(x, at_most(9)) == (A, 0, 2)
    assert not left.can_take(x) and left.useful(anybody) == [x, y]  # they can give what is not open yet
    open_now[B] = 0b110
    assert left.can_take(x) and left.take(y, at_most(9)) == (B, 1, 2)
    assert not left.can_take(x) and left.left() == {B: 0b001}


@pytest.mark.parametrize(("heard", "allowed"), [(True, FAILURES), (False, FAILURES_UNHEARD)])
def test_failures_make_it_rest_longer_and_then_for_good(heard: bool, allowed: int) -> None:
    source = Source("x", was_heard=heard)
    rests = []
    for number in range(allowed):
        assert not source.given_up
        source.fail("gone", 100.0)
        rests.append(source.rests_until - 100.0)
        assert source.failures == number + 1
    assert source.given_up == "gone" and rests == sorted(rests) and rests[0] > 0


def test_it_rests_as_long_as_it_asks_for_within_reason() -> None:
    source = Source("x", was_heard=True)
    source.fail("busy", 0.0, rest=3.0)
    assert source.rests_until == 3.0
    source.fail("busy", 0.0, rest=65.0)
    assert source.rests_until == LAST_REST


def measured(left: Work[CallKey], rates: Mapping[str, float]) -> None:
    """Sources that have sent at these rates, in bytes a second."""
    left.useful(anybody)
    for peer_id, rate in rates.items():
        left.sources[peer_id].begin(100.0)
        left.sources[peer_id].sent(int(rate * RATE_SECONDS), 100.0 + RATE_SECONDS)


def test_who_is_far_slower_than_those_who_hold_the_same() -> None:
    left = work({A: 0b111}, {"x": {A: 0b111}, "y": {A: 0b111}, "z": {A: 0b011}})
    measured(left, {"x": 9e3, "y": 1e5, "z": 1e6})
    x, y, z = (left.sources[peer_id] for peer_id in "xyz")
    assert left.is_slow(x, A, 0b111, anybody)
    assert not left.is_slow(y, A, 0b111, anybody)  # z is, but does not hold it all
    assert not left.is_slow(z, A, 0b011, anybody)
    assert not left.is_slow(x, A, 0b111, lambda peer_id: peer_id != "y")  # nobody else can be asked for all
    y.given_up = "gone"
    assert not left.is_slow(x, A, 0b111, anybody)
    y.given_up = ""
    y.refuse(A, 0b001, 0b001)
    assert not left.is_slow(x, A, 0b111, anybody) and left.is_slow(x, A, 0b110, anybody)
    x.rate = None
    assert not left.is_slow(x, A, 0b110, anybody)


def test_a_rate_is_of_the_last_seconds() -> None:
    source = Source("x")
    source.begin(5.0)
    source.sent(1000, 5.1)
    assert source.rate is None and source.is_asked
    source.sent(1000, 5.0 + RATE_SECONDS)
    assert source.rate == 2000 / RATE_SECONDS
    source.sent(10, 5.0 + 2 * RATE_SECONDS)
    assert source.rate == 10 / RATE_SECONDS
    source.end(5.1 + 2 * RATE_SECONDS)  # too short to tell
    assert source.rate == 10 / RATE_SECONDS and not source.is_asked
    source.begin(100.0)
    source.sent(500, 100.5)
    source.end(102.0)
    assert source.rate == 250.0 and source.n_bytes == 2510
    source.rest(102.0)
    assert source.rests_until == 102.0 + LAST_REST and not source.failures
