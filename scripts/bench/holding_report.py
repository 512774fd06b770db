"""What a run of bench_holding has shown, beside what is simulated, random, and what must hold."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from market.ledger_sqlite import SqliteLedger
from market.scarcity import REPLICA_FLOOR
from scripts.bench.holding_figures import (
    Sample,
    at_random,
    central,
    held_after,
    largest_load,
    least_coverage,
    price_distances,
    rank_correlation,
    taken_up,
    touched,
    whole_layers,
)
from scripts.bench.holding_model import Model
from scripts.bench.holding_swarm import Node
from scripts.bench.holding_watch import LOOK_SECONDS, Answer, Seen
from scripts.simulate.judging import Finding
from scripts.simulate.recorded import Recorded
from scripts.simulate.world import PERIOD, VANISHING, BoolArray, FloatArray

RANDOM_SEEDS = 20
"""Random placements of which the mean is told."""


@dataclass(frozen=True, eq=False)
class Report:
    """Of a run that is over.

    Attributes:
        nodes: all, the backbone last; their books and logs are read.
        ideal: what the simulator's market gives the servers; None where it does not know the model.
    """

    seen: Seen
    model: Model
    nodes: Sequence[Node]
    ideal: BoolArray | None

    def facts(self) -> dict[str, Any]:
        """All of it."""
        seen, model = self.seen, self.model
        samples, killed_at, period = seen.samples, seen.killed_at, seen.period
        before = [each for each in samples if each.at < killed_at][-1]
        last = samples[-1]
        memory = np.array([node.memory / model.cell_bytes for node in seen.servers]).astype(np.int64)
        asked = seen.demand if seen.demand.any() else np.ones(model.cells)
        swarm_price, cell_price = price_distances(seen.prices[: int(seen.calm / period)], asked)
        third = seen.calm * 2 / 3
        cells, moves = taken_up(samples, third, seen.calm)
        minutes = (seen.calm - third) / period * PERIOD / 60
        chance = [at_random(memory, len(model.layers), model.experts, seed) for seed in range(RANDOM_SEEDS)]
        best = central(memory, asked)
        report: dict[str, Any] = {
            "model": model.path.name,
            "nodes": len(seen.servers),
            "period_seconds": period,
            "killed": [node.name for node in seen.servers if node.killed],
            "memory_cells": memory.tolist(),
            "memory_over_model": float(memory.sum() / model.cells),
            "market": {
                "seconds until held by one": held_after(samples, 0.0, 1),
                "seconds until held by three": held_after(samples, 0.0, 3),
                "memory used": float(before.held.sum() / memory.sum()),
                **self._placement(before.held, asked, last.live),
                "cells taken up a server and minute": cells / minutes,
                "moves a server and minute": moves / len(seen.servers) / minutes,
                "coverage a period later": least_coverage(
                    samples, killed_at + period, killed_at + 2 * period
                ),
                "held by three at the end": last.coverage(3),
                "seconds until held by one again": held_after(samples, killed_at, 1),
                "seconds until held by three again": held_after(samples, killed_at, 3),
            },
            "simulated": {} if self.ideal is None else self._placement(self.ideal, asked, last.live),
            "random": _mean_of([self._placement(each, asked, last.live) for each in chance]),
            "by period": self._by_period(),
            "central largest load": largest_load(best, asked),
            "price": {
                "swarm after 20 periods, off": swarm_price,
                "median cell after 20 periods, off": cell_price,
                "mean by period": [
                    float(np.nanmean(each)) if not np.isnan(each).all() else None for each in seen.prices
                ],
            },
            "answers": self._answers(),
            "books": self._books(),
            "memory_growth": self._growth(),
            "log": self._log(),
            "ended": seen.ended,
        }
        report["findings"] = [
            {"name": each.name, "figure": each.figure, "target": each.target, "met": each.met}
            for each in judge(report)
        ]
        return report

    def _placement(self, held: BoolArray, asked: FloatArray, live: BoolArray) -> dict[str, float]:
        """What can be said of any placement.

        Args:
            live: who is left after the loss.
        """
        layers, everybody = len(self.model.layers), np.ones(len(held), np.bool_)
        calm, loss = Sample(0, held, everybody), Sample(0, held, live)
        is_recorded = self.ideal is not None
        return {
            "held by one": calm.coverage(1),
            "held by three": calm.coverage(3),
            "least replicas": float(calm.replicas.min()),
            "most replicas": float(calm.replicas.max()),
            "whole layers": float(whole_layers(held, layers)),
            "replicas against demand": rank_correlation(calm.replicas, asked),
            "largest load": largest_load(held, asked),
            "servers a token and layer": touched(held, Recorded.load()) if is_recorded else math.nan,
            "coverage when 30 % vanish": loss.coverage(1),
            "held by three when 30 % vanish": loss.coverage(3),
        }

    def _by_period(self) -> list[dict[str, float]]:
        """What happened in each."""
        found, samples = [], self.seen.samples
        for turn in range(int(samples[-1].at / self.seen.period)):
            begin, end = turn * self.seen.period, (turn + 1) * self.seen.period
            cells, moves = taken_up(samples, begin, end)
            found.append(
                {
                    "held by one, least": least_coverage(samples, begin, end),
                    "held by three, least": least_coverage(samples, begin, end, 3),
                    "moves": moves,
                    "cells taken up a server": cells,
                }
            )
        return found

    def _answers(self) -> dict[str, Any]:
        killed_at = self.seen.killed_at
        given = [each for each in self.seen.answers if each.tokens]
        lost = [each for each in self.seen.answers if not each.tokens]

        def rate(begin: float, end: float) -> float:
            found = [each.tokens / each.seconds for each in given if begin <= each.at < end]
            return float(np.median(found)) if found else math.nan

        while_it = killed_at + 2 * self.seen.period
        calm = rate(0.0, killed_at)
        first = next((each for each in given if each.right), None)
        return {
            "count": len(given),
            "right": sum(each.right for each in given) / max(1, len(given)),
            "first right one after": None if first is None else first.at + first.seconds,
            "failed": _gathered(lost),
            "slowest seconds after the loss": max(
                (each.seconds for each in given if each.at + each.seconds >= killed_at), default=math.nan
            ),
            "tokens a second, calm": calm,
            "while, over calm": rate(killed_at - 5, while_it) / calm,
            "after, over calm": rate(while_it, math.inf) / calm,
        }

    def _books(self) -> dict[str, Any]:
        """Who owes whom at the end, of all nodes, dead ones included, from their own files."""
        owed: dict[tuple[str, str], int] = {}
        for node in self.nodes:
            path = node.folder / "market.db"
            if path.exists():
                ledger = SqliteLedger.reading(path)
                try:
                    owed |= {(node.peer_id, row.peer): row.owes_us for row in ledger.balances()}
                finally:
                    ledger.close()
        apart = [pair for pair, owes in owed.items() if owed.get((pair[1], pair[0]), 0) != -owes]
        servers, home = self.seen.servers, self.nodes[-1].peer_id
        income = {node.name: owed.get((node.peer_id, home), 0) for node in servers}
        return {
            "sum": sum(owed.values()),
            "pairs that differ": len(apart),
            "income": income,
            "unsigned": self.seen.unsigned,
            "income against memory": rank_correlation(
                np.array(list(income.values())), np.array([node.memory for node in servers])
            ),
        }

    def _growth(self) -> dict[str, Any]:
        """MB of their own that nodes grew by, from a third of the calm on until the loss."""
        killed_at = self.seen.killed_at
        seen = [(at, memory) for at, memory in self.seen.memory if killed_at / 3 <= at < killed_at]
        (begin, first), (end, last) = seen[0], seen[-1]
        grown = {name: (last[name] - first[name]) / 1e6 for name in first.keys() & last.keys()}
        return {
            "MB at the end, median": float(np.median(list(last.values()))) / 1e6,
            "MB grown, median": float(np.median(list(grown.values()))),
            "MB grown, most": max(grown.values()),
            "by": max(grown, key=lambda name: grown[name]),
            "MB by period, median": [
                round(float(np.median(list(memory.values()))) / 1e6, 1)
                for at, memory in self.seen.memory[:: max(1, round(self.seen.period / LOOK_SECONDS))]
                if memory
            ],
            "seconds": end - begin,
        }

    def _log(self) -> dict[str, Any]:
        """Lines of the nodes' logs: how many, and which come most often."""
        kinds: Counter[str] = Counter()
        lines = warnings = 0
        for node in self.nodes:
            for line in node.log.read_text(errors="replace").splitlines():
                lines += 1
                try:
                    said = json.loads(line)
                    text, level = str(said["text"]), str(said["level"])
                except (ValueError, KeyError):
                    text, level = line, "raw"
                warnings += level not in ("info", "debug", "raw")
                kinds[f"{level}: " + re.sub(r"12D3\w+|[0-9a-f]{12,}|\d+(\.\d+)*", "#", text)[:110]] += 1
        return {
            "lines a node": lines / len(self.nodes),
            "warnings a node": warnings / len(self.nodes),
            "most often": kinds.most_common(12),
        }


