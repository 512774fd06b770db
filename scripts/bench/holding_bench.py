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
import itertools
import json
import math
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from node.cli.arguments import integer
from node.cli.demo import DEMO_MODEL
from node.cli.table import format_table
from routing.errors import LocalError
from scripts.bench.holding_figures import (
    Sample,
    at_random,
    central,
    held_after,
    largest_load,
    least_coverage,
    median_prices,
    price_distances,
    rank_correlation,
    simulated,
    taken_up,
    touched,
    whole_layers,
    worst_loss,
)
from scripts.bench.holding_swarm import (
    START_SECONDS,
    Lab,
    Loopback,
    Networks,
    Node,
    Swarm,
    advert_seconds,
    in_fork,
    period_of,
    quicken,
)
from scripts.bench.route_lab import REPOSITORY
from scripts.simulate.judging import Finding
from scripts.simulate.recorded import Recorded
from scripts.simulate.world import VANISHING, BoolArray, FloatArray

TRAINED = REPOSITORY.parent / "shared" / "models" / "tiny-qwen3moe-32e4.Q8_0.gguf"

MARKET = '[market]\nmode = "scarcity"\n'

CALM, AFTER = 26, 6
"""Periods before and after the loss: 20 until prices must be near their end, 5 that are it."""

MOST_MEMORY = 0.75
"""Of the model, that a server may hold at most."""

SPREAD = 0.4
"""Standard deviation of the logarithm of servers' memory, as in the simulator's `trained`."""

LOOK_SECONDS = 2.0
"""Between looks at what nodes serve."""

PAUSE_SECONDS = 3.0
"""Between answers."""

TOKENS, PROMPT_CHARACTERS = 24, 200
SETTLE_SECONDS = 25.0
"""After the last answer, for receipts: two flushes of 10 s."""

RANDOM_SEEDS = 20
PROMPTS = ("argparse", "ast", "calendar", "csv", "dis", "heapq", "inspect", "json.decoder", "pdb", "random")


@dataclass(frozen=True)
class Model:
    """What is served.

    Attributes:
        cell_bytes: the mean. plain: what plain llama.cpp writes after each of `prompts`.
    """

    path: Path
    model_id: str
    layers: list[int]
    experts: int
    n_bytes: int
    prompts: list[str]
    plain: list[str]

    @property
    def cells(self) -> int:
        return len(self.layers) * self.experts

    @property
    def cell_bytes(self) -> float:
        return self.n_bytes / self.cells

    def held(self, runs: Sequence[Any]) -> BoolArray:
        """[cells], from runs as the status tells them."""
        found = np.zeros((len(self.layers), self.experts), np.bool_)
        for first, last, experts in runs:
            for place, layer in enumerate(self.layers):
                if first <= layer <= last:
                    for start, end in experts:
                        found[place, start : end + 1] = True
        return found.reshape(-1)


@dataclass(frozen=True)
class Answer:
    """One that the backbone gave, or did not."""

    at: float
    seconds: float
    tokens: int
    right: bool
    error: str = ""


@dataclass
class Watch:
    """What was seen.

    Attributes:
        prices: [cells] each, once a period.
        memory: at each look the running nodes' own memory, by name.
    """

    samples: list[Sample] = field(default_factory=list)
    prices: list[FloatArray] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    memory: list[tuple[float, dict[str, int]]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)


def draw_memories(nodes: int, replicas: float, seed: int) -> FloatArray:
    """Of each server, as a share of the model: log-normal, all too small for it, together `replicas`."""
    drawn = np.exp(SPREAD * np.random.default_rng(seed).standard_normal(nodes))
    return np.asarray(np.minimum(drawn / drawn.sum() * replicas, MOST_MEMORY))


