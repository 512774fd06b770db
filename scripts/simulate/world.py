"""The world of the simulation: a model's shape, servers of mixed memory and uplink, what happens when. Pure.

All draws come from generators made of the seed and a fixed number for each purpose (`generator`), so that one
strategy's draws never shift another's: every strategy meets the same servers, demand and failures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

PERIOD = 60.0
"""Seconds between two adverts of a server, and between two settings of its prices."""

PAIR_BYTES = 4096
"""Of one answer row on the wire: 2048 values in f16. A server's uplink over this is its capacity."""


class Draws(IntEnum):
    """What random numbers are drawn for."""

    SERVERS = 1
    DEMAND = 2
    DRIFT = 3
    EVENTS = 4
    PLACES = 5
    LOOKS = 6
    TOKENS = 7
    RECEIPTS = 8
    PROBES = 9


def generator(seed: int, purpose: Draws, *numbers: int) -> np.random.Generator:
    """Random numbers for one purpose, the same for the same arguments."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, purpose, *numbers])))


@dataclass(frozen=True)
class Shape:
    """A model: layers of routed experts, of which a token uses some.

    Attributes:
        cell_bytes: of one cell.
        multiply_adds: of one row through a cell: its weights.
    """

    layers: int
    experts: int
    used: int
    cell_bytes: int
    multiply_adds: int

    @property
    def cells(self) -> int:
        return self.layers * self.experts


QWEN3_30B = Shape(48, 128, 8, 2_654_208, 4_718_592)
"""Qwen3-30B-A3B at Q4_K_M: three matrices of 768 x 2048 at 4.5 bits."""

TRAINED = Shape(4, 32, 4, 104_448, 98_304)
"""tiny-qwen3moe-32e4 at Q8_0."""


@dataclass(frozen=True)
class Scenario:
    """Which servers there are, and what happens.

    Attributes:
        memory: median of the servers' memory, in cells.
        spread: standard deviation of the memory's logarithm.
        least, most: bounds of the memory, in cells.
        load: share of the live servers' capacity that is asked for at the beginning.
        calm: periods of constant demand, nobody coming or going; then demand drifts and servers come and go.
        vanish: the period at whose beginning VANISHING of the live servers are gone; 0: never.
    """

    name: str
    shape: Shape
    servers: int
    periods: int
    memory: float
    spread: float
    least: int
    most: int
    load: float = 0.5
    calm: int = 40
    vanish: int = 70

    def sized(self, servers: int, periods: int) -> Scenario:
        """The same with other numbers of servers and periods; what happens is moved along."""
        share = periods / self.periods
        calm, vanish = max(1, round(self.calm * share)), round(self.vanish * share)
        return replace(self, servers=servers, periods=periods, calm=calm, vanish=vanish)


VANISHING = 0.3
"""Share of the live servers that vanish at once (issue 6, "Must hold" 2)."""

LEAVING = 0.004
"""Share of the live servers that leave in a period once the calm is over, as many as come: half of them
within three hours, which is a home computer's day rather than a data centre's."""

SCENARIOS = {
    each.name: each
    for each in (
        Scenario("mixed", QWEN3_30B, 1000, 100, memory=64.0, spread=1.1, least=8, most=6144),
        Scenario("whole", QWEN3_30B, 1000, 100, memory=160.0, spread=0.6, least=128, most=6144),
        Scenario("parts", QWEN3_30B, 1000, 100, memory=40.0, spread=0.6, least=8, most=100),
        Scenario("trained", TRAINED, 64, 100, memory=9.0, spread=0.4, least=4, most=24),
    )
}
"""mixed: a quarter of the servers has room for a layer. whole: each has. parts: none has. trained: none has;
the routing of a trained model, recorded."""


@dataclass(frozen=True)
class Servers:
    """The servers, those included that come later.

    Attributes:
        memory: int [servers], cells.
        capacity: float [servers], pairs a second: what the uplink carries.
        seconds: float [servers], of one pair.
    """

    memory: IntArray
    capacity: FloatArray

    @property
    def count(self) -> int:
        return len(self.memory)

    @property
    def seconds(self) -> FloatArray:
        return 1.0 / self.capacity


MEDIAN_UPLINK = 20e6
"""Bits a second."""

UPLINK_SPREAD = 1.0
"""Standard deviation of the uplink's logarithm: one in forty has seven times the median or more."""

LEAST_UPLINK, MOST_UPLINK = 2e6, 500e6


def draw_servers(scenario: Scenario, seed: int) -> Servers:
    """All servers of a run: `servers` at the beginning, then those that may come, one by one."""
    count = scenario.servers + round(scenario.servers * LEAVING * scenario.periods)
    drawn = generator(seed, Draws.SERVERS).normal(
        size=(count, 2)
    )  # more servers do not change the first ones
    memory = np.exp(np.log(scenario.memory) + scenario.spread * drawn[:, 0])
    uplink = np.exp(np.log(MEDIAN_UPLINK) + UPLINK_SPREAD * drawn[:, 1])
    return Servers(
        np.clip(memory.astype(np.int64), scenario.least, min(scenario.most, scenario.shape.cells)),
        np.clip(uplink, LEAST_UPLINK, MOST_UPLINK) / 8 / PAIR_BYTES,
    )
