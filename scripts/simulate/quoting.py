"""All servers' prices, each server setting its own as `node.market.pricing` does: market.scarcity, once a
period."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from market.scarcity import Levels, Need, Scarcity
from scripts.simulate.traffic import Entries
from scripts.simulate.world import PERIOD, FloatArray, IntArray

LevelTable = npt.NDArray[np.int16]


class Quoting:
    """Levels of every cell at every server; of cells that a server does not hold they mean nothing.

    Args:
        base: micro-credits a pair, of every cell.
    """

    def __init__(self, n_servers: int, n_cells: int, base: int, rule: Scarcity) -> None:
        self._rule, self._base = rule, base
        self._level: LevelTable = np.zeros((n_servers, n_cells), np.int16)
        self._shown: LevelTable = np.zeros((n_servers, n_cells), np.int16)

    def prices(self, server: IntArray, cell: IntArray) -> IntArray:
        """Micro-credits a pair that these servers ask for these cells."""
        return self._rule.price(np.full(len(cell), self._base, np.int64), self._levels(server, cell))

    def next(self, entries: Entries, pairs: FloatArray, replicas: IntArray, capacity: FloatArray) -> None:
        """A period later.

        Args:
            pairs: of the period, covered by receipts, of each entry.
            replicas: live ones as the entry's server counts them, of each entry.
            capacity: pairs a second, of each server.
        """
        load = np.bincount(entries.server, pairs, len(capacity))
        held = np.bincount(entries.server, minlength=len(capacity))
        server = entries.server
        need = Need(pairs, load[server], (capacity * PERIOD)[server], held[server], replicas)
        levels = self._rule.next(self._levels(server, entries.cell), need)
        self._level[server, entries.cell] = levels.level
        self._shown[server, entries.cell] = levels.shown

    def take_up(self, server: int, cells: IntArray, prices: FloatArray) -> None:
        """A server begins with cells at what others ask for them; 0 where nobody does."""
        others = np.where(prices > 0, prices, self._base).astype(np.int64)
        levels = Levels.of(np.full(len(cells), self._base, np.int64), others)
        self._level[server, cells] = levels.level
        self._shown[server, cells] = levels.shown

    def _levels(self, server: IntArray, cell: IntArray) -> Levels:
        return Levels(self._level[server, cell].astype(np.int64), self._shown[server, cell].astype(np.int64))
