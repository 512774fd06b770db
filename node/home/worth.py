"""What each layer at home is worth for guessing: a model with one number a layer, fitted to what was
measured. Pure.

A guess by the cells at home is right with a chance a. What was found on trained models (tests/integration/
test_home_calibration.py): its losses multiply. If dropping the experts of layer l alone leaves exp(-w_l) of
the chance, dropping those of several leaves exp of minus the sum of their w, and dropping a part of a layer's
experts costs the part of w_l that these have in the layer's choices. So

    -log a = base + sum over layers of w_l x share of the layer's choices that is not at home

and as many numbers as there are layers tell all of 2^layers home sets nearly enough to know which to try.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

LEAST_CHANCE, MOST_CHANCE = 0.02, 0.995
"""Bounds of a chance that was measured: with a few hundred guesses nothing is certain, and logarithms stay
finite."""

PRIOR_WEIGHT = 4.0
"""Guesses that the mean of all layers counts for in each: layers that were not tried are taken to be like the
others."""

MOST_WORTH = -math.log(LEAST_CHANCE)
"""Of a layer: no chance is seen to fall further."""

SWEEPS = 200
"""Rounds of coordinate descent: 48 layers need some dozens."""


def tokens_per_pass(chance: float, drafts: int) -> float:
    """Tokens that a pass with so many guesses yields, each of them right with `chance`: 1 to drafts + 1."""
    return sum(chance**depth for depth in range(drafts + 1))


def chance_of(tokens: float, drafts: int) -> float:
    """The chance with which a pass of so many guesses yields so many tokens."""
    low, high = LEAST_CHANCE, MOST_CHANCE
    for _ in range(40):
        middle = (low + high) / 2
        if tokens_per_pass(middle, drafts) < tokens:
            low = middle
        else:
            high = middle
    return high


@dataclass(frozen=True, slots=True)
class Sample:
    """A home set that was tried.

    Attributes:
        missing: share of each layer's choices that was not at home, 0 to 1, by layer.
        tokens_per_pass, passes: what was seen.
    """

    missing: Mapping[int, float]
    tokens_per_pass: float
    passes: int


@dataclass(frozen=True, slots=True)
class Worth:
    """The model's numbers.

    Attributes:
        base: -log of the chance with everything at home; 0 but for near ties.
        layers: w by layer, at least 0.
        drafts: guesses of a pass that it is told for.
    """

    base: float
    layers: Mapping[int, float]
    drafts: int

    def chance(self, missing: Mapping[int, float]) -> float:
        """That a guess is right, if so much of each layer's choices is missing."""
        return math.exp(-self.base - sum(self.layers[layer] * share for layer, share in missing.items()))

    def tokens_per_pass(self, missing: Mapping[int, float]) -> float:
        """What a pass yields."""
        return tokens_per_pass(self.chance(missing), self.drafts)


def fit(layers: Sequence[int], samples: Sequence[Sample], drafts: int) -> Worth:
    """The numbers that explain what was seen best, none of them below 0.

    Each sample counts by how exactly it tells the chance; each layer is drawn to the mean of all.
    """
    if not samples:
        return Worth(0.0, dict.fromkeys(layers, 1 / len(layers)), drafts)
    missing = np.array([[sample.missing.get(layer, 0.0) for layer in layers] for sample in samples])
    chances = np.array([chance_of(sample.tokens_per_pass, drafts) for sample in samples])
    losses = -np.log(chances)
    # The variance of -log a, if a is the share of right ones among so many.
    guesses = np.array([sample.passes * sample.tokens_per_pass for sample in samples])
    weights = guesses * chances / (1 - chances)
    mass = missing.sum(axis=1)
    mean = float((weights * mass * losses).sum() / max((weights * mass * mass).sum(), 1e-9))
    mean = min(max(mean, 0.0), MOST_WORTH)
    found = np.full(len(layers), mean)
    prior = PRIOR_WEIGHT * (weights / guesses).mean()
    base = 0.0
    for _ in range(SWEEPS):
        rest = losses - missing @ found
        base = max(0.0, float((weights * rest).sum() / weights.sum()))
        rest = rest - base
        for i in range(len(layers)):
            column = missing[:, i]
            rest += column * found[i]
            above = float((weights * column * rest).sum()) + prior * mean
            below = float((weights * column * column).sum()) + prior
            found[i] = min(max(0.0, above / below), MOST_WORTH)
            rest -= column * found[i]
    return Worth(base, dict(zip(layers, found.tolist(), strict=True)), drafts)
