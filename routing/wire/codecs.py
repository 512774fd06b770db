"""Wire formats for hidden states: f32, f16 and int8 in blocks of 32 (docs/protocol.md, "Codecs").

Every codec works on a matrix [rows, width] of f32, row by row: a row's bytes do not depend on the
rows beside it. Numbers are little endian.

What the codecs cost in accuracy, as mean 1 - cosine on captured hidden states: f16 2.1e-8,
int8 1.45e-5 (design/llama-hook.md).
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from routing.errors import LocalError, PeerError

Buffer = bytes | bytearray | memoryview
Float32Array = npt.NDArray[np.float32]

INT8_BLOCK = 32
"""Values that share one scale. ggml's Q8_0 uses the same; one outlier channel spoils 31 others, not a row."""

INT8_MAX = 127
"""-128 is never sent, so that a block's range is symmetric."""

F16_MAX = 65504.0
"""The largest finite f16: finite values beyond it are sent as this, never as infinity."""

F16_INFINITY_BITS = 0x7C00
"""Bit pattern of f16 infinity without its sign."""


class Codec(IntEnum):
    """How a matrix of hidden states is put into bytes. The number is the code on the wire."""

    F32 = 1
    F16 = 2
    INT8 = 3


CODEC_NAMES: dict[str, Codec] = {"f32": Codec.F32, "f16": Codec.F16, "int8": Codec.INT8}
"""Names used in configs, on the command line and in holdings."""


class CodecSizeError(PeerError):
    """A payload's length is not what its codec, rows and width ask for."""


def blocks_per_row(width: int) -> int:
    """Number of int8 blocks in a row of `width` values; the last one may be partial."""
    return -(-width // INT8_BLOCK)


def nbytes(codec: Codec, rows: int, width: int) -> int:
    """Exact size in bytes of an encoded matrix [rows, width]."""
    if codec is Codec.F32:
        return rows * width * 4
    if codec is Codec.F16:
        return rows * width * 2
    return rows * (width + 2 * blocks_per_row(width))


def finite(array: npt.NDArray[np.floating]) -> bool:
    """True if no value is NaN or infinite. The receiver of any float from a peer asks this first."""
    return bool(np.isfinite(array).all())


def encode(codec: Codec, array: npt.NDArray[np.floating]) -> bytes:
    """Encode a matrix [rows, width].

    Finite values beyond the format saturate: f16 at +-65504, int8 at +-127 * 65504. Values that are
    not finite stay so (f16), or make their whole block so (int8): the receiver then refuses them.

    Raises:
        LocalError: if `array` is not two-dimensional.
    """
    if array.ndim != 2:
        raise LocalError(f"a codec takes a matrix [rows, width], not {array.ndim} dimensions: reshape it")
    values = np.ascontiguousarray(array, dtype="<f4")
    if codec is Codec.F32:
        return values.tobytes()
    if codec is Codec.F16:
        return _to_f16(values).tobytes()
    return _encode_int8(values)


def decode(codec: Codec, buffer: Buffer, rows: int, width: int) -> Float32Array:
    """Decode a matrix to f32 [rows, width]; for f32 the result is a read-only view of `buffer`.

    Does not look at the values: see `finite`.

    Raises:
        CodecSizeError: if the buffer's length is not exactly `nbytes(codec, rows, width)`.
    """
    claimed = nbytes(codec, rows, width)
    found = memoryview(buffer).nbytes
    if found != claimed:
        raise CodecSizeError(
            f"{codec.name.lower()} payload of {found} bytes where [{rows}, {width}] takes {claimed}: "
            "ask the peer to update"
        )
    if codec is Codec.F32:
        view = np.frombuffer(buffer, dtype="<f4").reshape(rows, width)
        view.flags.writeable = False
        return view
    if codec is Codec.F16:
        return np.frombuffer(buffer, dtype="<f2").astype(np.float32).reshape(rows, width)
    return _decode_int8(buffer, rows, width)


def _to_f16(values: Float32Array) -> npt.NDArray[np.float16]:
    """Round half to even; a finite value that would become infinite saturates."""
    with np.errstate(over="ignore"):
        halves = values.astype("<f2")
    # Seen by its bits: numpy's isinf on f16 costs as much as the conversion.
    infinite = (halves.view("<u2") & 0x7FFF) == F16_INFINITY_BITS
    if infinite.any():
        overflowed = infinite & np.isfinite(values)
        halves[overflowed] = np.copysign(np.float16(F16_MAX), values[overflowed])
    return halves


def _encode_int8(values: Float32Array) -> bytes:
    """All scales (f16 [rows, blocks]), then all values (int8 [rows, width])."""
    rows, width = values.shape
    blocks = blocks_per_row(width)
    padded_width = blocks * INT8_BLOCK
    if padded_width != width:
        padded = np.zeros((rows, padded_width), dtype=np.float32)
        padded[:, :width] = values
        values = padded
    blocked = values.reshape(rows * blocks, INT8_BLOCK)
    starts = np.arange(0, values.size, INT8_BLOCK)
    # reduceat over the flat array takes half the time of max(axis=1) on rows this short.
    largest: Float32Array = np.maximum.reduceat(np.abs(values).reshape(-1), starts)
    scales = _to_f16((largest / np.float32(INT8_MAX)).astype(np.float32, copy=False))
    divisors = scales.astype(np.float32)
    divisors[divisors == 0] = 1  # a block of zeros, or of values too small for the smallest f16 scale
    with np.errstate(invalid="ignore"):
        scaled = blocked / divisors[:, None]
        np.rint(scaled, out=scaled)
        # The f16 scale may have been rounded down or saturated, so the quotient can pass 127.
        np.clip(scaled, -INT8_MAX, INT8_MAX, out=scaled)
        if not np.isfinite(largest).all():
            scaled = _mark_blocks_not_finite(scaled, scales, largest)
    quants = scaled.astype(np.int8).reshape(rows, padded_width)[:, :width]
    return scales.tobytes() + quants.tobytes()


def _mark_blocks_not_finite(
    scaled: Float32Array, scales: npt.NDArray[np.float16], largest: Float32Array
) -> Float32Array:
    """Give blocks with NaN or infinity a NaN scale and ones: int8 itself could not carry the mark."""
    marked = ~np.isfinite(largest)
    scales[marked] = np.nan
    scaled[marked] = 1
    return scaled


def _decode_int8(buffer: Buffer, rows: int, width: int) -> Float32Array:
    blocks = blocks_per_row(width)
    scales = np.frombuffer(buffer, dtype="<f2", count=rows * blocks).astype(np.float32)
    quants = np.frombuffer(buffer, dtype=np.int8, offset=2 * rows * blocks).reshape(rows, width)
    # A hostile scale may be infinite: infinity * 0 is NaN, which `finite` then refuses.
    with np.errstate(invalid="ignore"):
        if width % INT8_BLOCK == 0:
            blocked = quants.reshape(rows * blocks, INT8_BLOCK) * scales[:, None]
            return blocked.reshape(rows, width)
        spread = np.repeat(scales.reshape(rows, blocks), INT8_BLOCK, axis=1)[:, :width]
        return quants * spread
