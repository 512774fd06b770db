"""A backbone and its servers as processes in the lab (wanlab), for benchmarks that drive it by lines."""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from routing.identity import Identity
from scripts.bench.route_lab import ENVIRONMENT, PANAL, PORT, REPOSITORY, Process, load_wanlab


@dataclass
class BackboneLab:
    """Servers, each with its share of the experts, and a backbone in the lab; a context manager.

    Attributes:
        client: the backbone's program; gets its config as the last argument, and tasks on stdin.
        settings: lines of its [backbone].
    """

    folder: Path
    model: Path
    experts: int
    threads: int
    client: list[str]
    servers: int = 2
    settings: str = ""
    _ends: ExitStack = field(default_factory=ExitStack)
    _lab: Any = None
    _client: Process | None = None

    def __enter__(self) -> BackboneLab:
        with self._ends:
            names = [f"server{number}" for number in range(self.servers)]
            hosts = {"home": {"delay": 0.0}} | {name: {"delay": 0.0} for name in names}
            self._lab = self._ends.enter_context(load_wanlab().WanLab({"name": "backbone", "hosts": hosts}))
            peers = []
            for number, name in enumerate(names):
                first, end = (self.experts * part // self.servers for part in (number, number + 1))
                serve = f"[[serve]]\nmodel = {json.dumps(str(self.model))}\nexperts = "
                self._start(
                    name,
                    [*PANAL, "run", "--json", "--until-eof", "-c"],
                    serve + f'"{first}-{end - 1}"\n',
                )
                peer_id = Identity.load_or_create(self.folder / name / "identity.key").peer_id
                peers.append(f"/ip4/{self._lab.ip(name)}/udp/{PORT}/quic-v1/p2p/{peer_id}")
            backbone = f"[backbone]\nmodel = {json.dumps(str(self.model))}\n{self.settings}\n"
            self._client = self._start("home", self.client, backbone, peers)
            self._ends = self._ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def set_one_way(self, milliseconds: float) -> None:
        for number in range(self.servers):
            self._lab.set_delay(f"server{number}", milliseconds)

    def ask(self, task: dict[str, Any]) -> dict[str, Any]:
        """Have the backbone do something."""
        assert self._client is not None
        return self._client.ask(json.dumps(task))

    def _start(self, name: str, command: list[str], text: str, peers: list[str] | None = None) -> Process:
        own = self.folder / name  # one node a folder
        own.mkdir(exist_ok=True)
        lines = [
            f"store = {json.dumps(str(self.folder / 'store'))}",
            f"identity = {json.dumps(str(own / 'identity.key'))}",
            "[engine]",
            f"threads = {self.threads}",
            "[swarm]",
            f'listen = "/ip4/{self._lab.local_ip(name)}/udp/{PORT}/quic-v1"',
            f"peers = {json.dumps(peers or [])}",
            'control = "off"',
            "lan = false",
            "[relay]",
            "use = false",
        ]
        config = own / "node.toml"
        config.write_text("\n".join([*lines, text]))
        log = own / "log"
        errors = self._ends.enter_context(log.open("w"))
        popen = self._lab.popen(
            name, [*command, str(config)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            text=True, cwd=REPOSITORY, env=ENVIRONMENT,
        )  # fmt: skip
        process = Process(popen, log)
        self._ends.callback(process.end)
        process.answer()
        return process
