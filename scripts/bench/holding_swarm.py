"""The swarm of bench_holding: many `panal run` processes, each on a network of its own, and what they tell.

One process imports all that nodes need and forks one for each (as tests.ready_panal does), inside the node's
network namespace; where there is no lab, on loopback. Forks end with it: they read from a pipe whose other
end only it has.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

from routing.errors import LocalError
from routing.identity import Identity
from scripts.bench.route_lab import load_wanlab
from tests.ready_panal import import_all

PORT = 4190
STATUS_SECONDS = 20.0
"""For an answer of a node's status on a machine that is busy."""

START_SECONDS = 60.0

PACED: Mapping[str, tuple[str, ...]] = {
    "market.own_order": ("ROUND_SECONDS", "TURN_SECONDS", "GAP_PATIENCE", "MOVE_PATIENCE"),
    "node.market.served_rate": ("HALF_LIFE",),
    "market.answering": (
        "ANSWER_HOLDS",
        "REFRESH_SECONDS",
        "RETRY_SECONDS",
        "PROBE_SECONDS",
        "QUICK_SECONDS",
    ),
}
"""What of the market goes by the clock, with [swarm] advert_seconds and the prices' period. What the network
needs (dials, timeouts, settling) is as it is."""

LEAST_LOOK = 1.0
"""Seconds between looks at adverts, at any pace: a look of each of 24 nodes takes two cores a third of it."""


def quicken(pace: float) -> None:
    """Let the market of all nodes that are forked from now on go so many times faster than it does."""
    if pace == 1:
        return
    for module, names in PACED.items():
        found = importlib.import_module(module)
        for name in names:
            setattr(found, name, getattr(found, name) / pace)
    from node.device import chosen_serving
    from node.market.pricing import Pricing

    chosen_serving.LOOK_SECONDS = max(LEAST_LOOK, chosen_serving.LOOK_SECONDS / pace)
    defaults = Pricing.__init__.__kwdefaults__
    assert defaults is not None
    defaults["period"] = period_of(pace)


def period_of(pace: float) -> float:
    """Seconds between two settings of prices."""
    from node.market.pricing import PERIOD

    return PERIOD / pace


def advert_seconds(pace: float) -> int:
    """How long adverts live."""
    from routing.wire.advert import ADVERT_LIFETIME, MIN_LIFETIME

    return max(MIN_LIFETIME, round(ADVERT_LIFETIME / pace))


class Networks(Protocol):
    """Where nodes live."""

    name: str

    def address(self, number: int) -> tuple[str, int]:
        """Host and port of a node."""

    def inside(self, number: int) -> AbstractContextManager[Any]:
        """This thread is on the node's host meanwhile."""


class Loopback:
    """All on this machine: own network, where each peer counts."""

    name = "loopback"

    def __init__(self, first_port: int) -> None:
        self._first = first_port

    def address(self, number: int) -> tuple[str, int]:
        return "127.0.0.1", self._first + number

    def inside(self, number: int) -> AbstractContextManager[Any]:
        return nullcontext()


class Lab:
    """A public network for each, in wanlab."""

    name = "wanlab"

    def __init__(self, lab: Any) -> None:
        self._lab = lab

    @classmethod
    def opened(cls, ends: ExitStack, count: int, one_way_ms: float) -> Lab:
        """Distinct /24 of public addresses, for `count` nodes.

        Raises:
            LocalError: no lab here.
        """
        hosts = {f"n{i}": {"ip": f"11.7.{i}.10", "delay": one_way_ms / 2} for i in range(count)}
        topology = {"name": "holding", "subnet": "11.7.0.0/16", "hosts": hosts}
        return cls(ends.enter_context(load_wanlab().WanLab(topology)))

    def address(self, number: int) -> tuple[str, int]:
        return self._lab.ip(f"n{number}"), PORT

    def inside(self, number: int) -> AbstractContextManager[Any]:
        inside: AbstractContextManager[Any] = self._lab.inside(f"n{number}")
        return inside


@dataclass
class Node:
    """One node.

    Attributes:
        number: of its host. memory: bytes it may serve; 0 for none.
        pid: 0 while it does not run.
    """

    name: str
    number: int
    folder: Path
    memory: int
    peer_id: str
    pid: int = 0
    killed: bool = False
    _url: str = ""

    @property
    def log(self) -> Path:
        return self.folder / "stderr"

    @property
    def is_running(self) -> bool:
        return self.pid != 0


