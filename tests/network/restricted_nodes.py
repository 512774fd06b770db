"""Whole nodes in a lab of restricted networks: their configs, their processes, what they print."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PANAL = [sys.executable, "-m", "node.cli.main"]
PORT = 4190


@dataclass
class Running:
    """A `panal run --events`.

    Attributes:
        ready: its first line.
        events: what it has said since.
    """

    process: subprocess.Popen[str]
    log: Path
    ready: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return str(self.ready["address"])

    @property
    def peer_id(self) -> str:
        return self.address.rpartition("/")[2]

    def said(self, event: str) -> list[dict[str, Any]]:
        return [each for each in self.events if each["event"] == event]

    def logged(self, text: str) -> bool:
        return text in self.log.read_text()

    def is_reachable_through(self, relay: str) -> bool:
        """Whether it has had a reservation at the relay of this address."""
        peer_id = relay.rpartition("/")[2]
        lines = self.log.read_text().splitlines()
        return any("reachable through relay" in line and line.endswith(peer_id) for line in lines)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))


class Nodes:
    """Makes and runs nodes on the hosts of a lab; what was started ends with `ends`."""

    def __init__(self, lab: Any, folder: Path, ends: ExitStack) -> None:
        self.lab = lab
        self.folder = folder
        self.ends = ends

    def init(self, name: str, *arguments: object, relay: str = "", swarm: str = "") -> str:
        """`panal init`; its address.

        Args:
            relay, swarm: more lines for the tables of these names.
        """
        told = self._panal("init", "--dir", self.folder / name, "--json", "--name", name, *arguments)
        config = self.folder / name / "node.toml"
        text = config.read_text().replace("[swarm]\n", f"[swarm]\n{swarm}\n")
        config.write_text(text + (f"\n[relay]\n{relay}\n" if relay else ""))
        return str(json.loads(told)["address"])

    def make_private(self, swarm: str, keys: Path, *names: str) -> None:
        """A private swarm of these nodes."""
        keys.mkdir()
        self._panal("swarm", "create", swarm, "--dir", keys)
        for name in names:
            config = self.folder / name / "node.toml"
            peer_id = json.loads(self._panal("swarm", "show", "-c", config, "--json"))["peer_id"]
            told = self._panal("swarm", "invite", peer_id, "--key", keys / "swarm.key", "--json")
            self._panal("swarm", "join", json.loads(told)["invite"], "-c", config)

    def _panal(self, *arguments: object) -> str:
        done = subprocess.run([*PANAL, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done
        return done.stdout

    def run(self, name: str, host: str) -> Running:
        """`panal run` on a host, until it is ready."""
        log = self.folder / f"{name}.log"
        with log.open("a") as stderr:
            process = self.lab.popen(
                host,
                [*PANAL, "run", "-c", str(self.folder / name / "node.toml"), "--json", "--events"],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=ROOT,
                env=os.environ | {"PANAL_LOG": "debug"},
            )
        self.ends.callback(process.wait)
        self.ends.callback(process.kill)
        running = Running(process, log)
        while not running.ready:
            line = process.stdout.readline()
            assert line, log.read_text()
            said = json.loads(line)
            if said["event"] != "listening":
                running.events.append(said)
            else:
                running.ready = said
        threading.Thread(target=running._listen, daemon=True).start()
        return running

    def ask(self, name: str, host: str, command: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Another command of a node, on a host, to its end."""
        done: subprocess.CompletedProcess[str] = self.lab.run(
            host,
            [*PANAL, command, "-c", str(self.folder / name / "node.toml"), *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=120,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"PANAL_LOG": "debug"},
        )
        (self.folder / f"{name}.{command}.log").write_text(done.stderr)
        return done


def stop(running: Running) -> None:
    """Ctrl-C, and wait for the end."""
    running.process.send_signal(signal.SIGINT)
    running.process.wait(10)


def until(condition: Callable[[], object], what: str, seconds: float = 30) -> None:
    """Wait for something that other processes bring about."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds:g} s"
        time.sleep(0.1)
