"""Do the models that a config names hold what it wants of them? Told from headers alone, in moments, so
that `panal init` need not write a config which `panal run` would refuse."""

from __future__ import annotations

from pathlib import Path

from node.config import NodeConfig
from node.importing import refuse_pieces
from node.model.expert_names import parse_expert_name
from node.model.gguf.split import ModelFile, open_model
from node.model.slice_file import SLICE_TYPE, read_slice
from node.model.trunk import plan_trunk
from node.ranges import Ranges
from routing.errors import LocalError


def check_models(config: NodeConfig) -> None:
    """Open every model file of a config. A model id of the store is taken as it is.

    Raises:
        LocalError: a file is broken, has no routed experts, or not the layers and experts to be served.
    """
    if config.backbone is not None and config.backbone.model.path is not None:
        _open_whole(config.backbone.model.path)
    for entry in config.serve:
        if entry.model.path is not None:
            _check_ranges(entry.model.path, _counts(entry.model.path), entry.layers, entry.experts)


def _open_whole(path: Path) -> ModelFile:
    model = open_model(path)
    refuse_pieces(model)
    plan_trunk(model)  # refuses a model without routed experts, or with stacks that don't fit together
    return model


def _counts(path: Path) -> dict[int, range]:
    """The experts that a GGUF or slice file holds, of each layer that has any."""
    if open_model(path).find_str("general.type") == SLICE_TYPE:
        piece = read_slice(path)
        return {name.layer: piece.experts for name in piece.tensors if name.group == "exps"}
    named = ((parse_expert_name(name), tensor) for name, tensor in _open_whole(path).tensors.items())
    return {
        name.layer: range(tensor.shape[-1])
        for name, tensor in named
        if name is not None and name.group == "exps" and name.what == "weight"
    }


def _check_ranges(
    path: Path, held: dict[int, range], layers: Ranges | None, experts: Ranges | None
) -> None:
    first, last = min(held), max(held)
    if layers is not None:
        outside = next((layer for layer in layers if not first <= layer <= last), None)
        # Layers without routed experts before the first (deepseek's dense ones) are no mistake in a range.
        if layers.last > last or not any(layer in held for layer in layers):
            raise LocalError(
                f"{path}: has no experts in layer {layers.last if outside is None else outside}; "
                f"choose layers {layers} among {first}-{last}"
            )
    if experts is None:
        return
    for layer, run in held.items():
        if layers is not None and layer not in layers:
            continue
        outside = next((expert for expert in experts if expert not in run), None)
        if outside is not None:
            raise LocalError(f"{path}: layer {layer} has experts {run.start}-{run.stop - 1}, not {outside}")
