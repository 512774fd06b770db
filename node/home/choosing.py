"""From a plan to the cells for one budget; without a plan, by what is usual. Pure.

1. The layers, and how many cells of the others, are chosen by the plan: its text's heat, and the sets that it
   measured (`choose`). What nobody measured must promise clearly more than what was.
2. Heat counted in use only says which cells those are (`moved`). It never takes a layer away: the text of an
   hour is concentrated, and an estimate by it promises what no measurement has seen.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from node.home.estimate import Estimator
from node.home.heat import Heat, merged
from node.home.home_set import HomeSet, Shapes
from node.home.plan import FILLED, candidates, with_hot_cells
from node.home.plan_file import HomePlan

UNMEASURED = 1.25
"""Times the trips that are expected of a set nobody measured, against those that were: expectations were seen
to be a fifth too low, and the sets looked at are those where they are lowest."""

LEAST_GAIN = 0.1
"""Share of the trips that other cells must save: estimates were seen to be off by as much."""

PLAN_TOKENS = 10_000
"""Tokens that a plan's heat counts for at least against heat in use: as many must be seen to count alike."""

REPETITIVE, VARIED = 0.85, 0.95
"""How widely experts are used (exp of the entropy of their shares) against the plan: below the first heat in
use counts nothing, above the second in full. Prose and code came to 0.94 to 1.0 of a plan of both, a repeated
sentence to 0.58 to 0.87, the less the more experts a model has."""


class Factors:
    """How much more or less than its estimate sets came to, when they were measured."""

    def __init__(self, own: Mapping[HomeSet, float], shapes: Shapes) -> None:
        self._own = own
        self._shapes = shapes
        logs: dict[tuple[int, ...], list[float]] = {}
        for home, factor in own.items():
            logs.setdefault(tuple(home.whole_layers(shapes)), []).append(math.log(factor))
        self._alike = {layers: math.exp(sum(each) / len(each)) for layers, each in logs.items()}

    def of(self, home: HomeSet) -> float:
        """A set's own, or the mean of those with the same whole layers."""
        own = self._own.get(home)
        return self._alike.get(tuple(home.whole_layers(self._shapes)), 1.0) if own is None else own


@dataclass(frozen=True)
class Prediction:
    """What home sets would cost, by plan and heat, mended by what was measured.

    Attributes:
        estimator: with the plan's heat.
        known: sets that were measured.
        tokens, waits: of what a pass yields, and of the share of its calls that wait.
        now: with the heat that counts now; None if nothing was counted since.
    """

    estimator: Estimator
    known: Collection[HomeSet]
    tokens: Factors
    waits: Factors
    now: Estimator | None = None

    def trips(self, home: HomeSet) -> float:
        """Trips per layer and token; never more than of a measured set that is part of it."""
        parts = (known for known in self.known if known & home == known)
        return min(self._mended(each) for each in (home, *parts))

    def trips_now(self, home: HomeSet) -> float:
        """The same by the heat that counts now; for sets with the same layers only."""
        if self.now is None:
            return self.trips(home)
        expected = self.estimator.trips(home)
        return self.now.trips(home) * (self.trips(home) / expected if expected > 0 else 1.0)

    def tokens_per_pass(self, home: HomeSet) -> float:
        """1 with nothing at home: then nothing is guessed by it."""
        return max(1.0, self.estimator.tokens_per_pass(home) * self.tokens.of(home)) if home else 1.0

    def _mended(self, home: HomeSet) -> float:
        return min(1.0, self.estimator.waits(home) * self.waits.of(home) / self.tokens_per_pass(home))


def predict(
    plan: HomePlan, shapes: Shapes, in_use: Heat | None = None, *, guesses: bool = True
) -> Prediction:
    """By a plan, and by what was counted since.

    Args:
        guesses: whether a pass guesses by what is at home.
    """
    then = _estimator(plan, shapes, plan.heat(shapes), guesses)
    guesses = then.worth is not None
    tokens, waits = {}, {}
    for home, found in plan.known(shapes).items():
        if not home:
            continue  # nothing guesses then, whatever was measured
        yielded = found.tokens_per_pass if guesses else 1.0
        waited = found.trips * found.tokens_per_pass if guesses else found.plain
        tokens[home] = yielded / then.tokens_per_pass(home)
        expected = then.waits(home)
        waits[home] = waited / expected if expected > 0 and waited > 0 else 1.0
    now = None
    if in_use is not None and in_use.tokens > 0:
        now = _estimator(plan, shapes, heat_now(shapes, plan, in_use), guesses)
    return Prediction(then, tokens, Factors(tokens, shapes), Factors(waits, shapes), now)


