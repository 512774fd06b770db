"""Measure what prices and receipts cost a generation, on loopback, side by side in one run.

Run by `scripts/bench_market [--json] [--rounds N] [--tokens N]`. Nothing leaves the machine.

Three swarms of the same servers, each with half of the experts, and a backbone each:

    free       [market] mode = "free": what the others are measured against
    priced     mode = "fixed": each answer is priced, receipts are exchanged and written to disk
    audited    the same, and a share of the calls is run again elsewhere

They generate the same tokens in turns, which is checked. Beside the ratio of their speeds, which on a busy
machine varies by more than what is looked for, stands the processor time of the backbone and of its servers,
and what the market's part of an answer takes by itself: pricing it, admitting it, counting it on both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from node.engine import library as llama
from routing.errors import LocalError
from routing.identity import Identity
from scripts.bench.engine_model import Shape, make, positive, shape_of
from scripts.bench.lab_run import add_run_options, run
from scripts.bench.route_lab import ENVIRONMENT, PANAL, REPOSITORY, Process

CLIENT = [sys.executable, str(Path(__file__).with_name("route_client.py"))]

SHAPE = {"layers": 8, "embd": 1024, "ff": 512, "experts": 32, "used": 8}
SERVERS = 2
CONTEXT = 4096

FIXED = '[market]\nmode = "fixed"\nnewcomers = 1000000.0\ncredit_line = 1000000.0\n'
"""Nobody is to be refused here: lines far above what a run costs."""

WAYS = {
    "free": "",
    "priced": FIXED + "audit = 0.0\n",
    "audited": FIXED + "audit = 0.05\n",
}


@dataclass
class Swarm:
    """Servers and their backbone as processes of this machine; a context manager."""

    folder: Path
    model: Path
    experts: int
    threads: int
    market: str
    servers: list[Process] = field(default_factory=list)
    _ends: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Swarm:
        with self._ends:
            peers = []
            for number in range(SERVERS):
                first, end = (self.experts * part // SERVERS for part in (number, number + 1))
                serve = f"[[serve]]\nmodel = {json.dumps(str(self.model))}\nexperts = "
                command = [*PANAL, "run", "--json", "--until-eof", "-c"]
                process, address = self._start(f"server{number}", command, f'{serve}"{first}-{end - 1}"\n')
                self.servers.append(process)
                peers.append(address)
            backbone = f"[backbone]\nmodel = {json.dumps(str(self.model))}\ncontext = {CONTEXT}\n"
            config = self._write("home", backbone, peers)
            self._client = self._process("home", [*CLIENT, str(config), "direct"])
            self._client.answer()
            self._ends = self._ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def generate(self, tokens: int) -> dict[str, Any]:
        """So many tokens more; what they took, the servers' processor time too."""
        before = sum(server.cpu_seconds() for server in self.servers)
        found = self._client.ask(str(tokens))
        found["server_cpu_seconds"] = sum(server.cpu_seconds() for server in self.servers) - before
        return found

    def begin(self) -> None:
        """Read the prompt anew."""
        self._client.ask("prompt")

    def _start(self, name: str, command: list[str], text: str) -> tuple[Process, str]:
        config = self._write(name, text, [])
        process = self._process(name, [*command, str(config)])
        return process, str(process.answer()["address"])

    def _write(self, name: str, text: str, peers: list[str]) -> Path:
        own = self.folder / name  # one node a folder
        own.mkdir(parents=True, exist_ok=True)
        Identity.load_or_create(own / "identity.key")
        lines = [
            f"store = {json.dumps(str(self.folder.parent / 'store'))}",
            f"identity = {json.dumps(str(own / 'identity.key'))}",
            "[engine]",
            f"threads = {self.threads}",
            "[http]",
            'listen = "off"',
            "[swarm]",
            f'listen = "/ip4/127.0.0.1/udp/{_free_port()}/quic-v1"',
            f"peers = {json.dumps(peers)}",
            'control = "off"',
            "lan = false",
            "[relay]",
            "use = false",
        ]
        config = own / "node.toml"
        config.write_text("\n".join([*lines, text, self.market]), encoding="utf-8")
        return config

    def _process(self, name: str, command: list[str]) -> Process:
        log = self.folder / name / "log"
        errors = self._ends.enter_context(log.open("w"))
        popen = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            cwd=REPOSITORY, env=ENVIRONMENT,
        )  # fmt: skip
        process = Process(popen, log)
        self._ends.callback(process.end)
        return process


