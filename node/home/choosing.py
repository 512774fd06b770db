"""From a plan to the cells for one budget; without a plan, by what is usual. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from node.home.estimate import Estimator
from node.home.heat import Heat, merged
from node.home.home_set import HomeSet, Shapes
from node.home.plan import FILLED, candidates, with_hot_cells
from node.home.plan_file import HomePlan


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
        estimator: with the heat that counts now.
        known: sets that were measured.
        tokens, waits: of what a pass yields, and of the share of its calls that wait.
    """

    estimator: Estimator
    known: Collection[HomeSet]
    tokens: Factors
    waits: Factors

    def trips(self, home: HomeSet) -> float:
        """Trips per layer and token."""
        return self.estimator.waits(home) * self.waits.of(home) / self.tokens_per_pass(home)

    def tokens_per_pass(self, home: HomeSet) -> float:
        return max(1.0, self.estimator.tokens_per_pass(home) * self.tokens.of(home))


def predict(plan: HomePlan, shapes: Shapes, estimator: Estimator, *, counted: bool = False) -> Prediction:
    """By a plan, for a heat that may have changed since.

    Args:
        counted: the estimator knows from use which passes wait, so that needs no mending.
    """
    guesses = estimator.worth is not None
    then = plan.estimator(shapes)
    if not guesses:
        then = Estimator(shapes, then.heat, None, then.n_used)
    tokens, waits = {}, {}
    for home, found in plan.known(shapes).items():
        yielded = found.tokens_per_pass if guesses else 1.0
        waited = found.trips * found.tokens_per_pass if guesses else found.plain
        tokens[home] = yielded / then.tokens_per_pass(home)
        expected = then.waits(home)
        waits[home] = waited / expected if expected > 0 and waited > 0 else 1.0
    return Prediction(estimator, tokens, Factors(tokens, shapes), Factors({} if counted else waits, shapes))


def choose(prediction: Prediction, budget: int, free: HomeSet) -> HomeSet:
    """The cells that save most within a budget, `free` among them."""
    shapes = prediction.estimator.shapes
    tried = [home | free for home in prediction.known if ((home | free) - free).n_bytes(shapes) <= budget]
    tried.sort(key=lambda home: (prediction.trips(home), home.bits))
    filled = [
        with_hot_cells(prediction.estimator, home, budget - (home - free).n_bytes(shapes), one_by_one=False)
        for home in tried[:FILLED]
    ]
    considered = {*tried, *filled, *candidates(prediction.estimator, budget, free)}
    return min(considered, key=lambda home: (prediction.trips(home), home.n_bytes(shapes), home.bits))


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
    """What the text said and what was counted since, each by how much was seen of it."""
    if plan is None:
        return in_use
    return merged(shapes, {plan.heat(shapes): float(plan.text_tokens), in_use: in_use.tokens})


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
