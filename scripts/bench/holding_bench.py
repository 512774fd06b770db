"""Watch a swarm of real nodes choose what they hold: does the market's placement do what it does simulated?

Run by `scripts/bench_holding [--nodes N] [--pace X] [--json]`. Nothing leaves the machine.

N servers (`panal run`, forked), each with memory for a part of a model, join by one bootstrap that serves
nothing; a backbone with audits generates now and then. Each is in a public network of its own (wanlab, needs
root); without the lab all are on loopback. The model is the trained one of ../shared/models, else the demo's.

    begin       all servers start at once
    calm        nothing happens for 26 periods; prices and placement should come to rest
    loss        30 % of the servers are killed (SIGKILL)
    after       a few periods more

Everything is read from the nodes' own status. The market's clock (periods, patience, adverts) goes --pace
times faster than it does; dials, timeouts and settling do not. What must hold (issue 6, 2) stands beside the
figures, and what the simulator's market and random placement give servers of the same memories.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from node.cli.arguments import integer
from node.cli.demo import DEMO_MODEL
from node.cli.table import format_table
from routing.errors import LocalError
from scripts.bench.holding_figures import simulated
from scripts.bench.holding_model import Model, open_model
from scripts.bench.holding_report import Report
from scripts.bench.holding_swarm import (
    Lab,
    Loopback,
    Networks,
    Swarm,
    advert_seconds,
    in_fork,
    period_of,
    quicken,
)
from scripts.bench.holding_watch import Run, Seen
from scripts.bench.route_lab import REPOSITORY
from scripts.simulate.recorded import Recorded
from scripts.simulate.world import FloatArray

TRAINED = REPOSITORY.parent / "shared" / "models" / "tiny-qwen3moe-32e4.Q8_0.gguf"

CALM = 26
"""Periods before the loss: 20 until prices must be near their end, 5 that are it."""

MOST_MEMORY = 0.75
"""Of the model, that a server may hold at most."""

SPREAD = 0.4
"""Standard deviation of the logarithm of servers' memory, as in the simulator's `trained`."""


def draw_memories(nodes: int, replicas: float, seed: int) -> FloatArray:
    """Of each server, as a share of the model: log-normal, all too small for it, together `replicas`."""
    drawn = np.exp(SPREAD * np.random.default_rng(seed).standard_normal(nodes))
    return np.asarray(np.minimum(drawn / drawn.sum() * replicas, MOST_MEMORY))


def bench(args: argparse.Namespace, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Start everything, watch it, end it."""
    folder = folder.resolve()
    store = folder / "store"
    say("importing the model")
    found = in_fork(lambda: open_model(args.model, store), folder / "model.json")
    model = Model(args.model.resolve(), **found)
    memories = [int(each * model.n_bytes) for each in draw_memories(args.nodes, args.replicas, args.seed)]
    recorded, ideal = Recorded.load(), None
    if (len(model.layers), model.experts) == (recorded.measure.shape[1], recorded.bonds.shape[1]):
        say("simulating the same")
        cells = (np.array(memories) / model.cell_bytes).astype(np.int64)
        ideal = simulated(cells, recorded, args.seed)  # before `quicken`: it has a clock of its own
    with ExitStack() as ends:
        networks: Networks
        if args.loopback:
            networks = Loopback(args.port)
        else:
            try:
                networks = Lab.opened(ends, args.nodes + 2, args.one_way_ms)
            except LocalError as error:
                say(f"no lab, so all on loopback: {error}\n")
                networks = Loopback(args.port)
        quicken(args.pace)
        nodes = folder / "nodes"
        swarm = ends.enter_context(
            Swarm(nodes, store, networks, advert_seconds(args.pace), directory=args.directory)
        )
        seen = Seen(args.periods * period_of(args.pace), period_of(args.pace))
        Run(swarm, model, memories, seen, seed=args.seed, worst=args.worst, say=say).run()
        how = {"networks": networks.name, "pace": args.pace, "seed": args.seed}
        return how | Report(seen, model, swarm.nodes, ideal).facts()