def bench(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Make the model if need be, start the swarms, measure."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = shape_of(args)
    model = folder / shape.file_name()
    if not model.exists():
        make(llama.load(), shape, model)
    before = os.getloadavg()[0]
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in WAYS}
    with ExitStack() as stack:
        swarms = {
            name: stack.enter_context(Swarm(folder / name, model, shape.experts, args.threads, market))
            for name, market in WAYS.items()
        }
        for swarm in swarms.values():
            swarm.begin()
        names = list(WAYS)
        for number in range(args.rounds + 1):  # the first one warms up
            for turn in range(len(names)):
                name = names[(number + turn) % len(names)]
                found = swarms[name].generate(args.tokens)
                if number:
                    rows[name].append(found)
    said = {name: [token for row in found for token in row["tokens"]] for name, found in rows.items()}
    if any(tokens != said["free"] for tokens in said.values()):
        raise LocalError("swarms that should give the same tokens have given others")
    ways = {name: _summary(rows[name], rows["free"], args.tokens) for name in WAYS}
    return {
        "model": model.name,
        "tokens": args.tokens,
        "n_rounds": args.rounds,
        "load": (before, os.getloadavg()[0]),
        "ways": ways,
        "alone": alone(shape, ways["free"], folder / "books"),
    }


def _summary(rows: list[dict[str, Any]], base: list[dict[str, Any]], tokens: int) -> dict[str, float]:
    """Medians over rounds; ratios are of the same round, and over 1 is dearer. The quickest tokens of all
    rounds say most where others use the machine too."""

    def token(row: dict[str, Any]) -> float:
        return statistics.median(row["seconds"])

    def processor(row: dict[str, Any]) -> float:
        return float(row["cpu_seconds"] + row["server_cpu_seconds"])

    def quickest(found: list[dict[str, Any]]) -> float:
        return float(np.quantile([seconds for row in found for seconds in row["seconds"]], 0.1))

    pairs = list(zip(rows, base, strict=True))
    return {
        "quick_ratio": quickest(rows) / quickest(base),
        "tokens_per_second": 1 / statistics.median(token(row) for row in rows),
        "seconds_ratio": statistics.median(token(row) / token(other) for row, other in pairs),
        "cpu_ms": 1000 * statistics.median(processor(row) for row in rows) / tokens,
        "cpu_ratio": statistics.median(processor(row) / processor(other) for row, other in pairs),
    }


def alone(shape: Shape, free: dict[str, float], folder: Path) -> dict[str, float]:
    """What the market does for one answer, on both sides, without the rest: microseconds, and the share of a
    token's time and of its processor time."""
    from scripts.bench.market_alone import answer_microseconds, exchange_milliseconds

    experts = np.arange(0, shape.experts, SERVERS, dtype=np.uint16)[: shape.used // SERVERS]
    payer, payee = answer_microseconds(shape.layers, shape.experts, experts)
    seconds = (payer + payee) * SERVERS * shape.layers / 1e6
    payer_ms, payee_ms = exchange_milliseconds(folder)
    return {
        "payer_exchange_ms": payer_ms,
        "payee_exchange_ms": payee_ms,
        "payer_us": payer,
        "payee_us": payee,
        "share_of_time": seconds * free["tokens_per_second"],
        "share_of_cpu": 1000 * seconds / free["cpu_ms"],
    }


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        return int(udp.getsockname()[1])


def show(report: dict[str, Any]) -> None:
    print(
        f"{report['model']}: {report['n_rounds']} rounds of {report['tokens']} tokens; "
        f"load {report['load'][0]:.2f} before and {report['load'][1]:.2f} after"
    )
    print(f"{'':<10}{'tokens/s':>10}{'time x free':>13}{'quick x free':>14}{'CPU ms/token':>14}{'x free':>8}")
    for name, row in report["ways"].items():
        print(
            f"{name:<10}{row['tokens_per_second']:>10.2f}{row['seconds_ratio']:>13.4f}{row['quick_ratio']:>14.4f}"
            f"{row['cpu_ms']:>14.2f}{row['cpu_ratio']:>8.4f}"
        )
    own = report["alone"]
    print(
        f"by itself: {own['payer_us']:.1f} us an answer for who asks, {own['payee_us']:.1f} for who serves: "
        f"{100 * own['share_of_time']:.2f} % of a token's time, {100 * own['share_of_cpu']:.2f} % of CPU time"
    )
    print(
        f"a receipt, every 10 s: {own['payer_exchange_ms']:.1f} ms of CPU time for who asks, "
        f"{own['payee_exchange_ms']:.1f} for who serves"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench_market", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=positive, default=8, metavar="N", help="of all ways (8)")
    parser.add_argument("--tokens", type=positive, default=32, metavar="N", help="of a round (32)")
    parser.add_argument("--threads", type=positive, default=1, metavar="N", help="of each process (1)")
    add_run_options(parser, SHAPE)
    args = parser.parse_args(arguments)
    begun = time.perf_counter()
    code = run("bench_market", args, lambda folder: bench(args, folder), show)
    print(f"{time.perf_counter() - begun:.0f} s", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
