"""bench_route end to end on a tiny model: every kind gets its route; what is reported, never how fast."""

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
LAYERS, TOKENS, ROUNDS = 2, 3, 2
SHAPE = {
    "layers": LAYERS, "embd": 256, "ff": 256, "experts": 8, "used": 2, "heads": 4, "kv-heads": 4,
    "head-size": 64, "vocab": 64, "context": 1024,
}  # fmt: skip
ONE_WAY_MS = 5


def bench(shared_dir: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "scripts" / "bench_route"), *map(str, arguments)],
        capture_output=True, text=True, timeout=240, check=False,
        env=os.environ | {"WANLAB": str(shared_dir / "lab" / "wanlab.py")},
    )  # fmt: skip


@pytest.mark.usefixtures("wanlab")
def test_all_kinds_are_measured(tmp_path: Path, shared_dir: Path) -> None:
    shape = [word for name, value in SHAPE.items() for word in (f"--{name}", value)]
    done = bench(
        shared_dir, "--json", "--dir", tmp_path, "--rounds", ROUNDS, "--tokens", TOKENS, "--cold", 1,
        "--one-way", ONE_WAY_MS, *shape,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    kinds = report["kinds"]
    assert {name: kind["route"]["route"] for name, kind in kinds.items()} == {
        "plain": "direct", "direct": "direct", "punched": "punched", "relayed": "relayed",
    }  # fmt: skip
    for name, rows in report["rounds"].items():
        assert [row["trips"] for row in rows] == [LAYERS * TOKENS] * ROUNDS
        assert [len(row["seconds"]) for row in rows] == [TOKENS] * ROUNDS
        # nothing is faster than light: one trip a layer
        assert all(seconds > LAYERS * 2 * ONE_WAY_MS / 1e3 for row in rows for seconds in row["seconds"])
        assert len({row["bytes_out"] + row["bytes_back"] for row in rows}) == 1
        assert kinds[name]["wire_bytes"] > kinds[name]["ledger_bytes"]
    # what the relay passes on comes in and goes out
    assert kinds["relayed"]["relay_bytes"] > 2 * kinds["relayed"]["ledger_bytes"]
    assert kinds["punched"]["relay_bytes"] < kinds["punched"]["ledger_bytes"]
    verdict = report["verdict"]
    assert set(verdict["figures"]) == {"direct over plain", "punched over direct", "relayed over direct"}
    assert all(ratio > 0 for ratio in verdict["figures"].values())
    for name, row in report["cold"].items():
        for start in (*row["new"], *row["again"]):
            assert 0 < start["started"] < start["connected"] < start["first_token"], name
            assert start["route"] == ("relayed" if name in ("punched", "relayed") else "direct")


@pytest.mark.usefixtures("wanlab")
def test_a_lab_that_is_not_there_is_said(tmp_path: Path) -> None:
    done = bench(tmp_path, "--dir", tmp_path, "--layers", 1, "--embd", 256, "--ff", 256, "--vocab", 64)
    assert done.returncode == 2
    assert "needs root and the lab" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
