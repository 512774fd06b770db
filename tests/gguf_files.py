"""GGUF files for tests: right ones by the writer, wrong ones by hand; and what refusing them costs."""

from __future__ import annotations

import math
import struct
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from node.model.gguf.types import TYPE_BY_NAME, ValueType, tensor_bytes
from node.model.gguf.values import GGUFValue
from node.model.gguf.writer import TensorToWrite, write_gguf
from routing.errors import LocalError

DEMO = Path(__file__).parent.parent / "node" / "demo" / "tiny-qwen2moe-12e2-shared.Q4_K_M.gguf"
SHARED_MODELS = Path(__file__).parent.parent.parent / "shared" / "models"

MAX_SECONDS = 0.1  # what a broken file may cost (issue 2): CPU time
MAX_BYTES = 32 << 20  # and memory

F32, F16 = TYPE_BY_NAME["F32"], TYPE_BY_NAME["F16"]


def text(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def key(name: bytes, kind: int, payload: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + payload


def array(kind: int, count: int, payload: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + payload


def info(name: bytes, shape: Sequence[int], kind: int, offset: int, n_dims: int | None = None) -> bytes:
    dims = len(shape) if n_dims is None else n_dims
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", dims, *shape, kind, offset)


def raw_file(
    keys: Sequence[bytes] = (),
    infos: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A file of these entries; the counts may lie."""
    n_tensors = len(infos) if n_tensors is None else n_tensors
    n_keys = len(keys) if n_keys is None else n_keys
    head = b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_keys) + b"".join([*keys, *infos])
    return head + bytes(-len(head) % alignment) + data


TRIES = 5
"""Of which the quickest counts: a busy machine, or the garbage of other tests, takes time that is not the
action's."""


def refusal(action: Callable[[], object], max_seconds: float = MAX_SECONDS) -> str:
    """The text of the LocalError that `action` raises: one line, cheap in time and in memory."""
    seconds = math.inf
    for _ in range(TRIES):
        start = time.thread_time()
        with pytest.raises(LocalError):
            action()
        seconds = min(seconds, time.thread_time() - start)
        if seconds < max_seconds:
            break
    tracemalloc.start()
    try:
        with pytest.raises(LocalError) as caught:
            action()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert seconds < max_seconds, f"{seconds:.3f} s of CPU time"
    assert peak < MAX_BYTES, f"{peak} bytes of memory"
    message = str(caught.value)
    assert "\n" not in message
    return message


def write_model(
    path: Path,
    shapes: Mapping[str, Sequence[int]],
    numbers: Mapping[str, int | Sequence[int]],
    architecture: str = "test",
) -> Path:
    """A model of seeded tensors (F32, stacks in F16); `numbers` are keys below the architecture's name."""
    metadata = {"general.architecture": GGUFValue.string(architecture)}
    for name, value in numbers.items():
        metadata[f"{architecture}.{name}"] = (
            GGUFValue.uint32(value) if isinstance(value, int) else GGUFValue.array(ValueType.UINT32, value)
        )
    rng = np.random.default_rng(7)
    tensors = []
    for name, shape in shapes.items():
        kind = F16 if len(shape) == 3 else F32
        tensors.append(TensorToWrite(name, tuple(shape), kind, rng.bytes(tensor_bytes(shape, kind))))
    write_gguf(path, metadata, tensors)
    return path


def moe_layer(
    layer: int, width: int, *, n_embd: int = 8, experts: int = 6, group: str = "exps"
) -> dict[str, tuple[int, ...]]:
    """Shapes of one layer's routed experts."""
    prefix = f"blk.{layer}.ffn_"
    return {
        f"{prefix}gate_{group}.weight": (n_embd, width, experts),
        f"{prefix}up_{group}.weight": (n_embd, width, experts),
        f"{prefix}down_{group}.weight": (width, n_embd, experts),
    }
