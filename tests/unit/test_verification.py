"""The verdict: what each mode promises, judged on rows made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from node.decode.ledger import PassDone, TripsLedger, TripsReport
from node.engine.context import Row
from node.verify.comparison import Bounds, Comparison, Verdict, judge, plan_batches, run_passes
from routing.dispatch.call import CallStats
from routing.wire.codecs import Codec, Float32Array
from routing.wire.experts import Combine
from tests.unit.test_manifest import MANIFEST


def report(trips: int = 4) -> TripsReport:
    ledger = TripsLedger()
    for _ in range(trips):
        ledger.count_call(CallStats(10, 20, waves=1), 1, 0.0)
    ledger.count_pass(PassDone(1))
    return ledger.report()


def rows(count: int = 10, width: int = 8) -> Float32Array:
    return np.random.default_rng(0).standard_normal((count, width)).astype(np.float32)


def verdict(
    expected: Float32Array,
    found: Float32Array,
    combine: Combine = Combine.ROWS,
    wire: Codec = Codec.F32,
    bounds: Bounds = Bounds(),  # noqa: B008 (frozen)
    **changed: Any,
) -> Verdict:
    options = {"servers": 3, "worst_layer": None, "report": report(), **changed}
    told = options.pop("report")
    return judge(
        Comparison(expected, found), told, MANIFEST, combine=combine, wire=wire, bounds=bounds, **options
    )


def test_the_same_bytes_pass() -> None:
    found = verdict(rows(), rows())
    assert found.passed and found.byte_identical and found.reason == "10 rows have the same bytes"
    assert found.cosine_min == pytest.approx(1) and found.argmax_agreement == 1
    assert (found.model_id, found.architecture) == (MANIFEST.model_id(), "test-moe")
    assert (found.servers, found.combine, found.wire) == (3, "rows", "f32")
    assert (found.trips, found.bytes_out, found.bytes_back) == (4, 40, 80)


def test_rows_and_f32_promise_bytes() -> None:
    other = rows()
    other[3, 3] = np.nextafter(other[3, 3], np.float32(9))
    found = verdict(rows(), other, worst_layer=2)
    assert not found.passed and not found.byte_identical and "promise the same bytes" in found.reason
    assert found.worst_layer == 2
    # A zero of the other sign is another byte.
    zeros = np.zeros((1, 4), np.float32)
    assert not verdict(zeros, -zeros).passed


@pytest.mark.parametrize(
    ("combine", "wire"),
    [
        (Combine.SUM, Codec.F32),
        (Combine.STABLE, Codec.F32),
        (Combine.ROWS, Codec.F16),
        (Combine.SUM, Codec.INT8),
    ],
)
def test_other_modes_promise_bounds(combine: Combine, wire: Codec) -> None:
    close = rows() + np.float32(1e-4)
    found = verdict(rows(), close, combine, wire)
    assert found.passed and not found.byte_identical and "within the bounds" in found.reason
    far = rows() + np.random.default_rng(1).standard_normal((10, 8)).astype(np.float32)
    found = verdict(rows(), far, combine, wire)
    assert not found.passed and "mean cosine" in found.reason and "likeliest token" in found.reason


def test_each_bound_decides() -> None:
    expected = np.eye(4, dtype=np.float32) + np.float32(0.5)
    tipped = expected.copy()
    tipped[0] = tipped[0][[1, 0, 2, 3]]  # one of four rows has another largest value
    found = verdict(expected, tipped, Combine.SUM, bounds=Bounds(cosine=0.5, argmax=0.76))
    assert not found.passed and "75.0%" in found.reason and "cosine" not in found.reason
    assert verdict(expected, tipped, Combine.SUM, bounds=Bounds(cosine=0.5, argmax=0.75)).passed
    mean = found.cosine_mean
    assert found.cosine_min < mean < 1
    assert not verdict(expected, tipped, Combine.SUM, bounds=Bounds(cosine=mean + 1e-6, argmax=0.5)).passed
    assert verdict(expected, tipped, Combine.SUM, bounds=Bounds(cosine=mean - 1e-6, argmax=0.5)).passed


def test_a_swarm_that_was_not_asked_shows_nothing() -> None:
    found = verdict(rows(), rows(), report=report(trips=0))
    assert not found.passed and "no expert was computed by a peer" in found.reason


def test_nan_is_the_worst_there_is() -> None:
    broken = rows()
    broken[0] = np.nan
    found = verdict(rows(), broken, Combine.SUM)
    assert found.cosine_min == -1 and not found.passed
    assert np.isfinite(found.cosine_mean)


def test_rows_of_zeros() -> None:
    zeros = np.zeros((2, 4), np.float32)
    assert Comparison(zeros, zeros).cosines().tolist() == [1, 1]
    ones = np.ones((2, 4), np.float32)
    assert Comparison(zeros, ones).cosines().tolist() == [0, 0]


def test_planned_passes() -> None:
    assert plan_batches([1, 5, 64, 512, 600]) == [[1] * 16, [5] * 16, [64] * 8, [512], [600]]


@pytest.mark.parametrize("encoder", [False, True])
def test_passes_follow_each_other_in_a_sequence(encoder: bool) -> None:
    seen: list[list[Row] | str] = []

    def compute(batch: list[Row]) -> Float32Array:
        seen.append(batch)
        return np.array([[row.token] for row in batch], np.float32)

    planned = [[2, 1], [3]]
    found = run_passes(
        compute, lambda: seen.append("clear"), [[10, 11, 12], [20, 21, 22]], planned, encoder=encoder
    )
    assert found.ravel().tolist() == [10, 11, 12, 20, 21, 22]
    third = 0 if encoder else 2
    assert seen == [
        "clear",
        [Row(10, 0), Row(11, 1)],
        [Row(12, third)],
        "clear",
        [Row(20, 0), Row(21, 1), Row(22, 2)],
    ]
