"""The lab of bench_route: four islands, one for each way to run the same generation over the same distance.

    plain     a config that names the server's address, and nothing of the swarm: no control plane, no relays,
              no LAN. What the others are measured against.
    direct    two public nodes that find each other through a third
    punched   two port-restricted cones
    relayed   two symmetric NATs, the relay half-way between them

Every island is a swarm of its own (else each backbone would ask all four servers), with a server, a
backbone, and but for the first two public nodes in the middle that relay, and from which a node learns what
its NAT does. Server and backbone are half the distance from there each: so the way through a relay is as long
as the straight one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from routing.errors import LocalError
from routing.identity import Identity

REPOSITORY = Path(__file__).resolve().parents[2]
CLIENT = [sys.executable, str(Path(__file__).with_name("route_client.py"))]
PANAL = [sys.executable, "-m", "node.cli.main"]

# Who runs panal has it compiled after the first time.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

PORT = 4190
MIDDLE = ("relay", "witness")
RESERVED, RESERVED_SECONDS = "reachable through relay", 60.0
"""What a server behind a NAT logs once it can be called; it takes about 10 s to find out that it must be."""


@dataclass(frozen=True)
class Kind:
    """One island.

    Attributes:
        route: what its backbone's route must be called.
        nat: what server and backbone stand behind, as wanlab calls it; "" for public addresses.
        swarm: whether the swarm's machinery is on.
    """

    name: str
    route: str
    nat: str = ""
    swarm: bool = True

    @property
    def middle(self) -> tuple[str, ...]:
        """Who else is in its island."""
        return MIDDLE if self.swarm else ()


KINDS = (
    Kind("plain", "direct", swarm=False),
    Kind("direct", "direct"),
    Kind("punched", "punched", nat="cone"),
    Kind("relayed", "relayed", nat="symmetric"),
)


def load_wanlab() -> ModuleType:
    """wanlab as a module.

    Raises:
        LocalError: it is not there, or this is not root.
    """
    path = Path(os.environ.get("WANLAB", REPOSITORY.parent / "shared" / "lab" / "wanlab.py"))
    if os.geteuid() != 0 or not path.is_file():
        raise LocalError(f"needs root and the lab at {path} (set WANLAB to where it is)")
    spec = importlib.util.spec_from_file_location("wanlab", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["wanlab"] = module
    spec.loader.exec_module(module)
    return module


def topology(kinds: Sequence[Kind], one_way_ms: float, rate: float) -> dict[str, Any]:
    """Hosts "KIND-server", "KIND-backbone", "KIND-relay", "KIND-witness".

    Args:
        rate: Mbit/s of the lines of servers and backbones, each way; 0 for no bound.
    """
    hosts: dict[str, dict[str, Any]] = {}
    nats: dict[str, dict[str, Any]] = {}
    line = {"delay": one_way_ms / 2} | ({"rate": rate} if rate else {})
    for kind in kinds:
        for end in ("server", "backbone"):
            name = f"{kind.name}-{end}"
            if kind.nat:
                nats[f"{name}-nat"] = {"kind": kind.nat, **line}
                hosts[name] = {"behind": f"{name}-nat"}
            else:
                hosts[name] = dict(line)
        hosts |= {f"{kind.name}-{middle}": {"delay": 0} for middle in kind.middle}
    return {"name": "route", "hosts": hosts, "nats": nats}


@dataclass(frozen=True)
class Traffic:
    """What has passed a host's network device, both ways together."""

    bytes: int
    packets: int

    def since(self, before: Traffic) -> Traffic:
        return Traffic(self.bytes - before.bytes, self.packets - before.packets)


