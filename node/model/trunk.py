"""The trunk: a model's GGUF without the bulk of its routed experts, which llama.cpp loads fast and small.

Two kinds. `cut`: each expert keeps its place in the graph but is one wide (n_ff 1), and the
metadata says so. `hollow`: shapes and metadata stay, the experts are holes in a sparse file; it
takes as much address space as the model but next to no disk.

Whether a cut trunk loads depends on how llama.cpp derives widths from metadata, which differs by
architecture. The plan decides by the file alone: a key whose value equals the routed width is taken
to be where the width comes from. A plan is a proposal; loading the trunk and comparing its output
with the model's proves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from node.model.expert_names import ExpertName, layer_of, parse_expert_name
from node.model.gguf.errors import GGUFError, shown
from node.model.gguf.map import MappedModel
from node.model.gguf.split import ModelFile, ModelTensor
from node.model.gguf.types import INTEGER_TYPES, TYPE_BY_NAME, TensorType, ValueType
from node.model.gguf.values import GGUFValue
from node.model.gguf.writer import TensorToWrite, write_gguf

TrunkKind: TypeAlias = Literal["cut", "hollow"]
KIND_KEY = "panal.trunk.kind"  # marks the file, so that it is not taken for the model


@dataclass(frozen=True, slots=True)
class TrunkPlan:
    """How to make a model's trunk.

    Attributes:
        cut_possible: False where the file shows that n_ff 1 can't be described to llama.cpp.
        reason: why not; "" where it is possible.
        overrides: metadata of a cut trunk that differs from the model's; empty where it can't be cut.
        holes: the tensors whose data is left out, with shape (ggml order) and type in a cut trunk.
    """

    cut_possible: bool
    reason: str
    overrides: Mapping[str, GGUFValue]
    holes: Mapping[str, tuple[tuple[int, ...], TensorType]]

    @property
    def kind(self) -> TrunkKind:
        """The kind to try first."""
        return "cut" if self.cut_possible else "hollow"


class _TiedWidthError(Exception):
    """The expert width can't change without changing something else; the text says what."""


def plan_trunk(model: ModelFile) -> TrunkPlan:
    """Decide how the routed experts can be left out of `model`. Reads headers only.

    Raises:
        GGUFError: the model has no routed experts, or their tensors don't fit together.
    """
    experts = _routed_tensors(model)
    if not experts:
        raise GGUFError(f"{model.path}: has no routed experts: panal needs a mixture-of-experts model")
    widths = {group: _widths(model, experts, group) for group in ("exps", "chexps")}
    holes = {
        name.tensor_name: _cut_shape(name, tensor) for name, tensor in experts.items() if name.what != "scale"
    }
    try:
        overrides = _cut_metadata(model, widths["exps"], widths["chexps"])
    except _TiedWidthError as error:
        return TrunkPlan(False, str(error), {}, holes)
    return TrunkPlan(True, "", overrides, holes)


def write_trunk(
    plan: TrunkPlan,
    model: ModelFile,
    target: Path | str,
    kind: TrunkKind | None = None,
    extra: Mapping[str, GGUFValue] | None = None,
) -> int:
    """Write the trunk of `model` to `target` and return the file's (apparent) size in bytes.

    Args:
        kind: `plan.kind` if None.
        extra: metadata to add, such as the model id.

    Raises:
        GGUFError: a cut was asked for that the plan excludes, the model changed, or writing failed.
    """
    kind = plan.kind if kind is None else kind
    if kind == "cut" and not plan.cut_possible:
        raise GGUFError(f"{model.path}: its trunk can't be cut ({plan.reason}): use a hollow one")
    metadata = {**model.metadata, **(plan.overrides if kind == "cut" else {})}
    metadata |= {KIND_KEY: GGUFValue.string(kind), **(extra or {})}
    with MappedModel(model) as mapped:
        tensors = []
        for name, tensor in model.tensors.items():
            if name not in plan.holes:
                # a generator: the view lives no longer than its writing
                data = (mapped.tensor_view(each) for each in (name,))
                tensors.append(TensorToWrite(name, tensor.shape, tensor.type, data))
            else:
                shape, form = plan.holes[name] if kind == "cut" else (tensor.shape, tensor.type)
                tensors.append(TensorToWrite(name, shape, form, None))
        return write_gguf(target, metadata, tensors)


def _routed_tensors(model: ModelFile) -> dict[ExpertName, ModelTensor]:
    named = ((parse_expert_name(name), tensor) for name, tensor in model.tensors.items())
    return {name: tensor for name, tensor in named if name is not None}


def _widths(model: ModelFile, experts: Mapping[ExpertName, ModelTensor], group: str) -> dict[int, int]:
    """n_ff of each layer's experts, checked to be the same in all tensors of the layer."""
    widths: dict[int, int] = {}
    for name, tensor in experts.items():
        dims = {"weight": 3, "bias": 2, "scale": 1}[name.what]
        if len(tensor.shape) != dims:
            raise GGUFError(
                f"{model.path}: {name.tensor_name} has {len(tensor.shape)} dimensions, {dims} are expected"
            )
        if (name.group, name.part, name.what) == (group, "down", "weight"):
            widths[name.layer] = tensor.shape[0]
    for name, tensor in experts.items():
        if name.group != group or name.part == "down" or name.what == "scale":
            continue
        width = widths.get(name.layer)
        if width is None:
            raise GGUFError(f"{model.path}: {name.tensor_name} stands without its ffn_down_{group}.weight")
        out = tensor.shape[1] if name.what == "weight" else tensor.shape[0]
        if out != width * (2 if name.part == "gate_up" else 1):
            raise GGUFError(f"{model.path}: {name.tensor_name} is {out} wide, its down tensor takes {width}")
    return widths


