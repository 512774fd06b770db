"""Nodes as processes: `panal run --json --events` in folders of their own, and what they say.

A node's table of adverts is followed through its events: `heard` and `refreshed` put a peer in, `left` and
`gone` take it out. Conditions are waited for with a deadline, which is the requirement under test and never a
measure of speed. No node outlives the test: each ends when its stdin is closed, however the test ends.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from routing.identity import Identity
from tests.ready_panal import popen, run_panal

PANAL = [sys.executable, "-P", "-m", "node.cli.main"]

START_SECONDS = 60.0
"""A node is up after one; the machine may be busy."""

STOP_SECONDS = 30.0
"""Ctrl-C ends a node in 3; the machine may be busy."""

FIRST_PORT = 10_000
EPHEMERAL_PORT = 32_768
"""The first that Linux gives to who asks for any."""

_ports = itertools.count(os.getpid() * 611)
"""Neighbouring processes begin far from each other."""

Launch = Callable[..., "subprocess.Popen[str]"]
"""Starts a command, as `subprocess.Popen` does, here or on a host of the lab."""


@dataclass
class Home:
    """A node's folder: its config and its key.

    Attributes:
        experts: what it serves of every layer, as in the config; "" for nothing (a relay or a backbone).
        store: shared by nodes of one machine, so that the model is read once.
        swarm: further lines of [swarm].
        rest: further tables.
    """

    folder: Path
    store: Path
    model: Path
    experts: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    peers: Sequence[str] = ()
    swarm: str = ""
    rest: str = ""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.peer_id = Identity.load_or_create(self.folder / "identity.key").peer_id
        if self.port == 0:
            self.port = free_port()
        self.write()

    @property
    def config(self) -> Path:
        return self.folder / "node.toml"

    @property
    def address(self) -> str:
        return f"/ip4/{self.host}/udp/{self.port}/quic-v1/p2p/{self.peer_id}"

    def write(self) -> None:
        """Write the config as the attributes are now."""
        serve = f'[[serve]]\nmodel = "{self.model}"\nexperts = "{self.experts}"\n' if self.experts else ""
        self.config.write_text(
            f'name = "{self.folder.name}"\nstore = "{self.store}"\nidentity = "identity.key"\n'
            f'[swarm]\nlisten = "/ip4/{self.host}/udp/{self.port}/quic-v1"\n'
            f"peers = {json.dumps(list(self.peers))}\n{self.swarm}\n"
            f"[engine]\nthreads = 1\n{serve}{self.rest}",
            encoding="utf-8",
        )


@dataclass
class NodeProcess:
    """One `panal run`.

    Attributes:
        events: all that it has said since it was started last.
        table: peer id -> how many slices it serves, of the adverts the node holds now.
    """

    home: Home
    launch: Launch = popen
    events: list[dict[str, Any]] = field(default_factory=list)
    table: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._news = threading.Condition()
        self._ready = False
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    @property
    def name(self) -> str:
        return self.home.folder.name

    @property
    def peer_id(self) -> str:
        return self.home.peer_id

    @property
    def log(self) -> str:
        """What it wrote to stderr, all runs."""
        path = self.home.folder / "log"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def start(self) -> NodeProcess:
        """Start it and begin to read; `ready` waits until it listens."""
        assert self._process is None
        self.events, self.table, self._ready = [], {}, False
        with (self.home.folder / "log").open("a", encoding="utf-8") as log:
            process = self._process = self.launch(
                [*PANAL, "run", "-c", str(self.home.config), "--json", "--events", "--until-eof"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, args=(process,), daemon=True)
        self._reader.start()
        return self

    def ready(self) -> NodeProcess:
        """Wait until it listens."""
        self.wait(lambda: self._ready, START_SECONDS, "it to listen")
        return self

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """As a crash or a power cut would."""
        self._end(signal.SIGKILL)

    def said(self, event: str, **fields: object) -> list[dict[str, Any]]:
        """Events of a kind whose fields have these values."""
        with self._news:
            return [
                each
                for each in self.events
                if each["event"] == event and all(each.get(key) == value for key, value in fields.items())
            ]

    def adverts(self, peer_id: str) -> int:
        """How many of a peer's adverts it has heard."""
        return len(self.said("heard", peer=peer_id)) + len(self.said("refreshed", peer=peer_id))

    def wait_said(self, event: str, seconds: float, **fields: object) -> None:
        """Until it has said something."""
        self.wait(lambda: bool(self.said(event, **fields)), seconds, f"{event} {fields}")

    def wait(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Until a condition on what it has said holds; an error with what it said last if it does not."""
        end = time.monotonic() + seconds
        with self._news:
            while not condition():
                left = end - time.monotonic()
                running = self._process is not None and self._process.poll() is None
                if left <= 0 or not running:
                    raise AssertionError(
                        f"{self.name} waited {seconds:g} s for {what}{'' if running else ', and has ended'}; "
                        f"table: {sorted(self.table)}; said last: {self.events[-8:]}; log: {self.log[-2000:]}"
                    )
                self._news.wait(min(left, 0.25))

    def wait_log(self, text: str, seconds: float) -> None:
        """Until its log has a text."""
        self.wait(lambda: text in self.log, seconds, f"{text!r} in the log")

    # --- inside ---

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                said = json.loads(line)
                with self._news:
                    self._take(said)
                    self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def _take(self, said: dict[str, Any]) -> None:
        if said["event"] == "listening":
            self._ready = True
            self.table[self.peer_id] = len(said["slices"])  # of itself it says nothing else
            return
        self.events.append(said)
        if said["event"] in ("heard", "refreshed"):
            self.table[said["peer"]] = said["slices"]
        elif said["event"] in ("left", "gone"):
            self.table.pop(said["peer"], None)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"{self.name} did not end within {STOP_SECONDS:g} s of Ctrl-C") from None
        finally:
            assert process.stdin is not None and self._reader is not None
            process.stdin.close()
            self._reader.join()


@contextmanager
def running(nodes: Sequence[NodeProcess]) -> Iterator[None]:
    """All that is still running at the end is killed."""
    try:
        yield
    finally:
        for node in nodes:
            node.kill()


def start_all(nodes: Iterable[NodeProcess]) -> None:
    """Start several at once and wait until all listen."""
    for node in [node.start() for node in nodes]:
        node.ready()


def wait_whole(nodes: Sequence[NodeProcess], seconds: float, *, besides: Iterable[str] = ()) -> None:
    """Until every table holds exactly these nodes (and `besides`), each with its slice, by one deadline."""
    expected = {node.peer_id: int(bool(node.home.experts)) for node in nodes} | dict.fromkeys(besides, 1)
    end = time.monotonic() + seconds
    for node in nodes:
        node.wait(
            lambda node=node: node.table == expected,  # type: ignore[misc]
            max(0.0, end - time.monotonic()),
            f"a table of {len(expected)} (in {seconds:g} s): {sorted(expected)}",
        )


def wait_news(
    nodes: Sequence[NodeProcess], about: Sequence[NodeProcess], seconds: float, times: int = 1
) -> None:
    """Until each of these has heard new adverts of each of those but itself, by one deadline."""
    pairs = [
        (node, other.peer_id, node.adverts(other.peer_id))
        for node in nodes
        for other in about
        if other.peer_id != node.peer_id
    ]
    end = time.monotonic() + seconds
    for node, peer_id, before in pairs:
        node.wait(
            lambda node=node, peer_id=peer_id, before=before: node.adverts(peer_id) >= before + times,  # type: ignore[misc]
            max(0.0, end - time.monotonic()),
            f"news of {peer_id} (in {seconds:g} s)",
        )


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Until something holds that no single node says."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
        time.sleep(0.2)


def generate(
    config: Path, *, tokens: int = 6, run: Callable[..., Any] | None = None
) -> subprocess.CompletedProcess[str]:
    """`panal generate --json`, here or by what runs a command on a host of the lab."""
    if run is None:
        return run_panal("generate", "-c", config, "-p", "import os\n", "-n", tokens, "--json")
    done: subprocess.CompletedProcess[str] = run(
        [*PANAL, "generate", "-c", str(config), "-p", "import os\n", "-n", str(tokens), "--json"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done


def free_port() -> int:
    """A port that is free for UDP and TCP on loopback, and that nobody else is given.

    Below those that systems give away by themselves, each once, from where another run of tests is not.
    """
    for _ in range(1000):
        port = FIRST_PORT + next(_ports) % (EPHEMERAL_PORT - FIRST_PORT)
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
            socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tcp,
        ):
            try:
                udp.bind(("127.0.0.1", port))
                tcp.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free for both UDP and TCP")
