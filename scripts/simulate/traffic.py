"""Backbones spread the demand of each cell over its replicas, by expected wait and price. Pure.

The many backbones' choices together are a logit: each has its own distance to each server, so a server that
is dearer (in seconds) is still the best one for some. Of a cell's demand a replica gets a share in proportion
to

    exp(-(wait of the server + seconds that its price is worth) / NEARNESS)

where the wait grows with what the server is given (one queue, served at the server's capacity), and the price
weighs as it does for nodes (market.preference). The loads at which waits and choices agree are found by
turns: for each server its load given all others', all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from market.preference import Prefer, tariff
from scripts.simulate.world import FloatArray, IntArray

NEARNESS = 0.015
"""Seconds: how much the same server's distance differs between backbones (scale of a Gumbel distribution)."""

FULL = 0.98
"""Load from which the wait is continued by its tangent: a queue that is fuller grows without bound."""

SECOND = 10_000_000
"""Micro-credits that a second is worth under `balanced`: the default of `market.second`."""

PREFERENCES: tuple[tuple[Prefer, float], ...] = (("fast", 0.5), ("balanced", 0.25), ("cheap", 0.25))
"""How many backbones prefer what; `fast` is the default of `market.prefer`."""

TURNS = 24
"""By then most loads are what they will be, if the turns begin at the waits of a period before."""

HASTE = 0.7
"""Which part of the way to the wait that fits its load a server goes in a turn, if all others stay as they
are."""

STRIDE = 4.0
"""How much a wait changes in a turn at most, in NEARNESS; long ones by half."""

RESPONSES = (0.02, 2.0)
"""By how much the logarithm of a server's load falls as its wait grows by NEARNESS: bounds of what is
seen."""

FURTHEST = 500.0
"""The longest wait, in NEARNESS: of servers that alone hold what more is asked of than they can do."""

LEAST_USE = 1e-6


@dataclass(frozen=True)
class Entries:
    """Which live server holds which cell; ordered by cell.

    Attributes:
        server, cell: int [entries].
        starts: int [cells that are held]: where each one's entries begin; `of`: int [entries], its number
            among them.
    """

    server: IntArray
    cell: IntArray
    starts: IntArray
    of: IntArray

    @classmethod
    def ordered(cls, server: IntArray, cell: IntArray) -> Entries:
        begins = np.ones(len(cell), dtype=np.bool_)
        begins[1:] = cell[1:] != cell[:-1]
        return cls(server, cell, np.flatnonzero(begins), np.cumsum(begins) - 1)

    def __len__(self) -> int:
        return len(self.cell)

    def held(self) -> IntArray:
        """The cells that anybody holds."""
        return self.cell[self.starts]

    def shares(self, weights: FloatArray) -> FloatArray:
        """Each entry's part of its cell's weights; which must be above 0."""
        return weights / np.add.reduceat(weights, self.starts)[self.of]

    def softmax(self, logits: FloatArray) -> FloatArray:
        """The same of weights given by their logarithms."""
        return self.shares(np.exp(logits - np.maximum.reduceat(logits, self.starts)[self.of]))


@dataclass(frozen=True)
class Loads:
    """What came of it.

    Attributes:
        entry: float [entries], pairs a second of each held cell.
        server: float [servers], pairs a second.
        use: float [servers], load over capacity.
        wait: float [servers], seconds.
        lost: pairs a second of cells that nobody holds.
    """

    entry: FloatArray
    server: FloatArray
    use: FloatArray
    wait: FloatArray
    lost: float


def spread(
    entries: Entries,
    prices: FloatArray,
    dearer: FloatArray,
    layer: IntArray,
    demand: FloatArray,
    capacity: FloatArray,
    before: FloatArray,
    turns: int = TURNS,
) -> Loads:
    """Spread the demand over replicas.

    Args:
        prices: micro-credits of each entry, for the pairs that a token has of its server in that layer; all
            0: free. A server's wait counts once for them, its price for each.
        dearer: seconds that each entry's server is taken to be slower (routing.tariff.surcharges).
        layer: of each entry.
        demand: pairs a second, of each cell.
        capacity: pairs a second, of each server.
        before: seconds that each server was waited for a period before, where the turns begin.
    """
    near, asked = before / NEARNESS, demand[entries.cell]
    dear = _seconds_of(prices, layer) if prices.any() else [(np.zeros(len(entries)), 1.0)]
    entry = np.zeros(len(entries))
    respond, last_use, last_near = np.ones(len(capacity)), None, near
    for turn in range(turns):
        entry = np.zeros(len(entries))
        for seconds, share in dear:
            entry += share * entries.softmax(-near[entries.server] - (dearer + seconds) / NEARNESS)
        entry *= asked
        use = np.maximum(np.bincount(entries.server, entry, len(capacity)) / capacity, LEAST_USE)
        if last_use is not None:
            step = near - last_near
            seen = -np.log(use / last_use) / np.where(np.abs(step) < 1e-6, np.inf, step)
            respond = np.where(np.abs(step) < 1e-6, respond, (respond + np.clip(seen, *RESPONSES)) / 2)
        last_use, last_near = use, near
        if turn < turns - 1:
            fitting, steep = _use(near * NEARNESS, capacity)
            apart = np.log(use / fitting) / (respond + steep * NEARNESS)
            stride = np.maximum(STRIDE, near / 2)
            near = np.clip(near + np.clip(HASTE * apart, -stride, stride), 0.0, FURTHEST)
    load = np.bincount(entries.server, entry, len(capacity)).astype(np.float64)
    lost = float(demand.sum() - demand[entries.held()].sum())
    return Loads(entry, load, load / capacity, near * NEARNESS, lost)


def _seconds_of(prices: FloatArray, layer: IntArray) -> Sequence[tuple[FloatArray, float]]:
    """What prices are worth to each kind of backbone, and the kind's share."""
    least = np.full(int(layer.max()) + 1, np.inf)
    np.minimum.at(least, layer, prices)
    found = []
    for prefer, share in PREFERENCES:
        weighed = tariff(prefer, SECOND, lambda peer, layer: 0.0)
        unit = weighed.seconds / least[layer] if weighed.is_relative else weighed.seconds
        # Who is slower by more than slack allows is not asked, however cheap: so no price weighs more.
        found.append((np.minimum((prices - least[layer]) * unit, weighed.slack.seconds), share))
    return found


def least_wait(use: float, capacity: FloatArray) -> FloatArray:
    """Seconds that servers are waited for which are so much in use, less than FULL."""
    return (1.0 + use / (1.0 - use)) / capacity


def _use(wait: FloatArray, capacity: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The load over capacity at which a server is waited for so long (its own work, and the queue before it),
    and by how much its logarithm grows with a second more."""
    queue = np.maximum(wait * capacity - 1.0, LEAST_USE)
    full = FULL / (1.0 - FULL)
    over = np.maximum(queue - full, 0.0)
    below = np.minimum(queue, full)
    use = below / (1.0 + below) + over * (1.0 - FULL) ** 2
    slope = np.where(over > 0, (1.0 - FULL) ** 2, 1.0 / (1.0 + below) ** 2)
    return use, slope * capacity / use
