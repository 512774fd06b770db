"""What bench_holding makes of what nodes told: coverage, moves, replicas against demand, prices. Pure.

Cells are counted layer by layer. `held` is bool [servers, cells] everywhere: what each server serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from scripts.simulate.ideal_split import split_best
from scripts.simulate.judging import SETTLED, typical_distance
from scripts.simulate.market_nodes import Market
from scripts.simulate.placing import Random, Swarm, pack
from scripts.simulate.recorded import Recorded
from scripts.simulate.simulate_market import base_price
from scripts.simulate.timeline import Run, World, play
from scripts.simulate.touched import servers_touched
from scripts.simulate.traffic import Entries
from scripts.simulate.world import TRAINED, BoolArray, FloatArray, IntArray, Scenario, Servers, Shape

CALM, LIGHT, ROWS_A_SECOND = 40, 0.05, 600.0
"""Of the simulation: periods; share of the capacity that is asked for; what the median uplink carries."""

FINAL_PERIODS = 5
"""Of which the mean is the final price."""


@dataclass(frozen=True, eq=False)
class Sample:
    """What was served at a time.

    Attributes:
        at: seconds since the servers were started.
        live: bool [servers].
    """

    at: float
    held: BoolArray
    live: BoolArray

    @property
    def replicas(self) -> IntArray:
        """[cells]: live servers that hold each."""
        return np.asarray(self.held[self.live].sum(axis=0, dtype=np.int64))

    def coverage(self, replicas: int) -> float:
        """Share of the cells that so many live servers hold, or more."""
        return float((self.replicas >= replicas).mean())


def worst_loss(held: BoolArray, count: int) -> list[int]:
    """So many servers, or one or two less, whose loss takes many cells away: all holders of a cell, of the
    one that is the next to go, and so on."""
    gone = np.zeros(len(held), np.bool_)
    while True:
        left = held[~gone].sum(axis=0)
        room = count - int(gone.sum())
        cells = np.flatnonzero((left > 0) & (left <= room))
        if not len(cells):
            return np.flatnonzero(gone).tolist()
        gone |= held[:, cells[np.argmin(left[cells])]]


def held_after(samples: Sequence[Sample], since: float, replicas: int) -> float | None:
    """Seconds from `since` until every cell was with so many servers; None: never."""
    for each in samples:
        if each.at >= since and each.coverage(replicas) == 1.0:
            return each.at - since
    return None


def least_coverage(samples: Sequence[Sample], begin: float, end: float, replicas: int = 1) -> float:
    """The smallest between two times; NaN if nothing was seen then."""
    found = [each.coverage(replicas) for each in samples if begin <= each.at <= end]
    return min(found, default=float("nan"))


def taken_up(samples: Sequence[Sample], begin: float, end: float) -> tuple[float, int]:
    """Between two times.

    Returns:
        cells that a live server has taken up, on average; times that a server took up any.
    """
    cells = moves = 0
    servers: list[int] = []
    seen = [each for each in samples if begin <= each.at <= end]
    for before, after in pairwise(seen):
        there = before.live & after.live
        new = (after.held & ~before.held)[there].sum(axis=1)
        cells += int(new.sum())
        moves += int((new > 0).sum())
        servers.append(int(there.sum()))
    return (cells / float(np.mean(servers)) if servers else 0.0), moves


def rank_correlation(one: FloatArray | IntArray, other: FloatArray | IntArray) -> float:
    """Spearman's, between -1 and 1; NaN where either is all the same."""
    first, second = _ranks(np.asarray(one, np.float64)), _ranks(np.asarray(other, np.float64))
    if first.std() == 0 or second.std() == 0:
        return float("nan")
    return float(np.corrcoef(first, second)[0, 1])


def whole_layers(held: BoolArray, layers: int) -> int:
    """How many layers servers hold whole, all together."""
    return int(held.reshape(len(held), layers, -1).all(axis=2).sum())


