"""Nodes that each choose alone what to serve: never over budget, together complete, and then at rest."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from node.device.chooser import BALANCE_PATIENCE, GAP_PATIENCE, Chooser, meanwhile
from node.device.serving_choice import Choice, Counts, Servable, ServableLayer, Why, reconsider
from node.home.call_bits import numbers
from node.home.home_set import HomeSet, LayerShape

TICK = GAP_PATIENCE / 2
LONG_TICK = BALANCE_PATIENCE / 2
"""Seconds between two looks; what one node changes the others see at the next."""


def layer(number: int, experts: int, size: int, grain: int = 1) -> ServableLayer:
    runs = [range(first, min(first + grain, experts)) for first in range(0, experts, grain)]
    return ServableLayer(
        number,
        tuple(sum(1 << expert for expert in run) for run in runs),
        tuple(size * len(run) for run in runs),
    )


layers = st.lists(
    st.tuples(st.integers(1, 8), st.integers(1, 9), st.integers(1, 3)), min_size=1, max_size=8
).map(lambda shapes: {i: layer(i, *shape) for i, shape in enumerate(shapes)})


class Swarm:
    """Nodes that look in any order and see what the others served a tick ago."""

    def __init__(self, model: dict[int, ServableLayer], budgets: Sequence[int], seed: int) -> None:
        self.rng = random.Random(seed)
        self.model = model
        self.budgets = list(budgets)
        self.nodes = [Chooser(budget) for budget in budgets]
        self.servables = [Servable(model, f"peer-{seed}-{i}") for i in range(len(budgets))]
        self.up = [True] * len(budgets)
        self.shown: list[HomeSet] = [HomeSet() for _ in budgets]
        self.now = 0.0

    def counts(self, but: int = -1) -> dict[int, list[int]]:
        """How many others serve each expert, as shown."""
        found = {number: [0] * each.cells.bit_length() for number, each in self.model.items()}
        for i, shown in enumerate(self.shown):
            if i != but and self.up[i]:
                for number, bits in shown.bits:
                    for expert in numbers(bits):
                        found[number][expert] += 1
        return found

    def tick(self, seconds: float) -> int:
        """One look of each; how many changed their mind."""
        self.now += seconds
        counts = [self.counts(i) for i in range(len(self.nodes))]
        moved = 0
        for i in self.rng.sample(range(len(self.nodes)), len(self.nodes)):
            if self.up[i]:
                moved += self.nodes[i].look(self.now + self.rng.random(), self.servables[i], counts[i])
                assert self.servables[i].n_bytes(self.nodes[i].serving) <= self.budgets[i]
        self.shown = [node.serving for node in self.nodes]
        return moved

    def run(self, ticks: int, seconds: float = TICK) -> int:
        """How often somebody changed his mind."""
        return sum(self.tick(seconds) for _ in range(ticks))

    def uncovered(self) -> int:
        counts = self.counts()
        return sum(
            counts[number][expert] == 0
            for number, each in self.model.items()
            for grain in each.grains
            for expert in numbers(grain)
        )


def enough(model: dict[int, ServableLayer], shares: Sequence[int]) -> list[int]:
    """Budgets in the proportion of `shares`, together enough for the model: what is left of each may be as
    much as a grain, less a byte."""
    total = sum(each.n_bytes for each in model.values())
    largest = max(size for each in model.values() for size in each.sizes)
    return [-(-total * share // sum(shares)) + largest for share in shares]


@settings(max_examples=20)
@given(
    model=layers,
    shares=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    seed=st.integers(0, 1 << 32),
)
def test_together_they_serve_everything_and_then_rest(
    model: dict[int, ServableLayer], shares: list[int], seed: int
) -> None:
    swarm = Swarm(model, enough(model, shares), seed)
    swarm.run(100)
    assert swarm.uncovered() == 0
    swarm.run(200, LONG_TICK)
    assert swarm.uncovered() == 0, "replicas are spread without giving up the last one"
    assert swarm.run(30, LONG_TICK) == 0, "and nobody moves any more"


@settings(max_examples=20)
@given(
    model=layers,
    shares=st.lists(st.integers(1, 6), min_size=2, max_size=6),
    seed=st.integers(0, 1 << 32),
)
def test_when_one_leaves_the_others_fill_in(
    model: dict[int, ServableLayer], shares: list[int], seed: int
) -> None:
    budgets = enough(model, shares)
    budgets[1:] = enough(model, shares[1:])  # without the first the others are enough
    swarm = Swarm(model, budgets, seed)
    swarm.run(100)
    swarm.up[0] = False
    swarm.run(100)
    assert swarm.uncovered() == 0


counts_of = st.integers(0, 1 << 32)


def any_counts(model: dict[int, ServableLayer], seed: int) -> Counts:
    rng = random.Random(seed)
    return {
        number: [rng.choice((0, 0, 1, 1, 2, 5)) for _ in range(each.cells.bit_length())]
        for number, each in model.items()
        if rng.random() < 0.8
    }


@settings(max_examples=300)
@given(model=layers, budget=st.integers(0, 400), first=counts_of, second=counts_of)
def test_a_better_choice_is_the_last_word(
    model: dict[int, ServableLayer], budget: int, first: int, second: int
) -> None:
    servable = Servable(model, "peer")
    before = Choice(servable, budget, any_counts(model, first), HomeSet())
    before.cover(may_drop=False)
    before.fill()
    assert servable.n_bytes(before.cells) == budget - before.room <= budget
    counts = any_counts(model, second)
    serving, moves = before.cells, 0
    while (found := reconsider(servable, budget, counts, serving)) is not None:
        cells, why = found
        assert servable.n_bytes(cells) <= budget and cells == servable.of(cells)
        for number, bits in (serving - cells).bits:  # whoever else serves it, nobody alone gives it up
            assert why is Why.BALANCE or all(counts.get(number, [0] * 8)[e] > 0 for e in numbers(bits))
        serving, moves = cells, moves + 1
        assert moves <= 3 + len(model), "while nobody else moves, this ends"


@given(model=layers, budget=st.integers(1, 400), seed=counts_of)
def test_the_same_for_the_same(model: dict[int, ServableLayer], budget: int, seed: int) -> None:
    counts = any_counts(model, seed)
    one, other = Chooser(budget), Chooser(budget)
    one.look(0.0, Servable(model, "peer"), counts)
    other.look(7.0, Servable(dict(reversed(model.items())), "peer"), counts)
    assert one.serving == other.serving


def test_several_new_nodes_choose_different_layers() -> None:
    model = {i: layer(i, 8, 1) for i in range(32)}
    chosen = []
    for i in range(8):
        node = Chooser(4 * 8)
        node.look(0.0, Servable(model, f"peer-{i}"), {})
        chosen.append(node.serving)
    assert len({layer for cells in chosen for layer, _ in cells.bits}) > 16, "not the same four by all"
    assert all(len(cells.bits) == 4 for cells in chosen), "whole layers"


def test_the_cells_of_an_earlier_run_are_kept() -> None:
    model = {i: layer(i, 4, 1) for i in range(4)}
    node = Chooser(8, HomeSet.of_bits({2: 0b1111}))
    node.look(0.0, Servable(model, "peer"), {2: [3, 3, 3, 3]})
    assert node.serving.held(2) == 0b1111, "for now"


@given(
    bits=st.lists(st.integers(0, 255), min_size=9, max_size=9),
    budget=st.integers(0, 30),
)
def test_what_is_given_up_is_served_until_the_new_is_there(bits: list[int], budget: int) -> None:
    shapes = {layer: LayerShape(layer, 8, 8) for layer in range(3)}
    chosen, there, served = (HomeSet.of_bits(dict(enumerate(bits[i : i + 3]))) for i in (0, 3, 6))
    serving = meanwhile(chosen, there, served, budget, shapes)
    here = chosen & there
    assert (serving & chosen) == here, "all of the new that is there, and nothing of it that is not"
    assert not (serving - here) - served
    assert serving == here or serving.n_bytes(shapes) <= budget
    if here == chosen:
        assert serving == chosen, "then nothing of the old"
    elif (here | served).n_bytes(shapes) <= budget:
        assert serving == here | (served - chosen)


def test_a_smaller_budget_than_before() -> None:
    model = {i: layer(i, 4, 1) for i in range(4)}
    node = Chooser(6, HomeSet.of_bits({0: 0b1111, 1: 0b1111, 9: 1}))
    servable = Servable(model, "peer")
    assert node.look(0.0, servable, {})
    assert servable.n_bytes(node.serving) == 6
