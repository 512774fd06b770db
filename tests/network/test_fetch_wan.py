"""Cells over a line of its own speed: the transfer uses it, and expert calls on it stay quick."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from node.model.store import Store
from tests.network.lab import wanlab as wanlab

pytestmark = [pytest.mark.network, pytest.mark.slow]

MEGABITS = 20
PORT = 4190


def test_calls_stay_quick_while_cells_come(wanlab: Any, tmp_path: Path, shared_dir: Path) -> None:
    model = shared_dir / "models" / "tiny-qwen3moe-32e4.Q8_0.gguf"
    with wanlab.WanLab(
        {
            "hosts": {
                "home": {"delay": 10, "rate": MEGABITS, "queue_ms": 200},
                "server": {"delay": 10},
            }
        }
    ) as lab:
        panal = [sys.executable, "-m", "node.cli.main"]
        listen = f"/ip4/{lab.ip('server')}/udp/{PORT}/quic-v1"
        done = subprocess.run(
            [*panal, "init", "--dir", tmp_path, "--json", "--listen", listen, "--serve", model],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        address = json.loads(done.stdout)["address"]
        server = lab.popen(
            "server", [*panal, "run", "-c", tmp_path / "node.toml", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            assert json.loads(server.stdout.readline())["cells"] == 128
            store = Store(tmp_path / "store")
            folder = next(iter(store.root.glob("models/*/manifest.json"))).parent
            node = [sys.executable, "-m", "tests.network.fetching_node", address, str(folder)]
            done = lab.run("home", node, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stderr
            found = json.loads(done.stdout)
        finally:
            server.kill()
    print(found)
    assert (found["cells"], found["missing"]) == (128, 0) and found["calls"] >= 20
    assert found["beside"] <= 2 * found["alone"]  # 4 to 5 times as long beside a transfer that fills the line
    assert found["bytes"] / found["seconds"] >= 0.5 * MEGABITS * 1e6 / 8  # of the rest the calls take a tenth
