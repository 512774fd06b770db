"""Scarcity: what need makes of a base price. Elementwise over arrays, in integers. Pure.

A price is its base times 2^(level / OCTAVE). In each period (a minute)
1. `target` says which level fits the need: half by how busy the server is, half by how hot the cell is on it,
   and an octave more for each live replica that lacks. A server that is half busy asks the base price.
2. the level goes a GAIN-th of the way there, and no further than a twelfth of the range: from any start it
   comes within a tenth of the final price in 20 periods, and noise in demand is smoothed to a third.
3. what is shown is the level on a coarse grid, with play: it follows only what has left it behind. So noise
   does not make it swing, and neighbours often have the same price.

Every step is monotone: more demand or load, less capacity, fewer replicas, a higher price before never give a
lower price. Everything stays within floor and cap. The same numbers give the same prices on every machine:
the only floating point operations are exact ones.

A server knows its own signed work only, never what others claim. As work is shared out by who is quick, a
server's share of it is a fair sample of the swarm's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from market.levels import OCTAVE, LevelArray, level_of_percent, level_of_price, log2_levels, scaled
from market.price import PriceArray, percent_of
from routing.errors import LocalError

REPLICA_FLOOR = 3
"""Live replicas below which a cell is scarce whatever the demand: one may vanish, and one be slow."""

GAIN = 4
"""A level goes a fourth of its way each period: 0.3 % of it are left after 20, and of independent noise a
standard deviation of 38 %."""

STEPS = 12
"""Periods from floor to cap at the greatest step: half an octave (41 %) by the defaults. With a fourth of the
way each time, 1 % of the range is left after 20 periods whatever the start."""

MAX_RATIO = 1_024
"""The most that a cap may be of its floor: ten octaves, of which 1 % is less than a tenth of a price."""

GRID = OCTAVE // 8
"""Prices shown are 9 % apart: less is no reason to choose another server or to send an advert."""

PLAY = 3 * GRID // 2
"""How far a level may be from the price shown: noise of 30 % moves it by less most of the time."""

EVIDENCE = 16
"""Pairs of nothing known that are added to each cell's work and capacity as if it were half busy: a cell that
has seen three pairs is neither hot nor cold."""

_FINE = 256  # work is counted in 256ths of a pair
_MAX_WORK = float(2**44)  # pairs of a period; in 256ths still exact as a float64

Work = npt.NDArray[np.int64] | npt.NDArray[np.float64] | int | float
"""Pairs of a period, at least 0."""


@dataclass(frozen=True)
class Levels:
    """What a controller remembers, one of each for a cell.

    Attributes:
        level: where the price is.
        shown: what is quoted of it, on the grid.
    """

    level: LevelArray
    shown: LevelArray

    @classmethod
    def at_base(cls, shape: int | tuple[int, ...]) -> Levels:
        """Cells nobody has quoted yet."""
        return cls(np.zeros(shape, np.int64), np.zeros(shape, np.int64))

    @classmethod
    def of(cls, base: PriceArray, price: PriceArray) -> Levels:
        """Cells at these prices: what others ask is the best guess for a cell just taken."""
        level = level_of_price(base, price)
        return cls(level, _on_grid(level))

    def take(self, index: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Levels:
        """Some of the cells."""
        return Levels(self.level[index], self.shown[index])


@dataclass(frozen=True)
class Need:
    """What a period has shown: arrays of one shape, or one number for all.

    Attributes:
        demand: pairs through this cell on its server, by signed receipts.
        load: pairs through all cells of that server.
        capacity: pairs that the server could have computed; 0 if nobody knows.
        held: cells that the server holds.
        replicas: live replicas of the cell in the swarm, this one included.
    """

    demand: Work
    load: Work
    capacity: Work
    held: npt.NDArray[np.int64] | int
    replicas: npt.NDArray[np.int64] | int


@dataclass(frozen=True)
class Scarcity:
    """The rule, with its bounds.

    Args:
        floor, cap: per cent of the base price.
        replica_floor: live replicas below which a cell is scarce.

    Raises:
        LocalError: no rule settles within such bounds.
    """

    floor: int = 25
    cap: int = 1_600
    replica_floor: int = REPLICA_FLOOR

    def __post_init__(self) -> None:
        if not 1 <= self.floor <= self.cap <= MAX_RATIO * self.floor:
            raise LocalError(
                f"a price between {self.floor} and {self.cap} per cent of its base: the floor is at least 1, "
                f"and the cap from the floor to {MAX_RATIO} times the floor"
            )

    @property
    def lowest(self) -> int:
        """Level of the floor."""
        return level_of_percent(self.floor)

    @property
    def highest(self) -> int:
        """Level of the cap."""
        return level_of_percent(self.cap)

    @property
    def step(self) -> int:
        """The most that a level moves in a period."""
        return math.ceil((self.highest - self.lowest) / STEPS)

    def target(self, need: Need) -> LevelArray:
        """The level that fits the need."""
        capacity = _counted(need.capacity)
        hot = _utilisation(_counted(need.demand), capacity // np.maximum(need.held, 1))
        busy = _utilisation(_counted(need.load), capacity)
        wanted = np.clip((hot + busy) >> 1, self.lowest, self.highest)
        lacking = np.clip(self.replica_floor - np.asarray(need.replicas, np.int64), 0, self.replica_floor)
        wanted += lacking * OCTAVE
        target: LevelArray = np.clip(wanted, self.lowest, self.highest)
        return target

    def next(self, levels: Levels, need: Need) -> Levels:
        """A period later."""
        way = self.target(need) - levels.level
        move = np.clip((way + GAIN // 2) // GAIN, -self.step, self.step)
        level = np.clip(levels.level + move, self.lowest, self.highest)
        lower = -((PLAY - level) // GRID) * GRID
        upper = (level + PLAY) // GRID * GRID
        return Levels(level, np.clip(levels.shown, lower, upper))

    def price(self, base: PriceArray, levels: Levels) -> PriceArray:
        """Micro-credits a pair that are asked."""
        asked = scaled(base, np.clip(levels.shown, self.lowest, self.highest))
        bounded: PriceArray = np.clip(asked, percent_of(base, self.floor), percent_of(base, self.cap))
        return bounded


def is_trifle(before: LevelArray, after: LevelArray) -> bool:
    """Whether prices shown differ by too little to be told before the next advert is due: no cell by two
    steps of the grid, nor all of them by a fourth of one on average."""
    apart = np.abs(after - before)
    return bool(apart.size == 0 or (apart.max() < 2 * GRID and int(apart.sum()) * 4 < GRID * apart.size))


def _utilisation(work: LevelArray, capacity: LevelArray) -> LevelArray:
    """Level of work over capacity, 0 where half of the capacity is used or nothing is known."""
    assumed = EVIDENCE * _FINE
    return log2_levels(work + assumed // 2) - log2_levels(capacity + assumed) + OCTAVE


def _counted(work: Work) -> npt.NDArray[np.int64]:
    """In 256ths of a pair, whole ones."""
    fine = np.clip(np.asarray(work, np.float64), 0.0, _MAX_WORK) * _FINE
    return fine.astype(np.int64)


def _on_grid(level: LevelArray) -> LevelArray:
    return (level + GRID // 2) // GRID * GRID
