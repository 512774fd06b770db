"""A process that keeps books is killed -9 two hundred times: what was acknowledged is there, and both sides
say the same (tests/killed_ledgers.py looks after every kill).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.market_books import folder

ROOT = Path(__file__).parents[2]
KILLS = 200
SEED = 20_261_130


@pytest.mark.slow
def test_books_that_are_killed_two_hundred_times_still_balance() -> None:
    with folder() as path:
        command = [sys.executable, "-m", "tests.killed_ledgers", str(path), str(SEED), str(KILLS)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    said = json.loads(done.stdout)
    assert said["kills"] == KILLS
    assert said["signed"] > 0
