"""Tokens/s by what is at home and who guesses, over an emulated WAN: `panal bench trips` inside wanlab.

Run by `scripts/bench_trips [far] [near] [deep] [options]` as root.

    far     a trained model, 3 servers, 40 ms one way
    near    the same at 2.5 ms
    deep    a random model of 16 layers and 8 experts a token, 4 servers, round trips of 30 +- 5 ms, 0.1 %
            loss; with every layer spread over all servers, with whole layers on each (combine rows and
            sum, the same bytes there), and over loopback

Within a scenario all ways to decode take turns prompt by prompt, so ratios are of one run. Nothing leaves the
machine, whose cores servers, backbone and lab share: each of them computes on one thread.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from node.cli.demo import DEMO_MODEL
from node.config import render_config
from node.config.shape import ServeTable
from node.engine import library as llama
from node.importing import import_model
from node.local_swarm import shares
from node.model.manifest import Manifest
from node.model.store import Store
from routing.errors import LocalError
from scripts.bench.engine_model import Shape, make, positive
from scripts.bench.route_lab import ENVIRONMENT, PANAL, REPOSITORY, load_wanlab

PORT = 4190
ECHO_PORT = 4191
ECHOES = 100
"""Datagrams to each server, from which the mean round trip is taken: 400 at 5 ms of jitter are 0.15 ms off.
"""

SHARED = REPOSITORY.parent / "shared" / "models"

DEEP = Shape(
    layers=16,
    embd=256,
    ff=64,
    experts=32,
    used=8,
    heads=4,
    kv_heads=1,
    gate_type="Q8_0",
    down_type="Q8_0",
    trunk_type="Q8_0",
    output_type="Q8_0",
)
"""Narrow and small: what is measured is the way, and a layer's computing is under a millisecond."""


@dataclass(frozen=True)
class Scenario:
    """One lab.

    Attributes:
        one_way, jitter: milliseconds between the ends; the jitter is each way's.
        loss: of packets, each way.
        layers: servers hold whole layers instead of a share of each.
        combine: with whole layers and f32, sum gives the same bytes as rows.
    """

    name: str
    servers: int
    one_way: float
    homes: str
    drafts: str
    jitter: float = 0.0
    loss: float = 0.0
    layers: bool = False
    combine: str = "rows"


FAR = Scenario("far", 3, 40.0, "0,50%", "off,ngram,auto")
NEAR = Scenario("near", 3, 2.5, "0,hot:50%,50%", "off,auto")
DEEP_SPREAD = Scenario("deep, spread", 4, 15.0, "50%", "off", jitter=2.5, loss=0.001)
DEEP_LAYERS = replace(DEEP_SPREAD, name="deep, layers", layers=True)
DEEP_SUM = replace(DEEP_LAYERS, name="deep, layers, sum", combine="sum")


@dataclass(frozen=True)
class Job:
    """What is decoded: model, its manifest, and the arguments of `panal bench trips` that say how much."""

    model: Path
    manifest: Manifest
    store: Path
    how_much: tuple[str, ...]


def over_lab(wanlab: Any, scenario: Scenario, job: Job, folder: Path) -> dict[str, Any]:
    """Run a scenario; its rows and the mean round trip of a datagram."""
    line = {"delay": scenario.one_way / 2, "jitter": scenario.jitter, "loss": scenario.loss}
    hosts = {"asks": {"delay": scenario.one_way / 2}}
    hosts |= {f"serves{i}": line for i in range(scenario.servers)}
    folder.mkdir(parents=True, exist_ok=True)
    with wanlab.WanLab({"name": "trips", "hosts": hosts}) as lab:
        peers = [_server(lab, scenario, job, folder, i) for i in range(scenario.servers)]
        config = folder / "asks.toml"
        config.write_text(
            render_config(
                store=str(job.store),
                identity=str(folder / "asks.key"),
                threads=1,
                peers=peers,
                model=str(job.model),
                listen=f"/ip4/{lab.ip('asks')}/udp/{PORT}/quic-v1",
            ).replace('# combine = "rows"', f'combine = "{scenario.combine}"')
        )
        rtt = _round_trip(lab, [f"serves{i}" for i in range(scenario.servers)])
        command = [*PANAL, "bench", "trips", "-c", str(config), "--json", *job.how_much]
        command += ["--home", scenario.homes, "--draft", scenario.drafts]
        done = lab.run("asks", command, capture_output=True, text=True, env=ENVIRONMENT, cwd=REPOSITORY)
        if done.returncode:
            raise LocalError(f"{scenario.name}: {done.stderr.strip()[-500:]}")
        return {"rtt_ms": rtt, "rows": json.loads(done.stdout)}


def _server(lab: Any, scenario: Scenario, job: Job, folder: Path, number: int) -> str:
    if scenario.layers:
        layers = list(job.manifest.layers())
        mine = layers[number :: scenario.servers]
        serve = [ServeTable(model=str(job.model), layers=",".join(map(str, mine)))]
    else:
        serve = shares(job.model, job.manifest, number, scenario.servers)
    host = f"serves{number}"
    config = folder / f"{host}.toml"
    config.write_text(
        render_config(
            name=host,
            store=str(job.store),
            identity=str(folder / host / "identity.key"),
            threads=1,
            listen=f"/ip4/{lab.ip(host)}/udp/{PORT}/quic-v1",
            serve=serve,
            http="off",
        )
    )
    log = (folder / f"{host}.log").open("w")
    process = lab.popen(
        host,
        [*PANAL, "run", "-c", str(config), "--json"],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=ENVIRONMENT,
        cwd=REPOSITORY,
    )
    line = process.stdout.readline()
    if not line:
        raise LocalError(f"{host} did not start: {(folder / f'{host}.log').read_text()[-300:]}")
    return str(json.loads(line)["address"])


