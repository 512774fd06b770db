"""The market: every server sets its prices and chooses its cells for itself, by the functions that nodes use.

A period has SLOTS slots. Who looks in one sees what was decided in those before it. All look at once while a
cell lacks replicas, and again when their patience is over, as nodes do that look every few seconds. What is
decided is in force when the next period begins: what is taken up comes from the disk or from other servers.
"""

from __future__ import annotations

import numpy as np

from market.advice import Means, advise
from market.affinity import group_cells, groups_of
from market.ground import Ground
from market.own_order import Patience, giving_order, holder_key, own_draws, own_generator
from market.scarcity import Scarcity
from market.supply import counted
from market.view import STRANGER, View, believed_demand, believed_prices, counted_replicas
from node.market.served_rate import DAY, HALF_LIFE
from scripts.simulate.attack import Attack
from scripts.simulate.placing import Swarm
from scripts.simulate.probes import Probes
from scripts.simulate.quoting import Quoting
from scripts.simulate.timeline import World
from scripts.simulate.world import PERIOD, Draws, FloatArray, IntArray, generator

SLOTS = 8
"""An advert is told anew as soon as what is served has changed; the others see it within some seconds."""

EACH = 2
"""A server looks in one of so many periods, and in each while a cell lacks replicas. Nodes look more often;
but what is no hurry they do minutes later anyway (MOVE_PATIENCE)."""

VARIANTS = 64
"""Each node has groups of its own; more variety than that makes no difference, and takes time."""


