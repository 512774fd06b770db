"""The router ahead of its turn: where a layer's experts do not need its attention, they can leave before it.

llama.cpp puts the router after attention in every graph, also where both read the same hidden states
(cohere2moe: beside each other; arctic: the experts read the layer's input). So the few nodes that lead to the
experts' inputs are computed twice: a copy of them, in memory of its own, as soon as what they read is there,
and the graph's own when their turn comes. The hook compares the two bit by bit before it uses an answer.

`find` decides, by structure, once per graph: which nodes those are and after which node they can be computed.
It finds none where attention stands between (nearly all models), and then nothing is done.
"""

from __future__ import annotations

import ctypes as C
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from node.engine.graph import NAME_OFFSET, VIEW_OPS, op_cell, operands
from node.engine.hook import Seen
from node.engine.library import EngineError, Library
from node.engine.structs import MAX_SRC, InitParams, Tensor

PRODUCT = "MUL_MAT"
"""What takes time in a layer: without one of them in between nothing would be overlapped."""

LIGHT_OPS = VIEW_OPS | {
    "ADD", "ARGSORT", "CLAMP", "CONT", "DIV", "GET_ROWS", "MUL", PRODUCT, "NORM", "RMS_NORM", "SCALE",
    "SOFT_MAX", "SUM_ROWS", "TOP_K", "UNARY",
}  # fmt: skip
"""What a router is made of. None of them writes anywhere but into its own result."""

MAX_PRODUCTS = 1
"""Matrix products computed twice: the router's own, [n_embd, n_experts]. A second would be a projection of
attention, which costs more than it gains."""

MAX_NODES = 40
"""Nodes computed twice: routers have 10 to 15, those with groups of experts some 30."""

ALIGNMENT = 64
"""Of the copies' memory; what ggml's own buffers have on every CPU."""


@dataclass(frozen=True)
class EarlyNodes:
    """What can be computed early.

    Attributes:
        after: index of the node after which it can be.
        nodes: indices of the nodes, in graph order.
    """

    after: int
    nodes: tuple[int, ...]


def find(nodes: Sequence[Seen], targets: set[int]) -> EarlyNodes | None:
    """The nodes that lead to the targets, if work that they do not need stands before them.

    Args:
        nodes: all since the last hole's result was read, in graph order; the last is the one before this
            hole's first.
        targets: addresses of what the hole reads.
    """
    if not targets <= {node.address for node in nodes}:
        return None
    scanned = _scan(nodes, targets, 0)
    if scanned is None:
        return None
    # The first product that the targets do not need: everything before it may as well be waited for.
    between = set(range(scanned.after + 1, len(nodes))) - set(scanned.nodes)
    work = [index for index in between if nodes[index].op == PRODUCT]
    if not work:
        return None
    found = _scan(nodes, targets, min(work))
    return found if found is not None and found.nodes else None


def _scan(nodes: Sequence[Seen], targets: set[int], start: int) -> EarlyNodes | None:
    """Backwards: what the targets need, down to what is too much, begins the graph or is before `start`."""
    computed = {node.address for node in nodes}
    needed, products = set(targets), 0
    taken: list[int] = []
    for index in range(len(nodes) - 1, -1, -1):
        node = nodes[index]
        if node.address not in needed:
            continue
        products += node.op == PRODUCT
        light = node.op in LIGHT_OPS and products <= MAX_PRODUCTS and len(taken) < MAX_NODES
        if index < start or not light or computed.isdisjoint(node.sources):
            return EarlyNodes(index, tuple(reversed(taken)))
        needed.discard(node.address)  # an older node may have had the address
        needed.update(node.sources)
        taken.append(index)
    return None


class EarlyRouter:
    """Computes copies of nodes on one thread pool; it is made when the first is needed.

    Args:
        threads: of ggml's compute.
    """

    def __init__(self, library: Library, *, threads: int) -> None:
        self.library = library
        self._threads = threads
        self._backend: Any = None

    def compute(self, graph: Any) -> None:
        if self._backend is None:
            self._backend = self.library.ggml_backend_cpu_init()
            self.library.ggml_backend_cpu_set_n_threads(self._backend, self._threads)
        if self.library.ggml_backend_graph_compute(self._backend, graph) != 0:
            raise EngineError("ggml failed to compute a router")

    def close(self) -> None:
        if self._backend is not None:
            self.library.ggml_backend_free(self._backend)
            self._backend = None


class NodeCopies:
    """Copies of nodes of a graph: they read each other's results, and else what the graph's nodes read.

    Args:
        addresses: of the graph's nodes, in its order.
    """

    def __init__(self, router: EarlyRouter, addresses: Sequence[int]) -> None:
        library = self._library = router.library
        self._router = router
        self._copies = {address: Tensor() for address in addresses}
        self._learned = self._identity()
        self._seen: list[bytes] = []
        self._memory: list[Any] = []
        size = library.ggml_graph_overhead_custom(len(addresses), False) + library.ggml_tensor_overhead()
        context = library.ggml_init(InitParams(size, None, True))
        weakref.finalize(self, library.ggml_free, context)
        self._graph: Any = library.ggml_new_graph_custom(context, len(addresses), False)
        for copy in self._copies.values():
            library.ggml_graph_add_node(self._graph, C.addressof(copy))

    def where(self, address: int) -> int:
        """The tensor to read instead of the graph's: its copy, if there is one."""
        copy = self._copies.get(address)
        return address if copy is None else C.addressof(copy)

    def compute(self) -> bool:
        """Compute them; False if the graph's nodes are not what they were, or write elsewhere."""
        seen = [C.string_at(address, NAME_OFFSET) for address in self._copies]
        if seen != self._seen:
            if self._identity() != self._learned or not self._copy():
                return False
            self._seen = seen
        self._router.compute(self._graph)
        return True

    def _identity(self) -> list[tuple[int, bytes]]:
        return [(op_cell(address).value, operands(address)) for address in self._copies]

    def _copy(self) -> bool:
        """Take over the nodes' shapes and where their operands lie; results get memory of their own."""
        self._seen = []
        self._memory.clear()
        for address, copy in self._copies.items():
            C.memmove(C.addressof(copy), address, C.sizeof(copy))
            for i in range(MAX_SRC):
                copy.src[i] = self.where(copy.src[i] or 0) or None
            if copy.view_src is None:
                memory = C.create_string_buffer(self._library.ggml_nbytes(C.addressof(copy)) + ALIGNMENT)
                self._memory.append(memory)
                copy.data = -(-C.addressof(memory) // ALIGNMENT) * ALIGNMENT
            elif copy.view_src in self._copies:
                base = self._copies[copy.view_src]
                copy.view_src = C.addressof(base)
                copy.data = base.data + copy.view_offs
            elif self._library.op_name(copy.op) not in VIEW_OPS:
                return False  # it would write into what the graph still needs
        return True
