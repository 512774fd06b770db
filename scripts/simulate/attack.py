"""What dishonest servers of the simulated market do. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scripts.simulate.world import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class Attack:
    """Servers that do not play fair.

    Attributes:
        servers: their numbers.
        begins: the period from which on; until then they are honest. Then they keep what they hold.
        dear: what they ask, as a multiple of what the rule says, the cap at most: more nobody believes.
        washed: pairs of a period that they sign for each of their cells to themselves or to each other.
        hidden: of their cells every so manieth is told to nobody any more; 0: none.
        phantoms: identities that claim all cells that any of the servers holds, and answer nobody; who is
            found out comes back under a new one.
    """

    name: str
    servers: tuple[int, ...]
    begins: int
    dear: float = 1.0
    washed: float = 0.0
    hidden: int = 0
    phantoms: int = 0

    def quotes(self, server: IntArray, prices: FloatArray, cap: float) -> FloatArray:
        """Micro-credits a pair that are asked, of each entry."""
        return np.where(np.isin(server, self.servers), np.minimum(prices * self.dear, cap), prices)

    def receipts(self, server: IntArray, pairs: FloatArray) -> FloatArray:
        """Pairs of the period that are covered by receipts, of each entry."""
        return pairs + self.washed * np.isin(server, self.servers)

    def claimed(self, held: BoolArray) -> IntArray:
        """[cells]: identities that claim each and do not hold it."""
        return np.asarray(self.phantoms * held[list(self.servers)].any(axis=0), np.int64)

    def hide(self, held: BoolArray) -> None:
        """Take back what is not to be told any more."""
        for server in self.servers:
            cells = np.flatnonzero(held[server])
            held[server, cells[:: self.hidden]] = False
