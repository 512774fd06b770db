"""What makes nodes that see the same choose differently: draws and patience of their own. Pure.

Both follow from the peer id, so that a node that is started again goes on as it was, and a test sees the same
each time. Draws are made anew each ROUND_SECONDS: who was not drawn for a gap that nobody filled may be next
time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from market.ground import Floats, Ground, Ints

ROUND_SECONDS = 600.0
"""Seconds for which draws stay: as long as an advert lives, so that a move is seen before there are
others."""

TURN_SECONDS = 120.0
"""Seconds for which the same holder of a cell is first in giving it up: some times GAP_PATIENCE."""

GAP_PATIENCE = 10.0
"""Seconds at least that a choice must be better where something lacks holders or nothing is given up for it,
SPREAD times as many at most: a peer that is started again is back by then."""

MOVE_PATIENCE = 120.0
"""The same where something is given up for income: demand that lasts no two minutes is not worth a fetch.
With ten minutes half as much moved, but prices still fell by a fourth after 20 periods
(scripts/simulate_market)."""

SPREAD = 4.0


# The finishing steps of splitmix64 (Steele, Lea, Flood 2014), which spread each bit over all.
_ODD_1, _ODD_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
_ODD_3, _ODD_4 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, eq=False)
class Draws:
    """Numbers in [0, 1) that are a peer's own.

    Attributes:
        units: [n]; groups: [n_groups]; layers: [n_layers].
    """

    units: Floats
    groups: Floats
    layers: Floats


def own_draws(peer_id: str, now: float, ground: Ground) -> Draws:
    """A peer's draws of this time; rounds of different peers begin at different times.

    Args:
        now: seconds on any clock.
    """
    phase = _number(peer_id, "phase", 0) / (1 << 64)
    turn = int(now / ROUND_SECONDS + phase)
    drawn = own_generator(peer_id, "draws", turn).random(len(ground) + ground.n_groups + ground.n_layers)
    n, groups = len(ground), ground.n_groups
    return Draws(drawn[:n], drawn[n : n + groups], drawn[n + groups :])


def giving_order(unit: Ints, holder: npt.NDArray[np.uint64], now: float) -> npt.NDArray[np.intp]:
    """[entries], how many other holders of its unit come before each: who is first may give it up first.

    Every node that knows the same holders finds the same order, so two never give up the last two replicas
    because both see the other's. Turns change, for who is first may not want to.

    Args:
        unit: what each entry is about, by a number that is the same on all nodes.
        holder: `holder_key` of who holds it.
        now: unix time; clocks need to agree no better than to a part of TURN_SECONDS.
    """
    with np.errstate(over="ignore"):
        mixed = holder ^ (unit.astype(np.uint64) * _ODD_1 + np.uint64(int(now / TURN_SECONDS)) * _ODD_2)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _ODD_3
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _ODD_4
    order = np.lexsort((mixed ^ (mixed >> np.uint64(31)), unit))
    sorted_unit = unit[order]
    starts = np.flatnonzero(np.diff(sorted_unit, prepend=-1))
    lengths = np.diff(np.append(starts, len(unit)))
    place = np.empty(len(unit), np.intp)
    place[order] = np.arange(len(unit)) - np.repeat(starts, lengths)
    return place


def holder_key(peer_id: str) -> int:
    """What `giving_order` knows a peer by, below 2^64."""
    return _number(peer_id, "holder", 0)


def own_generator(peer_id: str, what: str, number: int) -> np.random.Generator:
    """Draws for what a peer does once: the same each time."""
    return np.random.Generator(np.random.PCG64(_number(peer_id, what, number)))


class Patience:
    """Whether a better choice has been one for long enough.

    Attributes:
        moves: how often it was; the next time takes another while.
    """

    def __init__(
        self, peer_id: str, *, gap: float | None = None, move: float | None = None, spread: float = SPREAD
    ) -> None:
        self._peer_id = peer_id
        self._gap = GAP_PATIENCE if gap is None else gap
        self._move = MOVE_PATIENCE if move is None else move
        self._spread = spread
        self._since: float | None = None
        self._hurry = False
        self.moves = 0

    def ripe(self, now: float, hurry: bool | None) -> bool:
        """Tell what was found at a look; True: now is the time, and the next move begins anew.

        Args:
            hurry: see `Advice.hurry`; None: nothing better was found.
        """
        if hurry is None:
            self._since = None
            return False
        if self._since is None or hurry is not self._hurry:
            self._since, self._hurry = now, hurry
        if now - self._since < self.seconds(hurry):
            return False
        self._since = None
        self.moves += 1
        return True

    def seconds(self, hurry: bool) -> float:
        """How long it is to be better."""
        share = _number(self._peer_id, "patience", self.moves) / (1 << 64)
        return (self._gap if hurry else self._move) * (1 + (self._spread - 1) * share)


def _number(peer_id: str, what: str, number: int) -> int:
    return int.from_bytes(blake3(f"{peer_id} market {what} {number}".encode()).digest()[:8], "little")
