"""The same experts by other code, and other experts that look like them.

`Repacked`: the wheel's own second set of kernels (weights repacked, rows in groups of four or eight), which
adds in
another order: what an honest server of another kind gives. `requantised`: the experts in a lower precision,
as a server holds them that saves memory by it.
"""

from __future__ import annotations

import ctypes as C
from dataclasses import dataclass, field
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from node.engine.kernels import Kernels
from node.engine.library import Library
from node.engine.structs import Tensor
from node.model.held import HeldExperts, HeldTensor

ALIGNMENT = 64
REPACKED_TYPES = {2, 12}  # Q4_0 and Q4_K: those that this build repacks on AVX2
REPACK_TYPE = "_Z35ggml_backend_cpu_repack_buffer_typev"  # exported under its C++ name


def aligned(data: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The bytes in memory that ggml may read from."""
    raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
    memory = np.zeros(raw.nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    memory[start : start + raw.nbytes] = raw
    return memory[start : start + raw.nbytes]


def values(tensor: HeldTensor) -> npt.NDArray[np.float32]:
    """What a held tensor's bytes stand for."""
    kind = gguf.GGMLQuantizationType(tensor.type)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    shape = tensor.ne[::-1]
    raw = np.frombuffer(tensor.data.tobytes(), np.uint8).reshape(*shape[:-1], shape[-1] // block * size)
    return gguf.quants.dequantize(raw, kind).astype(np.float32).reshape(shape)


def quantised(library: Library, weights: npt.NDArray[np.float32], name: str) -> npt.NDArray[np.uint8]:
    """Weights in another type, by ggml's own quantisation."""
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    width = weights.shape[-1]
    rows = weights.size // width
    packed = np.zeros(rows * (width // block) * size, np.uint8)
    importance = np.ones(width, np.float32)
    function = library._handle.ggml_quantize_chunk
    function.restype = C.c_size_t
    function.argtypes = [C.c_int, C.c_void_p, C.c_void_p, C.c_int64, C.c_int64, C.c_int64, C.c_void_p]
    weights = np.ascontiguousarray(weights, np.float32)
    function(int(kind), weights.ctypes.data, packed.ctypes.data, 0, rows, width, importance.ctypes.data)
    return packed


def requantised(library: Library, held: HeldExperts, name: str) -> HeldExperts:
    """The same experts with their matrices in another type."""
    tensors = dict(held.tensors)
    for role, tensor in held.tensors.items():
        if role.endswith(".weight"):
            packed = quantised(library, values(tensor), name)
            tensors[role] = HeldTensor(int(gguf.GGMLQuantizationType[name]), tensor.ne, aligned(packed))
    return HeldExperts(held.recipe, tensors, held.first, held.n_held, held.n_in, held.n_out)


@dataclass
class _RepackingLibrary:
    """The library, but weights that are given by pointer are copied into repacked buffers."""

    inner: Library
    types: dict[int, int]
    """ggml's type by the address of the weights."""
    moved: dict[int, int] = field(default_factory=dict)
    """Where they are now."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def ggml_backend_cpu_buffer_from_ptr(self, base: int, size: int) -> Any:
        return base, size  # which kind of buffer is known with the tensor

    def ggml_backend_tensor_alloc(self, place: tuple[int, int], tensor: int, source: int) -> int:
        handle = self.inner._handle
        if self.types[source] not in REPACKED_TYPES:
            buffer = self.inner.ggml_backend_cpu_buffer_from_ptr(*place)
            self.moved[source] = source
            return int(self.inner.ggml_backend_tensor_alloc(buffer, tensor, source))
        kind = getattr(handle, REPACK_TYPE)
        kind.restype = C.c_void_p
        buffer = handle.ggml_backend_buft_alloc_buffer(C.c_void_p(kind()), C.c_size_t(place[1] + ALIGNMENT))
        base = handle.ggml_backend_buffer_get_base(C.c_void_p(buffer))
        found = self.inner.ggml_backend_tensor_alloc(buffer, tensor, base)
        size = C.c_size_t(self.inner.ggml_nbytes(tensor))
        handle.ggml_backend_tensor_set(C.c_void_p(tensor), C.c_void_p(source), C.c_size_t(0), size)
        self.moved[source] = Tensor.from_address(tensor).data
        return int(found)

    def ggml_backend_buffer_free(self, place: object) -> None:
        """Left to the end of the process."""


class Repacked:
    """Kernels of one run of experts with repacked weights, as far as their types have such kernels."""

    def __init__(self, library: Library, held: HeldExperts) -> None:
        types = {tensor.address: tensor.type for tensor in held.tensors.values()}
        handle = library._handle
        for name in ("ggml_backend_buft_alloc_buffer", "ggml_backend_buffer_get_base"):
            getattr(handle, name).restype = C.c_void_p
        self._library = _RepackingLibrary(library, types)
        self._kernels = Kernels(self._library, threads=1)  # type: ignore[arg-type]
        self._held = HeldExperts(held.recipe, held.tensors, held.first, held.n_held, held.n_in, held.n_out)
        self._held.__dict__["addresses"] = _Moved(held, self._library)

    def run(
        self,
        x: npt.NDArray[np.float32],
        counts: npt.NDArray[np.uint16],
        experts: npt.NDArray[np.uint16],
        weights: npt.NDArray[np.float32] | None,
    ) -> npt.NDArray[np.float32]:
        """As `Kernels.run`."""
        return self._kernels.run(self._held, x, counts, experts, weights)

    def close(self) -> None:
        self._kernels.close()


class _Moved(dict[str, int]):
    """Where the weights of a role are; known once a graph is built."""

    def __init__(self, held: HeldExperts, library: _RepackingLibrary) -> None:
        super().__init__()
        self._held, self._library = held, library

    def __getitem__(self, role: str) -> int:
        return self._library.moved[self._held.tensors[role].address]