def _cut_shape(name: ExpertName, tensor: ModelTensor) -> tuple[tuple[int, ...], TensorType]:
    ones = 2 if name.part == "gate_up" else 1
    shape = tensor.shape
    if name.what == "weight":
        cut = (1, *shape[1:]) if name.part == "down" else (shape[0], ones, shape[2])
        # F16 and not the model's type: a row of one element fits no block of a quantized type
        return cut, TYPE_BY_NAME["F16"]
    return (shape if name.part == "down" else (ones, shape[1])), TYPE_BY_NAME["F32"]


def _cut_metadata(
    model: ModelFile, widths: dict[int, int], chunk_widths: dict[int, int]
) -> dict[str, GGUFValue]:
    """What the metadata must say for n_ff 1.

    Raises:
        _TiedWidthError: it can't be said.
    """
    prefix = model.architecture
    expert_key = f"{prefix}.expert_feed_forward_length"
    general_key = f"{prefix}.feed_forward_length"
    overrides: dict[str, GGUFValue] = {}
    _override_width(overrides, model, expert_key, widths)
    dense = _ffn_widths(model, "ffn_down.weight")
    tie = _dense_tie(model.metadata.get(general_key), dense, widths)
    if tie is None:
        # also where the expert key has been found: some architectures read only this one
        _override_width(overrides, model, general_key, widths)
    if not overrides:
        if tie is not None:
            raise _TiedWidthError(
                f"layer {tie} has a dense FFN whose width is read from the same {general_key}"
            )
        if not _is_shared_out(model, general_key, expert_key, widths):
            raise _TiedWidthError(f"no key says the expert width {sorted(set(widths.values()))}")
        overrides[expert_key] = GGUFValue.uint32(1)
    if chunk_widths:
        chunk_key = f"{prefix}.expert_chunk_feed_forward_length"
        if not _override_width(overrides, model, chunk_key, chunk_widths):
            raise _TiedWidthError(
                f"no key says the chunk experts' width {sorted(set(chunk_widths.values()))}"
            )
    _keep_shared_width(overrides, model, widths)
    return overrides


def _override_width(
    overrides: dict[str, GGUFValue], model: ModelFile, key: str, widths: Mapping[int, int]
) -> bool:
    """Set `key` to 1 wherever it says the experts' width; tell whether it does so for every layer."""
    entry = model.metadata.get(key)
    if entry is None:
        return False
    if isinstance(entry.value, np.ndarray) and entry.item_type in INTEGER_TYPES:
        items = entry.value.copy()
        hits = [layer for layer, width in widths.items() if layer < len(items) and items[layer] == width]
        items[hits] = 1
        items.setflags(write=False)
        changed = replace(entry, value=items)
        complete = len(hits) == len(widths)
    else:
        complete = entry.type in INTEGER_TYPES and set(widths.values()) == {entry.value}
        changed = replace(entry, value=1)
    if complete:
        overrides[key] = changed
    return complete


def _ffn_widths(model: ModelFile, suffix: str) -> dict[int, int]:
    """Input width of each layer's `blk.N.<suffix>`: ne[0] of a down tensor is the FFN's width."""
    widths: dict[int, int] = {}
    for name, tensor in model.tensors.items():
        layer = layer_of(name)
        if layer is not None and name == f"blk.{layer}.{suffix}":
            widths[layer] = tensor.shape[0]
    return widths


def _dense_tie(entry: GGUFValue | None, dense: Mapping[int, int], widths: Mapping[int, int]) -> int | None:
    """The first layer with a dense FFN that would lose its width along with the experts."""
    if entry is None:
        return None
    per_layer = entry.type is ValueType.ARRAY
    routed = set(widths.values())
    for layer, width in sorted(dense.items()):
        if width == widths.get(layer) or (not per_layer and width in routed):
            return layer
    return None


def _is_shared_out(model: ModelFile, general_key: str, expert_key: str, widths: Mapping[int, int]) -> bool:
    """Whether the used experts share `feed_forward_length`: llama.cpp's rule without an expert key."""
    if expert_key in model.metadata:
        return False
    general = model.metadata.get(general_key)
    if general is None or general.type not in INTEGER_TYPES:
        return False
    used = model.find_int(f"{model.architecture}.expert_used_count")
    return used is not None and {width * used for width in widths.values()} == {general.value}


def _keep_shared_width(overrides: dict[str, GGUFValue], model: ModelFile, widths: Mapping[int, int]) -> None:
    """Shared experts stay in the trunk: where their width is n_ff x count, raise count as n_ff falls."""
    shared = set(_ffn_widths(model, "ffn_down_shexp.weight").values())
    if not shared:
        return
    count_key = f"{model.architecture}.expert_shared_count"
    count = model.find_int(count_key)
    own_width = model.find_int(f"{model.architecture}.expert_shared_feed_forward_length")
    routed = set(widths.values())
    if count and len(routed) == 1 and shared == {next(iter(routed)) * count}:
        overrides[count_key] = replace(model.metadata[count_key], value=count * next(iter(routed)))
    elif shared & routed and shared != {own_width}:
        raise _TiedWidthError(
            f"the shared expert's width {shown(str(sorted(shared)))} follows the routed experts'"
        )