@dataclass
class Swarm:
    """Starts and ends nodes, and asks them; a context manager.

    Attributes:
        directory: they keep one together (DHT), which takes half of an idle node's processor time.
    """

    folder: Path
    store: Path
    networks: Networks
    advert_seconds: int
    directory: bool = False
    nodes: list[Node] = field(default_factory=list)
    _life: tuple[int, int] = (-1, -1)

    def __enter__(self) -> Swarm:
        import_all()
        self._life = os.pipe()
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            self.kill(node)
        for end in self._life:
            os.close(end)

    def add(self, name: str, settings: str, *, memory: int = 0, peers: list[str] | None = None) -> Node:
        """Start a node with further tables of its config."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        identity = Identity.load_or_create(folder / "identity.key")
        node = Node(name, len(self.nodes), folder, memory, identity.peer_id)
        host, port = self.networks.address(node.number)
        lines = [
            f"name = {json.dumps(name)}",
            f"store = {json.dumps(str(self.store))}",
            'identity = "identity.key"',
            "[swarm]",
            'name = "holding"',
            f'listen = "/ip4/{host}/udp/{port}/quic-v1"',
            f"peers = {json.dumps(peers or [])}",
            f"advert_seconds = {self.advert_seconds}",
            "lan = false",
            *([] if self.directory else ['control = "off"']),
            "[engine]",
            "threads = 1",
            "[http]",
            'listen = "127.0.0.1:0"',
            settings,
        ]
        (folder / "node.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.nodes.append(node)
        with self.networks.inside(node.number):
            node.pid = os.fork()
            if node.pid == 0:
                self._be(node)
        return node

    def address(self, node: Node) -> str:
        """What others put into their peers."""
        host, port = self.networks.address(node.number)
        return f"/ip4/{host}/udp/{port}/quic-v1/p2p/{node.peer_id}"

    def kill(self, node: Node) -> None:
        """SIGKILL, as a power cut would; nothing if it does not run."""
        if node.pid:
            os.kill(node.pid, signal.SIGKILL)
            os.waitpid(node.pid, 0)
            node.pid, node.killed = 0, True

    def ended(self) -> list[Node]:
        """Nodes that ended by themselves, which none should."""
        found = []
        for node in self.nodes:
            if node.pid and os.waitpid(node.pid, os.WNOHANG)[0]:
                node.pid = 0
                found.append(node)
        return found

    def wait(self, what: str, seconds: float, is_so: Callable[[], bool]) -> None:
        """Until something holds.

        Raises:
            LocalError: it does not after so long.
        """
        end = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > end:
                raise LocalError(f"waited {seconds:g} s for {what}; logs: {self.folder}")
            time.sleep(0.2)

    def ask(self, node: Node, path: str, body: Any = None, seconds: float = STATUS_SECONDS) -> Any:
        """What a node's HTTP answers, as JSON; None while it does not.

        Raises:
            LocalError: it refuses what is posted; with its reason.
        """
        try:
            if not node._url:
                node._url = json.loads((node.folder / "http.json").read_bytes())["address"]
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(node._url + path, data, {"Content-Type": "application/json"})
            with (
                self.networks.inside(node.number),
                urllib.request.urlopen(request, timeout=seconds) as response,
            ):
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            if body is None:
                return None
            raise LocalError(_message(error.read())) from None
        except (OSError, ValueError):
            return None

    def _be(self, node: Node) -> NoReturn:
        """In the fork: be `panal run`."""
        try:
            os.setsid()  # Ctrl-C is the bench's; and a session has its own share of the processors
            os.close(self._life[1])
            os.dup2(self._life[0], 0)
            log = os.open(node.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            sys.stdin = os.fdopen(0, closefd=False)
            sys.stdout = os.fdopen(1, "w", closefd=False)
            sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
            os.chdir(node.folder)
            sys.argv = ["panal", "run", "-c", str(node.folder / "node.toml"), "--json", "--until-eof"]
            from node.cli.main import main

            os._exit(main())
        finally:
            os._exit(99)


def _message(body: bytes) -> str:
    """Of an error of the API."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")


def in_fork(work: Callable[[], Any], file: Path) -> Any:
    """What something returns, as JSON, that must not leave threads or libraries in this process.

    Raises:
        LocalError: it failed.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            file.write_text(json.dumps(work()))
            code = 0
        except LocalError as error:
            print(error, file=sys.stderr)
        finally:
            os._exit(code)
    if os.waitpid(pid, 0)[1]:
        raise LocalError("the model cannot be used: see above")
    return json.loads(file.read_text())
