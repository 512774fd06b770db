"""Digests (node.model.chunks) of experts and trunk tensors, and the manifest they go into."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from node.model.chunks import digest_of
from node.model.expert_names import parse_expert_name
from node.model.gguf.map import MappedModel
from node.model.manifest import (
    VERSION,
    ExpertCall,
    ExpertTensor,
    Manifest,
    ManifestError,
    TrunkTensor,
    check,
)
from node.model.recipe import Input, Matmul, Recipe, children
from routing.errors import LocalError

RUNS = 8
"""Runs in which a layer's experts are declared, at most: it can then be spread over as many servers where
combine is stable. A server sends a vector for each run it touches, so more of them would cost bytes."""


class FoundCall(Protocol):
    """A MoE call as read from the graph (`node.engine.recognise.TracedCall`)."""

    @property
    def layer(self) -> int: ...
    @property
    def group(self) -> str: ...
    @property
    def recipe(self) -> Recipe: ...
    @property
    def tensors(self) -> Mapping[str, str]: ...


def build_manifest(
    mapped: MappedModel, calls: Iterable[FoundCall], progress: Callable[[int], None] | None = None
) -> Manifest:
    """Digest a whole model.

    Args:
        calls: every MoE call of its graph, in order.
        progress: called with bytes digested since its last call.

    Raises:
        ManifestError: the tensors do not fit the graph.
    """
    described: list[ExpertCall] = []
    cells: dict[int, int] = {}
    for call in calls:
        described.append(_expert_call(mapped, call, cells, progress))
    trunk = []
    for name, tensor in sorted(mapped.model.tensors.items()):
        if parse_expert_name(name) is None:
            digest = digest_of([mapped.tensor_view(name)])
            trunk.append(TrunkTensor(name, tensor.type.id, tensor.shape, digest.hex()))
            if progress:
                progress(tensor.n_bytes)
    manifest = Manifest(VERSION, mapped.model.architecture, ("experts",), tuple(described), tuple(trunk))
    try:
        check(manifest)
    except LocalError as error:
        raise ManifestError(f"{mapped.model.path}: {error}") from None
    return manifest


def run_length(n_experts: int, n_cells: int) -> int:
    """How many experts of a call are a run: the rule by which manifests are made.

    Args:
        n_experts: of this call.
        n_cells: of its layer's first call, by which cells are held; where chunk experts are fewer, a run of
            them must not need the cells of two runs.
    """
    cells = -(-n_cells // RUNS)
    experts, rest = divmod(cells * n_experts, n_cells)
    return experts if experts and not rest else 1


def expert_digest(views: Iterable[memoryview]) -> bytes:
    """Digest of one expert: its tensors' bytes, in the manifest's order of roles."""
    return digest_of(views)


def check_experts(
    mapped: MappedModel, call: ExpertCall, stored: range, progress: Callable[[int], None] | None = None
) -> None:
    """See that a file's experts of a call are the manifest's, byte by byte.

    Args:
        stored: which experts of the model the file's tensors have.

    Raises:
        ManifestError: names the first that is not.
    """
    views = [mapped.tensor_view(tensor.name(call.layer, call.group)) for tensor in call.tensors]
    for number, expert in enumerate(stored):
        parts = [view[number * (size := len(view) // len(stored)) : (number + 1) * size] for view in views]
        if expert_digest(parts) != call.digest(expert):
            raise ManifestError(
                f"{mapped.model.path}: {call.label}: expert {expert} does not have the bytes its manifest "
                f"promises; the file is damaged or forged: cut or get it again"
            )
        if progress:
            progress(sum(len(part) for part in parts))


def _expert_call(
    mapped: MappedModel, call: FoundCall, cells: dict[int, int], progress: Callable[[int], None] | None
) -> ExpertCall:
    """`cells`: experts of each layer's first call; written when that is met."""
    tensors, views = [], []
    for role, name in sorted(call.tensors.items()):
        tensor = mapped.model.tensors.get(name)
        if tensor is None:
            raise ManifestError(f"{mapped.model.path}: the graph reads {name}, which the file does not have")
        tensors.append(ExpertTensor(role, tensor.type.id, tensor.shape[:-1]))
        views.append((mapped.tensor_view(name), tensor.shape[-1]))
    n_experts = views[0][1]
    if any(count != n_experts for _, count in views):
        raise ManifestError(f"{mapped.model.path}: layer {call.layer}: its tensors count experts differently")
    digests = bytearray()
    for expert in range(n_experts):
        parts = [
            view[expert * (len(view) // n_experts) : (expert + 1) * (len(view) // n_experts)]
            for view, _ in views
        ]
        digests += expert_digest(parts)
        if progress:
            progress(sum(len(part) for part in parts))
    shapes = {tensor.role: tensor.shape for tensor in tensors}
    return ExpertCall(
        layer=call.layer,
        group=call.group,
        n_experts=n_experts,
        run_length=run_length(n_experts, cells.setdefault(call.layer, n_experts)),
        n_in=_input_width(call.recipe, shapes),
        n_out=shapes["down.weight"][1],
        recipe=call.recipe,
        tensors=tuple(tensors),
        digests=base64.b64encode(digests).decode(),
    )


def _input_width(recipe: Recipe, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Width of the row that enters: what the first matrix takes."""
    stack = [recipe.output]
    while stack:
        expression = stack.pop()
        if isinstance(expression, Matmul) and isinstance(expression.of, Input):
            return shapes[expression.tensor][0]
        stack.extend(children(expression))
    raise ManifestError("a recipe in which no expert matrix reads the input")
