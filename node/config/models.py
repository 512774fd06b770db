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
            _check_ranges(entry.model.path, entry.layers, entry.experts)


def _open_whole(path: Path) -> ModelFile:
    model = open_model(path)
    refuse_pieces(model)
    plan_trunk(model)  # refuses a model without routed experts, or with stacks that don't fit together
    return model


def _held_by(path: Path) -> tuple[range, dict[int, range]]:
    """The layers of a GGUF or slice file, and which experts it holds of each layer that has any."""
    if open_model(path).find_str("general.type") == SLICE_TYPE:
        piece = read_slice(path)
        return piece.layers, {name.layer: piece.experts for name in piece.tensors if name.group == "exps"}
    named = ((parse_expert_name(name), tensor) for name, tensor in _open_whole(path).tensors.items())
    held = {
        name.layer: range(tensor.shape[-1])
        for name, tensor in named
        if name is not None and name.group == "exps" and name.what == "weight"
    }
    return range(max(held, default=-1) + 1), held


def _check_ranges(path: Path, layers: Ranges | None, experts: Ranges | None) -> None:
    in_file, held = _held_by(path)
    span = f"{in_file.start}-{in_file.stop - 1}"
    if layers is not None:
        outside = next((layer for layer in layers if layer not in in_file), None)
        if outside is not None:
            raise LocalError(f"{path}: layers {layers}: has layers {span}, not {outside}")
    chosen = {layer: run for layer, run in held.items() if layers is None or layer in layers}
    if not chosen:  # such as the dense layers that deepseek's models begin with
        raise LocalError(f"{path}: layers {layers or span} hold no routed experts; choose others")
    for layer, run in chosen.items():
        outside = next((expert for expert in experts or () if expert not in run), None)
        if outside is not None:
            has = f"layer {layer} has experts {run.start}-{run.stop - 1}"
            raise LocalError(f"{path}: experts {experts}: {has}, not {outside}")
