"""Expert servers as processes of this machine, each with a share of every layer: for demo and verify."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO

from node.config import render_config
from node.config.shape import ServeTable
from node.model.manifest import ExpertCall, Manifest
from routing.errors import LocalError
from routing.multiaddr import PeerAddress

STOP_SECONDS = 1.5
"""How long all servers together may take to end before they are killed."""

TAIL_LINES = 3  # of a server's log in the error about it


class LocalSwarm:
    """Starts `panal run` processes in folders of their own and ends them.

    A server ends by itself when its stdin closes, so none outlives this process, however it dies.
    """

    def __init__(self, folder: Path, store: Path, *, threads: int) -> None:
        self.folder = folder
        self._store = store
        self._threads = threads
        self._processes: list[subprocess.Popen[str]] = []
        self._files = ExitStack()
        self.addresses: list[PeerAddress] = []

    def start(self, model: Path, manifest: Manifest, servers: int, *, whole_runs: bool = False) -> None:
        """Start the servers and wait until all listen.

        Args:
            whole_runs: each gets whole runs of experts, as combine stable needs.

        Raises:
            LocalError: more servers than experts, or one did not come up (with the end of its log).
        """
        fewest = min(_pieces(call, whole_runs) for call in manifest.calls if call.index == 0)
        if servers > fewest:
            what = "whole runs of experts" if whole_runs else "experts"
            raise LocalError(f"{servers} servers for layers of {fewest} {what}: each must hold at least one")
        serves = [
            shares(model, manifest, number, servers, whole_runs=whole_runs) for number in range(servers)
        ]
        self.start_with(serves)

    def start_with(self, serves: Sequence[Sequence[ServeTable]]) -> None:
        """Start one server for each list of `[[serve]]` tables and wait until all listen."""
        for number, serve in enumerate(serves):
            self._launch(number, serve)
        for number, process in enumerate(self._processes):
            self.addresses.append(self._ready(number, process))

    def restart(self, number: int) -> None:
        """Start a server that has ended again, at the address it had."""
        self._stop([self._processes[number]])
        folder = self.folder / f"server{number}"
        config = folder / "node.toml"
        port = self.addresses[number].port
        text = config.read_text(encoding="utf-8")
        config.write_text(text.replace("/udp/0/", f"/udp/{port}/"), encoding="utf-8")
        self._processes[number] = self._spawn(folder)
        self._ready(number, self._processes[number])

    def kill(self, number: int) -> None:
        """End a server at once, as a crash would."""
        self._processes[number].kill()
        self._processes[number].wait()

    def processes(self) -> Sequence[subprocess.Popen[str]]:
        return self._processes

    def _launch(self, number: int, serve: Sequence[ServeTable]) -> None:
        folder = self.folder / f"server{number}"
        folder.mkdir(parents=True)
        text = render_config(
            name=f"server{number}",
            store=str(self._store),
            identity="identity.key",
            listen="/ip4/127.0.0.1/udp/0/quic-v1",
            threads=self._threads,
            serve=serve,
            http="off",
        )
        (folder / "node.toml").write_text(text, encoding="utf-8")
        self._processes.append(self._spawn(folder))

    def _spawn(self, folder: Path) -> subprocess.Popen[str]:
        log: IO[str] = self._files.enter_context((folder / "log").open("a", encoding="utf-8"))
        command = [
            sys.executable,
            "-P",
            "-m",
            "node.cli.main",
            "run",
            "-c",
            str(folder / "node.toml"),
            "--json",
            "--until-eof",
        ]
        # Its own session: Ctrl-C in our terminal must not end it before the backbone has let go of it.
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )

    def _ready(self, number: int, process: subprocess.Popen[str]) -> PeerAddress:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            return PeerAddress.parse(json.loads(line)["address"])
        except (json.JSONDecodeError, KeyError, TypeError):
            process.wait()
            raise LocalError(f"server {number} did not start: {self._log_tail(number)}") from None

    def _log_tail(self, number: int) -> str:
        log = self.folder / f"server{number}" / "log"
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
        return "; ".join(lines[-TAIL_LINES:]) or "it said nothing"

    def _stop(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        for process in processes:
            if process.stdin is not None:
                try:
                    process.stdin.close()
                except OSError:
                    pass
        end = time.monotonic() + STOP_SECONDS
        for process in processes:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def __enter__(self) -> LocalSwarm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop(self._processes)
        self._files.close()


def shares(
    model: Path, manifest: Manifest, number: int, servers: int, *, whole_runs: bool = False
) -> list[ServeTable]:
    """`[[serve]]` tables of one of `servers` servers: a contiguous share of each layer's experts."""
    tables: list[ServeTable] = []
    layers_by_share: dict[tuple[int, int], list[int]] = {}
    for call in manifest.calls:
        if call.index == 0:
            pieces, size = _pieces(call, whole_runs), call.run_length if whole_runs else 1
            first, end = pieces * number // servers * size, pieces * (number + 1) // servers * size
            layers_by_share.setdefault((first, min(end, call.n_experts)), []).append(call.layer)
    for (first, end), layers in layers_by_share.items():
        tables.append(
            ServeTable(
                model=str(model.resolve()),
                layers=",".join(map(str, layers)),
                experts=f"{first}-{end - 1}" if end - 1 > first else str(first),
            )
        )
    return tables


def _pieces(call: ExpertCall, whole_runs: bool) -> int:
    """Into how many pieces the experts of a call can be shared out."""
    return -(-call.n_experts // call.run_length) if whole_runs else call.n_experts
