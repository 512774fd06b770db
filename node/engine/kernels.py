"""The experts themselves: ggml graphs built from a recipe, run on expert tensors where they lie in memory.

Weights are not copied: a tensor's data pointer is set to the mapped file. One graph serves every layer
of the same recipe, types and shapes (the pointers change, the graph does not), so graphs and their scratch
memory grow with the number of batch shapes in use, not with layers.

Bit for bit the same as llama.cpp's own MUL_MAT_ID for the same rows per expert: callers must not split
the rows that one call sends to one expert.
"""

from __future__ import annotations

import ctypes as C
import math
import threading
from collections import OrderedDict
from typing import Any

import numpy as np
import numpy.typing as npt

from node.engine.expression_graph import GRAPH_NODES, ExpressionGraph
from node.engine.library import EngineError, Library
from node.engine.structs import TYPE_F32, TYPE_I32, InitParams, Tensor
from node.model.held import HeldExperts
from node.model.recipe import roles
from routing.dispatch.combine import add_slots

POINTER_ALIGNMENT = 32  # TENSOR_ALIGNMENT of ggml-cpu: what a buffer's base must be a multiple of
CACHED_GRAPHS = 48  # batch shapes x kinds of layer; a decoding swarm meets a dozen
CACHED_PAIRS = (
    2048  # (token, slot) pairs over all cached graphs, some 30 KB each: bounds their scratch memory
)

_GraphKey = tuple[Any, int, int, bool]


class Kernels:
    """Computes experts on one thread pool; calls from several threads take turns.

    Args:
        threads: of ggml's compute.
    """

    def __init__(self, library: Library, *, threads: int) -> None:
        self._library = library
        self._backend: Any = library.ggml_backend_cpu_init()
        library.ggml_backend_cpu_set_n_threads(self._backend, threads)
        self._graphs: OrderedDict[_GraphKey, _Graph] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def build(self) -> str:
        """The class of everybody whose kernels give the same bits (`Library.build_id`)."""
        return self._library.build_id()

    def run(
        self,
        held: HeldExperts,
        x: npt.NDArray[np.float32],
        counts: npt.NDArray[np.integer[Any]],
        experts: npt.NDArray[np.integer[Any]],
        weights: npt.NDArray[np.float32] | None,
    ) -> npt.NDArray[np.float32]:
        """Routed rows of (row, expert) pairs.

        Args:
            x: [n_rows, n_in], finite.
            counts: [n_rows], how many experts each row goes to; in row order they slice the next two.
            experts: [n_pairs], as numbered in the model.
            weights: [n_pairs], the router's; None if the recipe does not weigh after the experts.

        Returns:
            [n_pairs, n_out], weighted if the recipe weighs.
        """
        n_rows, n_pairs = len(x), len(experts)
        if n_pairs == 0:
            return np.empty((0, held.n_out), np.float32)
        slots = n_pairs // n_rows
        if n_rows * slots != n_pairs or not (counts == slots).all():
            # Uneven rows: one pair a row. The same rows reach each expert, so the bits are the same.
            x, slots = np.repeat(x, counts, axis=0), 1
        x = np.ascontiguousarray(x, np.float32)
        return self._compute(held, x, experts, weights, slots, added=False)

    def routed(
        self,
        held: HeldExperts,
        x: npt.NDArray[np.float32],
        ids: npt.NDArray[np.integer[Any]],
        weights: npt.NDArray[np.float32] | None,
    ) -> npt.NDArray[np.float32]:
        """Routed output of a call whose experts are all held: rows as `run` gives them, added in slot order.

        Args:
            x: [n_tokens, n_in]; [n_tokens * n_used, n_in] if the recipe weighs before the experts.
            ids: [n_tokens, n_used]; weights: the same, or None.

        Returns:
            [n_tokens, n_out].
        """
        n_tokens, n_used = ids.shape
        if n_tokens == 0:
            return np.empty((0, held.n_out), np.float32)
        x = np.ascontiguousarray(x, np.float32)
        if held.recipe.weights == "before":
            rows = self._compute(held, x, ids.reshape(-1), None, 1, added=False)
            return add_slots(rows.reshape(n_tokens, n_used, held.n_out))
        return self._compute(held, x, ids, weights, n_used, added=True)

    def _compute(
        self,
        held: HeldExperts,
        x: npt.NDArray[np.float32],
        experts: npt.NDArray[np.integer[Any]],
        weights: npt.NDArray[np.float32] | None,
        slots: int,
        *,
        added: bool,
    ) -> npt.NDArray[np.float32]:
        if x.shape[1] != held.n_in or experts.size != len(x) * slots:
            raise EngineError(
                f"{len(x)} rows of {x.shape[1]} and {experts.size} ids for experts of {held.n_in} values"
            )
        with self._lock:
            graph = self._graph(held, len(x), slots, added)
            return graph.compute(held, x, experts, weights)

    def _graph(self, held: HeldExperts, n_rows: int, slots: int, added: bool) -> _Graph:
        key = (held.signature, n_rows, slots, added)
        graph = self._graphs.get(key)
        if graph is None:
            graph = _Graph(self._library, self._backend, held, n_rows, slots, added)
            self._graphs[key] = graph
            self._evict(keep=graph)
        else:
            self._graphs.move_to_end(key)
        return graph

    def _evict(self, keep: _Graph) -> None:
        pairs = sum(graph.n_pairs for graph in self._graphs.values())
        while len(self._graphs) > CACHED_GRAPHS or (pairs > CACHED_PAIRS and len(self._graphs) > 1):
            _, oldest = self._graphs.popitem(last=False)
            assert oldest is not keep
            pairs -= oldest.n_pairs
            oldest.close()

    def close(self) -> None:
        with self._lock:
            for graph in self._graphs.values():
                graph.close()
            self._graphs.clear()
            if self._backend:
                self._library.ggml_backend_free(self._backend)
                self._backend = None


