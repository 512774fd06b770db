"""Measure the same generation by every route: plain, direct, punched, relayed, all over one distance.

Run by `scripts/bench_route [--json] [--rounds N] [--tokens N] [--one-way MS] [--rate MBIT]` as root, with the
lab (wanlab). Nothing leaves the machine.

Real `panal run` servers in network namespaces (route_lab.py); a backbone of each kind waits until its
route is the one it is named for. A round is one greedy generation by each kind, one after another, their
order turned from round to round. Speeds are those of the median token, and ratios those of two medians: so
what else the machine does meets all kinds alike, and bursts of it none. All generate the same tokens (rows,
f32). Then cold starts (route_cold.py).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from node.cli.demo import DEMO_MODEL
from node.engine import library as llama
from routing.errors import LocalError
from scripts.bench.engine_model import Shape, make, positive, shape_of
from scripts.bench.lab_run import add_run_options, run
from scripts.bench.route_cold import cold_starts, show_cold
from scripts.bench.route_lab import KINDS, Kind, Process, RouteLab

# Of issue 3, "Must hold" 5: tokens/s against what stands before it.
TARGETS = {"direct over plain": 0.99, "punched over direct": 0.99, "relayed over direct": 0.90}

# As wide as Qwen3-30B-A3B with its eight experts a token, so that messages have their size (8 KB there, 64 KB
# back); fewer layers, fewer and narrower experts, since what is compared is the way between.
SHAPE = {"layers": 6, "embd": 2048, "ff": 256, "experts": 16, "used": 8}


def measure(lab: RouteLab, rounds: int, tokens: int) -> dict[str, Any]:
    """Rounds of all kinds; figures by kind."""
    kinds = lab.kinds
    backbones = {kind.name: lab.open_backbone(kind) for kind in kinds}
    ready = {name: process.answer() for name, process in backbones.items()}
    found: dict[str, list[dict[str, Any]]] = {kind.name: [] for kind in kinds}
    for number in range(rounds + 1):
        for turn in range(len(kinds)):
            kind = kinds[(number + turn) % len(kinds)]
            row = _one(lab, kind, backbones[kind.name], tokens)
            if number:  # the first one warms everything up
                found[kind.name].append(row)
    for process in backbones.values():
        process.end()
    _check_same([row["tokens"] for rows in found.values() for row in rows])
    return {
        "rounds": {
            name: [{key: value for key, value in row.items() if key != "tokens"} for row in rows]
            for name, rows in found.items()
        },
        "kinds": {name: _summary(rows, tokens, ready[name]) for name, rows in found.items()},
    }


def _one(lab: RouteLab, kind: Kind, backbone: Process, tokens: int) -> dict[str, Any]:
    roles = ("backbone", "server", *kind.middle)
    backbone.ask("prompt")
    traffic = {role: lab.traffic(kind, role) for role in roles}
    cpu = {role: lab.processes[f"{kind.name}-{role}"].cpu_seconds() for role in roles}
    row = backbone.ask(str(tokens))
    traffic = {role: lab.traffic(kind, role).since(traffic[role]) for role in roles}
    cpu = {role: lab.processes[f"{kind.name}-{role}"].cpu_seconds() - cpu[role] for role in roles}
    row["wire_bytes"], row["wire_packets"] = traffic["backbone"].bytes, traffic["backbone"].packets
    row["relay_bytes"] = sum(traffic[role].bytes for role in kind.middle)
    row["server_cpu_seconds"] = cpu["server"]
    row["relay_cpu_seconds"] = sum(cpu[role] for role in kind.middle)
    routes = row.pop("routes")
    if {each["route"] for each in routes} != {kind.route}:
        raise LocalError(f"{kind.name}: the route has changed within the measurement: {routes}")
    row["rtt_ms"] = max(each["rtt_ms"] for each in routes)
    return row


def _check_same(generations: Sequence[Sequence[int]]) -> None:
    if len({tuple(each) for each in generations}) > 1:
        raise LocalError("the kinds have generated different tokens")


def _summary(rows: Sequence[dict[str, Any]], tokens: int, ready: dict[str, Any]) -> dict[str, Any]:
    def a_token(name: str) -> float:
        return float(statistics.median(row[name] for row in rows)) / tokens

    return {
        "route": ready["routes"][0],
        "ready_seconds": ready["seconds"],
        "tokens_per_second": 1 / _median_token(rows),
        "trip_ms": statistics.median(row["waited"] / row["trips"] for row in rows) * 1e3,
        "rtt_ms": statistics.median(row["rtt_ms"] for row in rows),
        "ledger_bytes": statistics.median((row["bytes_out"] + row["bytes_back"]) / tokens for row in rows),
        "wire_bytes": a_token("wire_bytes"),
        "wire_packets": a_token("wire_packets"),
        "relay_bytes": a_token("relay_bytes"),
        "backbone_cpu_ms": a_token("cpu_seconds") * 1e3,
        "server_cpu_ms": a_token("server_cpu_seconds") * 1e3,
        "relay_cpu_ms": a_token("relay_cpu_seconds") * 1e3,
        "hedges": sum(row["hedges"] for row in rows),
        "moved": sum(row["moved"] for row in rows),
    }


def _median_token(rows: Sequence[dict[str, Any]]) -> float:
    return float(statistics.median(seconds for row in rows for seconds in row["seconds"]))


def judge(rounds: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Ratios of tokens/s against the targets and of bytes on the wire; "rounds": each round's, sorted."""
    figures, ratios, wire = {}, {}, {}
    for name in TARGETS:
        above, below = name.split(" over ")
        if above not in rounds or below not in rounds:
            continue
        pairs = list(zip(rounds[above], rounds[below], strict=True))
        figures[name] = _median_token(rounds[below]) / _median_token(rounds[above])
        ratios[name] = sorted(_median_token([b]) / _median_token([a]) for a, b in pairs)
        wire[name] = statistics.median(a["wire_bytes"] / b["wire_bytes"] for a, b in pairs)
    targets = {name: TARGETS[name] for name in figures}
    met = {name: figures[name] >= target for name, target in targets.items()}
    return {"figures": figures, "rounds": ratios, "targets": targets, "met": met, "wire_ratio": wire}


