"""A run: period after period, one strategy in a world; and what is measured on the way. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from routing.tariff import surcharges
from scripts.simulate.demand import Demand
from scripts.simulate.events import who_is_there
from scripts.simulate.ideal_split import split_best
from scripts.simulate.placing import Strategy, Swarm
from scripts.simulate.recorded import Recorded
from scripts.simulate.touched import TokensOf, servers_touched
from scripts.simulate.traffic import TURNS, Entries, Loads, least_wait, spread
from scripts.simulate.world import FloatArray, IntArray, Scenario, Servers, draw_servers

LOOKS_AT_TOUCHED = 5
"""Periods between two measurements of the servers touched and of the ideal split: they cost most."""


@dataclass(frozen=True)
class World:
    """What all strategies meet.

    Attributes:
        popularity: float [layers, experts]; None for a drawn one.
        tokens_of: the tokens whose servers are counted; None for drawn ones.
        bonds: [layers, experts, experts], how much experts are used together; None if nobody knows.
    """

    scenario: Scenario
    seed: int
    servers: Servers
    popularity: FloatArray | None = None
    tokens_of: TokensOf | None = None
    bonds: FloatArray | None = None

    @classmethod
    def of(cls, scenario: Scenario, seed: int) -> World:
        return cls(scenario, seed, draw_servers(scenario, seed))

    def trained(self, recorded: Recorded) -> World:
        """The same with a trained model's routing. Its demand stays what it was recorded to be."""
        popularity = recorded.popularity(self.scenario.shape.experts)
        return replace(self, popularity=popularity, tokens_of=recorded.tokens, bonds=recorded.bonds)


@dataclass
class Run:
    """What was measured in a run; by period, where nothing else is said.

    Attributes:
        most: largest load over capacity of a server, over the mean (all load over all capacity).
        split: the same if a central hand split the demand over the replicas there are; NaN where not
            measured.
        coverage: share of the cells that a live server holds, at the period's beginning.
        lost: share of the demand that is for cells nobody holds.
        touched: servers asked, a token and layer; NaN where not measured.
        moved: bytes that a live server has taken up in the period, on average.
        paid: what a pair costs on average, over the base price; 0 where nothing is priced.
        prices: float32 [periods, cells], micro-credits a pair: the median of what is asked for each cell; NaN
            where nobody asks.
        replicas, demand: [cells], at the end of the calm.
        final: held cells at the end.
    """

    name: str
    most: list[float] = field(default_factory=list)
    split: list[float] = field(default_factory=list)
    coverage: list[float] = field(default_factory=list)
    lost: list[float] = field(default_factory=list)
    touched: list[float] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)
    paid: list[float] = field(default_factory=list)
    prices: list[npt.NDArray[np.float32]] = field(default_factory=list)
    replicas: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    demand: FloatArray = field(default_factory=lambda: np.zeros(0))
    final: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros((0, 0), np.bool_))

    def series(self) -> dict[str, list[float]]:
        names = ("most", "split", "coverage", "lost", "touched", "moved", "paid")
        return {name: [round(float(value), 6) for value in getattr(self, name)] for name in names}


Watch = Callable[[int, Swarm, Loads], Any]
"""Told of each period when its loads are known."""


