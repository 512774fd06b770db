"""Runs of experts where they lie in a mapped file, ready for the kernels: no byte is copied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from node.model.gguf.map import MappedModel
from node.model.manifest import ExpertCall
from node.model.recipe import Recipe
from routing.errors import LocalError

_signatures: dict[tuple[Any, ...], tuple[Any, ...]] = {}  # a model has one or a few


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """A run of experts of one stacked tensor, somewhere in memory.

    Attributes:
        type: ggml's type id.
        ne: ggml order; the last dimension counts the experts held.
        data: the bytes; kept alive by this reference.
    """

    type: int
    ne: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    @property
    def address(self) -> int:
        return int(self.data.ctypes.data)


@dataclass(frozen=True)
class HeldExperts:
    """All tensors that one call's recipe needs, for one run of its experts.

    Attributes:
        first: number of the run's first expert in the model; kernels count from it.
        n_held: experts in the run.
        tensors: role -> tensor.
        n_in, n_out: width of a row that enters, and of one that leaves.
    """

    recipe: Recipe
    tensors: Mapping[str, HeldTensor]
    first: int
    n_held: int
    n_in: int
    n_out: int

    @cached_property
    def signature(self) -> tuple[Any, ...]:
        """What two layers must share to share a kernel graph; one object for all that are equal, so that
        looking up a graph compares no recipes."""
        parts = (self.recipe, self.n_in, *((role, t.type, t.ne) for role, t in sorted(self.tensors.items())))
        return _signatures.setdefault(parts, parts)

    @cached_property
    def addresses(self) -> Mapping[str, int]:
        return {role: tensor.address for role, tensor in self.tensors.items()}


def hold(mapped: MappedModel, call: ExpertCall, run: range, stored: range | None = None) -> HeldExperts:
    """The experts `run` of a call.

    Args:
        run: numbers of experts in the model.
        stored: which experts the file's tensors have; all of them if None (a whole model).

    Raises:
        LocalError: the file lacks a tensor or has it in another shape than the manifest says.
    """
    stored = stored if stored is not None else range(call.n_experts)
    if not (stored.start <= run.start < run.stop <= stored.stop):
        raise LocalError(
            f"{mapped.model.path}: {call.label}: holds experts {stored.start}-{stored.stop - 1}, "
            f"not {run.start}-{run.stop - 1}"
        )
    tensors = {}
    for tensor in call.tensors:
        name = tensor.name(call.layer, call.group)
        found = mapped.model.tensors.get(name)
        if found is None:
            raise LocalError(f"{mapped.model.path}: has no tensor {name}, which the model's manifest names")
        if found.type.id != tensor.type or found.shape != (*tensor.shape, len(stored)):
            raise LocalError(
                f"{mapped.model.path}: {name} is {found.type.name} {list(found.shape)}, "
                f"the manifest says otherwise"
            )
        size = tensor.bytes_per_expert
        start = (run.start - stored.start) * size
        view = mapped.tensor_view(name)[start : start + len(run) * size]
        tensors[tensor.role] = HeldTensor(
            tensor.type, (*tensor.shape, len(run)), np.frombuffer(view, np.uint8)
        )
    return HeldExperts(call.recipe, tensors, run.start, len(run), call.n_in, call.n_out)
