"""bench_sessions on the demo model: trips are shared, a chat goes on from its cache; never how fast."""

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
LAYERS, SESSIONS, TOKENS = 4, 4, 8


@pytest.mark.usefixtures("wanlab")
def test_sessions_share_their_trips(tmp_path: Path, shared_dir: Path, demo_model: Path) -> None:
    sizes = {"--rounds": 1, "--one-way": 5, "--sessions": SESSIONS, "--prompt": 8, "--tokens": TOKENS}
    done = subprocess.run(
        [
            str(ROOT / "scripts" / "bench_sessions"), "--json", "--dir", str(tmp_path),
            "--model", str(demo_model), "--text", str(shared_dir / "models" / "heldout_code.txt"),
            *(str(word) for size in sizes.items() for word in size),
        ],
        capture_output=True, text=True, timeout=240, check=False,
        env=os.environ | {"WANLAB": str(shared_dir / "lab" / "wanlab.py")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    one, together = report["kinds"]["one"], report["kinds"]["together"]
    assert one["passes"] == TOKENS and one["trips"] == LAYERS * TOKENS and one["trips_per_token"] == 1
    # Prompts are read one by one, and who has read already writes meanwhile: how often is a matter of time.
    assert SESSIONS + TOKENS - 1 <= together["passes"] <= SESSIONS * TOKENS * 3 // 4
    assert together["trips"] == LAYERS * together["passes"]
    assert report["kinds"]["guessing"]["passes"] <= TOKENS
    assert report["chat"] == {
        "prompt": 8 + TOKENS + 16,
        "before": 8 + TOKENS,
        "cached": 7 + TOKENS,
        "again": 1,
    }
