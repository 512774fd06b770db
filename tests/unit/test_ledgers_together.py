"""Ledgers of lanes, taken together."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields

from node.decode.ledger import SUMS, PassDone, TripsLedger
from routing.dispatch.call import CallStats


def test_every_total_is_summed() -> None:
    # A total that is new must not be lost here.
    totals = {
        each.name for each in fields(TripsLedger) if each.type in ("int", "float") and each.name[0] != "_"
    }
    assert totals == set(SUMS)


def test_passes_made_beside_each_other() -> None:
    first, second = TripsLedger(), TripsLedger()
    for ledger, passes, waves in ((first, 2, 1), (second, 3, 0)):
        for _ in range(passes):
            for _ in range(4):
                ledger.count_call(CallStats(10, 20, waves=waves), 3, 0.25)
            ledger.count_pass(PassDone(3, tokens=3, decoding=True))
    first.late = Counter({"a": 1})
    second.late = Counter({"a": 2, "b": 1})
    total = TripsLedger()
    total.add(first)
    total.add(second)
    report = total.report()
    assert (report.passes, report.tokens, report.trips) == (5, 15, 8)
    assert (report.bytes_out, report.bytes_back) == (200, 400)
    assert report.waited == 5.0
    assert report.calls_per_pass == 4  # not of both together
    assert (report.decoded, report.decode_passes, report.decode_trips) == (15, 5, 8)
    assert report.trips_per_layer_token == round(8 / (4 * 15), 4)
    assert report.bytes_per_token_layer == 600 / 24
    assert report.late == {"a": 3, "b": 1}