def _round_trip(lab: Any, hosts: Sequence[str]) -> float:
    """Mean round trip of a datagram over all servers, milliseconds; lost ones are left out."""
    took: list[float] = []
    with lab.socket("asks", socket.AF_INET, socket.SOCK_DGRAM) as asks:
        asks.settimeout(1.0)
        for host in hosts:
            with lab.socket(host, socket.AF_INET, socket.SOCK_DGRAM) as serves:
                serves.bind((lab.ip(host), ECHO_PORT))
                serves.settimeout(1.0)
                for _ in range(ECHOES):
                    begun = time.perf_counter()
                    try:
                        asks.sendto(b"echo", (lab.ip(host), ECHO_PORT))
                        data, back = serves.recvfrom(16)
                        serves.sendto(data, back)
                        asks.recvfrom(16)
                    except TimeoutError:
                        continue
                    took.append(time.perf_counter() - begun)
    return statistics.mean(took) * 1e3


def over_loopback(job: Job, scenario: Scenario) -> list[dict[str, Any]]:
    """The same rows with servers as processes of this machine."""
    command = [*PANAL, "bench", "trips", str(job.model), "--store", str(job.store), "--json", *job.how_much]
    command += ["--servers", str(scenario.servers), "--home", scenario.homes, "--draft", scenario.drafts]
    done = subprocess.run(
        command, capture_output=True, text=True, env=ENVIRONMENT, cwd=REPOSITORY, check=False
    )
    if done.returncode:
        raise LocalError(f"loopback: {done.stderr.strip()[-500:]}")
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def show(name: str, found: dict[str, Any], n_layers: int) -> None:
    print(f"\n{name}: round trip {found['rtt_ms']:.1f} ms")
    limit = 1e3 / (n_layers * found["rtt_ms"])
    names = ("x plain", "of limit", "trips/layer/token", "differ")
    print(f"{'at home':<12}{'draft':<8}{'tokens/s':>10}" + "".join(f"{each:>19}" for each in names))
    for row in found["rows"]:
        print(
            f"{row['home']:<12}{row['draft']:<8}{row['tokens_per_second']:>10.3f}{row['speedup']:>19.2f}"
            f"{row['tokens_per_second'] / limit:>19.2f}{row['trips_per_layer_token']:>19.4f}"
            f"{row['differ']:>19}"
        )
    print(f"limit of plain dispatch, 1 / ({n_layers} x {found['rtt_ms']:.1f} ms): {limit:.3f} tokens/s")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench_trips", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", help="far, near, deep (all)")
    trained = SHARED / "tiny-qwen3moe-32e4.Q8_0.gguf"
    parser.add_argument("--model", type=Path, default=trained if trained.is_file() else DEMO_MODEL)
    parser.add_argument("--text", type=Path, default=SHARED / "heldout_code.txt", help="of the prompts")
    parser.add_argument("--calibrate", type=Path, default=SHARED / "calibration.txt", help="of the home plan")
    parser.add_argument("--prompts", type=positive, default=6, metavar="N")
    parser.add_argument("--tokens", type=positive, default=64, metavar="N", help="after each prompt")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="panal-bench-") as scratch:
            report = bench(args, set(args.what) or {"far", "near", "deep"}, Path(scratch))
    except (LocalError, subprocess.TimeoutExpired) as error:
        print(f"bench_trips: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(report))
    return 0


def bench(args: argparse.Namespace, what: set[str], folder: Path) -> dict[str, Any]:
    """All scenarios asked for, shown as they come."""
    wanlab = load_wanlab()
    report: dict[str, Any] = {}
    how_much = ["--prompts", str(args.prompts), "-n", str(args.tokens)]
    if what & {"far", "near"}:
        text = ["--text", str(args.text)] if args.text.is_file() else []
        job = _job(args.model, folder / "store", (*how_much, *text, "--prompt-tokens", "96"))
        plan = [*PANAL, "home", "plan", str(args.model), "--store", str(job.store), "--memory", "50%"]
        if args.calibrate.is_file():
            plan += ["--text", str(args.calibrate)]
        subprocess.run(plan, check=True, env=ENVIRONMENT, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
        for scenario in (FAR, NEAR):
            if scenario.name in what:
                found = report[scenario.name] = over_lab(wanlab, scenario, job, folder / scenario.name)
                if not args.json:
                    show(scenario.name, found, len(job.manifest.calls))
    if "deep" in what:
        model = folder / DEEP.file_name()
        make(llama.load(), DEEP, model)
        job = _job(model, folder / "store", (*how_much, "--prompt-tokens", "16"))
        for scenario in (DEEP_SPREAD, DEEP_LAYERS, DEEP_SUM):
            found = report[scenario.name] = over_lab(wanlab, scenario, job, folder / scenario.name)
            if not args.json:
                show(scenario.name, found, DEEP.layers)
        rows = report["deep, loopback"] = over_loopback(job, DEEP_SPREAD)
        if not args.json:
            for row in rows:
                speed, faster = row["tokens_per_second"], row["speedup"]
                print(f"loopback: {row['home']:<8}{speed:>10.1f} tokens/s, {faster:.2f} x plain")
    return report


def _job(model: Path, store: Path, how_much: Sequence[str]) -> Job:
    stored = import_model(llama.load(), Store(store), model)
    return Job(model.resolve(), stored.manifest, store, tuple(how_much))


if __name__ == "__main__":
    sys.exit(main())
