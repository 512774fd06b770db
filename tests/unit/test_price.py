"""Base prices: what a cell costs before need is looked at."""

from __future__ import annotations

import numpy as np
import pytest

from market.levels import MAX_LEVEL, OCTAVE, level_of_percent, log2_levels, scaled
from market.price import MAX_BASE, cell_price, percent_of
from routing.errors import LocalError

# One expert of Qwen3-30B-A3B Q4_K_M: gate and up 768 x 2048 in Q4_K, down in Q6_K (half of the layers)
# or Q4_K.
QWEN3_MULTIPLY_ADDS = 3 * 768 * 2048
QWEN3_BYTES = 2 * 768 * 2048 * 144 // 256 + 768 * 2048 * (210 + 144) // 2 // 256


def test_a_token_of_qwen3_costs_about_a_credit() -> None:
    token = 48 * 8 * cell_price(QWEN3_BYTES, QWEN3_MULTIPLY_ADDS)
    assert 900_000 < token < 1_100_000


def test_eight_bits_are_dearer_than_four_but_not_twice() -> None:
    four = cell_price(QWEN3_MULTIPLY_ADDS * 9 // 16, QWEN3_MULTIPLY_ADDS)
    eight = cell_price(QWEN3_MULTIPLY_ADDS * 17 // 16, QWEN3_MULTIPLY_ADDS)
    assert four < eight < 2 * four


def test_the_smallest_and_the_largest_cell() -> None:
    assert cell_price(1, 0) == 1
    assert cell_price(2**60, 2**60) == MAX_BASE


@pytest.mark.parametrize(("n_bytes", "multiply_adds"), [(0, 1), (-1, 1), (1, -1)])
def test_what_is_no_cell_has_no_price(n_bytes: int, multiply_adds: int) -> None:
    with pytest.raises(LocalError, match="has no price"):
        cell_price(n_bytes, multiply_adds)


def test_per_cents_are_rounded_and_never_nothing() -> None:
    assert [percent_of(2_500, percent) for percent in (25, 100, 133, 1_600)] == [625, 2_500, 3_325, 40_000]
    assert percent_of(1, 1) == 1
    assert percent_of(np.array([1, 150, 2_500]), 33).tolist() == [1, 50, 825]


def test_levels_of_powers_of_two_are_whole_octaves() -> None:
    powers = 2 ** np.arange(53)
    assert log2_levels(powers).tolist() == [OCTAVE * power for power in range(53)]
    assert (level_of_percent(25), level_of_percent(100), level_of_percent(1_600)) == (-512, 0, 1_024)


def test_a_level_is_within_a_third_of_a_per_cent_of_its_ratio() -> None:
    values = np.arange(1, 200_000)
    assert np.abs(log2_levels(values) - OCTAVE * np.log2(values)).max() < 1.0
    levels = np.arange(-2 * OCTAVE, 4 * OCTAVE)
    exact = 1_000_000 * 2.0 ** (levels / OCTAVE)
    assert np.abs(scaled(np.full(levels.shape, 1_000_000), levels) / exact - 1).max() < 1e-5


def test_levels_out_of_all_bounds_do_not_wrap() -> None:
    base = np.array([1, 2_500, MAX_BASE, 2**62])
    for level in (-(2**40), -MAX_LEVEL, MAX_LEVEL - 1, 2**40):
        prices = scaled(base, np.full(4, level))
        assert (prices >= 1).all() and (np.diff(prices) >= 0).all()
