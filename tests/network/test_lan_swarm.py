"""Two devices on one network, neither of whose configs names the other: text comes out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.network.lab import wanlab as wanlab
from tests.network.test_lan_wan import be_a_plain_switch

pytestmark = [pytest.mark.network, pytest.mark.slow]

PANAL = [sys.executable, "-m", "node.cli.main"]
TOPOLOGY = {
    "hosts": {"alice": {"behind": "home"}, "anna": {"behind": "home"}, "bob": {"behind": "office"}},
    "nats": {"home": {"kind": "cone", "delay": 5}, "office": {"kind": "cone", "delay": 5}},
}


def init(folder: Path, *arguments: object) -> Path:
    subprocess.run([*PANAL, "init", "--dir", folder, *map(str, arguments)], check=True, capture_output=True)
    return folder / "node.toml"


def test_no_config_is_needed_on_one_network(wanlab: Any, tmp_path: Path, demo_model: Path) -> None:
    with wanlab.WanLab(TOPOLOGY) as lab:
        be_a_plain_switch(lab, "home")
        serving = init(tmp_path / "alice", "--serve", demo_model, "--name", "alice")
        process = lab.popen(
            "alice",
            [*PANAL, "run", "-c", serving, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert json.loads(process.stdout.readline())["cells"] == 48
        asking = init(tmp_path / "anna", "--model", demo_model)
        ask = [*PANAL, "generate", "-c", asking, "-p", "import os\n", "-n", "4", "--json"]
        done = lab.run("anna", ask, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done
        (route,) = json.loads(done.stdout)["routes"]
        assert (route["name"], route["route"]) == ("alice", "direct")
        assert route["reason"] == "both are on the same network"
        # on another network there is nobody: one line says so, and what to do
        ask[ask.index(asking)] = init(tmp_path / "bob", "--model", demo_model)
        alone = lab.run("bob", ask, capture_output=True, text=True, timeout=60)
        assert alone.returncode == 1
        assert len(alone.stderr.splitlines()) == 1 and "no connected peer holds" in alone.stderr
