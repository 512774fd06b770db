"""What a model file is, in words and numbers, without running it: `panal model inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from node.engine.library import EngineError, Library
from node.importing import (
    ImportFailed,
    Progress,
    digest_model,
    refuse_contradictions,
    refuse_pieces,
    trunk_kinds,
)
from node.model import recipe as R
from node.model.expert_names import parse_expert_name
from node.model.gguf.map import MappedModel
from node.model.gguf.split import open_model
from node.model.gguf.types import TENSOR_TYPES
from node.model.slice_file import SLICE_TYPE, read_slice
from node.model.trunk import plan_trunk, write_trunk
from node.prover import Prover
from node.share.metadata import write_metadata


def inspect_file(library: Library, path: Path, workspace: Path, progress: Progress) -> dict[str, Any]:
    """Everything `panal model inspect --json` prints.

    Args:
        workspace: an empty folder for the trunk, from whose graph the recipe is read.

    Raises:
        LocalError: malformed, dense, or with experts that no recipe can express.
    """
    model = open_model(path)
    if model.find_str("general.type") == SLICE_TYPE:
        return inspect_slice(path)
    refuse_pieces(model)
    plan = plan_trunk(model)
    refuse_contradictions(model)
    calls, reason = None, ""
    with Prover(library, progress) as prover:
        for kind in trunk_kinds(plan):
            trunk = workspace / f"{kind}.gguf"
            write_trunk(plan, model, trunk, kind)
            try:
                calls = prover.read_calls(trunk)
                break
            except EngineError as error:
                reason = str(error).removeprefix(f"{trunk}: ")
    if calls is None:
        raise ImportFailed(f"{path}: llama.cpp cannot show its graph: {reason}")
    with MappedModel(model) as mapped:
        manifest = digest_model(mapped, calls, progress)
    metadata = write_metadata(workspace / "metadata.gguf", model.metadata)
    used = {(call.layer, call.group): call.n_used for call in calls}
    groups: dict[tuple[Any, ...], list[int]] = {}
    for call in manifest.calls:
        key = (
            call.group, call.n_experts, used[call.layer, call.group], call.n_in, call.n_out,
            call.bytes_per_cell, formula(call.recipe.output) + _before(call.recipe), call.run_length,
        )  # fmt: skip
        groups.setdefault(key, []).append(call.layer)
    names = ("group", "experts", "used", "n_in", "n_out", "bytes_per_cell", "recipe", "run_length")
    return {
        "file": str(path),
        "kind": "model",
        "parts": len(model.parts),
        "name": model.find_str("general.name"),
        "architecture": manifest.architecture,
        "model_id": manifest.model_id(),
        "metadata": metadata.hex(),
        "expert_bytes": manifest.expert_bytes,
        "trunk_bytes": sum(t.n_bytes for n, t in model.tensors.items() if parse_expert_name(n) is None),
        "expert_types": sorted({TENSOR_TYPES[t.type].name for call in manifest.calls for t in call.tensors}),
        "calls": [
            {"layers": runs(layers), **dict(zip(names, key, strict=True))} for key, layers in groups.items()
        ],
    }


def inspect_slice(path: Path) -> dict[str, Any]:
    """What a slice file holds, and of which model."""
    piece = read_slice(path)
    manifest = piece.manifest()
    held = sorted({name.layer for name in piece.tensors})
    return {
        "file": str(path),
        "kind": "slice",
        "architecture": manifest.architecture,
        "model_id": piece.model_id,
        "layers": runs(held),
        "experts": runs(list(piece.experts)),
        "experts_in_layer": piece.expert_count,
        "cells": len(held) * len(piece.experts),
        "bytes": sum(tensor.n_bytes for tensor in piece.tensors.values()),
        "model_expert_bytes": manifest.expert_bytes,
    }


def runs(numbers: list[int]) -> str:
    """ "0-3,8": ascending numbers as people write them."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def formula(expression: R.Expression) -> str:
    """A recipe's expression in one line: `weight * down(swiglu(gate(x), up(x)))`."""
    match expression:
        case R.Input():
            return "x"
        case R.Matmul(tensor=role, of=of):
            return f"{role.removesuffix('.weight')}({formula(of)})"
        case R.Bias(tensor=role, of=of):
            return f"{formula(of)} + {role}"
        case R.Scale(tensor=role, of=of):
            return f"{role} * {formula(of)}"
        case R.Weigh(of=of):
            return (
                f"weight * ({formula(of)})" if isinstance(of, R.Bias | R.Total) else f"weight * {formula(of)}"
            )
        case R.Half(index=index, of=of):
            return f"{formula(of)}[{'second' if index else 'first'} half]"
        case R.Glu(kind=kind, gate=gate, up=up):
            settings = "".join(
                f", {name} {value:g}"
                for name, value in (("alpha", expression.alpha), ("limit", expression.limit))
                if value
            )
            rows = formula(gate) if up is None else f"{formula(gate)}, {formula(up)}"
            return f"{kind.lower()}({rows}{settings})"
        case R.Unary(kind=kind, of=of):
            return f"{kind.lower()}({formula(of)})"
        case R.Square(of=of):
            return f"square({formula(of)})"
        case R.Affine(factor=factor, of=of, offset=offset):
            return f"{factor:g} * {formula(of)}" + (f" + {offset:g}" if offset else "")
        case R.Clamp(low=low, high=high, of=of):
            bounds = ["-inf" if low is None else f"{low:g}", "inf" if high is None else f"{high:g}"]
            return f"clamp({formula(of)}, {', '.join(bounds)})"
        case R.Norm(kind=kind, of=of):
            return f"{kind.lower()}({formula(of)})"
        case R.Product(left=left, right=right):
            return f"{formula(left)} * {formula(right)}"
        case R.Total(left=left, right=right):
            return f"({formula(left)} + {formula(right)})"


def _before(recipe: R.Recipe) -> str:
    return ", x weighed before" if recipe.weights == "before" else ""
