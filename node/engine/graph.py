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
    view_source: int
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
        view_source=tensor.view_src or 0,
        view_offset=tensor.view_offs,
        name=name_of(address),
    )


def sources(address: int) -> tuple[int, ...]:
    """Operand addresses of a node; ggml fills them from the front."""
    found = _SOURCES.unpack(C.string_at(address + SRC_OFFSET, _SOURCES.size))
    return tuple(source for source in found if source)


def name_of(address: int) -> str:
    return C.string_at(address + NAME_OFFSET).decode(errors="replace")


def op_cell(address: int) -> C.c_int:
    """The node's `op` field itself: assigning `.value` changes what ggml will do there."""
    return C.c_int.from_address(address + OP_OFFSET)


def read_array(address: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A host tensor's elements, copied: shape is `ne` reversed (outermost first), strides followed."""
    tensor = Tensor.from_address(address)
    ne, nb = tuple(tensor.ne), tuple(tensor.nb)
    item = np.dtype(dtype).itemsize
    if 0 in ne:
        return np.empty(ne[::-1], dtype)
    span = sum((count - 1) * stride for count, stride in zip(ne, nb, strict=True)) + item
    raw = (C.c_uint8 * span).from_address(tensor.data)
    return np.ndarray(ne[::-1], dtype, raw, 0, nb[::-1]).copy()
