"""Measure how a slice of a model arrives: from one source, from two, and with a kill -9 in the middle.

Run by `scripts/bench_share [--json] [--rounds N] [--rate MBIT] [--one-way MS] [--dir DIR]` as root, with the
lab (wanlab). Nothing leaves the machine.

Sources are real `panal run` nodes that share a random model; `panal slice get` fetches all of its experts
over lines of their own: each source sends at --rate, the fetcher's line carries more than all of them. Beside
it goes plain QUIC, one stream as fast as it can: what line and machine carry at all. A share of the line is
of the expert bytes, headers not counted: 95 % is the most there can be. Time is that of fetching, as the
command says it; "all of it" is the command from beginning to end.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from node.engine import library as llama
from node.model.chunks import CHUNK_BYTES
from routing.errors import LocalError
from scripts.bench.engine_model import Shape, make, positive, shape_of
from scripts.bench.lab_run import add_run_options, run
from scripts.bench.route_lab import ENVIRONMENT, PANAL, PORT, REPOSITORY, load_wanlab

# Of issue 5, "Must hold" 3: shares of the lines, and chunks that a kill may cost.
TARGETS = {"one": 0.85, "two": 0.85}

# 98 MB of experts of a megabyte each.
SHAPE = {"layers": 3, "embd": 1024, "ff": 512, "experts": 32, "used": 4, "heads": 8, "kv_heads": 2}

PLAIN = [sys.executable, str(Path(__file__).with_name("share_plain.py"))]
NAME = "bench"
SOURCES = {"solo": "alone", "first": "pair", "second": "pair"}
"""And the swarm of each: who is of one finds the others."""

PLAIN_SOURCES = ("plain", "other")

ROOM = 1.3  # of the sources' lines together: what the fetcher's carries
KILL_AT = 0.5  # of the bytes


class ShareLab:
    """Two sources and a fetcher; a context manager."""

    def __init__(self, folder: Path, model: Path, one_way_ms: float, rate: float) -> None:
        self._folder = folder
        self._model = model
        self._delay = one_way_ms / 2
        self._rate = rate
        self._ends = ExitStack()
        self._lab: Any = None
        self.addresses: dict[str, str] = {}
        self.pids: dict[str, int] = {}

    def __enter__(self) -> ShareLab:
        with self._ends:
            hosts = {
                "fetcher": {"delay": self._delay, "rate": 2 * self._rate * ROOM},
                **{name: {"delay": self._delay, "rate": self._rate} for name in (*SOURCES, *PLAIN_SOURCES)},
            }
            self._lab = self._ends.enter_context(load_wanlab().WanLab({"name": "share", "hosts": hosts}))
            self._share()
            for name in SOURCES:
                self._start(name, [*PANAL, "run", "-c", str(self._config(name)), "--json", "--until-eof"])
            for name in PLAIN_SOURCES:
                self._start(name, [*PLAIN, "serve", self._lab.ip(name), str(PORT)])
            self._ends = self._ends.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.close()

    def plain(self, sources: tuple[str, ...], n_bytes: int) -> float:
        """Seconds that so many bytes take in one stream of QUIC of each."""
        addresses = [self.addresses[name] for name in sources]
        seconds: float = json.loads(self._run([*PLAIN, "fetch", str(n_bytes), *addresses]))
        return seconds

    def get(self, sources: tuple[str, ...], *, kill: bool = False) -> dict[str, Any]:
        """Fetch everything from these sources into an empty folder."""
        folder = self._folder / "fetched"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(self._folder / "fetcher-store", ignore_errors=True)
        peers = json.dumps([self.addresses[name] for name in sources])
        config = self._folder / "fetcher.toml"
        config.write_text(
            'store = "fetcher-store"\n[swarm]\nlan = false\ncontrol = "off"\n'
            f'name = "{SOURCES[sources[0]]}"\npeers = {peers}\n'
        )
        command = [*PANAL, "slice", "get", NAME, "--all", "-o", str(folder), "-c", str(config), "--json"]
        before, begun = self._received(), time.monotonic()
        killed: dict[str, Any] = {}
        if kill:
            killed = self._kill(command, folder)
        found: dict[str, Any] = json.loads(self._run(command))
        found |= killed | {"whole_seconds": time.monotonic() - begun, "wire_bytes": self._received() - before}
        if not found["complete"]:
            raise LocalError(f"not everything came: {found['reasons']}")
        return found

    def memory(self, name: str) -> int:
        """Bytes of memory that a source has for itself, beside the files that are mapped."""
        status = Path(f"/proc/{self.pids[name]}/status").read_text()
        return int(re.findall(r"^RssAnon:\s+(\d+) kB$", status, re.MULTILINE)[0]) << 10

    def _kill(self, command: list[str], folder: Path) -> dict[str, Any]:
        process = self._lab.popen(
            "fetcher", command, cwd=REPOSITORY, env=ENVIRONMENT, stdout=subprocess.DEVNULL
        )
        try:
            while True:
                data = next(iter(folder.glob("*.part/data")), None)
                if data is not None and data.stat().st_blocks * 512 >= KILL_AT * data.stat().st_size:
                    break
                if process.poll() is not None:
                    raise LocalError("the fetch ended before it was killed")
                time.sleep(0.01)
        finally:
            process.kill()
            process.wait()
        return {"on_disk": data.stat().st_blocks * 512}

    def _received(self) -> int:
        """Bytes that have reached the fetcher's host."""
        with self._lab.inside("fetcher"):
            lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
        return sum(int(line.partition(":")[2].split()[0]) for line in lines if "lo:" not in line)

    def _share(self) -> None:
        command = [
            *PANAL,
            "model",
            "share",
            str(self._model),
            "--name",
            NAME,
            "-c",
            str(self._config("solo")),
        ]
        done = subprocess.run(
            command, cwd=REPOSITORY, env=ENVIRONMENT, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise LocalError(done.stderr.strip())

    def _config(self, name: str) -> Path:
        config = self._folder / name / "node.toml"  # a node has a folder to itself
        config.parent.mkdir(exist_ok=True)
        config.write_text(
            'store = "../store"\nidentity = "identity.key"\n[http]\nlisten = "off"\n[swarm]\nlan = false\n'
            f'name = "{SOURCES[name]}"\n'
            f'control = "off"\nlisten = "/ip4/{self._lab.ip(name)}/udp/{PORT}/quic-v1"\n'
        )
        return config

    def _start(self, name: str, command: list[str]) -> None:
        log = self._ends.enter_context((self._folder / f"{name}.log").open("w"))
        process = self._lab.popen(
            name, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            cwd=REPOSITORY, env=ENVIRONMENT | {"PYTHONPATH": str(REPOSITORY)},
        )  # fmt: skip
        self._ends.callback(process.wait)
        self._ends.callback(process.kill)
        said = json.loads(process.stdout.readline() or "null")
        if said is None:
            raise LocalError(f"{name} ended: {(self._folder / f'{name}.log').read_text().strip()[-200:]}")
        self.addresses[name] = said if isinstance(said, str) else said["address"]
        self.pids[name] = process.pid

    def _run(self, command: list[str]) -> str:
        done = self._lab.run(
            "fetcher", command, cwd=REPOSITORY, env=ENVIRONMENT | {"PYTHONPATH": str(REPOSITORY)},
            capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        if done.returncode:
            raise LocalError(f"{' '.join(command[2:5])} failed: {done.stderr.strip()}")
        return str(done.stdout)


def measure(lab: ShareLab, n_bytes: int, rounds: int) -> dict[str, Any]:
    """All kinds, one after another, as often as said."""
    found: dict[str, list[dict[str, Any]]] = {
        "plain": [], "plain two": [], "one": [], "two": [], "killed": [],
    }  # fmt: skip
    memory = {name: lab.memory(name) for name in SOURCES}
    for _ in range(rounds):
        found["plain"].append({"seconds": lab.plain(PLAIN_SOURCES[:1], n_bytes)})
        found["plain two"].append({"seconds": lab.plain(PLAIN_SOURCES, n_bytes)})
        found["one"].append(lab.get(("solo",)))
        found["two"].append(lab.get(("first", "second")))
        found["killed"].append(lab.get(("solo",), kill=True))
    grown = {name: lab.memory(name) - before for name, before in memory.items()}
    return {"runs": found, "memory_before": memory, "memory_grown": grown}


def summary(measured: dict[str, Any], n_bytes: int, rate: float) -> dict[str, Any]:
    """Shares of the lines, medians over rounds, and what a kill costs."""
    runs = measured["runs"]

    def median(kind: str, name: str) -> float:
        return float(statistics.median(each[name] for each in runs[kind]))

    line = rate * 1e6 / 8
    lines = {"plain": 1, "plain two": 2, "one": 1, "two": 2}
    shares = {kind: n_bytes / median(kind, "seconds") / line / count for kind, count in lines.items()}
    again = [each["bytes"] + each["was_there"] - n_bytes for each in runs["killed"]]
    more = [
        killed["wire_bytes"] - one["wire_bytes"]
        for killed, one in zip(runs["killed"], runs["one"], strict=True)
    ]
    return {
        "shares": shares,
        "of_plain": {"one": shares["one"] / shares["plain"], "two": shares["two"] / shares["plain two"]},
        "whole_seconds": {kind: median(kind, "whole_seconds") for kind in ("one", "two", "killed")},
        "kill": {
            "seconds_lost": median("killed", "whole_seconds") - median("one", "whole_seconds"),
            "not_found_again": statistics.median(
                each["on_disk"] - each["was_there"] for each in runs["killed"]
            ),
            "fetched_again": statistics.median(again),
            "more_on_the_wire": statistics.median(more),
        },
        "met": {kind: shares[kind] >= target for kind, target in TARGETS.items()},
        "targets": TARGETS,
    }


def show(report: dict[str, Any]) -> None:
    print(
        f"{report['n_bytes'] / 1e6:.1f} MB of experts, {report['rate']:g} Mbit/s a source, "
        f"{report['one_way_ms']:g} ms one way; {report['rounds']} rounds; load {report['load'][0]:.2f} "
        f"before and {report['load'][1]:.2f} after"
    )
    told = report["summary"]
    print(
        f"  plain QUIC                   {told['shares']['plain']:.3f} of line, "
        f"{told['shares']['plain two']:.3f} of two"
    )
    for kind, words in (("one", "one source "), ("two", "two sources")):
        state = "met" if told["met"][kind] else "MISSED"
        print(
            f"  panal slice get, {words} {told['shares'][kind]:.3f} of line{'s' if kind == 'two' else ' '}, "
            f"target >= {told['targets'][kind]:g}  {state}; {told['of_plain'][kind]:.3f} of plain QUIC; "
            f"all of it {told['whole_seconds'][kind]:.1f} s"
        )
    kill = told["kill"]
    print(
        f"  kill -9 in the middle        {kill['seconds_lost']:.1f} s lost, with starting again; "
        f"{kill['not_found_again'] / CHUNK_BYTES:.2f} chunks of what was on disk not found again, "
        f"{kill['fetched_again'] / CHUNK_BYTES:.2f} fetched twice; "
        f"{kill['more_on_the_wire'] / 1e6:.2f} MB more on the wire"
    )
    for name, grown in report["memory_grown"].items():
        print(
            f"  memory of source {name}: {report['memory_before'][name] / 1e6:.0f} MB before, "
            f"{grown / 1e6:+.1f} MB after sending {report['n_bytes'] / 1e6:.0f} MB several times"
        )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench_share", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=positive, default=3, metavar="N", help="of all kinds (3)")
    parser.add_argument("--rate", type=float, default=50.0, metavar="MBIT", help="of each source's line (50)")
    parser.add_argument("--one-way", type=float, default=40.0, metavar="MS", help="from end to end (40)")
    add_run_options(parser, SHAPE)
    args = parser.parse_args(arguments)
    return run("bench_share", args, lambda folder: bench(args, shape_of(args), folder), show)


def bench(args: argparse.Namespace, shape: Shape, folder: Path) -> dict[str, Any]:
    """Make the model if need be, build the lab, measure."""
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / shape.file_name()
    if not model.exists():
        make(llama.load(), shape, model)
    before = os.getloadavg()[0]
    with ShareLab(folder, model, args.one_way, args.rate) as lab:
        n_bytes = expert_bytes(folder / "store")
        measured = measure(lab, n_bytes, args.rounds)
    return {
        "model": model.name,
        "n_bytes": n_bytes,
        "rate": args.rate,
        "one_way_ms": args.one_way,
        "rounds": args.rounds,
        "load": (before, os.getloadavg()[0]),
        **measured,
        "summary": summary(measured, n_bytes, args.rate),
    }


def expert_bytes(store: Path) -> int:
    """Of the model in a store."""
    from node.model.manifest import decode_manifest

    (path,) = store.glob("models/*/manifest.json")
    return decode_manifest(path.read_bytes()).expert_bytes


if __name__ == "__main__":
    sys.exit(main())
