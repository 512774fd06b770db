"""Base prices of a model's cells, from its manifest."""

from __future__ import annotations

import math

from market.price import cell_price, pair_weight
from node.model.manifest import ExpertCall, Manifest


def base_prices(manifest: Manifest) -> dict[int, int]:
    """Micro-credits a pair of each layer's first call; what further ones cost: node.market.further."""
    return {
        call.layer: cell_price(call.bytes_per_cell, _multiply_adds(call))
        for call in manifest.calls
        if call.index == 0
    }


def weight_of(call: ExpertCall) -> int:
    """What a pair of a call weighs among those of its layer."""
    return pair_weight(call.bytes_per_cell, _multiply_adds(call))


def _multiply_adds(call: ExpertCall) -> int:
    """Of one row through one expert: each weight of a matrix once."""
    return sum(math.prod(tensor.shape) for tensor in call.tensors if len(tensor.shape) == 2)
