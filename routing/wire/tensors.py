"""A list of typed tensors: the body of every message that carries numbers (docs/protocol.md, "Tensors").

Rules
1. The list says everything about its size before the first payload; a size that the buffer does not
   hold is refused before anything is allocated.
2. There is one encoding of a list: paddings and reserved fields are zero, nothing follows the last payload.
3. Payloads begin at a multiple of 8 from the start of the message, so that every dtype can be viewed in
   place when the message itself lies aligned.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from routing.errors import LocalError, PeerError
from routing.wire.codecs import Buffer, Codec, Float32Array, decode, encode, nbytes

ALIGNMENT = 8
"""Bytes; the largest element (i64) fixes it."""

MAX_TENSORS = 64
"""A cut between layers was three tensors at most in 82 traced models, experts take four: far above both."""

MAX_DIMS = 4
"""ggml's GGML_MAX_DIMS."""

_LIST_HEADER = struct.Struct("<HH")
_TENSOR_HEADER = struct.Struct("<BBH")


class TensorError(PeerError):
    """Bytes that are no tensor list."""


class DType(IntEnum):
    """Element type of a tensor, as on the wire. The first three are the codecs of the same number."""

    F32 = 1
    F16 = 2
    INT8_BLOCKS = 3
    U8 = 4
    U16 = 5
    U32 = 6
    I32 = 7
    I64 = 8
    BF16 = 9
    """Reserved: known in size, carried by no message yet."""


_NUMPY: dict[DType, np.dtype[Any]] = {
    DType.F32: np.dtype("<f4"),
    DType.F16: np.dtype("<f2"),
    DType.U8: np.dtype("u1"),
    DType.U16: np.dtype("<u2"),
    DType.U32: np.dtype("<u4"),
    DType.I32: np.dtype("<i4"),
    DType.I64: np.dtype("<i8"),
    DType.BF16: np.dtype("<u2"),
}
_OF_NUMPY: dict[np.dtype[Any], DType] = {
    numpy_type: dtype for dtype, numpy_type in _NUMPY.items() if dtype is not DType.BF16
}
_DTYPES: dict[int, DType] = {int(dtype): dtype for dtype in DType}


@dataclass(frozen=True)
class Tensor:
    """One tensor as it travels.

    Attributes:
        dtype: element type.
        shape: logical dimensions, slowest first (numpy's order), each at least 1.
        data: the payload, exactly `payload_nbytes(dtype, shape)` bytes.
    """

    dtype: DType
    shape: tuple[int, ...]
    data: Buffer

    @classmethod
    def of(cls, array: npt.NDArray[Any]) -> Tensor:
        """A tensor of a numpy array in its own element type; views the array where it is contiguous.

        Raises:
            LocalError: if no dtype on the wire matches.
        """
        dtype = _OF_NUMPY.get(array.dtype.newbyteorder("<"))
        if dtype is None:
            raise LocalError(f"no tensor dtype for numpy {array.dtype}: convert it first")
        return cls(dtype, array.shape, _bytes_of(np.ascontiguousarray(array, dtype=_NUMPY[dtype])))

    @classmethod
    def coded(cls, codec: Codec, matrix: npt.NDArray[np.floating]) -> Tensor:
        """A matrix [rows, width] in one of the codecs; f32 is not copied before the message is joined."""
        rows, width = matrix.shape
        if codec is Codec.F32:
            return cls(DType.F32, (rows, width), _bytes_of(np.ascontiguousarray(matrix, dtype="<f4")))
        return cls(DType(int(codec)), (rows, width), encode(codec, matrix))

    def matrix(self) -> Float32Array:
        """A coded matrix as f32 [rows, width]; a read-only view of the payload if it is f32.

        Raises:
            TensorError: if this is no coded matrix.
        """
        if self.dtype > DType.INT8_BLOCKS or len(self.shape) != 2:
            raise TensorError(
                f"{self.dtype.name} of {len(self.shape)} dimensions where a coded matrix belongs"
            )
        rows, width = self.shape
        return decode(Codec(int(self.dtype)), self.data, rows, width)

    def array(self) -> npt.NDArray[Any]:
        """A plain (not int8-blocks) tensor as a read-only view of the payload.

        Raises:
            TensorError: if the dtype has no plain numpy form.
        """
        numpy_type = _NUMPY.get(self.dtype)
        if numpy_type is None:
            raise TensorError(f"{self.dtype.name} where a plain array belongs")
        view = np.frombuffer(self.data, dtype=numpy_type).reshape(self.shape)
        view.flags.writeable = False
        return view


def payload_nbytes(dtype: DType, shape: Sequence[int]) -> int:
    """Exact payload size in bytes, in Python integers: nothing wraps."""
    if dtype is DType.INT8_BLOCKS:
        return nbytes(Codec.INT8, math.prod(shape[:-1]), shape[-1])
    return math.prod(shape) * _NUMPY[dtype].itemsize


