"""Sets of cells by MoE call, as bits: what is wanted, what is there, what a peer holds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from node.model.manifest import Manifest
from node.model.slice_file import chunk_run
from routing.errors import LocalError

CallKey = tuple[int, int]
"""(layer, call index), as on the wire."""

CallBits = Mapping[CallKey, int]
"""Experts of calls, expert e as bit e."""


def cells_of(manifest: Manifest, experts: Mapping[int, Iterable[int]]) -> dict[CallKey, int]:
    """Cells by the experts of each layer's first call, as home sets name them; chunk experts go with them.

    Raises:
        LocalError: the model has no such layer or expert.
    """
    found: dict[CallKey, int] = {}
    for layer, numbers in experts.items():
        first = manifest.call(layer, 0)
        chosen = sorted(set(numbers))
        if first is None or (chosen and not 0 <= chosen[0] <= chosen[-1] < first.n_experts):
            raise LocalError(f"layer {layer}: the model has no such layer, or not all of these experts")
        for call in manifest.calls:
            if call.layer != layer:
                continue
            bits = 0
            for expert in chosen:
                run = range(expert, expert + 1)
                if call.index:
                    run = chunk_run(run, first.n_experts, call.n_experts)
                bits |= run_bits(run.start, len(run))
            if bits:
                found[layer, call.index] = bits
    return found


def run_bits(first: int, count: int) -> int:
    """A run of experts as bits."""
    return ((1 << count) - 1) << first


def first_run(bits: int) -> tuple[int, int]:
    """The first run of neighbours among bits that are not 0: its first, and how many."""
    first = (bits & -bits).bit_length() - 1
    rest = bits >> first
    return first, (~rest & (rest + 1)).bit_length() - 1


def numbers(bits: int) -> list[int]:
    """Which experts they are, ascending."""
    return [expert for expert in range(bits.bit_length()) if bits >> expert & 1]
