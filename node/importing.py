"""From a GGUF file to a model in the store: trunk, recipe, digests, and the proof that they are right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from node.engine.library import EngineError, Library
from node.engine.recognise import TracedCall
from node.model.digests import build_manifest
from node.model.expert_names import layer_of, parse_expert_name
from node.model.gguf.errors import GGUFError
from node.model.gguf.map import MappedModel
from node.model.gguf.split import ModelFile, open_model
from node.model.manifest import Manifest
from node.model.slice_file import SLICE_TYPE
from node.model.store import Source, Store, StoredModel
from node.model.trunk import KIND_KEY, TrunkKind, TrunkPlan, plan_trunk, write_trunk
from node.prover import Progress as Progress
from node.prover import Prover
from routing.errors import LocalError


class ImportFailed(LocalError):
    """No trunk of this model could be proven, or it is no model."""


def import_model(
    library: Library, store: Store, path: Path, progress: Progress | None = None, *, thorough: bool = False
) -> StoredModel:
    """Put a model into the store; a file that is there already is only looked up.

    What llama.cpp makes of the file it shows in a process of its own (`Prover`): it may crash there.

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
    _refuse_names(model, store)
    plan = plan_trunk(model)
    refuse_contradictions(model)
    known = store.find(model, thorough=thorough)
    if known is not None:
        return known
    made: Manifest | None = None

    with MappedModel(model) as mapped:

        def manifest_of(calls: list[TracedCall]) -> Manifest:
            nonlocal made
            made = made or digest_model(mapped, calls, say)
            return made

        def keep(workspace: Path, trunk: Path, manifest: Manifest) -> StoredModel:
            mapped.check_unchanged()  # the other process has opened the file by its name
            return store.add(workspace, trunk, manifest, Source.of(model))

        return prove_trunk(library, store, model, plan, manifest_of, keep, say)


def prove_trunk(
    library: Library,
    store: Store,
    model: ModelFile,
    plan: TrunkPlan,
    manifest_of: Callable[[list[TracedCall]], Manifest],
    keep: Callable[[Path, Path, Manifest], StoredModel],
    say: Progress,
) -> StoredModel:
    """Write a model's trunk, put it through the gate, and keep it.

    Args:
        manifest_of: the manifest, given the calls of the trunk's graph.
        keep: (workspace, trunk, manifest) -> what it comes to, once the trunk is proven.

    Raises:
        ImportFailed: no way of cutting its trunk passes the gate.
    """
    reasons = [f"cut: {plan.reason}"] if not plan.cut_possible else []
    with store.workspace() as workspace, Prover(library, say) as prover:
        trunk = workspace / "trunk.gguf"
        for kind in trunk_kinds(plan):
            say(f"writing the trunk ({kind})", 0, 0)
            write_trunk(plan, model, trunk, kind)
            try:
                manifest = manifest_of(prover.read_calls(trunk))
                reason = prover.compare(model.path, trunk, manifest)
            except EngineError as error:
                reasons.append(f"{kind}: {error}".replace(f"{trunk}: ", ""))
                continue
            if not reason:
                return keep(workspace, trunk, manifest)
            reasons.append(f"{kind}: {reason}")
    raise ImportFailed(f"{model.path}: cannot be run in parts: {_joined(reasons)}")


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


def refuse_contradictions(model: ModelFile) -> None:
    """Refuse metadata that does not fit the tensors, in clearer words than llama.cpp has, which may abort.

    Raises:
        GGUFError: names the key.
    """
    experts = {
        tensor.shape[-1]
        for name, tensor in model.tensors.items()
        if (found := parse_expert_name(name)) is not None and found.group == "exps"
    }
    count = _plain_int(model, "expert_count")
    if count is not None and experts and experts != {count}:
        have = " or ".join(map(str, sorted(experts)))
        raise _contradiction(model, "expert_count", count, f"its layers have {have} experts")
    used = _plain_int(model, "expert_used_count")
    if used is not None and experts and not 1 <= used <= min(experts):
        raise _contradiction(model, "expert_used_count", used, f"a layer has {min(experts)} experts")
    blocks = _plain_int(model, "block_count")
    named = 1 + max(layer for name in model.tensors if (layer := layer_of(name)) is not None)
    # Blocks that predict further tokens are counted, but not everybody publishes their tensors.
    spare = _plain_int(model, "nextn_predict_layers") or 0
    if blocks is not None and not named <= blocks <= named + spare:
        raise _contradiction(model, "block_count", blocks, f"its tensors are of {named} blocks")


def _plain_int(model: ModelFile, name: str) -> int | None:
    """An integer key of the architecture; None where there is none, or a list of one for each layer."""
    found = model.metadata.get(f"{model.architecture}.{name}")
    return found.value if found is not None and isinstance(found.value, int) else None


def _contradiction(model: ModelFile, name: str, value: int, but: str) -> GGUFError:
    return GGUFError(f"{model.path}: {model.architecture}.{name} is {value}, but {but}: get the file again")


def _refuse_names(model: ModelFile, store: Store) -> None:
    """Files and stores that configs and the store's own notes, all of them UTF-8, cannot name."""
    for path in (*(part.path for part in model.parts), store.root):
        try:
            str(path.resolve()).encode()
        except UnicodeEncodeError:
            raise ImportFailed(
                f"{path}: its path is not UTF-8, and no config could name it; rename what is not"
            ) from None
