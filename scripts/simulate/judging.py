"""What a simulation must hold (issue 6, "Must hold" 2), measured on its runs; and a digest of all of it.
Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from scripts.simulate.timeline import Run
from scripts.simulate.world import FloatArray, Scenario

SETTLED = 20
"""Periods after which prices should be near their final value."""

NEAR = 0.10
"""How near."""


@dataclass(frozen=True)
class Finding:
    """A figure against what it must be.

    Attributes:
        at_most: what it may be; None if it must be at least `at_least`.
    """

    name: str
    figure: float
    at_most: float | None = None
    at_least: float | None = None

    @property
    def met(self) -> bool:
        over = self.at_most is not None and self.figure > self.at_most
        under = self.at_least is not None and self.figure < self.at_least
        return not over and not under and not np.isnan(self.figure)

    @property
    def target(self) -> str:
        return f"<= {self.at_most:g}" if self.at_most is not None else f">= {self.at_least:g}"


def judge(scenario: Scenario, runs: Mapping[str, Run]) -> list[Finding]:
    """What of "Must hold" 2 this scenario shows."""
    market, random, central = runs["market"], runs["random"], runs["central"]
    calm = slice(max(0, scenario.calm * 3 // 4), scenario.calm + 1)
    findings = [
        Finding(
            "max load, split as well as can be: market over central",
            _mean(market.split, calm) / _mean(central.split, calm),
            at_most=1.15,
        ),
        Finding(
            "max load, as backbones choose: market over central",
            _mean(market.most, calm) / _mean(central.most, calm),
            at_most=1.15,
        ),
    ]
    if scenario.calm > SETTLED:
        findings.append(
            Finding(
                "price of the swarm after 20 periods, over its final one: distance",
                _drifted(market, scenario),
                at_most=NEAR,
            )
        )
        findings.append(
            Finding(
                "price of the median cell after 20 periods, over its final one: distance",
                typical_distance(market, scenario),
                at_most=NEAR,
            )
        )
    if scenario.vanish:
        findings.append(
            Finding(
                "coverage one period after 30 % vanished",
                market.coverage[scenario.vanish + 1],
                at_least=0.999,
            )
        )
    share = 0.5 if scenario.least >= scenario.shape.experts else 0.85
    if scenario.name in ("whole", "trained"):  # drawn tokens have no experts that go together
        findings.append(
            Finding(
                "servers touched: market over random",
                _mean(market.touched, calm) / _mean(random.touched, calm),
                at_most=share,
            )
        )
    return findings


def typical_distance(run: Run, scenario: Scenario) -> float:
    """How far cells' prices after SETTLED periods are from their final ones: the median cell, each cell
    counted as much as it is asked for."""
    final = _final(run, scenario)
    apart = np.abs(run.prices[SETTLED].astype(np.float64) / final - 1)
    known = np.flatnonzero(~np.isnan(apart))
    order = known[np.argsort(apart[known], kind="stable")]
    asked = np.cumsum(run.demand[order])
    return float(apart[order[np.searchsorted(asked, asked[-1] / 2)]])


def _drifted(run: Run, scenario: Scenario) -> float:
    final = float(np.mean(run.paid[scenario.calm - 4 : scenario.calm + 1]))
    return abs(run.paid[SETTLED] / final - 1)


def _final(run: Run, scenario: Scenario) -> FloatArray:
    """[cells]: each one's price at the end of the calm, the mean of its last five periods."""
    last = np.array(run.prices[scenario.calm - 4 : scenario.calm + 1], dtype=np.float64)
    return np.asarray(last.mean(axis=0))


def _mean(values: list[float], periods: slice) -> float:
    known = np.array(values)[periods]
    known = known[~np.isnan(known)]
    return float(known.mean()) if len(known) else float("nan")


def summary(scenario: Scenario, run: Run) -> dict[str, float]:
    """A row of the table."""
    calm = slice(max(0, scenario.calm * 3 // 4), scenario.calm + 1)
    later = slice(scenario.calm + 1, scenario.vanish or scenario.periods)
    row = {
        "max load, best split": _mean(run.split, calm),
        "max load, routed": _mean(run.most, calm),
        "max load, drift": _mean(run.split, later),
        "coverage %": 100 * run.coverage[scenario.calm],
        "touched": _mean(run.touched, calm),
        "price %": 100 * run.paid[scenario.calm],
        "MB moved, calm": _mean(run.moved, calm) / 1e6,
        "MB moved, drift": _mean(run.moved, later) / 1e6,
    }
    if scenario.vanish:
        row["coverage % when 30 % vanish"] = 100 * run.coverage[scenario.vanish]
        row["coverage % a period later"] = 100 * run.coverage[scenario.vanish + 1]
        row["max load after"] = _mean(run.split, slice(scenario.vanish + 5, scenario.vanish + 15))
    return row


def digest(runs: Mapping[str, Run]) -> str:
    """The same for the same runs, bit by bit."""
    state = sha256()
    for name in sorted(runs):
        run = runs[name]
        series = {key: [value.hex() for value in values] for key, values in run.series().items()}
        state.update(json.dumps([name, series], sort_keys=True).encode())
        state.update(np.packbits(run.final).tobytes())
        state.update(run.replicas.tobytes())
        state.update(np.array(run.prices, dtype=np.float32).tobytes())
    return state.hexdigest()