def list_nbytes(tensors: Sequence[tuple[DType, Sequence[int]]], offset: int) -> int:
    """Size in bytes of an encoded list of these types and shapes that begins at `offset` of its message."""
    end = offset + _LIST_HEADER.size + sum(_TENSOR_HEADER.size + 4 * len(shape) for _, shape in tensors)
    for dtype, shape in tensors:
        end = _aligned(end) + payload_nbytes(dtype, shape)
    return end - offset


def encode_tensors(tensors: Sequence[Tensor], offset: int) -> list[Buffer]:
    """Encode a list that begins at `offset` of its message, as buffers to be joined.

    Raises:
        LocalError: if there are too many tensors, dimensions out of range, or a payload of the wrong size.
    """
    if not 1 <= len(tensors) <= MAX_TENSORS:
        raise LocalError(f"{len(tensors)} tensors in a message; 1 to {MAX_TENSORS} can travel")
    head = bytearray(_LIST_HEADER.pack(len(tensors), 0))
    for tensor in tensors:
        if not 1 <= len(tensor.shape) <= MAX_DIMS or not all(1 <= dim < 2**32 for dim in tensor.shape):
            raise LocalError(
                f"a tensor of shape {tensor.shape} can't travel: 1 to {MAX_DIMS} dimensions from 1 up"
            )
        if memoryview(tensor.data).nbytes != payload_nbytes(tensor.dtype, tensor.shape):
            raise LocalError(f"a {tensor.dtype.name} tensor's payload does not fit its shape {tensor.shape}")
        head += _TENSOR_HEADER.pack(tensor.dtype, len(tensor.shape), 0)
        head += struct.pack(f"<{len(tensor.shape)}I", *tensor.shape)
    parts: list[Buffer] = [bytes(head)]
    end = offset + len(head)
    for tensor in tensors:
        padding = _aligned(end) - end
        if padding:
            parts.append(bytes(padding))
        parts.append(tensor.data)
        end += padding + memoryview(tensor.data).nbytes
    return parts


def decode_tensors(buffer: memoryview, offset: int) -> list[Tensor]:
    """Decode the list that fills `buffer` from `offset` to its end; payloads are views of `buffer`.

    Raises:
        TensorError: if the bytes are anything else.
    """
    shapes, end = _read_descriptors(buffer, offset)
    tensors = []
    for number, (dtype, shape) in enumerate(shapes):
        start = _aligned(end)
        size = payload_nbytes(dtype, shape)
        if start + size > len(buffer):
            left = max(0, len(buffer) - start)
            raise TensorError(f"tensor {number} claims {size} bytes where {left} are left of the message")
        if any(buffer[end:start]):
            raise TensorError(f"the padding before tensor {number} is not zero")
        end = start + size
        tensors.append(Tensor(dtype, shape, buffer[start:end]))
    if end != len(buffer):
        raise TensorError(f"{len(buffer) - end} bytes follow the last tensor")
    return tensors


def _read_descriptors(buffer: memoryview, offset: int) -> tuple[list[tuple[DType, tuple[int, ...]]], int]:
    """Dtype and shape of each tensor, and where the descriptors end."""
    end = offset + _LIST_HEADER.size
    if end > len(buffer):
        raise TensorError("the message ends before its tensor list")
    count, reserved = _LIST_HEADER.unpack_from(buffer, offset)
    if not 1 <= count <= MAX_TENSORS:
        raise TensorError(f"a list of {count} tensors; 1 to {MAX_TENSORS} are allowed")
    if reserved:
        raise TensorError(f"the tensor list's reserved field is {reserved}, not 0")
    shapes = []
    for number in range(count):
        if end + _TENSOR_HEADER.size > len(buffer):
            raise TensorError(f"the message ends in the descriptor of tensor {number}")
        code, n_dims, reserved = _TENSOR_HEADER.unpack_from(buffer, end)
        end += _TENSOR_HEADER.size
        dtype = _DTYPES.get(code)
        if dtype is None:
            raise TensorError(f"tensor {number} has the unknown dtype {code}")
        if not 1 <= n_dims <= MAX_DIMS:
            raise TensorError(f"tensor {number} has {n_dims} dimensions; 1 to {MAX_DIMS} are allowed")
        if reserved:
            raise TensorError(f"the reserved field of tensor {number} is {reserved}, not 0")
        if end + 4 * n_dims > len(buffer):
            raise TensorError(f"the message ends in the dimensions of tensor {number}")
        shape = struct.unpack_from(f"<{n_dims}I", buffer, end)
        end += 4 * n_dims
        if 0 in shape:
            raise TensorError(f"tensor {number} has an empty dimension: {list(shape)}")
        shapes.append((dtype, shape))
    return shapes, end


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT
