"""Computes seeded recipes that pass the checks of manifests, in a process of its own: ggml may abort it.

    python -m tests.property.recipe_worker FIRST LAST

Prints each seed before it is computed, and `done RECIPES` at the end.
"""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Callable

import numpy as np

from node.engine import library as llama
from node.engine.expression_graph import GLU_KINDS, UNARY_KINDS
from node.engine.kernels import Kernels
from node.engine.library import EngineError
from node.model import recipe as R
from node.model.held import HeldExperts, HeldTensor
from node.model.manifest import (
    VERSION,
    ExpertCall,
    ExpertTensor,
    Manifest,
    check,
    decode_manifest,
    output_width,
)
from routing.errors import LocalError

N_IN = 8
N_EXPERTS = 4
SHAPES: dict[str, tuple[int, ...]] = {
    "gate.weight": (8, 12),
    "up.weight": (8, 8),
    "down.weight": (12, 8),
    "gate_up.weight": (8, 24),
    "gate.bias": (12,),
    "up.bias": (8,),
    "gate_up.bias": (24,),
    "gate.scale": (),
    "down.scale": (),
}
MATRICES = tuple(role for role in SHAPES if role.endswith("weight"))
BIASES = tuple(role for role in SHAPES if role.endswith("bias"))
SCALES = tuple(role for role in SHAPES if role.endswith("scale"))


def draw(rng: random.Random, depth: int) -> R.Expression:
    """Any expression at all, most of them wrong."""

    def inner() -> R.Expression:
        return draw(rng, depth + 1)

    number = rng.choice((-2.0, 0.0, 0.5, 7.0, 1e30))
    kinds: tuple[Callable[[], R.Expression], ...] = (
        R.Input,
        lambda: R.Matmul(rng.choice(MATRICES), inner()),
        lambda: R.Matmul(rng.choice(MATRICES), R.Input()),
        lambda: R.Matmul(rng.choice(MATRICES), R.Input()),
        lambda: R.Bias(rng.choice(BIASES), inner()),
        lambda: R.Scale(rng.choice(SCALES), inner()),
        lambda: R.Weigh(inner()),
        lambda: R.Half(rng.choice((0, 1)), inner()),
        lambda: R.Glu(rng.choice(GLU_KINDS), inner(), None, rng.random() < 0.5, number, 7.0),
        lambda: R.Glu(rng.choice(GLU_KINDS), inner(), inner(), rng.random() < 0.5, 1.7, number),
        lambda: R.Unary(rng.choice(UNARY_KINDS), inner(), (number,) * rng.randint(0, R.MAX_PARAMETERS)),
        lambda: R.Square(inner()),
        lambda: R.Affine(number, inner(), number),
        lambda: R.Clamp(number, 1.0, inner()),
        lambda: R.Norm(rng.choice(("RMS_NORM", "NORM", "L2_NORM")), rng.choice((0.0, 1e-5)), inner()),
        lambda: R.Product(inner(), inner()),
        lambda: R.Total(inner(), inner()),
    )
    return R.Input() if depth > 8 else rng.choice(kinds)()


def accepted(rng: random.Random) -> ExpertCall | None:
    """A drawn recipe as a stranger's manifest would bring it, if that passes."""
    expression = draw(rng, 0)
    weights = "after" if "Weigh" in repr(expression) else rng.choice(("none", "before"))
    recipe = R.Recipe(weights, expression)  # type: ignore[arg-type]
    try:
        tensors = tuple(ExpertTensor(role, 0, SHAPES[role]) for role in R.roles(recipe))
        digests = base64.b64encode(bytes(32 * N_EXPERTS)).decode()
        width = output_width(recipe, N_IN, SHAPES)
        call = ExpertCall(0, "exps", N_EXPERTS, 1, N_IN, width, recipe, tensors, digests)
        manifest = Manifest(VERSION, "drawn", ("experts",), (call,), ())
        check(manifest)
        assert decode_manifest(manifest.encoded()) == manifest
    except LocalError:
        return None
    return call


def compute(kernels: Kernels, call: ExpertCall, seed: int) -> None:
    values = np.random.default_rng(seed)
    tensors = {}
    for tensor in call.tensors:
        data = values.standard_normal((N_EXPERTS, *tensor.shape[::-1])).astype(np.float32)
        tensors[tensor.role] = HeldTensor(0, (*tensor.shape, N_EXPERTS), data.reshape(-1).view(np.uint8))
    held = HeldExperts(call.recipe, tensors, 0, N_EXPERTS, N_IN, call.n_out)
    weighed = call.recipe.weights == "after"
    for counts in ((2, 2, 2), (1,), (1, 3)):
        pairs = sum(counts)
        x = values.standard_normal((len(counts), N_IN)).astype(np.float32)
        experts = values.integers(0, N_EXPERTS, pairs)
        weights = values.uniform(0, 1, pairs).astype(np.float32) if weighed else None
        result = kernels.run(held, x, np.array(counts, np.uint16), experts, weights)
        assert result.shape == (pairs, call.n_out)


def main(first: int, last: int) -> None:
    kernels = Kernels(llama.load(), threads=1)
    found = 0
    for seed in range(first, last):
        call = accepted(random.Random(seed))
        if call is None:
            continue
        print(seed, call.recipe.output, flush=True)
        try:
            compute(kernels, call, seed)
        except EngineError as error:
            print(f"refused: {error}")
        found += 1
    print(f"done {found}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