class Bench:
    """A run.

    Args:
        memories: of each server, bytes.
        ideal: what the simulator's market gives them; None where it does not know the model.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        swarm: Swarm,
        model: Model,
        memories: Sequence[int],
        ideal: BoolArray | None,
        say: Callable[[str], None],
    ) -> None:
        self._args, self._swarm, self._model, self._say = args, swarm, model, say
        self._memories, self._ideal = memories, ideal
        self._period = period_of(args.pace)
        self._watch = Watch()
        self._over = threading.Event()
        self._began = 0.0
        self.servers: list[Node] = []
        self.rng = np.random.default_rng([args.seed, 1])

    def run(self) -> dict[str, Any]:
        """All phases, and the report."""
        self._start()
        calm = self._args.periods * self._period
        self._look_until(calm, "calm")
        demand = self._demand()
        killed_at = self._kill()
        self._look_until(killed_at + AFTER * self._period, "after")
        self._over.set()
        self._asking.join()
        self._look_until(self._now() + SETTLE_SECONDS, "settling")
        return self._report(calm, killed_at, demand)

    # --- phases ---

    def _start(self) -> None:
        boot = self._swarm.add("boot", "")
        self._swarm.wait(
            "the bootstrap", START_SECONDS, lambda: self._swarm.ask(boot, "/api/status") is not None
        )
        peers = [self._swarm.address(boot)]
        serve = f"[[serve]]\nmodel = {json.dumps(str(self._model.path))}\n"
        self._began = time.monotonic()
        for place, memory in enumerate(self._memories):
            settings = f'{serve}memory = "{memory}B"\n{MARKET}'
            self.servers.append(self._swarm.add(f"s{place}", settings, memory=memory, peers=peers))
        backbone = f"[backbone]\nmodel = {json.dumps(str(self._model.path))}\ncontext = 512\n"
        self._home = self._swarm.add("home", backbone + MARKET, peers=peers)
        self._asking = threading.Thread(target=self._ask, daemon=True)
        self._asking.start()

    def _kill(self) -> float:
        count = round(VANISHING * len(self.servers))
        if self._args.worst:
            doomed = worst_loss(self._watch.samples[-1].held, count)
        else:
            doomed = self.rng.choice(len(self.servers), count, replace=False).tolist()
        for place in doomed:
            self._swarm.kill(self.servers[place])
        self._say(f"{len(doomed)} of {len(self.servers)} servers killed\n")
        return self._now()

    def _ask(self) -> None:
        """Have the backbone answer, again and again."""
        turn = 0
        model = self._model
        while not self._over.is_set():
            which = turn % len(model.prompts)
            body = {
                "model": model.path.stem,
                "prompt": model.prompts[which],
                "max_tokens": TOKENS,
                "temperature": 0,
            }
            began = self._now()
            try:
                found = self._swarm.ask(self._home, "/v1/completions", body, seconds=60.0)
                error = "" if found is not None else "no answer"
            except LocalError as refusal:
                found, error = None, str(refusal)
            seconds = self._now() - began
            if found is not None:
                turn += 1
                text, tokens = found["choices"][0]["text"], found["usage"]["completion_tokens"]
                self._watch.answers.append(Answer(began, seconds, tokens, text == model.plain[which]))
            elif self._watch.answers:  # else it is still looking for servers
                self._watch.answers.append(Answer(began, seconds, 0, False, error))
            self._over.wait(PAUSE_SECONDS if found is not None else 1.0)

    def _look_until(self, end: float, phase: str) -> None:
        while (now := self._now()) < end:
            self._look()
            if now >= len(self._watch.prices) * self._period:
                self._watch.prices.append(self._prices())
            last = self._watch.samples[-1]
            self._say(
                f"{phase}: {now:.0f} s, cells held by one {100 * last.coverage(1):.0f} %, "
                f"by three {100 * last.coverage(3):.0f} %, {len(self._watch.answers)} answers"
            )
            time.sleep(max(0.0, LOOK_SECONDS - (self._now() - now)))

    def _look(self) -> None:
        for node in self._swarm.ended():
            self._watch.ended.append(f"{node.name}: {node.log.read_text(errors='replace')[-300:]}")
        held = np.zeros((len(self.servers), self._model.cells), np.bool_)
        memory = {}
        for place, node in enumerate([*self.servers, self._home]):
            status = self._swarm.ask(node, "/api/status") if node.is_running else None
            if status is None:
                continue
            memory[node.name] = int(status["node"]["memory"]["anonymous_bytes"] or 0)
            for served in status["node"]["serves"]:
                held[place] |= self._model.held(served["experts"])
        live = np.array([node.is_running for node in self.servers])
        self._watch.samples.append(Sample(self._now(), held, live))
        self._watch.memory.append((self._now(), memory))

    def _prices(self) -> FloatArray:
        """[cells], the median of what is asked."""
        asked = []
        for node in self.servers:
            prices = np.full((len(self._model.layers), self._model.experts), np.nan)
            quotes = (
                self._swarm.ask(node, f"/api/market/quotes?peer={node.peer_id}") if node.is_running else None
            )
            for quote in quotes or []:
                for layer, runs in quote["layers"]:
                    for first, last, price in runs:
                        prices[self._model.layers.index(layer), first : last + 1] = price
            asked.append(prices.reshape(-1))
        return median_prices(asked)

    def _demand(self) -> FloatArray:
        """[cells], pairs a day that receipts cover, of all servers."""
        total = np.zeros((len(self._model.layers), self._model.experts))
        for node in self.servers:
            served = self._swarm.ask(node, f"/api/market/served?model={self._model.model_id}") or {}
            for layer, pairs in served.items():
                total[self._model.layers.index(int(layer)), : len(pairs)] += pairs
        return total.reshape(-1)

    def _now(self) -> float:
        return time.monotonic() - self._began

    # --- what came of it ---

    def _report(self, calm: float, killed_at: float, demand: FloatArray) -> dict[str, Any]:
        watch, model, period = self._watch, self._model, self._period
        samples = watch.samples
        before = [each for each in samples if each.at < killed_at][-1]
        last = samples[-1]
        memory = np.array([node.memory / model.cell_bytes for node in self.servers]).astype(np.int64)
        asked = demand if demand.any() else np.ones(model.cells)
        swarm_price, cell_price = price_distances(watch.prices[: int(calm / period)], asked)
        third = calm * 2 / 3
        cells, moves = taken_up(samples, third, calm)
        minutes = (calm - third) / 60 * self._args.pace
        chance = [at_random(memory, len(model.layers), model.experts, seed) for seed in range(RANDOM_SEEDS)]
        best = central(memory, asked)
        report: dict[str, Any] = {
            "model": model.path.name,
            "networks": self._swarm.networks.name,
            "nodes": len(self.servers),
            "pace": self._args.pace,
            "period_seconds": period,
            "seed": self._args.seed,
            "killed": [node.name for node in self.servers if node.killed],
            "memory_cells": memory.tolist(),
            "memory_over_model": float(memory.sum() / model.cells),
            "market": {
                "seconds until held by one": held_after(samples, 0.0, 1),
                "seconds until held by three": held_after(samples, 0.0, 3),
                "memory used": float(before.held.sum() / memory.sum()),
                **self._placement(before.held, asked, last.live),
                "cells taken up a server and minute": cells / minutes,
                "moves a server and minute": moves / len(self.servers) / minutes,
                "coverage a period later": least_coverage(
                    samples, killed_at + period, killed_at + 2 * period
                ),
                "held by three at the end": last.coverage(3),
                "seconds until held by one again": held_after(samples, killed_at, 1),
                "seconds until held by three again": held_after(samples, killed_at, 3),
            },
            "simulated": {} if self._ideal is None else self._placement(self._ideal, asked, last.live),
            "random": _mean_of([self._placement(each, asked, last.live) for each in chance]),
            "by period": self._by_period(),
            "central largest load": largest_load(best, asked),
            "price": {
                "swarm after 20 periods, off": swarm_price,
                "median cell after 20 periods, off": cell_price,
                "mean by period": [
                    float(np.nanmean(each)) if not np.isnan(each).all() else None for each in watch.prices
                ],
            },
            "answers": self._answers(killed_at),
            "books": self._books(),
            "memory_growth": self._growth(killed_at),
            "log": self._log(killed_at),
            "ended": watch.ended,
        }
        report["findings"] = [
            {"name": each.name, "figure": each.figure, "target": each.target, "met": each.met}
            for each in self._judge(report)
        ]
        return report

    def _placement(self, held: BoolArray, asked: FloatArray, live: BoolArray) -> dict[str, float]:
        """What can be said of any placement.

        Args:
            live: who is left after the loss.
        """
        layers, everybody = len(self._model.layers), np.ones(len(held), np.bool_)
        calm, loss = Sample(0, held, everybody), Sample(0, held, live)
        is_recorded = self._ideal is not None
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
        found, samples = [], self._watch.samples
        for turn in range(int(samples[-1].at / self._period)):
            begin, end = turn * self._period, (turn + 1) * self._period
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

    def _judge(self, report: dict[str, Any]) -> list[Finding]:
        market, random, answers = report["market"], report["random"], report["answers"]
        enough = report["memory_over_model"] * (1 - VANISHING) >= 1
        found = [
            Finding(
                "max load, split as well as can be: market over central",
                market["largest load"] / report["central largest load"],
                at_most=1.15,
            ),
            Finding("answers that are right, of all that came", answers["right"], at_least=1.0),
            Finding(
                "balances of all nodes, their sum in micro-credits", abs(report["books"]["sum"]), at_most=0
            ),
        ]
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

    def _answers(self, killed_at: float) -> dict[str, Any]:
        given = [each for each in self._watch.answers if each.tokens]
        lost = [each for each in self._watch.answers if not each.tokens]

        def rate(begin: float, end: float) -> float:
            found = [each.tokens / each.seconds for each in given if begin <= each.at < end]
            return float(np.median(found)) if found else math.nan

        while_it = killed_at + 2 * self._period
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
        from market.ledger_sqlite import SqliteLedger

        owed: dict[tuple[str, str], int] = {}
        unsigned = 0
        for node in [*self.servers, self._home]:
            path = node.folder / "market.db"
            if path.exists():
                ledger = SqliteLedger.reading(path)
                try:
                    owed |= {(node.peer_id, row.peer): row.owes_us for row in ledger.balances()}
                finally:
                    ledger.close()
            status = self._swarm.ask(node, "/api/status") if node.is_running else None
            if status is not None and status["market"]:
                unsigned += sum(each["unsigned"] for each in status["market"]["credits"])
        apart = [pair for pair, owes in owed.items() if owed.get((pair[1], pair[0]), 0) != -owes]
        home = self._home.peer_id
        income = {node.name: owed.get((node.peer_id, home), 0) for node in self.servers}
        return {
            "sum": sum(owed.values()),
            "pairs that differ": len(apart),
            "income": income,
            "unsigned": unsigned,
            "income against memory": rank_correlation(
                np.array(list(income.values())), np.array([node.memory for node in self.servers])
            ),
        }

    def _growth(self, killed_at: float) -> dict[str, Any]:
        """MB of their own that nodes grew by, from a third of the calm on until the loss."""
        seen = [(at, memory) for at, memory in self._watch.memory if killed_at / 3 <= at < killed_at]
        (begin, first), (end, last) = seen[0], seen[-1]
        grown = {name: (last[name] - first[name]) / 1e6 for name in first.keys() & last.keys()}
        return {
            "MB at the end, median": float(np.median(list(last.values()))) / 1e6,
            "MB grown, median": float(np.median(list(grown.values()))),
            "MB grown, most": max(grown.values()),
            "by": max(grown, key=lambda name: grown[name]),
            "MB by period, median": [
                round(float(np.median(list(memory.values()))) / 1e6, 1)
                for at, memory in self._watch.memory[:: max(1, round(self._period / LOOK_SECONDS))]
                if memory
            ],
            "seconds": end - begin,
        }

    def _log(self, killed_at: float) -> dict[str, Any]:
        """Lines of the servers' log: how many, and which come most often."""
        kinds: Counter[str] = Counter()
        lines = warnings = 0
        for node in [*self.servers, self._home]:
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
            "lines a server": lines / (len(self.servers) + 1),
            "warnings a server": warnings / (len(self.servers) + 1),
            "most often": kinds.most_common(12),
        }


def open_model(path: Path, store: Path) -> dict[str, Any]:
    """What a fork finds out of a model: its cells, and plain llama.cpp's text after prompts."""
    from importlib.util import find_spec

    from node.engine import library as llama
    from node.engine.sampler import SamplingSettings
    from node.home.home_set import shapes_of, total_bytes
    from node.importing import import_model
    from node.model.store import Store
    from scripts.bench.plain_text import PlainText

    library = llama.load()
    stored = import_model(library, Store(store), path)
    shapes = shapes_of(stored.manifest)
    prompts = []
    for name in PROMPTS:
        spec = find_spec(name)
        assert spec is not None and spec.origin is not None
        prompts.append(Path(spec.origin).read_text(encoding="utf-8")[600:][:PROMPT_CHARACTERS])
    with PlainText(library, path, n_ctx=512) as plain:
        texts = [
            plain.text(plain.tokens(each, TOKENS, SamplingSettings(temperature=0.0))) for each in prompts
        ]
    return {
        "model_id": stored.model_id,
        "layers": list(shapes),
        "experts": max(each.n_experts for each in shapes.values()),
        "n_bytes": total_bytes(shapes),
        "prompts": prompts,
        "plain": texts,
    }


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
        return Bench(args, swarm, model, memories, ideal, say).run()


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
    if value is None:
        return "-"
    return f"{value:,.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
