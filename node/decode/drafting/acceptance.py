"""How likely a guess is to be right: a logistic estimate for each source, learnt from what passes said. Pure.

1. What it looks at: the guesser's own probability (as log odds), the share of router weight that was not at
   home (mean and worst layer), and how many guesses stand before it.
2. It is the chance *given that all guesses before it are right*: a pass tells no more.
3. Each answer moves the weights by Bayes' rule on a normal approximation (an extended Kalman filter), so
   early answers count for much and a settled estimate moves little. The weights may wander: texts change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from node.decode.drafting.draft import Draft

FEATURES = 5  # one, log odds of the probability, missing_mean, missing_max, log of the depth

PRIOR_WEIGHTS = (0.0, 0.9, 0.0, 0.0, 0.0)
"""Before anything is learnt: a guesser is nearly as good as it says."""

SELF_WEIGHTS = (3.6, 0.8, -1.6, -1.9, 0.2)
"""The same of self-drafting: fitted to 10,000 guesses of two trained models with none to three quarters of
their experts at home, hottest or whole layers. Area under the curve .83, of the probability alone .79."""

PRIOR_DEVIATIONS = (1.0, 0.3, 1.5, 1.0, 0.3)
"""How far each of them may be off: a hundred guesses outweigh it."""

DRIFT = 1 / 1000
"""Share of the prior's variance that each guess adds again: about the last hundred count."""

LEAST, MOST = 0.01, 0.995
"""Bounds of probabilities that go in or out: nothing is certain, and log odds stay finite."""

MOST_WEIGHT = 50.0
"""Larger weights are not learnt, so they are not believed when read: sums of them would lose all else."""

MAX_SOURCES = 16
"""Kinds of guessers at most that are kept apart: more than there are."""


class SourceNumbers(msgspec.Struct, frozen=True):
    """One source's estimate.

    Attributes:
        weights: [FEATURES].
        covariance: [FEATURES * FEATURES], of the weights, by rows.
    """

    weights: tuple[float, ...]
    covariance: tuple[float, ...]


class AcceptanceNumbers(msgspec.Struct, frozen=True):
    """What is known of a model's guessers, to be kept between runs. What makes no sense counts as nothing."""

    sources: dict[str, SourceNumbers] = {}


class _Source:
    """Weights and their covariance."""

    def __init__(self, name: str, numbers: SourceNumbers | None = None) -> None:
        self.weights = list(SELF_WEIGHTS if name == "self" else PRIOR_WEIGHTS)
        self.covariance = [
            [deviation**2 if i == j else 0.0 for j in range(FEATURES)]
            for i, deviation in enumerate(PRIOR_DEVIATIONS)
        ]
        if numbers is not None and _make_sense(numbers):
            self.weights = list(numbers.weights)
            flat = numbers.covariance
            self.covariance = [list(flat[i * FEATURES : (i + 1) * FEATURES]) for i in range(FEATURES)]

    def estimate(self, features: tuple[float, ...]) -> float:
        odds = sum(weight * value for weight, value in zip(self.weights, features, strict=True))
        return _bounded(1 / (1 + math.exp(-max(-30.0, min(30.0, odds)))))

    def learn(self, features: tuple[float, ...], right: bool) -> None:
        for i, deviation in enumerate(PRIOR_DEVIATIONS):
            variance = self.covariance[i][i]
            self.covariance[i][i] = max(variance, min(variance + DRIFT * deviation**2, deviation**2))
        expected = self.estimate(features)
        towards = [
            sum(entry * value for entry, value in zip(line, features, strict=True))
            for line in self.covariance
        ]
        spread = max(0.0, sum(entry * value for entry, value in zip(towards, features, strict=True)))
        noise = 1 / (expected * (1 - expected))
        for i in range(FEATURES):
            self.weights[i] += towards[i] / (spread + noise) * (right - expected) * noise
            for j in range(FEATURES):
                self.covariance[i][j] -= towards[i] * towards[j] / (spread + noise)

    def numbers(self) -> SourceNumbers:
        return SourceNumbers(tuple(self.weights), tuple(entry for line in self.covariance for entry in line))


class Acceptance:
    """Estimates of all sources of a model; its sessions may share one.

    Args:
        numbers: what `numbers` gave in an earlier run.
    """

    def __init__(self, numbers: AcceptanceNumbers | None = None) -> None:
        known: Mapping[str, SourceNumbers] = numbers.sources if numbers is not None else {}
        self._sources = {name: _Source(name, known[name]) for name in sorted(known)[:MAX_SOURCES]}

    def estimate(self, draft: Draft, depth: int) -> float:
        """Chance that a guess with `depth` right ones before it is right."""
        source = self._sources.get(draft.source) or _Source(draft.source)
        return source.estimate(_features(draft, depth))

    def learn(self, draft: Draft, depth: int, right: bool) -> None:
        """A pass has judged a guess, all `depth` guesses before it being right."""
        if draft.source not in self._sources:
            if len(self._sources) >= MAX_SOURCES:
                return
            self._sources[draft.source] = _Source(draft.source)
        self._sources[draft.source].learn(_features(draft, depth), right)

    def numbers(self) -> AcceptanceNumbers:
        return AcceptanceNumbers({name: source.numbers() for name, source in self._sources.items()})


def _features(draft: Draft, depth: int) -> tuple[float, ...]:
    chance = _bounded(draft.probability)
    odds = math.log(chance / (1 - chance))
    return 1.0, odds, draft.missing_mean, draft.missing_max, math.log1p(depth)


def _bounded(chance: float) -> float:
    return max(LEAST, min(MOST, chance))


def _make_sense(numbers: SourceNumbers) -> bool:
    flat = numbers.covariance
    if len(numbers.weights) != FEATURES or len(flat) != FEATURES**2:
        return False
    # Written so that a NaN fails each comparison.
    return (
        all(abs(weight) <= MOST_WEIGHT for weight in numbers.weights)
        and all(
            0 < flat[i * FEATURES + i] <= 1.01 * deviation**2 for i, deviation in enumerate(PRIOR_DEVIATIONS)
        )
        and all(
            flat[i * FEATURES + j] ** 2 <= 1.01 * flat[i * FEATURES + i] * flat[j * FEATURES + j]
            for i in range(FEATURES)
            for j in range(FEATURES)
        )
    )