def largest_load(held: BoolArray, demand: FloatArray) -> float:
    """Largest load of a server over the mean, if one hand split the demand over these replicas; servers are
    alike."""
    cells, servers = np.nonzero(held.T.copy())
    use = split_best(Entries.ordered(servers, cells), demand, np.ones(len(held)))
    return float(use.max() * len(held) / demand.sum())


def central(memory: IntArray, demand: FloatArray) -> BoolArray:
    """What one hand that knows all would have them hold. memory: cells, of each server."""
    return pack(demand, memory, np.ones(len(memory)))


def at_random(memory: IntArray, layers: int, experts: int, seed: int) -> BoolArray:
    """What the simulator's random placement gives servers of these memories, in cells."""
    shape = Shape(layers, experts, 1, 1, 1)
    held = np.zeros((len(memory), shape.cells), np.bool_)
    servers = Servers(np.minimum(memory, shape.cells), np.ones(len(memory)))
    live = np.ones(len(memory), np.bool_)
    Random().place(Swarm(shape, servers, seed, live, held, np.zeros(shape.cells)), 0)
    return held


def simulated(memory: IntArray, recorded: Recorded, seed: int) -> BoolArray:
    """What servers of these memories hold in the simulator after a calm, by the functions that nodes use. All
    of them have answered each other there, and they are asked for little, as here."""
    layers, experts = recorded.measure.shape[1], recorded.bonds.shape[1]
    assert (layers, experts) == (TRAINED.layers, TRAINED.experts)
    scenario = Scenario(
        "holding",
        TRAINED,
        len(memory),
        CALM + 1,
        memory=1,
        spread=0,
        least=1,
        most=TRAINED.cells,
        load=LIGHT,
        calm=CALM,
        vanish=0,
    )
    servers = Servers(np.minimum(memory, TRAINED.cells), np.full(len(memory), ROWS_A_SECOND))
    world, base = World(scenario, seed, servers).trained(recorded), base_price(TRAINED)
    run = play(world, Market(world, base), base)
    return run.final


def touched(held: BoolArray, recorded: Recorded) -> float:
    """Servers asked, a token and layer, on held-out text of the model that was recorded."""
    everywhere = np.ones(len(held), np.bool_)
    layers = recorded.measure.shape[1]
    return servers_touched(held, everywhere, np.zeros(len(held)), layers, recorded.tokens, 1, 0)


def price_distances(prices: Sequence[FloatArray], demand: FloatArray) -> tuple[float, float]:
    """How far prices were from their final ones after 20 periods: the swarm's mean, weighted by demand; the
    median cell's. NaN if there were not enough periods.

    Args:
        prices: [cells] each, a period apart.
    """
    last = len(prices) - 1
    if last < SETTLED + FINAL_PERIODS:
        return float("nan"), float("nan")
    mean = [float(np.average(each, weights=demand)) for each in prices]
    final = float(np.mean(mean[-FINAL_PERIODS:]))
    run = Run("real", prices=[each.astype(np.float32) for each in prices], demand=demand)
    scenario = Scenario(
        "real", Shape(1, len(demand), 1, 1, 1), 1, len(prices), memory=1, spread=0, least=1, most=1, calm=last
    )
    return abs(mean[SETTLED] / final - 1), typical_distance(run, scenario)


def median_prices(asked: Sequence[FloatArray]) -> FloatArray:
    """[cells]: the lower median of what servers ask for each.

    Args:
        asked: [cells] of each server, NaN for what it does not ask anything for.
    """
    table = np.sort(np.array(asked), axis=0)  # NaN last
    counts = (~np.isnan(table)).sum(axis=0)
    middle = np.maximum(counts - 1, 0) // 2
    return np.asarray(table[middle, np.arange(table.shape[1])])


def _ranks(values: FloatArray) -> npt.NDArray[np.float64]:
    """Ranks, those of equals averaged."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray(((ends - counts + ends - 1) / 2)[inverse])
