"""A swarm over a wide-area network: delay, jitter and loss in network namespaces (wanlab, root only)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.network.lab import wanlab as wanlab

pytestmark = [pytest.mark.network, pytest.mark.slow]

SERVERS = ("s0", "s1", "s2")
EXPERTS = ("0-3", "4-7", "8-11")
PORT = 4190


@dataclass
class Wan:
    """Three servers and a backbone, each on a host of its own."""

    lab: Any
    config: Path
    start: Callable[[str], subprocess.Popen[str]]
    servers: dict[str, subprocess.Popen[str]]

    def panal(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "node.cli.main", *map(str, arguments)]
        done: subprocess.CompletedProcess[str] = self.lab.run(
            "home", command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
        )
        return done


@pytest.fixture(scope="module")
def wan(wanlab: Any, tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Iterator[Wan]:
    folder = tmp_path_factory.mktemp("wan")
    hosts: dict[str, dict[str, float]] = {"home": {"delay": 5}}
    hosts |= {name: {"delay": 10 + 5 * i, "jitter": 2, "loss": 0.005} for i, name in enumerate(SERVERS)}
    with wanlab.WanLab({"hosts": hosts}) as lab, ExitStack() as ends:
        peers = []
        for name, experts in zip(SERVERS, EXPERTS, strict=True):
            done = subprocess.run(
                [
                    sys.executable, "-m", "node.cli.main", "init", "--dir", folder / name, "--json",
                    "--listen", f"/ip4/{lab.ip(name)}/udp/{PORT}/quic-v1",
                    "--serve", f"{demo_model}::{experts}",
                ],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            peers.append(json.loads(done.stdout)["address"])

        def start(name: str) -> subprocess.Popen[str]:
            command = [
                sys.executable,
                "-m",
                "node.cli.main",
                "run",
                "-c",
                folder / name / "node.toml",
                "--json",
            ]
            process: subprocess.Popen[str] = lab.popen(
                name, command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["cells"] == 16
            ends.callback(process.kill)
            return process

        servers = {name: start(name) for name in SERVERS}
        wan = Wan(lab, folder / "home" / "node.toml", start, servers)
        flags = [f"--peer={peer}" for peer in peers]
        assert wan.panal("init", "--dir", folder / "home", "--model", demo_model, *flags).returncode == 0
        yield wan


def test_the_same_bytes_over_a_lossy_wan(wan: Wan) -> None:
    done = wan.panal("verify", "-c", wan.config, "--batch", "1,5,64", "--json")
    assert done.returncode == 0, done
    verdict = json.loads(done.stdout)
    assert verdict["byte_identical"] is True
    assert verdict["servers"] == 3


def test_a_partitioned_server_is_named_and_used_again(wan: Wan) -> None:
    ask = ("generate", "-c", wan.config, "-p", "import os\n", "-n", "8", "--json")
    before = wan.panal(*ask)
    assert before.returncode == 0, before
    wan.lab.partition("s1")
    cut = wan.panal(*ask)
    assert cut.returncode == 1
    assert len(cut.stderr.splitlines()) == 1
    assert "experts 4-7" in cut.stderr and wan.lab.ip("s1") in cut.stderr
    wan.lab.heal()
    after = wan.panal(*ask)
    assert after.returncode == 0, after
    assert json.loads(after.stdout)["tokens"] == json.loads(before.stdout)["tokens"]
