"""The market attacked: each attack's gain, and its damage against a bound (issue 6, "Must hold" 3)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from market.price import cell_price
from scripts.simulate.attack import Attack
from scripts.simulate.market_nodes import Market
from scripts.simulate.placing import Swarm
from scripts.simulate.timeline import Run, World, play
from scripts.simulate.traffic import Loads
from scripts.simulate.world import PERIOD, Scenario

PERIODS = 50
"""Of a run. From the middle on, when prices and placement have settled, the attackers attack; the last two
fifths count."""

IDENTITIES = 10
"""Of an attacker."""

ATTACKS = {
    "sybil capacity": "ten servers, and ten identities that claim their cells, to drive others away",
    "high quotes": "ten servers ask four times what the rule says",
    "hidden replicas": "ten servers hide every second cell that they hold",
    "self-dealing": "one server signs for itself as much as it could compute, to make its cells dear",
    "wash trading": "ten servers do so for each other",
}

CHANCE = 0.05
"""Gains that are none: from the attack on the two runs are different worlds, in which other groups of ten
honest servers earn 1 to 2 % (standard deviation, 95 groups over five seeds) more or less."""

MOST_DEARER = 0.05
"""By which share all that backbones pay may grow, besides twice the attackers' share of the swarm's capacity:
that much is missing where nobody asks them, and what of them is asked for is dearer."""

MOST_FULLER = 0.10
"""By which share of the mean load the largest load may grow."""

LEAST_COVERED = 0.999


@dataclass
class Taking:
    """What some servers earn of others while they are watched.

    Attributes:
        income: micro-credits of each period, of the servers.
    """

    servers: tuple[int, ...]
    market: Market
    income: list[float] = field(default_factory=list)

    def watch(self, period: int, swarm: Swarm, loads: Loads) -> None:
        theirs = np.isin(swarm.entries.server, self.servers)
        prices = self.market.prices(swarm)
        self.income.append(float((loads.entry * prices)[theirs].sum()) * PERIOD)


def attacks_of(begins: int) -> list[Attack]:
    ten, one, names = tuple(range(IDENTITIES)), (0,), iter(ATTACKS)
    return [
        Attack(next(names), ten, begins, phantoms=IDENTITIES),
        Attack(next(names), ten, begins, dear=4.0),
        Attack(next(names), ten, begins, hidden=2),
        Attack(next(names), one, begins, washed=WASHED),
        Attack(next(names), ten, begins, washed=WASHED),
    ]


WASHED = 100_000.0
"""Pairs a period and cell: as if each cell took all that a middling server can send."""


def run_attacks(
    scenario: Scenario,
    seed: int,
    say: Callable[[str], None] = lambda text: None,
    *,
    names: Collection[str] = tuple(ATTACKS),
    periods: int = PERIODS,
) -> dict[str, Any]:
    """Attacks, and the same servers honest in the same world."""
    calm = replace(scenario, periods=periods, calm=periods, vanish=0)
    world, base = World.of(calm, seed), cell_price(calm.shape.cell_bytes, calm.shape.multiply_adds)
    attacks = [each for each in attacks_of(periods // 2) if each.name in names]
    honest, rows = _honest(world, base, attacks, say), []
    for attack in attacks:
        market = Market(world, base, attack)
        taking = Taking(attack.servers, market)
        run = play(world, market, base, _progress(attack.name, say), taking.watch)
        rows.append(_row(attack, _share(world, attack), run, taking, honest))
    say("\n")
    return {
        "scenario": calm.name,
        "servers": calm.servers,
        "seed": seed,
        "attacks": rows,
        "must_hold": [
            {"name": f"{row['name']}: {name}", "figure": row[key], "target": target, "met": bool(met)}
            for row in rows
            for name, key, target, met in (
                ("gain", "gain", f"<= {CHANCE:g}", row["gain"] <= CHANCE),
                ("price paid", "dearer", f"<= {row['bound']:+g}", row["dearer"] <= row["bound"]),
                ("max load", "fuller", f"<= {MOST_FULLER:+g}", row["fuller"] <= MOST_FULLER),
                ("coverage", "coverage", f">= {LEAST_COVERED:g}", row["coverage"] >= LEAST_COVERED),
            )
        ],
    }


Honest = tuple[Run, dict[tuple[int, ...], Taking]]


def _honest(world: World, base: int, attacks: list[Attack], say: Callable[[str], None]) -> Honest:
    market = Market(world, base)
    takings = {attack.servers: Taking(attack.servers, market) for attack in attacks}

    def watch(period: int, swarm: Swarm, loads: Loads) -> None:
        for taking in takings.values():
            taking.watch(period, swarm, loads)

    return play(world, market, base, _progress("honest", say), watch), takings


def _row(attack: Attack, share: float, run: Run, taking: Taking, honest: Honest) -> dict[str, Any]:
    fair, takings = honest
    earned, instead = _last(taking.income), _last(takings[attack.servers].income)
    return {
        "name": attack.name,
        "what": ATTACKS[attack.name],
        "earned": earned,
        "honest": instead,
        "gain": (earned - instead) / instead,
        "bound": MOST_DEARER + 2 * share,
        "dearer": _last(run.paid) / _last(fair.paid) - 1,
        "fuller": _last(run.split) - _last(fair.split),
        "coverage": min(run.coverage[attack.begins :]),
        "moved": _last(run.moved) - _last(fair.moved),
    }


def _share(world: World, attack: Attack) -> float:
    """Of the capacity of all servers there are."""
    capacity = world.servers.capacity
    return float(capacity[list(attack.servers)].sum() / capacity[: world.scenario.servers].sum())


def _last(values: list[float]) -> float:
    return float(np.nanmean(np.array(values)[-(len(values) * 2 // 5) :]))


def _progress(name: str, say: Callable[[str], None]) -> Callable[[int], None]:
    return lambda period: say(f"{name}: period {period + 1}")


def show_attacks(told: dict[str, Any]) -> None:
    print(f"\n{told['scenario']}: {told['servers']} servers, seed {told['seed']}, attacked")
    print(
        f"{'':<17}{'earned':>10}{'honest':>10}{'gain':>9}{'paid':>9}"
        f"{'max load':>10}{'coverage':>10}{'MB moved':>10}"
    )
    for row in told["attacks"]:
        print(
            f"{row['name']:<17}{row['earned'] / 1e6:>10.2f}{row['honest'] / 1e6:>10.2f}{row['gain']:>+9.2%}"
            f"{row['dearer']:>+9.2%}{row['fuller']:>+10.3f}{row['coverage']:>10.2%}"
            f"{row['moved'] / 1e6:>+10.2f}   {row['what']}"
        )
    print("(credits a period; the others are changes against the same servers honest)")
    for each in told["must_hold"]:
        if not each["met"]:
            print(f"  {each['name']}: {each['figure']:+.4f}, must be {each['target']}  MISSED")
