"""Placements that the market is compared with: random, uniform, and a central greedy one that knows all.
Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from scripts.simulate.traffic import Entries, Loads
from scripts.simulate.world import BoolArray, Draws, FloatArray, IntArray, Servers, Shape, generator

REPLAN = 10
"""Periods after which the central hand plans anew; at once when more than REPLAN_SHARE of the servers
changed."""

REPLAN_SHARE = 0.05


@dataclass
class Swarm:
    """What stands and falls in a run, and what a strategy may look at.

    Attributes:
        live: bool [servers].
        held: bool [servers, cells]; of servers that are gone too: what is in their files.
        loads: of the period that is over, by `entries` of then; None before the first.
        demand: float [cells], of the period that is over; only the central hand may look at it.
    """

    shape: Shape
    servers: Servers
    seed: int
    live: BoolArray
    held: BoolArray
    demand: FloatArray
    loads: Loads | None = None
    entries: Entries = field(
        default_factory=lambda: Entries.ordered(np.zeros(0, np.int64), np.zeros(0, np.int64))
    )

    def find_entries(self) -> None:
        """Note which live server holds which cell now."""
        live = np.flatnonzero(self.live)
        cells, rows = np.nonzero(self.held[live].T.copy())
        self.entries = Entries.ordered(live[rows], cells)

    def told(self) -> tuple[IntArray, IntArray]:
        """(servers, cells): what live servers hold now, as their adverts tell it."""
        live = np.flatnonzero(self.live)
        rows, cells = np.nonzero(self.held[live])
        return live[rows], cells

    def replicas(self) -> IntArray:
        """[cells]: live servers that hold each."""
        return np.asarray(self.held[self.live].sum(axis=0, dtype=np.int64))

    def newcomers(self) -> IntArray:
        """Live servers that hold nothing yet."""
        return np.flatnonzero(self.live & ~self.held.any(axis=1))


class Strategy(Protocol):
    """How cells come to servers, and what they cost."""

    name: str

    def place(self, swarm: Swarm, period: int) -> None:
        """Change what live servers hold, from what was seen until now; at once at the beginning."""

    def prices(self, swarm: Swarm) -> FloatArray:
        """Micro-credits a pair, of each entry."""


class _Free:
    def prices(self, swarm: Swarm) -> FloatArray:
        return np.zeros(len(swarm.entries))


class Random(_Free):
    """Each server fills its memory with any cells, and keeps them."""

    name = "random"

    def place(self, swarm: Swarm, period: int) -> None:
        for server in swarm.newcomers():
            rng = generator(swarm.seed, Draws.PLACES, int(server))
            chosen = rng.choice(swarm.shape.cells, int(swarm.servers.memory[server]), replace=False)
            swarm.held[server, chosen] = True


class Uniform(_Free):
    """Each server takes, when it comes, the cells that fewest hold, in the model's order; and keeps them."""

    name = "uniform"

    def place(self, swarm: Swarm, period: int) -> None:
        replicas = swarm.replicas()
        for server in swarm.newcomers():
            chosen = np.argsort(replicas, kind="stable")[: swarm.servers.memory[server]]
            swarm.held[server, chosen] = True
            replicas[chosen] += 1


class Central(_Free):
    """One hand that knows every cell's demand replicates the hottest and packs to the least loaded."""

    name = "central"

    def __init__(self) -> None:
        self._planned = -REPLAN
        self._live = np.zeros(0, dtype=np.bool_)

    def place(self, swarm: Swarm, period: int) -> None:
        changed = len(self._live) == 0 or (self._live ^ swarm.live).sum() > REPLAN_SHARE * swarm.live.sum()
        if changed or period - self._planned >= REPLAN:
            self._planned, self._live = period, swarm.live.copy()
            live = np.flatnonzero(swarm.live)
            swarm.held[live] = pack(swarm.demand, swarm.servers.memory[live], swarm.servers.capacity[live])


def pack(demand: FloatArray, memory: IntArray, capacity: FloatArray) -> BoolArray:
    """[servers, cells]: the hottest cells replicated until memory is used up, each packed where there is
    room.

    As greedy balancers for equal servers do it, but that a replica takes what its server can carry rather
    than an
    equal part: servers with most capacity for each of their places choose first, and each takes the cells
        with
    most demand left, of which it brings down the highest (`_bring_down`). At the end no demand is left, and
    each server has the same load over capacity, as far as cells are hot enough.
    """
    use = demand.sum() / capacity.sum()
    left = demand.astype(np.float64).copy()
    held = np.zeros((len(memory), len(demand)), dtype=np.bool_)
    for server in np.argsort(-capacity / memory, kind="stable"):
        order = np.argsort(-left, kind="stable")[: memory[server]]
        held[server, order] = True
        left[order] = _bring_down(left[order], capacity[server] * use)
    return held


def _bring_down(heights: FloatArray, amount: float) -> FloatArray:
    """Descending heights, brought to one level from above until an amount is taken, or nothing is left."""
    counts = np.arange(1, len(heights) + 1)
    levels = (np.cumsum(heights) - amount) / counts  # if so many of the highest are brought down
    following = np.append(heights[1:], 0.0)
    level = max(0.0, float(levels[np.argmax(levels >= following)] if (levels >= following).any() else 0.0))
    return np.minimum(heights, level)
