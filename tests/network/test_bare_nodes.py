"""Two devices on one network without any config: `panal run` on each, and they find each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.network.lab import wanlab as wanlab
from tests.network.test_lan_wan import be_a_plain_switch

pytestmark = [pytest.mark.network, pytest.mark.slow]

PANAL = [sys.executable, "-P", "-m", "node.cli.main"]
TOPOLOGY = {
    "hosts": {"alice": {"behind": "home"}, "anna": {"behind": "home"}},
    "nats": {"home": {"kind": "cone", "delay": 5}},
}
FOUND_SECONDS = 20.0
"""To find each other; it takes some three. The machine may be busy."""


def test_two_devices_find_each_other(wanlab: Any, tmp_path: Path) -> None:
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("PANAL", "XDG"))}
    with wanlab.WanLab(TOPOLOGY) as lab:
        be_a_plain_switch(lab, "home")
        said, processes = {}, {}
        for name in ("alice", "anna"):
            home = tmp_path / name
            home.mkdir()
            processes[name] = lab.popen(
                name,
                [*PANAL, "run", "--json"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                cwd=home,
                env=environ | {"HOME": str(home)},
            )
            said[name] = json.loads(processes[name].stdout.readline())
            assert said[name]["config"] is None and said[name]["slices"] == []
        end = time.monotonic() + FOUND_SECONDS
        for name, other in (("alice", "anna"), ("anna", "alice")):
            while True:
                done = lab.run(
                    name,
                    [*PANAL, "peers", "--json"],
                    capture_output=True,
                    text=True,
                    timeout=60,
                    cwd=tmp_path / name,
                    env=environ | {"HOME": str(tmp_path / name)},
                )
                assert done.returncode == 0, done
                if any(each["id"] == said[other]["peer_id"] for each in _online(done.stdout)):
                    break
                assert time.monotonic() < end, done.stdout
                time.sleep(0.5)
        (found,) = _online(done.stdout)
        assert found["route"]["kind"] == "direct", found
        for process in processes.values():
            process.terminate()
            assert process.wait(10) == 0


def _online(told: str) -> list[dict[str, Any]]:
    """The connected peers, of what `panal peers --json` prints."""
    return [each for each in json.loads(told) if each["state"] == "online"]
