"""Calls counted by peer."""

from __future__ import annotations

from routing.dispatch.call import CallStats, Failure, ServerStats
from routing.errors import PeerError
from routing.peer_calls import MAX_PEERS, Calls, PeerCalls


def test_calls_are_counted_where_they_belong() -> None:
    calls = PeerCalls()
    answered = [ServerStats("a", 0.1, 0.01, 0, 4), ServerStats("b", 0.2, 0.01, 0, 4)]
    failed = [Failure("c", "gone", PeerError("gone", peer="c"))]
    calls.dispatched(CallStats(servers=answered, failures=failed, late=["b"]))
    calls.dispatched(CallStats(servers=answered[:1]))
    calls.served("a")
    assert calls.of("a") == Calls(made=2, served=1)
    assert calls.of("b") == Calls(made=1, late=1)
    assert calls.of("c") == Calls(failed=1)
    assert calls.of("stranger") == Calls()


def test_of_too_many_the_one_not_heard_of_for_longest_is_forgotten() -> None:
    calls = PeerCalls()
    calls.served("old friend")
    for number in range(2 * MAX_PEERS):
        calls.served(f"made up {number}")
        calls.served("old friend")
    assert calls.of("old friend").served == 2 * MAX_PEERS + 1
    assert calls.of("made up 0") == Calls() and calls.of(f"made up {2 * MAX_PEERS - 1}").served == 1
