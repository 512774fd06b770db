"""Measure a batch of sequences run in several ways, on an emulated WAN.

Run by `scripts/bench_lanes [--json] [--rounds N] [--one-way MS,...] [--sequences N] [--tokens N]` as root,
with the lab (wanlab). Nothing leaves the machine.

Two real `panal run` servers with half of the experts each, and a backbone, which runs the same prompts

    one by one     each alone, one after the other: what a batch is measured against
    batch          together in one context: a trip a layer serves all of them, prompts are read one by one
    2 lanes        half of them in each of two contexts: one computes while the other waits
    4 lanes        a quarter in each of four
    shared         together, and prompts share passes, too: last bits differ from one by one
    shared, 2      the same in two lanes

in turns: first all prompts (prefill), then the other tokens (decode). But for the shared ways all give the
same tokens, which is checked. The model is as wide as Qwen3-30B-A3B with fewer layers, fewer and narrower
experts: so the backbone's work of a layer, which is what lanes hide, has its size.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.engine import library as llama
from routing.errors import LocalError
from scripts.bench.backbone_lab import BackboneLab
from scripts.bench.engine_model import make, positive, shape_of
from scripts.bench.lab_run import add_run_options, run

CLIENT = [sys.executable, str(Path(__file__).with_name("lanes_client.py"))]

SHAPE = {"layers": 6, "embd": 2048, "ff": 256, "experts": 16, "used": 8}
SERVERS = 2
CONTEXT = 256  # of the backbone's own cache, which only has to be there


@dataclass(frozen=True)
class Way:
    """One way to run the batch: `share` of the sequences in each lane, one at a time if 0."""

    lanes: int
    share: float
    exact: bool

    def places(self, sequences: int) -> int:
        return max(1, round(self.share * sequences))


WAYS = {
    "one by one": Way(1, 0, True),
    "batch": Way(1, 1, True),
    "2 lanes": Way(2, 1 / 2, True),
    "4 lanes": Way(4, 1 / 4, True),
    "shared": Way(1, 1, False),
    "shared, 2": Way(2, 1 / 2, False),
}


def rounds_of(
    lab: BackboneLab, ways: dict[str, Way], one_way: float, args: argparse.Namespace
) -> dict[str, Any]:
    """Rounds of all ways at one distance; the first one warms up."""
    lab.set_one_way(one_way)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(args.rounds + 1):
        for turn in range(len(names)):
            name = names[(number + turn) % len(names)]
            row = lab.ask(_task(ways[name], args))
            if number:
                found[name].append(row)
    same = [row["tokens"] for name, rows in found.items() for row in rows if ways[name].exact]
    if any(tokens != same[0] for tokens in same):
        raise LocalError("ways that should give the same tokens have given others")
    kinds = {name: _summary(rows, args) for name, rows in found.items()}
    base = kinds["batch"]
    for row in kinds.values():
        row["decode_ratio"] = row["decode"] / base["decode"]
        row["prefill_ratio"] = base["prefill_seconds"] / row["prefill_seconds"]
    return {"one_way_ms": one_way, "ways": kinds}


def _task(way: Way, args: argparse.Namespace) -> dict[str, Any]:
    return {
        "lanes": way.lanes,
        "places": way.places(args.sequences),
        "exact": way.exact,
        "prompts": args.sequences,
        "prompt": args.prompt,
        "tokens": args.tokens,
    }


def _summary(rows: list[dict[str, Any]], args: argparse.Namespace) -> dict[str, float]:
    def middle(name: str) -> float:
        return float(statistics.median(row[name] for row in rows))

    prefill = middle("prefill_seconds")
    decode = middle("decode_seconds")
    return {
        "prefill_seconds": prefill,
        "decode": args.sequences * (args.tokens - 1) / decode,
        "all": args.sequences * args.tokens / (prefill + decode),
        "passes": middle("passes"),
        "trips": middle("trips"),
        "waited": middle("waited"),
    }


def show(report: dict[str, Any]) -> None:
    print(
        f"{report['model']}, {report['sequences']} sequences: prompts of {report['prompt']} tokens, "
        f"{report['tokens']} tokens each; {report['n_rounds']} rounds; "
        f"load {report['load'][0]:.2f} before and {report['load'][1]:.2f} after"
    )
    for place in report["distances"]:
        print(f"\n{place['one_way_ms']:g} ms one way")
        print(
            f"{'':<12}{'prefill s':>10}{'x batch':>9}{'decode t/s':>12}{'x batch':>9}{'all t/s':>9}", end=""
        )
        print(f"{'passes':>8}{'trips':>7}{'waited s':>10}")
        for name, row in place["ways"].items():
            print(
                f"{name:<12}{row['prefill_seconds']:>10.2f}{row['prefill_ratio']:>9.2f}{row['decode']:>12.2f}"
                f"{row['decode_ratio']:>9.2f}{row['all']:>9.2f}{row['passes']:>8.0f}{row['trips']:>7.0f}"
                f"{row['waited']:>10.2f}"
            )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench_lanes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=positive, default=3, metavar="N", help="of all ways (3)")
    parser.add_argument("--one-way", type=_distances, default=[40.0, 5.0], metavar="MS,...", help="(40,5)")
    parser.add_argument("--sequences", type=positive, default=8, metavar="N", help="(8)")
    parser.add_argument("--prompt", type=positive, default=64, metavar="N", help="tokens of each prompt (64)")
    parser.add_argument("--tokens", type=positive, default=9, metavar="N", help="chosen for each (9)")
    parser.add_argument("--threads", type=positive, default=1, metavar="N", help="of each process (1)")
    parser.add_argument("--ways", type=_ways, default=WAYS, metavar="A,B", help=f"of {'; '.join(WAYS)} (all)")
    add_run_options(parser, SHAPE)
    args = parser.parse_args(arguments)
    return run("bench_lanes", args, lambda folder: bench(args, folder), show)


def bench(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Make the model if need be, build the lab, measure."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = shape_of(args)
    model = folder / shape.file_name()
    if not model.exists():
        make(llama.load(), shape, model)
    before = os.getloadavg()[0]
    settings = f"context = {CONTEXT}"
    with BackboneLab(folder, model, shape.experts, args.threads, CLIENT, SERVERS, settings) as lab:
        distances = [rounds_of(lab, args.ways, one_way, args) for one_way in args.one_way]
    return {
        "model": model.name,
        "sequences": args.sequences,
        "prompt": args.prompt,
        "tokens": args.tokens,
        "n_rounds": args.rounds,
        "load": (before, os.getloadavg()[0]),
        "distances": distances,
    }


def _distances(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _ways(text: str) -> dict[str, Way]:
    names = ["batch", *(name.strip() for name in text.split(";") if name.strip() != "batch")]
    if not set(names) <= set(WAYS):
        raise ValueError
    return {name: WAYS[name] for name in WAYS if name in names}


if __name__ == "__main__":
    sys.exit(main())