def judge(report: dict[str, Any]) -> list[Finding]:
    """What of it must hold."""
    market, random, answers = report["market"], report["random"], report["answers"]
    enough = report["memory_over_model"] * (1 - VANISHING) >= 1
    found = [
        Finding("answers that are right, of all that came", answers["right"], at_least=1.0),
        Finding("balances of all nodes, their sum in micro-credits", abs(report["books"]["sum"]), at_most=0),
    ]
    if report["memory_over_model"] >= REPLICA_FLOOR:  # else what is rare goes before what is asked for
        name = "max load, split as well as can be: market over central"
        share = market["largest load"] / report["central largest load"]
        found.append(Finding(name, share, at_most=1.15))
    for what in ("swarm", "median cell"):
        figure = report["price"][f"{what} after 20 periods, off"]
        name = f"price of the {what} after 20 periods, over its final one: distance"
        if not math.isnan(figure):  # else the run was too short to tell
            found.append(Finding(name, figure, at_most=0.1))
    if enough:
        name = "coverage one period after 30 % vanished"
        found.append(Finding(name, market["coverage a period later"], at_least=0.999))
    servers = "servers a token and layer"
    if not math.isnan(market[servers]):
        share = market[servers] / random[servers]
        found.append(Finding("servers touched: market over random", share, at_most=0.85))
    return found


def _gathered(lost: Sequence[Answer]) -> list[str]:
    """A line for each row of tries that failed for the same reason."""
    found = []
    for reason, tries in itertools.groupby(lost, key=lambda each: re.sub(r"\d+", "#", each.error)):
        same = list(tries)
        when = f"{same[0].at:.0f} to {same[-1].at + same[-1].seconds:.0f} s, {len(same)} tries"
        found.append(f"{when}: {(same[0].error or reason)[:300]}")
    return found


def _mean_of(found: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([each[name] for each in found])) for name in found[0]}
