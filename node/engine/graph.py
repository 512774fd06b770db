"""Reading nodes of llama.cpp's compute graph from the addresses that `cb_eval` hands out."""

from __future__ import annotations

import ctypes as C
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from node.engine.library import Library
from node.engine.structs import MAX_SRC, Tensor

VIEW_OPS = frozenset(
    {"VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE"}
)  # share their source's bytes, compute nothing

OP_OFFSET = Tensor.op.offset
SRC_OFFSET = Tensor.src.offset
NAME_OFFSET = Tensor.name.offset
_SOURCES = struct.Struct(f"={MAX_SRC}Q")
_OPERANDS_SIZE = _SOURCES.size


@dataclass(frozen=True, slots=True)
class Node:
    """One tensor of a graph, copied out; addresses stay valid only while the graph lives.

    Attributes:
        op: ggml's name of the operation, e.g. "MUL_MAT_ID".
        kind: which function a GLU or UNARY computes, e.g. "SWIGLU"; "" for others.
        op_params: the raw 64 bytes; their meaning is the operation's.
        ne, nb: elements and byte strides per dimension, innermost first.
        sources: addresses of the operands, without gaps.
    """

    address: int
    op: str
    kind: str
    op_params: bytes
    type: int
    ne: tuple[int, int, int, int]
    nb: tuple[int, int, int, int]
    sources: tuple[int, ...]
    view_offset: int
    name: str


def read_node(library: Library, address: int) -> Node:
    tensor = Tensor.from_address(address)
    op = library.op_name(tensor.op)
    return Node(
        address=address,
        op=op,
        kind=library.function_name(op, tensor.op_params[0]),
        op_params=bytes(tensor.op_params),
        type=tensor.type,
        ne=tuple(tensor.ne),
        nb=tuple(tensor.nb),
        sources=sources(address),
        view_offset=tensor.view_offs,
        name=name_of(address),
    )


def operands(address: int) -> bytes:
    """The node's `src` field as it lies in memory: what to compare where only a change matters."""
    return C.string_at(address + SRC_OFFSET, _OPERANDS_SIZE)


def sources(address: int) -> tuple[int, ...]:
    """Operand addresses of a node; ggml fills them from the front."""
    return tuple(source for source in _SOURCES.unpack(operands(address)) if source)


def name_of(address: int) -> str:
    return C.string_at(address + NAME_OFFSET).decode(errors="replace")


def op_cell(address: int) -> C.c_int:
    """The node's `op` field itself: assigning `.value` changes what ggml will do there."""
    return C.c_int.from_address(address + OP_OFFSET)


class LiveTensor:
    """A host tensor's elements where they lie, looked up again only when the tensor has changed.

    A node that llama.cpp uses again, or builds again at the same address, may have another shape or lie
    elsewhere: everything but its name is compared at each use, which is much cheaper than a new array.
    """

    def __init__(self, address: int, dtype: npt.DTypeLike) -> None:
        self.address = address
        self._dtype = np.dtype(dtype)
        self._seen = b""
        self._elements: npt.NDArray[Any] = np.empty(0, dtype)

    def array(self) -> npt.NDArray[Any]:
        """A view, valid until the graph runs on; shape is `ne` reversed, outermost first, strides kept."""
        seen = C.string_at(self.address, NAME_OFFSET)
        if seen != self._seen:
            self._elements = self._map()
            self._seen = seen
        return self._elements

    def _map(self) -> npt.NDArray[Any]:
        tensor = Tensor.from_address(self.address)
        ne, nb = tuple(tensor.ne), tuple(tensor.nb)
        if 0 in ne:
            return np.empty(ne[::-1], self._dtype)
        span = sum((count - 1) * stride for count, stride in zip(ne, nb, strict=True)) + self._dtype.itemsize
        raw = (C.c_uint8 * span).from_address(tensor.data)
        return np.ndarray(ne[::-1], self._dtype, raw, 0, nb[::-1])
