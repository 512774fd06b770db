"""A run of bench_holding: the nodes start, are watched, some are killed, and a backbone goes on asking."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from routing.errors import LocalError
from scripts.bench.holding_figures import Sample, median_prices, worst_loss
from scripts.bench.holding_model import TOKENS, Model
from scripts.bench.holding_swarm import START_SECONDS, Node, Swarm
from scripts.simulate.world import VANISHING, FloatArray

MARKET = '[market]\nmode = "scarcity"\n'

AFTER = 6
"""Periods after the loss."""

LOOK_SECONDS = 2.0
"""Between looks at what nodes serve."""

PAUSE_SECONDS = 3.0
"""Between answers."""

SETTLE_SECONDS = 25.0
"""After the last answer, for receipts: two flushes of 10 s."""


@dataclass(frozen=True)
class Answer:
    """One that the backbone gave, or did not."""

    at: float
    seconds: float
    tokens: int
    right: bool
    error: str = ""


@dataclass
class Seen:
    """What was seen.

    Attributes:
        calm, killed_at: seconds since the start, as all times. period: seconds.
        servers: in the order of the samples' rows.
        prices: [cells] each, once a period.
        memory: at each look the running nodes' own memory, by name.
        ended: nodes that ended by themselves, with the end of their logs.
        demand: [cells], pairs a day that receipts covered before the loss.
        unsigned: micro-credits of work without a receipt, at the end.
    """

    calm: float
    period: float
    servers: list[Node] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    prices: list[FloatArray] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    memory: list[tuple[float, dict[str, int]]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    demand: FloatArray = field(default_factory=lambda: np.zeros(0))
    killed_at: float = 0.0
    unsigned: int = 0


class Run:
    """One.

    Args:
        memories: of each server, bytes.
        worst: whether all holders of the rarest cells are killed, not any servers.

    Attributes:
        seen: until now.
    """

    def __init__(
        self,
        swarm: Swarm,
        model: Model,
        memories: Sequence[int],
        seen: Seen,
        *,
        seed: int,
        worst: bool,
        say: Callable[[str], None],
    ) -> None:
        self._swarm, self._model, self._memories, self._say = swarm, model, memories, say
        self._period, self._worst = seen.period, worst
        self._rng = np.random.default_rng([seed, 1])
        self._over = threading.Event()
        self._began = 0.0
        self.seen = seen

    def run(self) -> None:
        """All phases."""
        self._start()
        self._look_until(self.seen.calm, "calm")
        self.seen.demand = self._demand()
        self.seen.killed_at = self._kill()
        self._look_until(self.seen.killed_at + AFTER * self._period, "after")
        self._over.set()
        self._asking.join()
        self._look_until(self._now() + SETTLE_SECONDS, "settling")
        self.seen.unsigned = self._unsigned()

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
            self.seen.servers.append(self._swarm.add(f"s{place}", settings, memory=memory, peers=peers))
        backbone = f"[backbone]\nmodel = {json.dumps(str(self._model.path))}\ncontext = 512\n"
        self._home = self._swarm.add("home", backbone + MARKET, peers=peers)
        self._asking = threading.Thread(target=self._ask, daemon=True)
        self._asking.start()

    def _kill(self) -> float:
        count = round(VANISHING * len(self.seen.servers))
        if self._worst:
            doomed = worst_loss(self.seen.samples[-1].held, count)
        else:
            doomed = self._rng.choice(len(self.seen.servers), count, replace=False).tolist()
        for place in doomed:
            self._swarm.kill(self.seen.servers[place])
        self._say(f"{len(doomed)} of {len(self.seen.servers)} servers killed\n")
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
                self.seen.answers.append(Answer(began, seconds, tokens, text == model.plain[which]))
            elif self.seen.answers:  # else it is still looking for servers
                self.seen.answers.append(Answer(began, seconds, 0, False, error))
            self._over.wait(PAUSE_SECONDS if found is not None else 1.0)

    def _look_until(self, end: float, phase: str) -> None:
        while (now := self._now()) < end:
            self._look()
            if now >= len(self.seen.prices) * self._period:
                self.seen.prices.append(self._prices())
            last = self.seen.samples[-1]
            self._say(
                f"{phase}: {now:.0f} s, cells held by one {100 * last.coverage(1):.0f} %, "
                f"by three {100 * last.coverage(3):.0f} %, {len(self.seen.answers)} answers"
            )
            time.sleep(max(0.0, LOOK_SECONDS - (self._now() - now)))

    def _look(self) -> None:
        for node in self._swarm.ended():
            self.seen.ended.append(f"{node.name}: {node.log.read_text(errors='replace')[-300:]}")
        held = np.zeros((len(self.seen.servers), self._model.cells), np.bool_)
        memory = {}
        for place, node in enumerate([*self.seen.servers, self._home]):
            status = self._swarm.ask(node, "/api/status") if node.is_running else None
            if status is None:
                continue
            memory[node.name] = int(status["node"]["memory"]["anonymous_bytes"] or 0)
            for served in status["node"]["serves"]:
                held[place] |= self._model.held(served["experts"])
        live = np.array([node.is_running for node in self.seen.servers])
        self.seen.samples.append(Sample(self._now(), held, live))
        self.seen.memory.append((self._now(), memory))

    def _prices(self) -> FloatArray:
        """[cells], the median of what is asked."""
        asked = []
        for node in self.seen.servers:
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

    def _unsigned(self) -> int:
        """Micro-credits of work, in all books, that no receipt covers."""
        status = [self._swarm.ask(each, "/api/status") for each in self.seen.servers if each.is_running]
        credits = [credit for each in status if each is not None for credit in each["market"]["credits"]]
        return sum(credit["unsigned"] for credit in credits)

    def _demand(self) -> FloatArray:
        """[cells], pairs a day that receipts cover, of all servers."""
        total = np.zeros((len(self._model.layers), self._model.experts))
        for node in self.seen.servers:
            served = self._swarm.ask(node, f"/api/market/served?model={self._model.model_id}") or {}
            for layer, pairs in served.items():
                total[self._model.layers.index(int(layer)), : len(pairs)] += pairs
        return total.reshape(-1)

    def _now(self) -> float:
        return time.monotonic() - self._began
