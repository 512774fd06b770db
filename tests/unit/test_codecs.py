"""Codecs: exact bytes, rounding, saturation, sizes."""

from __future__ import annotations

import numpy as np
import pytest

from routing.errors import LocalError
from routing.wire.codecs import (
    Codec,
    CodecSizeError,
    Float32Array,
    blocks_per_row,
    decode,
    encode,
    finite,
    nbytes,
)


def matrix(*rows: list[float]) -> Float32Array:
    return np.array(rows, dtype=np.float32)


def int8_by_hand(values: Float32Array) -> bytes:
    """docs/protocol.md, "Codecs", one value at a time."""
    scales, quants = [], []
    for row in values:
        for start in range(0, len(row), 32):
            block = row[start : start + 32]
            scale = np.float16(min(np.abs(block).max() / np.float32(127), np.float32(65504)))
            scales.append(scale)
            for value in block:
                quotient = value / np.float32(scale) if scale else np.float32(0)
                quants.append(max(-127, min(127, round(float(quotient)))))
    return np.array(scales, dtype="<f2").tobytes() + np.array(quants, dtype=np.int8).tobytes()


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("shape", [(1, 1), (1, 31), (2, 32), (3, 33), (5, 100), (1, 3072)])
def test_size_is_exact_and_values_come_back(codec: Codec, shape: tuple[int, int]) -> None:
    values = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    encoded = encode(codec, values)
    assert len(encoded) == nbytes(codec, *shape)
    decoded = decode(codec, encoded, *shape)
    assert decoded.dtype == np.float32 and decoded.shape == shape
    tolerance = {Codec.F32: 0.0, Codec.F16: 2.0**-11 * 4, Codec.INT8: np.abs(values).max() / 127 * 0.51}[
        codec
    ]
    assert np.abs(decoded - values).max() <= tolerance


@pytest.mark.parametrize("shape", [(1, 1), (2, 31), (2, 32), (3, 33), (4, 96), (2, 100)])
@pytest.mark.parametrize("magnitude", [1e-9, 1e-5, 1.0, 3e4, 1e7])
def test_int8_matches_the_definition_value_by_value(shape: tuple[int, int], magnitude: float) -> None:
    values = (np.random.default_rng(2).standard_normal(shape) * magnitude).astype(np.float32)
    assert encode(Codec.INT8, values) == int8_by_hand(values)


def test_int8_rounds_half_to_even_and_never_sends_minus_128() -> None:
    values = matrix([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -127.0])
    encoded = encode(Codec.INT8, values)
    assert encoded[:2] == np.float16(1).tobytes()
    assert list(np.frombuffer(encoded[2:], np.int8)) == [127, 0, 2, 2, 0, -2, -127]
    random = np.random.default_rng(3).standard_normal((50, 320)).astype(np.float32)
    assert np.frombuffer(encode(Codec.INT8, random)[2 * 500 :], np.int8).min() == -127


def test_int8_gives_a_partial_last_block_its_own_scale() -> None:
    values = np.ones((2, 33), dtype=np.float32)
    values[:, 32] = 1000
    encoded = encode(Codec.INT8, values)
    scales = np.frombuffer(encoded, "<f2", count=4)
    assert scales[0] < 0.01 and scales[1] > 7
    assert decode(Codec.INT8, encoded, 2, 33)[0, 0] == pytest.approx(1, rel=1e-3)


def test_zeros_and_values_too_small_for_a_scale_become_zeros() -> None:
    tiny = np.full((1, 40), 1e-9, dtype=np.float32)
    for values in (np.zeros((2, 40), np.float32), tiny):
        assert not decode(Codec.INT8, encode(Codec.INT8, values), *values.shape).any()


def test_f16_rounds_half_to_even_and_saturates_finite_values() -> None:
    values = matrix([2049.0, 2051.0, 65504.0, 65519.0, 65520.0, 1e38, -1e38])
    assert decode(Codec.F16, encode(Codec.F16, values), 1, 7).tolist() == [
        [2048, 2052, 65504, 65504, 65504, 65504, -65504]
    ]


def test_int8_scale_saturates() -> None:
    values = matrix([1e38, 1.0, -1e38])
    decoded = decode(Codec.INT8, encode(Codec.INT8, values), 1, 3)
    assert decoded.tolist() == [[127 * 65504.0, 0, -127 * 65504.0]]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 40])
def test_values_that_are_not_finite_arrive_so(codec: Codec, bad: float, place: int) -> None:
    values = np.zeros((2, 41), dtype=np.float32)
    values[1, place] = bad
    decoded = decode(codec, encode(codec, values), 2, 41)
    assert not finite(decoded)
    assert finite(decoded[0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_int8_block_that_is_not_finite_has_a_nan_scale_and_ones(bad: float) -> None:
    values = np.zeros((1, 64), dtype=np.float32)
    values[0, 5] = bad
    encoded = encode(Codec.INT8, values)
    scales = np.frombuffer(encoded, "<f2", count=2)
    assert np.isnan(scales[0]) and scales[1] == 0
    assert list(np.frombuffer(encoded[4:], np.int8)) == [1] * 32 + [0] * 32


@pytest.mark.parametrize("scale", [np.inf, -np.inf, np.nan])
def test_a_hostile_int8_scale_is_seen(scale: float) -> None:
    encoded = np.float16(scale).tobytes() + bytes(32)
    assert not finite(decode(Codec.INT8, encoded, 1, 32))


@pytest.mark.parametrize("codec", list(Codec))
def test_a_row_does_not_depend_on_its_neighbours(codec: Codec) -> None:
    values = np.random.default_rng(4).standard_normal((7, 70)).astype(np.float32)
    together = decode(codec, encode(codec, values), 7, 70)
    for row in range(7):
        alone = decode(codec, encode(codec, values[row : row + 1]), 1, 70)
        assert alone.tobytes() == together[row].tobytes()


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("change", [-1, 1])
def test_a_payload_of_another_size_is_refused(codec: Codec, change: int) -> None:
    size = nbytes(codec, 2, 40) + change
    with pytest.raises(
        CodecSizeError, match=rf"payload of {size} bytes where \[2, 40\] takes {size - change}"
    ):
        decode(codec, bytes(size), 2, 40)


def test_a_huge_claim_is_refused_without_allocating() -> None:
    with pytest.raises(CodecSizeError):
        decode(Codec.F32, b"", 2**40, 2**40)


def test_f32_is_a_read_only_view() -> None:
    buffer = bytearray(encode(Codec.F32, matrix([1.0, 2.0])))
    view = decode(Codec.F32, buffer, 1, 2)
    assert np.shares_memory(view, np.frombuffer(buffer, np.uint8))
    with pytest.raises(ValueError):
        view[0, 0] = 3


def test_only_matrices_are_encoded_and_strides_do_not_matter() -> None:
    with pytest.raises(LocalError, match="matrix"):
        encode(Codec.F32, np.zeros(3, np.float32))
    values = np.random.default_rng(5).standard_normal((6, 80)).astype(np.float32)
    for codec in Codec:
        assert encode(codec, values[::2, ::2]) == encode(codec, values[::2, ::2].copy())


def test_blocks_per_row() -> None:
    assert [blocks_per_row(width) for width in (1, 32, 33, 3072)] == [1, 1, 2, 96]
