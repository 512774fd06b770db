"""What a pair costs before need is looked at: the base price of a cell, and shares of it. Pure.

A *pair* is one token through one cell (an expert of a layer's first MoE call). Prices are whole micro-credits
a pair. The base follows from the manifest alone, in integers, so everybody who has it comes to the same. All
cells of a layer have the same shapes, and so one base. Pairs of a layer's further calls (grovemoe) cost a
share of it, by weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import overload

import numpy as np
import numpy.typing as npt

from routing.errors import LocalError

PriceArray = npt.NDArray[np.int64]
"""Micro-credits a pair, any shape."""

BasePrices = Mapping[int, int]
"""Base price of each layer's cells."""

BYTES_PER_MICRO_CREDIT = 1_024
"""A token of Qwen3-30B-A3B Q4_K_M passes 384 cells of some 2.8 MB and costs about a credit."""

MULTIPLY_ADDS_PER_BYTE = 2
"""What counts as much as a byte of weights: a weight of 4 bits. A single token waits for bytes to come from
memory, a prompt for the arithmetic; each makes half of the base, so that 8 bits are not twice as dear as
4."""

MAX_BASE = 2**30
"""Micro-credits a pair. A cell of a terabyte: no base is above, and every product below fits 63 bits."""


def cell_price(n_bytes: int, multiply_adds: int) -> int:
    """The base price of a cell, at least 1.

    Args:
        n_bytes: of its tensors.
        multiply_adds: of one row through it.

    Raises:
        LocalError: no cell is like that.
    """
    if n_bytes < 1 or multiply_adds < 0:
        raise LocalError(f"a cell of {n_bytes} bytes and {multiply_adds} multiply-adds has no price")
    return min(max(1, pair_weight(n_bytes, multiply_adds) // (2 * BYTES_PER_MICRO_CREDIT)), MAX_BASE)


def pair_weight(n_bytes: int, multiply_adds: int) -> int:
    """What prices go by, in bytes: arguments as for `cell_price`."""
    return n_bytes + multiply_adds // MULTIPLY_ADDS_PER_BYTE


@overload
def percent_of(base: int, percent: int) -> int: ...
@overload
def percent_of(base: PriceArray, percent: int) -> PriceArray: ...
def percent_of(base: int | PriceArray, percent: int) -> int | PriceArray:
    """So many per cent of a base price, rounded, at least 1: what mode `fixed` asks."""
    share = (base * percent + 50) // 100
    return max(1, share) if isinstance(share, int) else np.maximum(share, 1)
