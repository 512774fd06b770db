"""Who is there in each period: the same for every strategy. Pure."""

from __future__ import annotations

import numpy as np

from scripts.simulate.world import LEAVING, VANISHING, BoolArray, Draws, Scenario, generator

BACK_AFTER = 15
"""Periods after which half of those that vanished at once are back, with the cells they had in their
files."""


def who_is_there(scenario: Scenario, n_servers: int, seed: int) -> BoolArray:
    """[periods, servers]: servers that are live throughout a period."""
    live = np.zeros((scenario.periods, n_servers), dtype=np.bool_)
    now = np.arange(n_servers) < scenario.servers
    next_new = scenario.servers
    vanished = np.zeros(0, dtype=np.int64)
    for period in range(scenario.periods):
        rng = generator(seed, Draws.EVENTS, period)
        if period > scenario.calm:
            changes = LEAVING * now.sum()
            leaving = min(int(rng.poisson(changes)), int(now.sum()) - 1)
            now[rng.choice(np.flatnonzero(now), leaving, replace=False)] = False
            coming = min(int(rng.poisson(changes)), n_servers - next_new)
            now[next_new : next_new + coming] = True
            next_new += coming
        if scenario.vanish and period == scenario.vanish:
            there = np.flatnonzero(now)
            vanished = rng.choice(there, round(VANISHING * len(there)), replace=False)
            now[vanished] = False
        if scenario.vanish and period == scenario.vanish + BACK_AFTER:
            now[vanished[::2]] = True
        live[period] = now
    return live
