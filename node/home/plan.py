"""Which cells to have at home within a budget, so that trips are few. Pure: whoever can measures.

1. A pass saves a trip only where a whole layer is at home: one missing expert costs the full trip. So whole
   layers come first; the hottest cells of other layers take what is left, either of all of them (guesses get
   better) or of one after another (the next layer gets nearly whole).
2. Which layers: one after the other by what each saves for its bytes, and then all exchanges of one for
   another; of few layers, every choice (`candidates`).
3. The estimate says which to try, measuring decides, and what was measured mends the estimate (`search`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from node.home.estimate import Estimator
from node.home.home_set import HomeSet, Shapes

ALL_CHOICES = 300
"""Choices of layers up to which all are looked at: 4 of 9 layers are 126, 24 of 48 are 10^13."""

FILLED = 16
"""Choices of layers that get hot cells added and are looked at closely."""

TRIED = 12
"""Candidates that `search` would measure before it asks for new ones: the estimate is better by then."""

NOTHING = HomeSet()

SLACK = 0.25
"""A candidate is measured if its estimate is at most so much above the best that was measured; estimates were
seen to be off by 15 %, rarely by more."""


def candidates(estimator: Estimator, budget: int, free: HomeSet = NOTHING) -> list[HomeSet]:
    """Home sets that may be the best within a budget, the likeliest first.

    Args:
        budget: bytes of cells beyond `free`.
        free: cells that are at home anyway.
    """
    by_layers = [
        (estimator.trips(home), home)
        for home in {_with_layers(estimator, free, layers) for layers in _choices(estimator, budget, free)}
    ]
    by_layers.sort(key=lambda each: (each[0], each[1].bits))
    found: set[HomeSet] = set()
    # Hot cells only is what a model with few experts a token may do best with, so it is among them always.
    for home in [*(home for _, home in by_layers[:FILLED]), free]:
        left = budget - (home - free).n_bytes(estimator.shapes)
        found.add(with_hot_cells(estimator, home, left, one_by_one=False))
        found.add(with_hot_cells(estimator, home, left, one_by_one=True))
    return sorted(found, key=lambda home: (estimator.trips(home), home.bits))


def search(
    estimate: Callable[[], Estimator],
    measure: Callable[[HomeSet], float],
    known: Mapping[HomeSet, float],
    budget: int,
    *,
    free: HomeSet = NOTHING,
    may_go_on: Callable[[], bool] = lambda: True,
) -> HomeSet:
    """The best home set within a budget of all that were measured.

    Args:
        estimate: the best estimator by now; asked again after measuring.
        measure: trips per layer and token with a home set; must put it into `known`.
        known: what was measured so far, for other budgets too.
        may_go_on: False ends the search once one set was measured.
    """
    while True:
        estimator = estimate()
        best = best_known(known, estimator.shapes, budget, free)
        if best is not None and not may_go_on():
            return best
        bound = math.inf if best is None else known[best] * (1 + SLACK)
        untried = (
            home
            for home in candidates(estimator, budget, free)[:TRIED]
            if home not in known and estimator.trips(home) <= bound
        )
        chosen = next(untried, None)
        if chosen is None:
            return best if best is not None else free
        measure(chosen)


def best_known(
    known: Mapping[HomeSet, float], shapes: Shapes, budget: int, free: HomeSet = NOTHING
) -> HomeSet | None:
    """Of the sets that were measured and fit, the one with the fewest trips."""
    fitting = [home for home in known if (home - free).n_bytes(shapes) <= budget and home | free == home]
    return min(fitting, key=lambda home: (known[home], home.n_bytes(shapes), home.bits), default=None)


def _choices(estimator: Estimator, budget: int, free: HomeSet) -> Iterator[frozenset[int]]:
    """Layers to have whole."""
    shapes = estimator.shapes
    costs = {layer: (HomeSet.whole([layer], shapes) - free).n_bytes(shapes) for layer in shapes}
    given = frozenset(layer for layer, cost in costs.items() if cost == 0)
    order = list(
        _greedy(estimator, budget, free, {layer: costs[layer] for layer in shapes if layer not in given})
    )
    yield given
    n = len(order)
    others = [layer for layer in shapes if layer not in given]
    if math.comb(len(others), n) <= ALL_CHOICES:
        for layers in itertools.combinations(others, n):
            if sum(costs[layer] for layer in layers) <= budget:
                yield given | frozenset(layers)
    for size in sorted({n, n - 1, n // 2} - {-1}):
        yield given | frozenset(order[:size])
    spent = sum(costs[layer] for layer in order)
    for goes in order:
        for comes in others:
            if comes not in order and spent - costs[goes] + costs[comes] <= budget:
                yield given | frozenset(order) - {goes} | {comes}


def _greedy(estimator: Estimator, budget: int, free: HomeSet, costs: Mapping[int, int]) -> Iterator[int]:
    """Layers one by one, each time the one that saves most for its bytes."""
    home, left = free, budget
    taken: set[int] = set()
    while True:
        before = estimator.trips(home)
        best, most = None, 0.0
        for layer, cost in costs.items():
            if layer in taken or cost > left:
                continue
            saved = math.log(
                (before + 1e-9) / (estimator.trips(_with_layers(estimator, home, [layer])) + 1e-9)
            )
            if best is None or saved / cost > most:
                best, most = layer, saved / cost
        if best is None:
            return
        yield best
        taken.add(best)
        left -= costs[best]
        home = _with_layers(estimator, home, [best])


def _with_layers(estimator: Estimator, home: HomeSet, layers: Iterable[int]) -> HomeSet:
    return home | HomeSet.whole(layers, estimator.shapes)


def with_hot_cells(estimator: Estimator, home: HomeSet, left: int, *, one_by_one: bool) -> HomeSet:
    """With the hottest cells of the layers that are not whole, for so many bytes.

    Args:
        one_by_one: of one layer after another instead of all.
    """
    shapes, worth = estimator.shapes, estimator.worth
    cells: list[tuple[float, float, int, int]] = []
    for layer, shape in shapes.items():
        held = home.held(layer)
        if held.bit_count() == shape.n_experts:
            continue
        value = (float(shape.n_calls) if worth is None else worth.layers[layer]) / shape.cell_bytes
        shares = estimator.heat.shares(layer)
        rank = value if one_by_one else 0.0
        cells += [
            (-rank, -value * float(shares[expert]), layer, int(expert))
            for expert in np.argsort(-shares, kind="stable")
            if not held >> int(expert) & 1
        ]
    cells.sort()
    taken: dict[int, int] = {}
    room = float(left)
    for _, _, layer, expert in cells:
        if shapes[layer].cell_bytes <= room:
            room -= shapes[layer].cell_bytes
            taken[layer] = taken.get(layer, 0) | 1 << expert
    return home | HomeSet.of_bits(taken)
