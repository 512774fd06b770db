"""The gate: does a trunk with our kernels give the bytes that llama.cpp gives on the whole file?

Nothing is used before it has passed: not a trunk, not a recipe. A structural mistake shows in the first bytes
compared; agreement on several passes of different shape is what the rest of panal rests on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from node.engine.context import Context, Row
from node.engine.early_router import EarlyRouter
from node.engine.expert_holes import ExpertHoles, ExpertInputs
from node.engine.hook import GraphHook
from node.engine.kernels import Kernels
from node.engine.library import Library
from node.engine.llama_model import LlamaModel
from node.model.held import HeldExperts
from node.model.manifest import ExpertCall, Manifest
from routing.errors import PanalError

# A prompt, single tokens, a short batch: all kinds of shape that decoding meets, within every context length.
GATE_PASSES = (7, 1, 1, 5)
GATE_SEED = 20261129
GATE_CONTEXT = 64


class LocalExperts:
    """An `ExpertPort` that computes everything here, from experts held whole."""

    def __init__(self, kernels: Kernels, held: Mapping[tuple[int, str], HeldExperts]) -> None:
        self._kernels = kernels
        self._held = held

    def leave(self, inputs: ExpertInputs) -> npt.NDArray[np.float32]:
        return routed_output(self._kernels, self._held[inputs.call.layer, inputs.call.group], inputs)

    def enter(self, ticket: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return ticket


def routed_output(kernels: Kernels, held: HeldExperts, inputs: ExpertInputs) -> npt.NDArray[np.float32]:
    """[n_tokens, n_out]: a call computed here, rows added in slot order as llama.cpp adds them."""
    return kernels.routed(held, inputs.x, inputs.ids, inputs.weights)


def gate(
    library: Library,
    whole: tuple[Path, ...],
    trunk: Path,
    manifest: Manifest,
    held: Mapping[tuple[int, str], HeldExperts],
) -> str:
    """Why the trunk may not be used; "" if it gives the same bytes.

    A model whose output is not finite, or constant, is refused too: equal bytes would prove nothing.

    Args:
        whole: the model's file, or its parts.
        held: all experts of every call, by (layer, group).
    """
    kernels = Kernels(library, threads=1)
    calls: dict[tuple[int, str], ExpertCall] = {(call.layer, call.group): call for call in manifest.calls}
    early = EarlyRouter(library, threads=1)
    hook = GraphHook(library, ExpertHoles(calls, LocalExperts(kernels, held), early))
    try:
        with LlamaModel(library, [trunk]) as trunk_model, LlamaModel(library, whole) as model:
            rng = np.random.default_rng(GATE_SEED)
            settings: dict[str, Any] = {"n_ctx": GATE_CONTEXT, "n_ubatch": GATE_CONTEXT, "threads": 1}
            with (
                Context(model, **settings) as plain,
                Context(trunk_model, **settings, callback=hook.callback) as hooked,
            ):
                position, vacuous = 0, True
                for size in GATE_PASSES:
                    tokens = rng.integers(0, model.n_vocab, size)
                    rows = [Row(int(token), position + i) for i, token in enumerate(tokens)]
                    position += 0 if plain.is_encoder else size
                    expected = plain.run(rows)
                    if not np.isfinite(expected).all():
                        return "llama.cpp's own output on the whole file has NaN or infinite values"
                    vacuous = vacuous and bool((expected == expected[:, :1]).all())
                    hook.begin()
                    found = hooked.run(rows)
                    hook.finish()
                    if expected.tobytes() != found.tobytes():
                        worst = float(np.nanmax(np.abs(expected - found)))
                        return f"a pass of {size} tokens differs from llama.cpp's by up to {worst:.3g}"
                if vacuous:
                    return "llama.cpp's own output on the whole file is one number all along each row"
    except PanalError as error:
        return str(error)
    finally:
        early.close()
        kernels.close()
    return ""