def play(
    world: World,
    strategy: Strategy,
    base: float,
    on_period: Callable[[int], Any] = lambda period: None,
    watch: Watch = lambda period, swarm, loads: None,
) -> Run:
    """Run a strategy through all periods.

    Args:
        base: micro-credits a pair that a cell costs by its size alone.
    """
    scenario, servers, shape = world.scenario, world.servers, world.scenario.shape
    there = who_is_there(scenario, servers.count, world.seed)
    pairs = scenario.load * float(servers.capacity[there[0]].sum())
    demand = Demand(shape, pairs, world.seed, world.popularity)
    swarm = Swarm(
        shape,
        servers,
        world.seed,
        there[0].copy(),
        np.zeros((servers.count, shape.cells), np.bool_),
        demand.by_cell(),
    )
    strategy.place(swarm, 0)
    run, wait = Run(strategy.name), least_wait(scenario.load, servers.capacity)
    for period in range(scenario.periods):
        swarm.live = there[period].copy()
        if period > scenario.calm:
            demand.drift(period)
        swarm.demand = demand.by_cell()
        swarm.find_entries()
        prices = strategy.prices(swarm)
        layer = swarm.entries.cell // shape.experts
        turns = TURNS if period else 8 * TURNS
        loads = spread(
            swarm.entries, *_asked(swarm, prices, layer), layer, swarm.demand, servers.capacity, wait, turns
        )
        wait = np.where(swarm.live, loads.wait, least_wait(scenario.load, servers.capacity))
        swarm.loads = loads
        _note(run, world, swarm, demand, prices, base, period)
        watch(period, swarm, loads)
        if period == scenario.calm:
            run.replicas, run.demand = swarm.replicas(), swarm.demand
        before = swarm.held.copy()
        strategy.place(swarm, period + 1)
        taken = (swarm.held & ~before)[swarm.live].sum()
        run.moved.append(float(taken) * shape.cell_bytes / max(1, int(swarm.live.sum())))
        on_period(period)
    run.final = swarm.held & swarm.live[:, None]
    return run


def _medians(entries: Entries, prices: FloatArray, n_cells: int) -> npt.NDArray[np.float32]:
    """[cells], the lower median of each cell's entries; NaN where there are none."""
    found = np.full(n_cells, np.nan, np.float32)
    order = np.lexsort((prices, entries.cell))
    counts = np.diff(np.append(entries.starts, len(entries)))
    found[entries.held()] = prices[order[entries.starts + (counts - 1) // 2]]
    return found


def _asked(swarm: Swarm, prices: FloatArray, layer: IntArray) -> tuple[FloatArray, FloatArray]:
    """By what backbones choose: what each entry's server asks on average in its layer (routing.tariff), for
    each pair that a token has for it there; and the seconds that count for asking more than others do."""
    layers = swarm.shape.layers
    place = swarm.entries.server * layers + layer
    tokens = swarm.demand.sum() / layers / swarm.shape.used
    mean = np.bincount(place, prices) / np.maximum(np.bincount(place), 1)
    pairs = np.maximum(1.0, np.bincount(place, swarm.demand[swarm.entries.cell]) / tokens)
    dearer, holding = np.zeros(len(mean)), np.unique(place)
    for each in range(layers):
        theirs = holding[holding % layers == each]
        dearer[theirs] = surcharges(mean[theirs])
    return (mean * pairs)[place], dearer[place]


def _note(
    run: Run, world: World, swarm: Swarm, demand: Demand, prices: FloatArray, base: float, period: int
) -> None:
    loads, capacity = swarm.loads, swarm.servers.capacity
    assert loads is not None
    cell = swarm.entries.cell
    mean = swarm.demand.sum() / capacity[swarm.live].sum()
    run.most.append(loads.use[swarm.live].max() / mean)
    run.coverage.append(float((np.bincount(cell, minlength=swarm.shape.cells) > 0).mean()))
    run.lost.append(loads.lost / swarm.demand.sum())
    run.paid.append(float((prices * loads.entry).sum() / max(loads.entry.sum(), 1e-9)) / base)
    run.prices.append(_medians(swarm.entries, prices, swarm.shape.cells))
    if period % LOOKS_AT_TOUCHED == LOOKS_AT_TOUCHED - 1:
        best = split_best(swarm.entries, swarm.demand, capacity)
        run.split.append(best[swarm.live].max() / mean)
        tokens_of = world.tokens_of or demand.tokens
        layers = swarm.shape.layers
        run.touched.append(
            servers_touched(swarm.held, swarm.live, loads.wait, layers, tokens_of, world.seed, period)
        )
    else:
        run.split.append(float("nan"))
        run.touched.append(float("nan"))
