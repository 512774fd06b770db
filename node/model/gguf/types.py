"""The types GGUF knows, for tensors and for metadata values, and its limits.

Sources: the GGUF specification (ggml/docs/gguf.md) and `ggml_blck_size`/`ggml_type_size` of
llama.cpp b11549. Shapes are in ggml order everywhere: ne[0], the contiguous dimension, first.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # version 1 has 32-bit lengths; no MoE model was ever published in it
DEFAULT_ALIGNMENT = 32  # bytes, when general.alignment is absent
MIN_ALIGNMENT = 8  # the specification asks for a multiple of 8
MAX_ALIGNMENT = 1 << 16  # the largest page size in use; more would only waste space
ALIGNMENT_KEY = "general.alignment"

MAX_DIMS = 4  # GGML_MAX_DIMS
MAX_TENSOR_NAME_BYTES = 63  # GGML_MAX_NAME is 64, with the closing zero
MAX_KEY_BYTES = 65535  # the specification's limit
MAX_ELEMENTS = (1 << 63) - 1  # ggml counts elements in an int64


@dataclass(frozen=True, slots=True)
class TensorType:
    """A ggml tensor type: `block_bytes` bytes hold `block_size` elements of a row."""

    id: int
    name: str
    block_size: int
    block_bytes: int


# Ids 4, 5, 31-33 and 36-38 were removed from ggml. Q8_1 is 36 bytes in ggml (the `gguf` Python
# package says 40); it only occurs inside kernels.
TENSOR_TYPES: dict[int, TensorType] = {
    row[0]: TensorType(*row)
    for row in (
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34),
        (9, "Q8_1", 32, 36),
        (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176),
        (14, "Q6_K", 256, 210),
        (15, "Q8_K", 256, 292),
        (16, "IQ2_XXS", 256, 66),
        (17, "IQ2_XS", 256, 74),
        (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18),
        (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82),
        (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56),
        (30, "BF16", 1, 2),
        (34, "TQ1_0", 256, 54),
        (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17),
        (40, "NVFP4", 64, 36),
        (41, "Q1_0", 128, 18),
        (42, "Q2_0", 64, 18),
    )
}
TYPE_BY_NAME: dict[str, TensorType] = {kind.name: kind for kind in TENSOR_TYPES.values()}


def tensor_bytes(shape: Sequence[int], kind: TensorType) -> int:
    """Bytes of a tensor of `shape` (ggml order), as `ggml_nbytes` of a contiguous tensor.

    Raises:
        ValueError: the shape is not one ggml can hold; the text says why.
    """
    if not 1 <= len(shape) <= MAX_DIMS:
        raise ValueError(f"{len(shape)} dimensions (1 to {MAX_DIMS} are possible)")
    elements = 1
    for size in shape:
        if size < 1:
            raise ValueError(f"a dimension of {size}")
        elements *= size
        if elements > MAX_ELEMENTS:
            raise ValueError("more than 2^63 elements")
    if shape[0] % kind.block_size:
        raise ValueError(
            f"rows of {shape[0]} elements, no multiple of {kind.name}'s blocks of {kind.block_size}"
        )
    return elements // kind.block_size * kind.block_bytes


class ValueType(enum.IntEnum):
    """The types a metadata value can have."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


# numpy's name of each fixed-size type on disk (little endian)
VALUE_DTYPES: dict[ValueType, str] = {
    ValueType.UINT8: "<u1",
    ValueType.INT8: "<i1",
    ValueType.UINT16: "<u2",
    ValueType.INT16: "<i2",
    ValueType.UINT32: "<u4",
    ValueType.INT32: "<i4",
    ValueType.FLOAT32: "<f4",
    ValueType.BOOL: "|b1",
    ValueType.UINT64: "<u8",
    ValueType.INT64: "<i8",
    ValueType.FLOAT64: "<f8",
}
# how a single number of each type is packed
SCALARS: dict[ValueType, struct.Struct] = {
    ValueType.UINT8: struct.Struct("<B"),
    ValueType.INT8: struct.Struct("<b"),
    ValueType.UINT16: struct.Struct("<H"),
    ValueType.INT16: struct.Struct("<h"),
    ValueType.UINT32: struct.Struct("<I"),
    ValueType.INT32: struct.Struct("<i"),
    ValueType.FLOAT32: struct.Struct("<f"),
    ValueType.UINT64: struct.Struct("<Q"),
    ValueType.INT64: struct.Struct("<q"),
    ValueType.FLOAT64: struct.Struct("<d"),
}
INTEGER_TYPES = frozenset(
    (
        ValueType.UINT8,
        ValueType.INT8,
        ValueType.UINT16,
        ValueType.INT16,
        ValueType.UINT32,
        ValueType.INT32,
        ValueType.UINT64,
        ValueType.INT64,
    )
)
