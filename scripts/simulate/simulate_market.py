"""Simulate the market in a swarm of servers, against random, uniform and central placement.

Run by `scripts/simulate_market [--scenario NAME | all] [--nodes N] [--periods N] [--seed N] [--out FOLDER]
[--json] [--attacks]`.

Prices and placement are decided by the very functions that nodes use (market.scarcity, market.advice), each
server for itself, from adverts alone. What is simulated and what the figures mean is in docs/market.md. The
same arguments give the same figures, bit by bit: the digest shows it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from market.price import cell_price
from routing.errors import LocalError
from scripts.simulate.attacks import ATTACKS, run_attacks, show_attacks
from scripts.simulate.judging import digest, judge, summary
from scripts.simulate.market_nodes import Market
from scripts.simulate.placing import Central, Random, Strategy, Uniform
from scripts.simulate.recorded import Recorded
from scripts.simulate.timeline import Run, World, play
from scripts.simulate.world import SCENARIOS, Scenario, Shape

Say = Callable[[str], None]

LEAST_PERIODS = 40
"""In fewer nothing is measured between settling and change."""


def base_price(shape: Shape) -> int:
    """Micro-credits a pair: by the cell's bytes and its multiply-adds (8 bits a weight, or half of that)."""
    return cell_price(shape.cell_bytes, shape.multiply_adds)


def simulate(scenario: Scenario, seed: int, say: Say = lambda text: None) -> dict[str, Run]:
    """All strategies in one world."""
    world, base = World.of(scenario, seed), base_price(scenario.shape)
    if scenario.name == "trained":
        world = world.trained(Recorded.load())
    runs = {}
    strategies: Sequence[Strategy] = (Random(), Uniform(), Market(world, base), Central())
    for strategy in strategies:
        began = time.perf_counter()

        def progress(period: int, name: str = strategy.name) -> None:
            say(f"{scenario.name}: {name}, period {period + 1} of {scenario.periods}")

        runs[strategy.name] = play(world, strategy, base, progress)
        say(f"{scenario.name}: {strategy.name} took {time.perf_counter() - began:.1f} s\n")
    return runs


def _known(values: Sequence[float]) -> list[float | None]:
    """JSON has no NaN."""
    return [None if math.isnan(value) else value for value in values]


def report(scenario: Scenario, seed: int, runs: dict[str, Run]) -> dict[str, Any]:
    """What is printed, as plain data."""
    return {
        "scenario": scenario.name,
        "servers": scenario.servers,
        "periods": scenario.periods,
        "seed": seed,
        "digest": digest(runs),
        "strategies": {name: summary(scenario, run) for name, run in runs.items()},
        "must_hold": [
            {"name": each.name, "figure": each.figure, "target": each.target, "met": each.met}
            for each in judge(scenario, runs)
        ],
        "series": {
            name: {key: _known(values) for key, values in run.series().items()} for name, run in runs.items()
        },
    }


def show(told: dict[str, Any]) -> None:
    print(
        f"\n{told['scenario']}: {told['servers']} servers, {told['periods']} periods, seed {told['seed']}; "
        f"digest {told['digest'][:16]}"
    )
    names = list(told["strategies"])
    print(f"{'':<34}" + "".join(f"{name:>10}" for name in names))
    for row in told["strategies"][names[0]]:
        print(f"{row:<34}" + "".join(f"{told['strategies'][name][row]:>10.3f}" for name in names))
    for each in told["must_hold"]:
        state = "met" if each["met"] else "MISSED"
        print(f"  {each['name']}: {each['figure']:.4f}, must be {each['target']}  {state}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="simulate_market", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenario", choices=[*SCENARIOS, "all"], default="mixed")
    parser.add_argument("--nodes", type=_positive, metavar="N", help="servers (1000; trained: 64)")
    parser.add_argument("--periods", type=_periods, metavar="N", help="of a minute, 40 or more (100)")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="draw plots into it, a folder a scenario")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument(
        "--attacks", action="store_true", help=f"attack the market instead: {', '.join(ATTACKS)}"
    )
    args = parser.parse_args(arguments)
    try:
        return _run(args)
    except (LocalError, OSError) as error:
        print(f"simulate_market: {error}", file=sys.stderr)
        return 2


def _run(args: argparse.Namespace) -> int:
    names = list(SCENARIOS) if args.scenario == "all" else [args.scenario]
    found, began = [], time.perf_counter()
    for name in names:
        scenario = SCENARIOS[name]
        scenario = scenario.sized(args.nodes or scenario.servers, args.periods or scenario.periods)
        if args.attacks:
            told = run_attacks(scenario, args.seed, _say)
            show_told: Callable[[dict[str, Any]], None] = show_attacks
        else:
            runs = simulate(scenario, args.seed, _say)
            told, show_told = report(scenario, args.seed, runs), show
            if args.out:
                from scripts.simulate.plots import draw  # needs matplotlib, which is no dependency of panal

                told["plots"] = [
                    str(path)
                    for path in draw(
                        scenario, list(runs.values()), base_price(scenario.shape), args.out / name
                    )
                ]
        found.append(told)
        if not args.json:
            show_told(told)
            for path in told.get("plots", []):
                print(f"  {path}")
    if args.json:
        print(json.dumps(found if len(found) > 1 else found[0]))
    print(f"took {time.perf_counter() - began:.0f} s", file=sys.stderr)
    missed = [each for told in found for each in told["must_hold"] if not each["met"]]
    return 1 if missed else 0


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    elif text.endswith("\n"):
        print(text, end="", file=sys.stderr, flush=True)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _periods(text: str) -> int:
    number = int(text)
    if number < LEAST_PERIODS:
        raise argparse.ArgumentTypeError(f"{number}: {LEAST_PERIODS} or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
