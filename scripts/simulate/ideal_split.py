"""How well the demand could be split over the replicas there are, if one hand did it. Pure."""

from __future__ import annotations

import numpy as np

from scripts.simulate.traffic import Entries
from scripts.simulate.world import FloatArray

MOST_WEIGHT = 60.0
"""Logarithm: servers further apart than that do not share a cell."""


def split_best(entries: Entries, demand: FloatArray, capacity: FloatArray, turns: int = 300) -> FloatArray:
    """[servers]: load over capacity if a central hand split each cell's demand so that the most is smallest.

    Multiplicative weights: a cell's demand is split in proportion to its holders' weights, and a server's
    weight falls as its use is above the mean, and rises as it is below (proportional allocation).
    """
    weight = np.log(capacity / capacity.max())
    there = np.bincount(entries.server, minlength=len(capacity)) > 0
    mean, asked = demand.sum() / capacity[there].sum(), demand[entries.cell]
    best: FloatArray | None = None
    for turn in range(turns):
        shares = entries.shares(np.exp(weight)[entries.server])
        use = np.bincount(entries.server, shares * asked, len(capacity)) / capacity
        if best is None or use.max() < best.max():
            best = use
        step = np.clip(np.log(mean / np.maximum(use, 1e-9)), -1.0, 1.0)
        weight = np.clip(weight + step * 0.5 / (1 + turn / 50), -MOST_WEIGHT, MOST_WEIGHT)
    assert best is not None
    return best