class Process:
    """A node in the lab, which says what it has to say in lines of JSON."""

    def __init__(self, popen: subprocess.Popen[str], log: Path) -> None:
        self._popen = popen
        self._log = log

    def answer(self) -> dict[str, Any]:
        """The next line.

        Raises:
            LocalError: the process has ended; with the end of its log.
        """
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        if not line:
            tail = self._log.read_text(errors="replace").strip().splitlines()[-3:]
            raise LocalError(f"{self._log.stem} ended with code {self._popen.wait()}: {' / '.join(tail)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, line: str) -> dict[str, Any]:
        assert self._popen.stdin is not None
        self._popen.stdin.write(line + "\n")
        self._popen.stdin.flush()
        return self.answer()

    def cpu_seconds(self) -> float:
        """CPU time of all its threads so far."""
        tasks = Path(f"/proc/{self._popen.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def wait_for(self, words: str, seconds: float) -> None:
        """Until its log has these words.

        Raises:
            LocalError: it has not after so long.
        """
        deadline = time.monotonic() + seconds
        while words not in self._log.read_text(errors="replace"):
            if time.monotonic() > deadline:
                raise LocalError(f"{self._log.stem}: not yet {words!r} after {seconds:g} s")
            time.sleep(0.1)

    def end(self) -> None:
        """Close its stdin, and kill it if that does not end it."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        try:
            self._popen.wait(5)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()


@dataclass
class RouteLab:
    """The islands with their servers running; a context manager.

    Args:
        folder: configs and logs go there.
        store: of all nodes; the models are in it.
        model: what the backbones run; `served` are the files that servers hold.
    """

    kinds: Sequence[Kind]
    folder: Path
    store: Path
    model: Path
    served: tuple[Path, ...]
    one_way_ms: float
    rate: float
    context: int
    processes: dict[str, Process] = field(default_factory=dict)
    _ends: ExitStack = field(default_factory=ExitStack)
    _lab: Any = None

    def __enter__(self) -> RouteLab:
        with self._ends:
            self._lab = self._ends.enter_context(
                load_wanlab().WanLab(topology(self.kinds, self.one_way_ms, self.rate))
            )
            serve = "".join(f"[[serve]]\nmodel = {json.dumps(str(path))}\n" for path in self.served)
            for kind in self.kinds:
                for middle in kind.middle:
                    self._run(kind, middle, "[relay]\nserve = true\n")
                self._run(kind, "server", serve)
            for kind in self.kinds:
                if kind.nat:
                    self.processes[f"{kind.name}-server"].wait_for(RESERVED, RESERVED_SECONDS)
            self._ends = self._ends.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.close()

    def open_backbone(self, kind: Kind) -> Process:
        """Start a backbone; its first answer comes once it has the route of its kind."""
        config = self.backbone_config(kind, self.model, "backbone")
        return self._start(kind, "backbone", [*CLIENT, str(config), kind.route])

    def backbone_config(self, kind: Kind, model: Path, identity: str) -> Path:
        """Write the config of a backbone with an identity of that name."""
        text = f"[backbone]\nmodel = {json.dumps(str(model))}\ncontext = {self.context}\n"
        return self._write(kind, "backbone", identity, text)

    def generate(self, kind: Kind, config: Path, *options: str) -> subprocess.Popen[str]:
        """`panal generate` on the backbone's host."""
        command = [*PANAL, "generate", "-c", str(config), *options]
        process: subprocess.Popen[str] = self._lab.popen(
            f"{kind.name}-backbone", command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=REPOSITORY, env=ENVIRONMENT | {"PANAL_LOG": "debug"},
        )  # fmt: skip
        return process

    def traffic(self, kind: Kind, role: str) -> Traffic:
        """Of a host, now. A super-packet (GSO) counts as one, with one header."""
        with self._lab.inside(f"{kind.name}-{role}"):
            lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
        devices = {name.strip(): [int(each) for each in rest.split()] for name, _, rest in map(_part, lines)}
        devices.pop("lo", None)
        return Traffic(
            sum(each[0] + each[8] for each in devices.values()),
            sum(each[1] + each[9] for each in devices.values()),
        )

    def _run(self, kind: Kind, role: str, text: str) -> None:
        config = self._write(kind, role, role, text)
        process = self._start(kind, role, [*PANAL, "run", "-c", str(config), "--json", "--until-eof"])
        process.answer()

    def _start(self, kind: Kind, role: str, command: list[str]) -> Process:
        name = f"{kind.name}-{role}"
        log = self.folder / f"{name}.log"
        errors = self._ends.enter_context(log.open("w"))
        popen = self._lab.popen(
            name, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            cwd=REPOSITORY, env=ENVIRONMENT,
        )  # fmt: skip
        process = self.processes[name] = Process(popen, log)
        self._ends.callback(process.end)
        return process

    def _write(self, kind: Kind, role: str, identity: str, text: str) -> Path:
        peers = [self._address(kind, "relay")] if kind.swarm else [self._address(kind, "server")]
        if role == "relay" or (role == "server" and not kind.swarm):
            peers = []
        lines = [
            f"name = {json.dumps(f'{kind.name}-{role}')}",
            f"store = {json.dumps(str(self.store))}",
            f"identity = {json.dumps(str(self._key(kind, identity)))}",
            "[engine]",
            "threads = 1",
            "[swarm]",
            f"name = {json.dumps(kind.name)}",
            f'listen = "/ip4/{self._lab.local_ip(f"{kind.name}-{role}")}/udp/{PORT}/quic-v1"',
            f"peers = {json.dumps(peers)}",
        ]
        if not kind.swarm:
            lines += ['control = "off"', "lan = false", "[relay]", "use = false"]
        config = self.folder / f"{kind.name}-{identity}.toml"
        config.write_text("\n".join([*lines, text]))
        return config

    def _key(self, kind: Kind, identity: str) -> Path:
        return self.folder / f"{kind.name}-{identity}" / "identity.key"  # a node has its folder to itself

    def _address(self, kind: Kind, role: str) -> str:
        peer_id = Identity.load_or_create(self._key(kind, role)).peer_id
        return f"/ip4/{self._lab.ip(f'{kind.name}-{role}')}/udp/{PORT}/quic-v1/p2p/{peer_id}"


def _part(line: str) -> tuple[str, str, str]:
    return line.partition(":")