class Market:
    """All servers of a market.

    Args:
        base: micro-credits a pair of every cell.
    """

    name = "market"

    def __init__(self, world: World, base: int, attack: Attack | None = None) -> None:
        shape, servers = world.scenario.shape, world.servers
        self._shape, self._servers, self._seed, self._base = shape, servers, world.seed, base
        self._planned = attack
        self._attack: Attack | None = None
        self._probes: Probes | None = None
        self._rule = Scarcity()
        self.quoting = Quoting(servers.count, shape.cells, base, self._rule)
        self._grounds = _grounds(world)
        self._ids = [f"server-{number}" for number in range(servers.count)]
        self._keys = np.array([holder_key(each) for each in self._ids], np.uint64)
        self._patience = [Patience(each) for each in self._ids]
        self._served = np.zeros((servers.count, shape.cells), np.float32)  # pairs, faded as in ServedRate
        self._seconds = np.zeros(servers.count)

    def prices(self, swarm: Swarm) -> FloatArray:
        return self._quotes(swarm.entries.server, swarm.entries.cell)

    def _quotes(self, server: IntArray, cell: IntArray) -> FloatArray:
        prices = self.quoting.prices(server, cell).astype(np.float64)
        if self._attack is None:
            return prices
        return self._attack.quotes(server, prices, self._base * self._rule.cap / 100)

    def place(self, swarm: Swarm, period: int) -> None:
        if self._planned is not None and period == self._planned.begins:
            self._attack = self._planned
            if self._attack.hidden:
                self._attack.hide(swarm.held)
            if self._attack.phantoms:
                others = int(swarm.live.sum()) - 1
                self._probes = Probes(self._seed, others, self._attack.phantoms, period * PERIOD)
        if swarm.loads is not None:
            self._set_prices(swarm, period)
        looking = self._lookers(swarm, period)
        for slot in range(SLOTS):
            if looking[slot]:
                for server, again in self._look(
                    swarm, looking[slot], period * PERIOD + slot * PERIOD / SLOTS
                ):
                    later = slot + int(np.ceil(again * SLOTS / PERIOD))
                    if later < SLOTS:
                        looking[later].append(server)

    def _lookers(self, swarm: Swarm, period: int) -> list[list[int]]:
        """Who looks in each slot."""
        there = np.flatnonzero(swarm.live)
        order = generator(self._seed, Draws.LOOKS, period).permutation(there)
        if (swarm.replicas() < self._rule.replica_floor).any():
            return [order.tolist()] + [[] for _ in range(SLOTS - 1)]
        some = order[((order + period) % EACH == 0) | ~swarm.held[order].any(axis=1)]
        return [part.tolist() for part in np.array_split(some, SLOTS)]

    def _set_prices(self, swarm: Swarm, period: int) -> None:
        assert swarm.loads is not None
        entries = swarm.entries
        rng = generator(self._seed, Draws.RECEIPTS, period)
        pairs = rng.poisson(swarm.loads.entry * PERIOD).astype(np.float64)
        kept = 0.5 ** (PERIOD / HALF_LIFE)
        self._served *= np.float32(kept)
        self._served[entries.server, entries.cell] += pairs.astype(np.float32)
        self._seconds = self._seconds * kept + PERIOD * swarm.live
        if self._attack is not None:
            pairs = self._attack.receipts(entries.server, pairs)
        replicas = counted(swarm.replicas(), self._claimed(swarm))
        self.quoting.next(entries, pairs, replicas[entries.cell], self._servers.capacity)

    def _claimed(self, swarm: Swarm) -> IntArray:
        """[cells]: identities that claim each, do not answer, and have not been found out yet."""
        if self._attack is None:
            return np.zeros(self._shape.cells, np.int64)
        return self._attack.claimed(swarm.held)

    def _look(self, swarm: Swarm, servers: list[int], now: float) -> list[tuple[int, float]]:
        """Some servers look, all at the same; who is in a hurry looks again, after these seconds."""
        entries, answered = swarm.told(), swarm.replicas().astype(np.float64)
        claimed = (STRANGER if self._probes is None else self._probes.stranger(now)) * self._claimed(swarm)
        base, weight = np.full(self._shape.cells, float(self._base)), np.ones(len(entries[1]))
        bounds = {"floor": self._rule.floor, "cap": self._rule.cap}
        price = believed_prices(entries[1], self._quotes(*entries), weight, base, **bounds)
        places = giving_order(entries[1], self._keys[entries[0]], now)
        holds = (*entries, places, np.searchsorted(entries[0], np.arange(swarm.servers.count + 1)))
        others, again = float(swarm.live.sum() - 1), []
        for server in servers:
            if self._attack is None or server not in self._attack.servers:
                view = self._view(server, holds, answered, claimed, price, others)
                seconds = self._decide(swarm, server, view, now)
                if seconds:
                    again.append((server, seconds))
        return again

    def _view(
        self,
        server: int,
        holds: tuple[IntArray, ...],
        answered: FloatArray,
        claimed: FloatArray,
        price: FloatArray,
        others: float,
    ) -> View:
        """As node.market.seen makes it: all who are there have answered, and nobody of those only claimed."""
        _, cells, places, begins = holds
        mine = slice(begins[server], begins[server + 1])
        held, before = np.zeros(len(price), np.bool_), np.zeros(len(price))
        held[cells[mine]], before[cells[mine]] = True, places[mine]
        served = self._served[server] * (DAY / max(self._seconds[server], 1.0))
        replicas = counted_replicas(answered - held, claimed)
        demand = believed_demand(served.astype(np.float64), held, replicas, claimed=price / self._base)
        return View(replicas, price, demand, others, before)

    def _decide(self, swarm: Swarm, server: int, view: View, now: float) -> float:
        """What a server makes of what it sees; seconds after which it wants to do something in a hurry, or
        0."""
        held, patience = swarm.held[server], self._patience[server]
        memory, capacity = int(self._servers.memory[server]), float(self._servers.capacity[server])
        ground = self._grounds[server % len(self._grounds)]
        draws = own_draws(self._ids[server], now, ground)
        means = Means(memory * self._shape.cell_bytes, capacity * DAY)
        advice = advise(ground, view, means, held, draws)
        ripe = patience.ripe(now, advice.hurry if advice.changes else None)
        if advice.changes and (ripe or not held.any()):
            taken = np.flatnonzero(advice.cells & ~held)
            self.quoting.take_up(server, taken, view.price[taken])
            swarm.held[server] = advice.cells
            return 0.0
        return patience.seconds(True) if advice.changes and advice.hurry else 0.0


def _grounds(world: World) -> list[Ground]:
    """What there is to choose from, in groups of VARIANTS nodes' own where it is known what goes together."""
    shape, bonds = world.scenario.shape, world.bonds
    layer = np.repeat(np.arange(shape.layers), shape.experts)
    size = np.full(shape.cells, shape.cell_bytes, np.int64)
    if bonds is None:
        return [Ground.of(layer, size)]
    found, cells = [], group_cells(shape.experts, shape.used)
    for variant in range(VARIANTS):
        group = [
            number * shape.experts
            + groups_of(each, cells, own_generator(f"server-{variant}", "groups", number))
            for number, each in enumerate(bonds)
        ]
        found.append(Ground.of(layer, size, np.concatenate(group)))
    return found