def _plain(value: Any) -> Any:
    """Without NaN, which is no JSON."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; 1 if something that must hold does not."""
    parser = argparse.ArgumentParser(
        prog="bench_holding", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=TRAINED if TRAINED.is_file() else DEMO_MODEL)
    parser.add_argument("--nodes", type=integer(4, 64), default=16, metavar="N", help="servers (16)")
    parser.add_argument(
        "--replicas", type=float, default=4.5, metavar="X", help="all memory over the model's (4.5)"
    )
    parser.add_argument(
        "--pace", type=float, default=6.0, metavar="X", help="how much faster the market's clock goes (6)"
    )
    parser.add_argument(
        "--periods", type=integer(2, 200), default=CALM, metavar="N", help=f"of the calm ({CALM})"
    )
    parser.add_argument(
        "--one-way-ms", type=float, default=10.0, metavar="MS", help="distance of two nodes (10)"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of memories and deaths (1)")
    parser.add_argument(
        "--worst", action="store_true", help="kill all holders of the rarest cells, not any servers"
    )
    parser.add_argument("--directory", action="store_true", help="nodes keep a DHT, which costs most of all")
    parser.add_argument("--loopback", action="store_true", help="without the lab")
    parser.add_argument(
        "--port", type=integer(1024, 65000), default=24190, metavar="N", help="the first on loopback (24190)"
    )
    parser.add_argument("--dir", type=Path, help="keep configs, logs and books there; else nothing is kept")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    args = parser.parse_args(arguments)

    def say(text: str) -> None:
        if (not args.json and sys.stderr.isatty()) or text.endswith("\n"):
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    try:
        with tempfile.TemporaryDirectory(prefix="panal-bench-") as scratch:
            folder = args.dir or Path(scratch)
            folder.mkdir(parents=True, exist_ok=True)
            report = bench(args, folder, say)
    except LocalError as error:
        print(f"bench_holding: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if args.json:
        print(json.dumps(_plain(report)))
    else:
        show(report)
    return int(not all(each["met"] for each in report["findings"]))


def show(report: dict[str, Any]) -> None:
    """The same for people."""
    market, memory = report["market"], report["memory_cells"]
    print(
        f"{report['nodes']} servers with {min(memory)} to {max(memory)} cells of {report['model']} "
        f"({report['memory_over_model']:.1f} times the model), {report['networks']}, "
        f"{report['period_seconds']:.1f} s a period\n"
    )
    rows = [
        [name, _figure(value), *(_figure(report[other].get(name)) for other in ("simulated", "random"))]
        for name, value in market.items()
    ]
    print(format_table(["placement", "real nodes", "simulated", "random"], rows))
    print(f"\nlargest load of a central plan: {report['central largest load']:.3f}\n")
    for what in ("price", "answers", "books", "memory_growth", "log"):
        facts = report[what]
        small = [
            [name, _figure(value)] for name, value in facts.items() if not isinstance(value, dict | list)
        ]
        print(format_table([what.replace("_", " "), ""], small) + "\n")
    rows = [
        [turn, *map(_figure, each.values()), _figure(price)]
        for turn, (each, price) in enumerate(
            zip(report["by period"], report["price"]["mean by period"], strict=False)
        )
    ]
    print(format_table(["period", *report["by period"][0], "mean price"], rows) + "\n")
    for each in report["answers"]["failed"]:
        print(f"no answer from {each}")
    for each in report["ended"]:
        print(f"ended by itself: {each}")
    print("\nlog lines, the most frequent kinds of all nodes:")
    for text, count in report["log"]["most often"]:
        print(f"{count:6} {text}")
    rows = [
        [each["name"], _figure(each["figure"]), each["target"], "yes" if each["met"] else "NO"]
        for each in report["findings"]
    ]
    print("\n" + format_table(["must hold", "figure", "target", "met"], rows))


def _figure(value: float | str | None) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return f"{value:,.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
