"""bench_lanes end to end on a tiny model: all ways run, trips are as many as they must be; never how fast."""

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
LAYERS, SEQUENCES, TOKENS = 2, 8, 4
SHAPE = {
    "layers": LAYERS, "embd": 256, "ff": 256, "experts": 8, "used": 8, "heads": 4, "kv-heads": 4,
    "head-size": 64, "vocab": 64, "context": 1024,
}  # fmt: skip


@pytest.mark.usefixtures("wanlab")
def test_all_ways_are_measured(tmp_path: Path, shared_dir: Path) -> None:
    shape = [str(word) for name, value in SHAPE.items() for word in (f"--{name}", value)]
    sizes = {"--rounds": 1, "--one-way": "5", "--sequences": SEQUENCES, "--prompt": 8, "--tokens": TOKENS}
    done = subprocess.run(
        [
            str(ROOT / "scripts" / "bench_lanes"), "--json", "--dir", str(tmp_path), *shape,
            *(str(word) for size in sizes.items() for word in size),
        ],
        capture_output=True, text=True, timeout=240, check=False,
        env=os.environ | {"WANLAB": str(shared_dir / "lab" / "wanlab.py")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    (distance,) = report["distances"]
    ways = distance["ways"]
    steps = TOKENS - 1
    passes = {
        "one by one": SEQUENCES * TOKENS,
        "batch": SEQUENCES + 2 * steps - 1,  # K-quants: seven rows a pass, of which six in both of two
        "2 lanes": SEQUENCES + 2 * steps,
        "4 lanes": SEQUENCES + 4 * steps,
        "shared": 1 + steps,
        "shared, 2": 2 + 2 * steps,
    }
    assert {name: row["passes"] for name, row in ways.items()} == passes
    # Both servers have part in every layer, and are asked at once: a trip is a layer of a pass.
    assert {name: row["trips"] for name, row in ways.items()} == {
        name: LAYERS * count for name, count in passes.items()
    }
    assert all(row["prefill_seconds"] > 0 and row["decode"] > 0 for row in ways.values())
