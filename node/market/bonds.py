"""Which experts of a layer are used together, by the routers' weights in the model's trunk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from market.affinity import together_by_router
from market.ground import Floats
from node.home.home_set import Shapes
from node.model.gguf.map import MappedModel
from node.model.gguf.split import open_model
from routing.errors import LocalError

USED_EXPERTS = 8
"""Taken for the experts that a token uses of a layer where a trunk does not say: what most models do."""

_FLOATS = {"F32": "<f4", "F16": "<f2"}  # llama.cpp leaves routers in one of them


def router_weights(trunk: Path) -> dict[int, npt.NDArray[np.float32]]:
    """[n_experts, n_embd] by layer; layers whose router has another name or type are left out.

    Raises:
        LocalError: the trunk cannot be read.
    """
    found = {}
    with MappedModel(open_model(trunk)) as mapped:
        for name, tensor in mapped.model.tensors.items():
            part = name.removeprefix("blk.").removesuffix(".ffn_gate_inp.weight")
            dtype = _FLOATS.get(tensor.type.name)
            if name != f"blk.{part}.ffn_gate_inp.weight" or dtype is None or len(tensor.shape) != 2:
                continue
            if part.isascii() and part.isdigit():
                view = mapped.tensor_view(name)
                weights = np.frombuffer(view, np.dtype(dtype)).astype(np.float32).reshape(tensor.shape[::-1])
                if np.isfinite(weights).all():
                    found[int(part)] = weights
    return found


def used_experts(trunk: Path) -> int:
    """Experts that a token uses of a layer, as the trunk's metadata says."""
    model = open_model(trunk)
    return model.find_int(f"{model.architecture}.expert_used_count") or USED_EXPERTS


@dataclass(frozen=True)
class Bonds:
    """What a model's experts have to do with each other.

    Attributes:
        n_used: experts that a token uses of a layer.
        together: [n_experts, n_experts] by layer (market.affinity); empty where the trunk tells nothing.
    """

    n_used: int = USED_EXPERTS
    together: Mapping[int, Floats] = field(default_factory=dict)


def read_bonds(trunk: Path, shapes: Shapes) -> Bonds:
    """From a trunk; it takes milliseconds."""
    try:
        routers, n_used = router_weights(trunk), used_experts(trunk)
    except LocalError:  # what computes with this trunk says so; groups only save messages
        return Bonds()
    together = {
        layer: together_by_router(weights)
        for layer, weights in routers.items()
        if layer in shapes and len(weights) == shapes[layer].n_experts
    }
    return Bonds(n_used, together)
