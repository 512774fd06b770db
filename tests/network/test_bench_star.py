"""bench_star end to end on a tiny model: who is asked, late and hedged; never how fast."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.network.lab import wanlab as wanlab

pytestmark = [pytest.mark.network, pytest.mark.slow]

ROOT = Path(__file__).resolve().parent.parent.parent
CALLS, WARM_UP, SLOWEST_MS = 30, 30, 87.14
TRIES = 2  # on a busy machine all answers are late, and then none is hedged
SHAPE = {
    "layers": 2, "embd": 256, "ff": 256, "experts": 16, "used": 8, "heads": 4, "kv-heads": 4,
    "head-size": 64, "vocab": 64, "context": 1024,
}  # fmt: skip


@pytest.mark.usefixtures("wanlab")
def test_late_answers_are_hedged_and_waited_for_without(tmp_path: Path, shared_dir: Path) -> None:
    shape = [word for name, value in SHAPE.items() for word in (f"--{name}", str(value))]
    for _ in range(TRIES):
        report = _measure(tmp_path, shared_dir, shape)
        modes = report["late"]["a2"]["modes"]
        if modes["by distance"]["hedges_won"]:
            break
    calm, alone = report["calm"], report["alone"]
    # Nothing is faster than light, and a call of eight experts needs several slices.
    assert calm["over_slowest"] > 0.9 and alone["p50_ms"] > 0.9 * SLOWEST_MS
    assert calm["servers"] > 3 and alone["servers"] == 1
    row = report["late"]["a2"]
    assert row["rtt_ms"] < row["replica_ms"] < SLOWEST_MS
    assert set(modes) == {"as a backbone", "by distance", "no hedges"}
    # Always asked where it is the nearer one, it is late, and either hedged or waited for.
    assert modes["by distance"]["held_back"] > 0 and modes["by distance"]["hedges_won"] > 0
    assert modes["no hedges"]["hedges"] == 0 and modes["no hedges"]["p99_ms"] > 500
    assert {what for what, *_ in report["verdict"]} == {
        "calm: a layer over its slowest server", "a2 late: p99 over p50", "a2 late: extra requests",
    }  # fmt: skip


def _measure(folder: Path, shared: Path, shape: list[str]) -> dict[str, Any]:
    done = subprocess.run(
        [
            str(ROOT / "scripts" / "bench_star"), "--json", "--dir", str(folder), "--calls", str(CALLS),
            "--warm-up", str(WARM_UP), "--late", "a2", "--late-share", "0.3", "--loss", "0", *shape,
        ],
        capture_output=True, text=True, timeout=240, check=False,
        env=os.environ | {"WANLAB": str(shared / "lab" / "wanlab.py")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report
