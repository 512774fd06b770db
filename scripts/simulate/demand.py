"""What the swarm is asked for: pairs a second of every cell, drifting; and the tokens behind it. Pure."""

from __future__ import annotations

import numpy as np

from scripts.simulate.world import Draws, FloatArray, IntArray, Shape, generator

FLATTEST, STEEPEST = 0.3, 0.9
"""Exponents of the layers' Zipf-like popularity. The hottest quarter of a layer's experts then takes 38 to 70
% of the choices; 34 to 70 % were measured on trained models (shared/models/README.md)."""

DRIFT = 0.05
"""Standard deviation of one period's change of an expert's log popularity..."""

RETURN = 0.01
"""...and the share of its distance from where it began that it returns in a period. After 100 periods the
hottest tenth of a layer's experts is another one but for a third."""


class Demand:
    """The popularity of every expert.

    Args:
        pairs: a second, of all cells together.
        popularity: float [layers, experts], any unit; None for Zipf-like ones drawn from the seed.
    """

    def __init__(self, shape: Shape, pairs: float, seed: int, popularity: FloatArray | None = None) -> None:
        self._shape = shape
        self._seed = seed
        self.pairs = pairs
        self._origin = np.log(_zipf(shape, seed) if popularity is None else np.maximum(popularity, 1e-6))
        self._now = self._origin.copy()

    def drift(self, period: int) -> None:
        """One period's change."""
        rng = generator(self._seed, Draws.DRIFT, period)
        change = rng.normal(0.0, DRIFT, self._now.shape)
        self._now += change - RETURN * (self._now - self._origin)

    def chances(self) -> FloatArray:
        """[layers, experts]: how likely a token uses the expert; each layer's add up to `used`."""
        weights = np.exp(self._now - self._now.max(axis=1, keepdims=True))
        chances = np.zeros_like(weights)
        left = np.full((len(weights), 1), float(self._shape.used))
        for _ in range(self._shape.used + 1):  # no expert is used more than once by a token
            free = chances < 1.0
            share = weights * free
            chances = np.where(free, np.minimum(1.0, share / share.sum(axis=1, keepdims=True) * left), 1.0)
            left = self._shape.used - (chances >= 1.0).sum(axis=1, keepdims=True).astype(np.float64)
            if not np.any((chances < 1.0) != free):
                break
        return np.asarray(chances)

    def by_cell(self) -> FloatArray:
        """[cells]: pairs a second."""
        chances = self.chances()
        return np.asarray((chances / chances.sum() * self.pairs).reshape(-1))

    def tokens(self, layer: int, count: int, period: int) -> IntArray:
        """[count, used]: the experts of some tokens in a layer, drawn without replacement (Gumbel top-k)."""
        rng = generator(self._seed, Draws.TOKENS, period, layer)
        noise = rng.gumbel(size=(count, self._shape.experts))
        order = np.argsort(-(self._now[layer] + noise), axis=1, kind="stable")
        return np.asarray(order[:, : self._shape.used], np.int64)


def _zipf(shape: Shape, seed: int) -> FloatArray:
    rng = generator(seed, Draws.DEMAND)
    exponents = rng.uniform(FLATTEST, STEEPEST, shape.layers)
    ranks = np.stack([rng.permutation(shape.experts) + 1.0 for _ in range(shape.layers)])
    return np.asarray(ranks ** -exponents[:, None])
