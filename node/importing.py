"""From a GGUF file to a model in the store: trunk, recipe, digests, and the proof that they are right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from node.engine.gate import gate
from node.engine.library import EngineError, Library
from node.engine.llama_model import LlamaModel
from node.engine.recognise import TracedCall, find_calls
from node.engine.trace import trace
from node.model.digests import build_manifest
from node.model.gguf.map import MappedModel
from node.model.gguf.split import ModelFile, open_model
from node.model.held import hold
from node.model.manifest import Manifest
from node.model.slice_file import SLICE_TYPE
from node.model.store import Source, Store, StoredModel
from node.model.trunk import KIND_KEY, TrunkKind, TrunkPlan, plan_trunk, write_trunk
from routing.errors import LocalError

Progress = Callable[[str, int, int], None]
"""What is being done, bytes done, bytes in all (0 if unknown)."""


class ImportFailed(LocalError):
    """No trunk of this model could be proven, or it is no model."""


def import_model(
    library: Library, store: Store, path: Path, progress: Progress | None = None, *, thorough: bool = False
) -> StoredModel:
    """Put a model into the store; a file that is there already is only looked up.

    Args:
        thorough: compare a trunk that is there with its digest, and make it anew if it is damaged.

    Raises:
        GGUFError: the file is malformed or has no routed experts.
        RecipeError: its experts compute something panal cannot express.
        ImportFailed: no way of cutting its trunk passes the gate.
    """
    say = progress or (lambda what, done, total: None)
    model = open_model(path)
    refuse_pieces(model)
    plan = plan_trunk(model)
    known = store.find(model, thorough=thorough)
    if known is not None:
        return known
    reasons = [f"cut: {plan.reason}"] if not plan.cut_possible else []
    manifest: Manifest | None = None
    whole = tuple(part.path for part in model.parts)
    with MappedModel(model) as mapped, store.workspace() as workspace:
        trunk = workspace / "trunk.gguf"
        for kind in trunk_kinds(plan):
            say(f"writing the trunk ({kind})", 0, 0)
            write_trunk(plan, model, trunk, kind)
            try:
                calls = read_calls(library, trunk)
            except EngineError as error:
                reasons.append(f"{kind}: {error}".replace(f"{trunk}: ", ""))
                continue
            if manifest is None:
                manifest = digest_model(mapped, calls, say)
            say("comparing with llama.cpp on the whole file", 0, 0)
            held = {(c.layer, c.group): hold(mapped, c, range(c.n_experts)) for c in manifest.calls}
            reason = gate(library, whole, trunk, manifest, held)
            del held
            if not reason:
                return store.add(workspace, trunk, manifest, Source.of(model))
            reasons.append(f"{kind}: {reason}")
    raise ImportFailed(f"{path}: cannot be run in parts: {_joined(reasons)}")


def _joined(reasons: list[str]) -> str:
    """The reasons of all kinds of trunk, each once."""
    kinds: dict[str, list[str]] = {}
    for reason in reasons:
        kind, _, why = reason.partition(": ")
        kinds.setdefault(why, []).append(kind)
    return "; ".join(f"{' and '.join(names)}: {why}" for why, names in kinds.items())


def trunk_kinds(plan: TrunkPlan) -> tuple[TrunkKind, ...]:
    """Ways to make the trunk, the smallest first; the gate decides."""
    return ("cut", "hollow") if plan.cut_possible else ("hollow",)


def read_calls(library: Library, trunk: Path) -> list[TracedCall]:
    """Every MoE call of a model's graph, read from its trunk: the graph is the whole model's."""
    with LlamaModel(library, [trunk]) as model:
        return find_calls(trace(model))


def digest_model(mapped: MappedModel, calls: list[TracedCall], say: Progress) -> Manifest:
    """The manifest of a whole model; reads every byte of it."""
    total = sum(tensor.n_bytes for tensor in mapped.model.tensors.values())
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        say("digesting", done, total)

    return build_manifest(mapped, calls, count)


def refuse_pieces(model: ModelFile) -> None:
    """A slice file is no model, and neither is a trunk."""
    if model.find_str("general.type") == SLICE_TYPE:
        raise ImportFailed(f"{model.path}: is a slice file; it can be served, but not imported as a model")
    if KIND_KEY in model.metadata:
        raise ImportFailed(f"{model.path}: is a trunk, its experts are empty; give the file it was made from")
