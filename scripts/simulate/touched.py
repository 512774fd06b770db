"""How many servers a token asks in a layer: the nodes' own choice (routing.dispatch.choice) on drawn tokens.
Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from routing.dispatch.choice import Choice
from routing.dispatch.holders import Holder
from scripts.simulate.world import BoolArray, Draws, FloatArray, IntArray, generator

BACKBONES = 4
"""Backbones that are looked at in each layer; each has its own distance to each server."""

CALLS = 1_536
"""Tokens times layers that are looked at: 8 tokens of each backbone in each of 48 layers."""

MEDIAN_TRIP, TRIP_SPREAD = 0.03, 0.5
"""Seconds there and back between two homes, and the standard deviation of its logarithm."""

TokensOf = Callable[[int, int, int], IntArray]
"""(layer, count, period) -> [count, used] experts."""


def servers_touched(
    held: BoolArray,
    live: BoolArray,
    wait: FloatArray,
    layers: int,
    tokens_of: TokensOf,
    seed: int,
    period: int,
) -> float:
    """Servers asked, a token and layer, on average; cells that nobody holds are passed over.

    Args:
        held: [servers, cells].
        wait: seconds, of each server.
    """
    there = np.flatnonzero(live)
    experts = held.shape[1] // layers
    rng = generator(seed, Draws.TOKENS, period)
    asked = calls = 0
    each = max(1, CALLS // (BACKBONES * layers))
    for layer in range(layers):
        trips = np.exp(rng.normal(np.log(MEDIAN_TRIP), TRIP_SPREAD, (BACKBONES, len(there))))
        part = held[there, layer * experts : (layer + 1) * experts]
        bits = [
            int.from_bytes(row.tobytes(), "little") for row in np.packbits(part, axis=1, bitorder="little")
        ]
        tokens = tokens_of(layer, BACKBONES * each, period)
        for backbone in range(BACKBONES):
            costs = trips[backbone] + wait[there]
            holders = [
                Holder(str(there[i]), bits[i], float(costs[i]))
                for i in np.argsort(costs, kind="stable")
                if bits[i]
            ]
            for token in tokens[backbone * each : (backbone + 1) * each]:
                needed = sum(1 << int(expert) for expert in token)
                asked += len(Choice(holders, needed, None).best())
                calls += 1
    return asked / calls
