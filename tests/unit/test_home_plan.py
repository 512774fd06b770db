"""Choosing home sets: against trying every one of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.home.choosing import choose_unmeasured, outside_in
from node.home.estimate import Estimator
from node.home.heat import Heat, HeatNumbers
from node.home.home_set import HomeSet, LayerShape, Shapes, total_bytes
from node.home.plan import candidates, search
from node.home.worth import Sample, Worth, fit

DRAFTS = 8


class Truth:
    """A model whose layers are worth what a seed says, and a little besides that no plan knows."""

    def __init__(self, seed: int, n_layers: int, n_experts: int = 4, *, uneven: bool = False) -> None:
        rng = np.random.default_rng(seed)
        sizes = rng.integers(800, 1600, n_layers) if uneven else np.full(n_layers, 1000)
        self.shapes: Shapes = {
            layer: LayerShape(layer, n_experts, int(size)) for layer, size in enumerate(sizes)
        }
        counts = {layer: tuple(rng.dirichlet(np.full(n_experts, 0.6)).tolist()) for layer in self.shapes}
        self.heat = Heat(self.shapes, HeatNumbers(1000.0, counts))
        worth = {layer: float(rng.gamma(2.0, 0.6 / n_layers)) for layer in self.shapes}
        self._best = Estimator(self.shapes, self.heat, Worth(0.02, worth, DRAFTS), 2)
        self._seed = seed
        self.tried: dict[HomeSet, float] = {}

    def trips(self, home: HomeSet) -> float:
        wobble = np.random.default_rng([self._seed, hash(home) & 0xFFFFFFFF]).normal(0, 0.02)
        return self._best.trips(home) * float(np.exp(wobble))

    def measure(self, home: HomeSet) -> float:
        self.tried[home] = self.trips(home)
        return self.tried[home]

    def estimator(self) -> Estimator:
        """What a plan knows of it: fitted to what was tried."""
        samples = []
        for home, trips in self.tried.items():
            waits = self._best.waits(home)
            if trips > 0:
                samples.append(Sample(self._best.missing(home), max(1.0, waits / trips), 400))
        return Estimator(self.shapes, self.heat, fit(list(self.shapes), samples, DRAFTS), 2)

    def try_layers(self) -> None:
        for layer in self.shapes:
            self.measure(HomeSet.whole([each for each in self.shapes if each != layer], self.shapes))

    def whole_layer_sets(self, budget: int) -> Iterator[HomeSet]:
        for size in range(len(self.shapes) + 1):
            for layers in itertools.combinations(self.shapes, size):
                home = HomeSet.whole(layers, self.shapes)
                if home.n_bytes(self.shapes) <= budget:
                    yield home


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.sampled_from([0.25, 0.5, 0.75]), st.booleans())
def test_it_is_as_good_as_the_best_of_all_choices_of_layers(seed: int, share: float, uneven: bool) -> None:
    truth = Truth(seed, 6, uneven=uneven)
    truth.try_layers()
    budget = round(share * total_bytes(truth.shapes))
    found = search(truth.estimator, truth.measure, truth.tried, budget)
    assert found.n_bytes(truth.shapes) <= budget
    best = min(truth.trips(home) for home in truth.whole_layer_sets(budget))
    assert truth.trips(found) <= best * 1.03
    assert len(truth.tried) < 40  # of 64, and of thousands with hot cells


def test_many_layers_take_few_tries() -> None:
    truth = Truth(5, 12)
    truth.try_layers()
    budget = total_bytes(truth.shapes) // 2
    found = search(truth.estimator, truth.measure, truth.tried, budget)
    best = min(truth.trips(home) for home in truth.whole_layer_sets(budget))  # 2,510 sets
    assert truth.trips(found) <= best * 1.03
    assert len(truth.tried) <= 40


def test_forty_eight_layers_are_quick_enough() -> None:
    truth = Truth(9, 48, 32)
    truth.try_layers()
    whole = total_bytes(truth.shapes)
    found = candidates(truth.estimator(), whole // 2)
    known = sorted(truth.shapes, key=lambda layer: -truth._best.worth.layers[layer])[:24]  # type: ignore[union-attr]
    assert truth.trips(found[0]) <= 1.05 * truth.trips(HomeSet.whole(known, truth.shapes))


def test_the_budget_and_what_is_there_anyway() -> None:
    truth = Truth(3, 5)
    truth.try_layers()
    free = HomeSet.whole([2], truth.shapes) | HomeSet.of({0: [1]})
    budget = total_bytes(truth.shapes) // 3
    for home in candidates(truth.estimator(), budget, free):
        assert home | free == home
        assert (home - free).n_bytes(truth.shapes) <= budget
    assert candidates(truth.estimator(), 0) == [HomeSet()]
    everything = candidates(truth.estimator(), total_bytes(truth.shapes))[0]
    assert everything == HomeSet.whole(truth.shapes, truth.shapes)


def test_time_that_is_up_ends_the_search() -> None:
    truth = Truth(3, 5)
    budget = total_bytes(truth.shapes) // 2
    found = search(truth.estimator, truth.measure, truth.tried, budget, may_go_on=lambda: False)
    assert truth.tried == {found: truth.trips(found)}


def test_without_guesses_hot_cells_may_win() -> None:
    # One expert a token, a quarter of the experts takes nearly all of it: no whole layer saves as much.
    shapes: Shapes = {layer: LayerShape(layer, 8, 800) for layer in range(4)}
    heat = Heat(shapes, HeatNumbers(100.0, dict.fromkeys(shapes, (45, 45, 2, 2, 2, 2, 1, 1))))
    estimator = Estimator(shapes, heat, None, 1)
    best = candidates(estimator, 800)[0]
    assert best == HomeSet.of({layer: [0, 1] for layer in shapes})
    assert estimator.trips(best) == pytest.approx(0.1)


def test_unmeasured_layers_are_taken_from_outside_in() -> None:
    assert outside_in(range(7)) == [0, 6, 5, 1, 4, 2, 3]
    assert outside_in([3]) == [3] and outside_in([]) == []
    shapes: Shapes = {layer: LayerShape(layer, 4, 400) for layer in range(4)}
    cold, hot = Heat(shapes), Heat(shapes, HeatNumbers(9.0, {2: (0.0, 1.0, 8.0, 0.0)}))
    assert choose_unmeasured(shapes, cold, 800, HomeSet()).as_ranges() == {"0,3": "0-3"}
    assert choose_unmeasured(shapes, hot, 900, HomeSet()).as_ranges() == {"0,3": "0-3", "2": "2"}
    assert choose_unmeasured(shapes, hot, 400, HomeSet.whole([0], shapes)).as_ranges() == {"0,3": "0-3"}


@given(st.integers(1, 60))
def test_every_layer_comes_once(count: int) -> None:
    assert sorted(outside_in(range(count))) == list(range(count))