def show(report: dict[str, Any]) -> None:
    rate = f", {report['rate']:g} Mbit/s" if report["rate"] else ""
    print(
        f"{report['model']}, {report['one_way_ms']:g} ms one way{rate}; {report['tokens']} tokens a round, "
        f"{report['n_rounds']} rounds; load {report['load'][0]:.2f} before and {report['load'][1]:.2f} after"
    )
    print(
        f"{'':<9}{'tokens/s':>9}{'trip ms':>9}{'rtt ms':>8}{'calls KB':>10}{'wire KB':>9}{'packets':>9}",
        end="",
    )
    print(f"{'relay KB':>10}{'CPU ms: asks':>14}{'serves':>8}{'relays':>8}   all a token")
    for name, row in report["kinds"].items():
        print(
            f"{name:<9}{row['tokens_per_second']:>9.3f}{row['trip_ms']:>9.2f}{row['rtt_ms']:>8.1f}"
            f"{row['ledger_bytes'] / 1e3:>10.1f}{row['wire_bytes'] / 1e3:>9.1f}{row['wire_packets']:>9.0f}"
            f"{row['relay_bytes'] / 1e3:>10.1f}{row['backbone_cpu_ms']:>14.1f}{row['server_cpu_ms']:>8.1f}"
            f"{row['relay_cpu_ms']:>8.1f}"
        )
    verdict = report["verdict"]
    for name, target in verdict["targets"].items():
        state = "met" if verdict["met"][name] else "MISSED"
        low, high = verdict["rounds"][name][0], verdict["rounds"][name][-1]
        print(
            f"  {name:<20} {verdict['figures'][name]:.4f} of the tokens/s, target >= {target:g}  {state}; "
            f"rounds {low:.3f} to {high:.3f}; {verdict['wire_ratio'][name]:.3f} of the bytes"
        )
    if report["cold"]:
        show_cold(report["cold"])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench_route", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=positive, default=20, metavar="N", help="of all kinds (20)")
    parser.add_argument("--tokens", type=positive, default=6, metavar="N", help="of each in a round (6)")
    parser.add_argument("--one-way", type=float, default=20.0, metavar="MS", help="from end to end (20)")
    names = ",".join(kind.name for kind in KINDS)
    parser.add_argument("--kinds", type=_kinds, default=KINDS, metavar="A,B", help=f"of {names} (all)")
    parser.add_argument(
        "--rate", type=float, default=0.0, metavar="MBIT", help="of the ends' lines (no bound)"
    )
    parser.add_argument("--cold", type=int, default=3, metavar="N", help="cold starts of each kind (3)")
    add_run_options(parser, SHAPE)
    args = parser.parse_args(arguments)
    return run("bench_route", args, lambda folder: bench(args, shape_of(args), folder), show)


def _kinds(text: str) -> tuple[Kind, ...]:
    names = text.split(",")
    if not set(names) <= {kind.name for kind in KINDS}:
        raise ValueError
    return tuple(kind for kind in KINDS if kind.name in names)


def bench(args: argparse.Namespace, shape: Shape, folder: Path) -> dict[str, Any]:
    """Make the model if need be, build the lab, measure."""
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / shape.file_name()
    if not model.exists():
        make(llama.load(), shape, model)
    before = os.getloadavg()[0]
    served, context = (model, DEMO_MODEL), args.tokens + 64
    with RouteLab(
        args.kinds, folder, folder / "store", model, served, args.one_way, args.rate, context
    ) as lab:
        measured = measure(lab, args.rounds, args.tokens)
        cold = cold_starts(lab, DEMO_MODEL, args.cold) if args.cold else {}
    return {
        "model": model.name,
        "one_way_ms": args.one_way,
        "rate": args.rate,
        "tokens": args.tokens,
        "n_rounds": args.rounds,
        "load": (before, os.getloadavg()[0]),
        **measured,
        "verdict": judge(measured["rounds"]),
        "cold": cold,
    }


if __name__ == "__main__":
    sys.exit(main())
