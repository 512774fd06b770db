"""Base prices of a model's cells, from its manifest."""

from __future__ import annotations

import math

from market.price import cell_price
from node.model.manifest import ExpertCall, Manifest


def base_prices(manifest: Manifest) -> dict[int, int]:
    """Micro-credits a pair, by layer. A layer's further calls are in it, by their share for each of its
    cells."""
    first = {call.layer: call for call in manifest.calls if call.index == 0}
    prices = {}
    for layer, call in first.items():
        n_bytes, multiply_adds = call.bytes_per_cell, _multiply_adds(call)
        for other in manifest.calls:
            if other.layer == layer and other.index:
                n_bytes += other.bytes_per_cell * other.n_experts // call.n_experts
                multiply_adds += _multiply_adds(other) * other.n_experts // call.n_experts
        prices[layer] = cell_price(n_bytes, multiply_adds)
    return prices


def _multiply_adds(call: ExpertCall) -> int:
    """Of one row through one expert: each weight of a matrix once."""
    return sum(math.prod(tensor.shape) for tensor in call.tensors if len(tensor.shape) == 2)
