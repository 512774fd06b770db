"""Expert kernels against the memory they read: one token through all used experts of a layer.

`kernels` is the time of `Kernels.run` for one token, experts and layers taking turns until all have been
read, so that weights come from memory and not from a cache. `read` is the time of reading the very same
bytes, expert by expert, on one thread: numpy's sum of 64-bit integers, which keeps up with the memory (a
copy into a small buffer is slower and given for comparison). `cached` is one call repeated: what computing
alone takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from node.engine.kernels import Kernels
from node.engine.library import Library
from node.model.held import HeldExperts

COPY_VALUES = 1 << 15  # 256 KB: stays in a core's own cache
SEED = 7


@dataclass(frozen=True)
class KernelSpeed:
    """Seconds of one call (one token, one layer) unless said otherwise.

    Attributes:
        n_bytes: weights one call reads.
        ratio: kernels over read, median of the rounds' ratios.
        read_rate, copy_rate: bytes a second.
    """

    threads: int
    n_bytes: int
    kernels: float
    cached: float
    read: float
    ratio: float
    read_rate: float
    copy_rate: float


def measure_kernels(
    library: Library, layers: Sequence[HeldExperts], *, used: int, threads: int, rounds: int
) -> KernelSpeed:
    """Time one token at a time.

    Args:
        layers: all experts of each layer.
        used: experts of a token.
    """
    kernels = Kernels(library, threads=threads)
    n_experts = layers[0].n_held
    # Experts of one token lie apart, as a router's choice does.
    groups = n_experts // used
    chosen = [np.arange(used) * groups + group for group in range(groups)]
    work = [(held, experts) for experts in chosen for held in layers]
    x = np.random.default_rng(SEED).standard_normal((1, layers[0].n_in), np.float32)
    weights = np.full(used, 1 / used, np.float32)
    counts = np.array([used])

    def compute(held: HeldExperts, experts: np.ndarray) -> None:
        kernels.run(held, x, counts, experts, weights if held.recipe.weights == "after" else None)

    buffer = np.empty(COPY_VALUES, np.uint64)

    def add(held: HeldExperts, experts: np.ndarray) -> None:
        for piece in _pieces(held, experts):
            piece.sum()

    def copy(held: HeldExperts, experts: np.ndarray) -> None:
        for piece in _pieces(held, experts):
            for start in range(0, len(piece), COPY_VALUES):
                part = piece[start : start + COPY_VALUES]
                np.copyto(buffer[: len(part)], part)

    try:
        for function in (compute, add):  # pages are mapped, graphs are built
            _mean(function, work)
        seconds: dict[str, list[float]] = {"kernels": [], "read": [], "copy": [], "cached": []}
        for number in range(rounds):
            turns = {"kernels": compute, "read": add}
            for name in list(turns) if number % 2 == 0 else list(turns)[::-1]:
                seconds[name].append(_mean(turns[name], work))
            seconds["copy"].append(_mean(copy, work))
            seconds["cached"].append(_mean(compute, work[:1] * len(work)))
    finally:
        kernels.close()
    n_bytes = sum(piece.nbytes for piece in _pieces(*work[0]))
    return KernelSpeed(
        threads=threads,
        n_bytes=n_bytes,
        kernels=median(seconds["kernels"]),
        cached=median(seconds["cached"]),
        read=median(seconds["read"]),
        ratio=median(a / b for a, b in zip(seconds["kernels"], seconds["read"], strict=True)),
        read_rate=n_bytes / median(seconds["read"]),
        copy_rate=n_bytes / median(seconds["copy"]),
    )


def _pieces(held: HeldExperts, experts: np.ndarray) -> list[np.ndarray]:
    """The bytes of these experts as they lie, in whole 64-bit words."""
    pieces = []
    for tensor in held.tensors.values():
        size = len(tensor.data) // held.n_held
        for expert in experts:
            start = int(expert) * size
            pieces.append(tensor.data[start : start + size // 8 * 8].view(np.uint64))
    return pieces


def _mean(
    function: Callable[[HeldExperts, np.ndarray], None], work: Sequence[tuple[HeldExperts, np.ndarray]]
) -> float:
    begun = time.perf_counter()
    for held, experts in work:
        function(held, experts)
    return (time.perf_counter() - begun) / len(work)
