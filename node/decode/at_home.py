"""What the cells at home alone make of a call: the routed output of a guess."""

from __future__ import annotations

import numpy as np

from node.engine.expert_holes import ExpertInputs
from node.engine.kernels import Kernels
from node.serve.cells import HeldCall
from routing.dispatch.combine import sum_pairs
from routing.wire.codecs import Float32Array


def at_home(inputs: ExpertInputs, held: HeldCall | None, kernels: Kernels) -> tuple[Float32Array, float]:
    """The weighted rows of the experts held here, added; what is missing counts nothing.

    Returns:
        [n_tokens, n_out], and the share of the router's weight that is missing, 0 to 1.
    """
    ids, weights = inputs.ids, inputs.weights
    n_tokens, n_used = ids.shape
    if held is not None and held.is_whole:
        return held.routed(kernels, inputs.x, ids, weights), 0.0
    result = np.zeros((n_tokens, inputs.call.n_out), np.float32)
    if held is None:
        return result, 1.0
    here = held.holds(ids)
    if not here.any():
        return result, 1.0
    pairs = np.flatnonzero(here)
    tokens = pairs // n_used
    if inputs.call.recipe.weights == "before":  # a row of x for each pair
        x, counts = inputs.x[pairs], np.ones(len(pairs), np.uint16)
    else:
        x, counts = inputs.x[np.unique(tokens)], here.sum(axis=1)[here.any(axis=1)].astype(np.uint16)
    weighed = None if weights is None else weights.reshape(-1)[pairs]
    y = held.compute(kernels, x, counts, ids.reshape(-1)[pairs], weighed)
    result[here.any(axis=1)] = sum_pairs(y, here.sum(axis=1)[here.any(axis=1)].astype(np.uint16))
    return result, _missing(here, weights)


def _missing(here: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], weights: Float32Array | None) -> float:
    if weights is None:
        return 1.0 - float(here.mean())
    all_of_it = np.abs(weights)
    total = float(all_of_it.sum())
    return 1.0 - float(all_of_it[here].sum()) / total if total > 0 else 0.0