class _Graph:
    """One batch shape of one kind of layer."""

    def __init__(
        self, library: Library, backend: Any, held: HeldExperts, n_rows: int, slots: int, added: bool
    ) -> None:
        self.n_pairs = n_rows * slots
        self._library = library
        self._backend = backend
        nodes = GRAPH_NODES + (2 * slots if added else 0)  # a view and an addition a slot
        size = nodes * library.ggml_tensor_overhead() + library.ggml_graph_overhead_custom(nodes, False)
        self._context: Any = library.ggml_init(InitParams(size, None, True))
        self._allocator: Any = None
        self._buffers: list[Any] = []
        try:
            self._build(held, n_rows, slots, added, nodes)
        except BaseException:
            self.close()
            raise

    def _build(self, held: HeldExperts, n_rows: int, slots: int, added: bool, nodes: int) -> None:
        library = self._library
        self._weights: dict[str, Tensor] = {}
        bound: dict[str, int] = {}
        scales = set(held.tensors) & {role for role in roles(held.recipe) if role.endswith(".scale")}
        for role, tensor in held.tensors.items():
            if role in scales:
                continue
            address = self._new(tensor.type, *tensor.ne)
            base = tensor.address // POINTER_ALIGNMENT * POINTER_ALIGNMENT
            buffer = library.ggml_backend_cpu_buffer_from_ptr(base, tensor.data.nbytes + POINTER_ALIGNMENT)
            self._buffers.append(buffer)
            if library.ggml_nbytes(address) != tensor.data.nbytes:
                raise EngineError(
                    f"expert tensor {role} has {tensor.data.nbytes} bytes; its shape says otherwise"
                )
            if library.ggml_backend_tensor_alloc(buffer, address, tensor.address) != 0:
                raise EngineError(f"ggml refuses the memory of expert tensor {role}")
            bound[role] = address
            self._weights[role] = Tensor.from_address(address)
        inputs = {"x": self._new(TYPE_F32, held.n_in, 1, n_rows), "ids": self._new(TYPE_I32, slots, n_rows)}
        if held.recipe.weights == "after":
            inputs["weights"] = self._new(TYPE_F32, 1, slots, n_rows)
        for role in scales:
            inputs[role] = self._new(TYPE_F32, 1, slots, n_rows)
        for address in inputs.values():
            library.ggml_set_input(address)
        expressions = ExpressionGraph(library, self._context, tensors=bound, inputs=inputs)
        output = expressions.build(held.recipe.output)
        found, expected = tuple(Tensor.from_address(output).ne), (held.n_out, slots, n_rows, 1)
        if found != expected:
            raise EngineError(f"the recipe gives {found}, not {expected}")
        if added:
            output = self._added(output)
        library.ggml_set_output(output)
        self._graph: Any = library.ggml_new_graph_custom(self._context, nodes, False)
        library.ggml_build_forward_expand(self._graph, output)
        self._allocator = library.ggml_gallocr_new(library.ggml_backend_cpu_buffer_type())
        if not library.ggml_gallocr_alloc_graph(self._allocator, self._graph):
            raise EngineError(f"no memory for the experts of {n_rows} rows")
        self._x = _elements(inputs.pop("x"), np.float32, n_rows, held.n_in)
        self._ids = _elements(inputs.pop("ids"), np.int32, n_rows, slots)
        self._unsigned_ids = self._ids.view(np.uint32)
        self._factors = {
            name: _elements(address, np.float32, n_rows, slots) for name, address in inputs.items()
        }
        self._output = _elements(output, np.float32, n_rows if added else n_rows * slots, held.n_out)

    def _added(self, rows: int) -> int:
        """Slot 0 + slot 1 + ... of rows [n_out, slots, n_rows], by the views and additions llama.cpp has."""
        tensor = Tensor.from_address(rows)
        n_out, slots, n_rows, _ = tensor.ne
        stride = tensor.nb[2]
        views = [
            self._library.ggml_view_3d(
                self._context, rows, n_out, n_rows, 1, stride, stride * n_rows, slot * tensor.nb[1]
            )
            for slot in range(slots)
        ]
        total: int = views[0] if slots > 1 else rows
        for view in views[1:]:
            total = self._library.ggml_add(self._context, total, view)
        return total

    def compute(
        self,
        held: HeldExperts,
        x: npt.NDArray[np.float32],
        experts: npt.NDArray[np.integer[Any]],
        weights: npt.NDArray[np.float32] | None,
    ) -> npt.NDArray[np.float32]:
        ids = self._ids
        ids[...] = experts.reshape(ids.shape)
        if held.first:
            ids -= held.first
        if int(self._unsigned_ids.max()) >= held.n_held:  # below 0 is far above
            raise EngineError(f"an expert was asked for that is not among {held.n_held} from {held.first}")
        addresses = held.addresses
        for role, tensor in self._weights.items():
            tensor.data = addresses[role]
        self._x[...] = x
        for name, values in self._factors.items():
            if name == "weights":
                if weights is None or weights.size != self.n_pairs:
                    raise EngineError(f"{self.n_pairs} pairs without as many weights")
                values[...] = weights.reshape(values.shape)
            else:
                values[...] = held.tensors[name].data.view(np.float32)[ids]
        if self._library.ggml_backend_graph_compute(self._backend, self._graph) != 0:
            raise EngineError("ggml failed to compute experts")
        return self._output.copy()

    def _new(self, kind: int, *ne: int) -> int:
        address: int = self._library.ggml_new_tensor(self._context, kind, len(ne), (C.c_int64 * len(ne))(*ne))
        return address

    def close(self) -> None:
        library = self._library
        if self._allocator:
            library.ggml_gallocr_free(self._allocator)
            self._allocator = None
        for buffer in self._buffers:
            library.ggml_backend_buffer_free(buffer)
        self._buffers.clear()
        if self._context:
            library.ggml_free(self._context)
            self._context = None


def _elements(address: int, dtype: type[np.generic], *shape: int) -> npt.NDArray[Any]:
    """A contiguous tensor's memory as an array [*shape]; valid while its graph lives."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory: Any = (C.c_uint8 * size).from_address(Tensor.from_address(address).data)
    return np.ndarray(shape, dtype, memory)
