"""Levels: powers of two in fixed point. A level is 256 times the binary logarithm of a ratio. Pure.

The tables are rounded once, here; what is done with them is integer arithmetic, the same on every machine.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from market.price import MAX_BASE, PriceArray

LevelArray = npt.NDArray[np.int64]

OCTAVE = 256
"""Levels of a factor of two; one is 0.27 %."""

MAX_LEVEL = 16 * OCTAVE
"""Either way. Bounds of prices are far within (node.config.shape.MAX_PERCENT is ten octaves)."""

_MANTISSA = 1_024  # steps of the logarithm's table in an octave: finer than a level
_ONE = 16  # bits of a fixed-point 1 in the table of powers

# No entry is near the middle between two integers, so that no mathematics library rounds one differently.
_LOGARITHMS = np.array([round(OCTAVE * math.log2(1 + i / _MANTISSA)) for i in range(_MANTISSA)], np.int64)
_POWERS = np.array([round(2 ** (_ONE + i / OCTAVE)) for i in range(OCTAVE)], np.int64)


def log2_levels(values: LevelArray) -> LevelArray:
    """Levels of whole numbers from 1 to 2^53; never decreasing."""
    mantissa, exponent = np.frexp(values.astype(np.float64))  # exact: value = mantissa * 2^exponent
    place = (mantissa * (2 * _MANTISSA)).astype(np.int64) - _MANTISSA
    levels: LevelArray = (exponent.astype(np.int64) - 1) * OCTAVE + _LOGARITHMS[place]
    return levels


def scaled(base: PriceArray, level: LevelArray) -> PriceArray:
    """A base price times 2^(level / OCTAVE), rounded, at least 1; never decreasing in either."""
    level = np.clip(level, -MAX_LEVEL, MAX_LEVEL - 1)
    shift = _ONE - (level >> 8)  # 1 to 32
    product = np.minimum(base, MAX_BASE) * _POWERS[level & (OCTAVE - 1)]
    rounded: PriceArray = (product + (np.int64(1) << (shift - 1))) >> shift
    return np.maximum(rounded, 1)


def level_of_percent(percent: int) -> int:
    """Level of so many hundredths, at least one."""
    return int(log2_levels(np.array([percent, 100], np.int64)) @ (1, -1))


def level_of_price(base: PriceArray, price: PriceArray) -> LevelArray:
    """How far a price is from its base; both at least 1. A price below 1 counts as 1."""
    return log2_levels(np.maximum(price, 1)) - log2_levels(np.maximum(base, 1))
