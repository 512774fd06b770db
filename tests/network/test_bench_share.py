"""bench_share end to end on a small model: everything comes; what two sources give, what a kill costs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from node.model.chunks import CHUNK_BYTES
from node.share.fetch import WINDOW_BYTES
from tests.network.lab import wanlab as wanlab

pytestmark = [pytest.mark.network, pytest.mark.slow]

ROOT = Path(__file__).resolve().parent.parent.parent
SHAPE = {
    "layers": 1,
    "embd": 1024,
    "ff": 512,
    "experts": 8,
    "used": 2,
    "heads": 8,
    "kv-heads": 2,
    "vocab": 64,
}
CELL_BYTES = 1_019_904


def bench(shared_dir: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "scripts" / "bench_share"), *map(str, arguments)],
        capture_output=True, text=True, timeout=240, check=False,
        env=os.environ | {"WANLAB": str(shared_dir / "lab" / "wanlab.py")},
    )  # fmt: skip


@pytest.mark.usefixtures("wanlab")
def test_one_source_two_and_a_kill(tmp_path: Path, shared_dir: Path) -> None:
    shape = [word for name, value in SHAPE.items() for word in (f"--{name}", value)]
    done = bench(
        shared_dir, "--json", "--dir", tmp_path, "--rounds", 1, "--rate", 20, "--one-way", 10, *shape
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["n_bytes"] == 8 * CELL_BYTES
    runs = {kind: found[0] for kind, found in report["runs"].items()}
    for kind, sources in (("one", 1), ("two", 2), ("killed", 1)):
        found = runs[kind]
        assert found["complete"] and len(found["by_peer"]) == sources and not found["dropped"]
        # Every byte came once, with the lists of digests and the manifest.
        assert 0 <= found["bytes"] + found["was_there"] - report["n_bytes"] <= 16 << 10
        assert found["wire_bytes"] > found["bytes"]
    assert min(runs["two"]["by_peer"].values()) > 2 * CELL_BYTES
    kill = report["summary"]["kill"]
    assert kill["not_found_again"] <= CHUNK_BYTES and kill["fetched_again"] <= CHUNK_BYTES
    assert kill["more_on_the_wire"] <= WINDOW_BYTES + (1 << 20)  # what was on the way, and a second beginning
    assert runs["killed"]["was_there"] >= 0.5 * report["n_bytes"] - CHUNK_BYTES
    assert all(grown < 48 << 20 for grown in report["memory_grown"].values())
    assert set(report["summary"]["shares"]) == {"plain", "plain two", "one", "two"}


@pytest.mark.usefixtures("wanlab")
def test_a_lab_that_is_not_there_is_said(tmp_path: Path) -> None:
    done = bench(tmp_path, "--dir", tmp_path, "--layers", 1, "--embd", 256, "--ff", 256, "--vocab", 64)
    assert done.returncode == 2
    assert "needs root and the lab" in done.stderr and len(done.stderr.strip().splitlines()) == 1
