"""What this node knows of the models it has itself: their shape, their size, what they are called."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from node.model.manifest import Manifest
from node.model.store import Store
from node.serve.cells import Cells
from node.status.coverage import Shape
from node.status.facts import Runs, Served
from routing.wire.holdings import Slice
from routing.wire.text import sanitise

NAME_BYTES = 96
"""Of a model's name on the page: a file's stem."""


@dataclass(frozen=True)
class ModelHere:
    """A model of which this node has at least the manifest.

    Attributes:
        name: of the file it came from, "" if unknown.
        expert_bytes: of all its experts.
        manifest: all that is known of it.
    """

    name: str
    architecture: str
    shape: Shape
    expert_bytes: int
    manifest: Manifest


def model_here(manifest: Manifest, model_id: str, store: Store | None) -> ModelHere:
    """Reads a small file of the store."""
    cells = {call.layer: call.n_experts for call in manifest.calls if call.index == 0}
    layers = tuple(sorted(cells))
    return ModelHere(
        name=name_of(model_id, store),
        architecture=manifest.architecture,
        shape=Shape(layers, tuple(cells[layer] for layer in layers)),
        expert_bytes=manifest.expert_bytes,
        manifest=manifest,
    )


def name_of(model_id: str, store: Store | None) -> str:
    """The stem of the file that the model was imported from last; "" if nobody knows."""
    sources = () if store is None else store.sources(model_id)
    if not sources or not sources[-1].parts:
        return ""
    return sanitise(PurePath(sources[-1].parts[0].path).stem, NAME_BYTES)


def served(held: Slice, cells: Cells, here: ModelHere) -> Served:
    """What this node serves of a model, as if its owner had chosen it."""
    n_bytes = 0
    model_id = bytes.fromhex(held.model_id)
    for (layer, index), experts in cells.experts(model_id).items():
        call = cells.find(model_id, layer, index)
        n_bytes += 0 if call is None else len(experts) * call.call.bytes_per_cell
    return Served(
        model=held.model_id,
        name=here.name,
        architecture=held.architecture,
        cells=cell_count(held.experts),
        bytes=n_bytes,
        experts=held.experts,
    )


def cell_count(runs: Runs) -> int:
    """How many cells these are."""
    return sum(
        (last - first + 1) * sum(high - low + 1 for low, high in experts) for first, last, experts in runs
    )