def _estimator(plan: HomePlan, shapes: Shapes, heat: Heat, guesses: bool) -> Estimator:
    found = plan.estimator(shapes, heat)
    return found if guesses else Estimator(shapes, heat, None, found.n_used)


def choose(prediction: Prediction, budget: int, free: HomeSet) -> HomeSet:
    """The cells that save most within a budget by the plan, `free` among them."""
    shapes = prediction.estimator.shapes
    tried = [home | free for home in prediction.known if ((home | free) - free).n_bytes(shapes) <= budget]
    tried.sort(key=lambda home: (prediction.trips(home), home.bits))
    filled = [
        with_hot_cells(prediction.estimator, home, budget - (home - free).n_bytes(shapes), one_by_one=False)
        for home in tried[:FILLED]
    ]
    if tried:
        left = budget - (tried[0] - free).n_bytes(shapes)
        filled.append(with_hot_cells(prediction.estimator, tried[0], left, one_by_one=True))
    considered = {*tried, *filled, *candidates(prediction.estimator, budget, free)}

    def rank(home: HomeSet) -> tuple[float, int, tuple[tuple[int, int], ...]]:
        # What has all of the best measured one and more is no risk, and what memory is left costs nothing.
        is_sure = not tried or home in tried or home | tried[0] == home
        return prediction.trips(home) * (1 if is_sure else UNMEASURED), -home.n_bytes(shapes), home.bits

    return min(considered, key=rank)


def moved(prediction: Prediction, home: HomeSet, free: HomeSet) -> HomeSet:
    """With the cells that are hottest now in place of as many of the same layers, if that saves enough.

    Layers that are whole stay so, and those of which a part is at home keep as many cells.
    """
    now, shapes = prediction.now, prediction.estimator.shapes
    if now is None:
        return home
    whole = set(home.whole_layers(shapes))
    bits = dict(home.bits)
    for layer, held in home.bits:
        if layer in whole:
            continue
        bits[layer] = free.held(layer)
        order = np.argsort(-now.heat.shares(layer), kind="stable").tolist()
        others = [expert for expert in order if not bits[layer] >> expert & 1]
        for expert in others[: held.bit_count() - bits[layer].bit_count()]:
            bits[layer] |= 1 << expert
    other = HomeSet.of_bits(bits)
    saves = now.trips(other) <= (1 - LEAST_GAIN) * now.trips(home)
    return other if saves else home


def choose_unmeasured(shapes: Shapes, heat: Heat, budget: int, free: HomeSet) -> HomeSet:
    """Whole layers from outside in, then cells of the next ones, the hottest first if any heat was
    counted."""
    home, left = free, budget
    order = outside_in(list(shapes))
    for layer in order:
        cost = (HomeSet.whole([layer], shapes) - home).n_bytes(shapes)
        if cost <= left:
            home |= HomeSet.whole([layer], shapes)
            left -= cost
    for layer in order:
        shape = {layer: shapes[layer]}
        before = home
        home = with_hot_cells(Estimator(shape, heat, None, 1), home, left, one_by_one=True)
        left -= (home - before).n_bytes(shapes)
    return home


def heat_now(shapes: Shapes, plan: HomePlan | None, in_use: Heat) -> Heat:
    """What the text said and what was counted since: in use it takes many tokens, and of varied text."""
    if plan is None:
        return in_use
    then = plan.heat(shapes)
    variety = float(np.mean([_spread(in_use, layer) / _spread(then, layer) for layer in shapes]))
    counts = min(1.0, max(0.0, (variety - REPETITIVE) / (VARIED - REPETITIVE)))
    return merged(shapes, {then: float(max(plan.text_tokens, PLAN_TOKENS)), in_use: in_use.tokens * counts})


def _spread(heat: Heat, layer: int) -> float:
    """How many experts it comes to if all were chosen alike: exp of the entropy of their shares."""
    shares = heat.shares(layer)
    shares = shares[shares > 0]
    return float(np.exp(-(shares * np.log(shares)).sum()))


def outside_in(layers: Sequence[int]) -> list[int]:
    """First and last layer, then the one before the last, then in turns from both sides.

    The order in which layers are taken home where nothing was measured: in both trained models that were, the
    first and the last were worth most, and then the one before the last.
    """
    left, order = list(layers), list[int]()
    for turn in range(len(left)):
        from_end = turn == 1 or (turn >= 2 and turn % 2 == 0)
        order.append(left.pop() if from_end else left.pop(0))
    return order
