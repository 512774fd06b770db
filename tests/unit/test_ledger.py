"""The ledger of trips: what was waited for, what was sent, who was slowest."""

from __future__ import annotations

import pytest

from node.decode.ledger import PassDone, TripsLedger, cost_rows
from routing.dispatch.call import CallStats, Failure, ServerStats
from routing.errors import PeerError


def stats(out: int, back: int, waits: dict[str, float], waves: int = 1) -> CallStats:
    servers = [ServerStats(peer, wait, 0.0, 0, 1) for peer, wait in waits.items()]
    return CallStats(out, back, servers, waves=waves)


def test_nothing_yet() -> None:
    report = TripsLedger().report()
    assert (report.trips_per_token, report.trips_per_pass, report.bytes_per_token_layer) == (0, 0, 0)
    assert report.calls_per_pass == 0 and report.slowest_peer == ""


def test_sums() -> None:
    ledger = TripsLedger()
    for tokens in (5, 1, 1):
        for layer in range(3):
            if layer == 2:
                ledger.count_home(0.25, whole=True)
            else:
                ledger.count_call(stats(100 * tokens, 50, {"a": 0.1, "b": 0.2 + layer}), tokens, 0.5)
        ledger.count_pass(PassDone(tokens))
    report = ledger.report()
    assert (report.passes, report.tokens, report.calls_per_pass, report.trips) == (3, 7, 3, 6)
    assert report.trips_per_pass == 2.0 and report.trips_per_token == pytest.approx(6 / 7, abs=1e-3)
    assert (report.bytes_out, report.bytes_back) == (1400, 300)
    assert report.bytes_per_token_layer == pytest.approx(1700 / 14, abs=0.05)
    assert report.waited == 3.0 and report.computed_home == 0.75
    assert report.slowest_peer == "b"


def test_a_call_that_asked_nobody_is_no_trip() -> None:
    ledger = TripsLedger()
    ledger.count_call(stats(0, 0, {}, waves=0), 4, 0.0)
    ledger.count_home(0.1, whole=False)
    ledger.count_pass(PassDone(4))
    report = ledger.report()
    assert (report.trips, report.calls_per_pass, report.bytes_per_token_layer) == (0, 1, 0)
    ledger.count_call(stats(80, 20, {"a": 0.1}), 2, 0.0)
    assert ledger.report().bytes_per_token_layer == 50.0


def test_waves_after_failures_are_one_trip_with_all_their_bytes() -> None:
    ledger = TripsLedger()
    ledger.count_call(stats(300, 30, {"b": 0.1}, waves=3), 1, 0.1)
    ledger.count_pass(PassDone(1))
    report = ledger.report()
    assert (report.trips, report.bytes_out) == (1, 300)


def test_the_slowest_is_who_was_last_most_often() -> None:
    ledger = TripsLedger()
    for waits in ({"a": 9.0, "b": 0.1}, {"a": 0.1, "b": 0.2}, {"a": 0.1, "b": 0.2}):
        ledger.count_call(stats(1, 1, waits), 1, 0.0)
    assert ledger.report().slowest_peer == "b"


def test_what_answers_cost_counts_also_where_the_call_failed() -> None:
    ledger = TripsLedger()
    paid = CallStats(servers=list(PAID))
    ledger.count_faults(paid)
    assert ledger.cost == paid.price == 41
    ledger.count_faults(paid)
    report = ledger.report()
    assert (report.cost, report.cost_by_peer) == (82, {"a": 24, "b": 58})
    assert report.trips == 0


PAID = [
    ServerStats("a", 0.1, 0.0, 0, 4, price=12),
    ServerStats("b", 0.1, 0.0, 0, 2, price=20),
    ServerStats("b", 0.1, 0.0, 0, 1, price=9),
    ServerStats("free", 0.1, 0.0, 0, 1),
]
"""Servers' answers to one call, b's twice: it said first that it does not hold some."""


def test_costs_are_told_to_people_with_names() -> None:
    ledger = TripsLedger()
    routes = [{"peer": "a", "name": "attic", "route": "direct", "reason": "-"}]
    assert not [name for name, _ in cost_rows(ledger.report(), "f32", routes) if "cost" in name]
    ledger.count_faults(CallStats(servers=list(PAID)))
    rows = cost_rows(ledger.report(), "f32", routes)
    assert [row for row in rows if "cost" in row[0]] == [
        ("cost", "0.000041 credits"),
        ("cost at b", "0.000029 credits"),
        ("cost at attic", "0.000012 credits"),
    ]


def test_faults_are_counted_by_peer_also_of_calls_that_failed() -> None:
    ledger = TripsLedger()
    bad = stats(1, 1, {"a": 0.1})
    bad.failures = [Failure("b", "gone", PeerError("gone")), Failure("c", "NaN", PeerError("NaN"))]
    bad.late, bad.hedges, bad.hedges_won, bad.moved = ["b", "a"], 2, 1, 1
    for _ in range(2):
        ledger.count_faults(bad)
    report = ledger.report()
    assert (report.hedges, report.hedges_won, report.moved) == (4, 2, 2)
    assert (report.late, report.failures) == ({"b": 2, "a": 2}, {"b": 2, "c": 2})
    assert report.trips == 0
