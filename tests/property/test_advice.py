"""Advice: never over memory, nothing that is needed given up for less, at rest when the others are; and nodes
that each go by it together hold everything."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from market.advice import REPLICA_FLOOR, Means, advise
from market.ground import Bools, Floats, Ground
from market.own_order import Patience, own_draws
from market.view import View
from market.worth import NEED_STEP

LOOK = 60.0
"""Seconds between two looks of a node."""


def ground_of(layers: int, experts: int, group: int, sizes: tuple[int, ...]) -> Ground:
    layer = np.repeat(np.arange(layers), experts)
    size = np.repeat(np.resize(np.array(sizes), layers), experts)
    return Ground.of(layer, size, np.arange(layers * experts) // group if experts % group == 0 else None)


grounds = st.builds(
    ground_of,
    st.integers(1, 5),
    st.integers(1, 8),
    st.integers(1, 4),
    st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple),
)


def view_by(ground: Ground, rng: np.random.Generator, *, turns: bool) -> View:
    n = len(ground)
    replicas = rng.choice([0.0, 0.25, 1.0, 2.0, 2.5, 3.0, 5.0, 20.0], n)
    return View(
        replicas,
        rng.choice([25.0, 100.0, 1600.0], n),
        rng.choice([0.0, 1.0, 1e3, 1e9], n),
        float(rng.choice([0.0, 1.0, 30.0])),
        np.minimum(rng.integers(0, 3, n), replicas) if turns else None,
    )


@settings(max_examples=300)
@given(
    ground=grounds,
    memory=st.integers(1, 120),
    uplink=st.sampled_from([1.0, 1e4, math.inf]),
    seed=st.integers(0, 1 << 32),
    turns=st.booleans(),
)
def test_what_is_needed_is_given_up_only_for_what_is_needed_more(
    ground: Ground, memory: int, uplink: float, seed: int, turns: bool
) -> None:
    rng = np.random.default_rng(seed)
    view, draws = view_by(ground, rng, turns=turns), own_draws(f"peer {seed}", 0.0, ground)
    held = np.zeros(len(ground), np.bool_)
    for unit in rng.permutation(len(ground)):
        if ground.size[held].sum() + ground.size[unit] <= memory and rng.random() < 0.7:
            held[unit] = True
    means = Means(memory, uplink)
    found = advise(ground, view, means, held, draws)
    assert ground.size[found.cells].sum() <= memory
    assert found.changes == bool((found.cells != held).any())
    assert ((found.reason == 0) == ~found.cells).all()
    given = held & ~found.cells
    taken = found.cells & ~held
    need = np.maximum(NEED_STEP ** (REPLICA_FLOOR - view.replicas) - 1, 0) * ground.size
    if (given & (view.replicas < REPLICA_FLOOR)).any():
        assert need[taken].sum() > need[given].sum()
    if ground.size.min() == ground.size.max():
        assert (view.replicas[given] > 0).all(), "never the last replica"
    again = advise(ground, view, means, held, draws)
    assert (again.cells == found.cells).all(), "the same for the same"


@settings(max_examples=200)
@given(ground=grounds, memory=st.integers(1, 120), seed=st.integers(0, 1 << 32))
def test_while_nobody_else_moves_a_node_comes_to_rest(ground: Ground, memory: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    view, draws = view_by(ground, rng, turns=False), own_draws(f"peer {seed}", 0.0, ground)
    held = np.zeros(len(ground), np.bool_)
    for _ in range(4 + ground.n_layers):
        found = advise(ground, view, Means(memory, math.inf), held, draws)
        if not found.changes:
            return
        held = found.cells
    raise AssertionError("it goes on changing its mind")


class Swarm:
    """Nodes that look one after the other and see what the others held at the last look."""

    def __init__(self, ground: Ground, memories: list[int], seed: int) -> None:
        self.ground = ground
        self.memories = memories
        self.ids = [f"peer {seed} {i}" for i in range(len(memories))]
        self.holds = np.zeros((len(memories), len(ground)), np.bool_)
        self.up = np.ones(len(memories), np.bool_)
        self.patience = [Patience(peer_id) for peer_id in self.ids]
        self.demand: Floats = np.random.default_rng(seed).lognormal(0, 1, len(ground))
        self.now = 0.0

    def look(self, *, one_by_one: bool = False) -> int:
        """A look of each; units that came to somebody."""
        self.now += LOOK
        shown = self.holds if one_by_one else self.holds.copy()
        came = 0
        for i in np.flatnonzero(self.up):
            others = shown[self.up].sum(axis=0) - shown[i]
            servers = float(shown[self.up].any(axis=1).sum() - shown[i].any())
            view = View(others.astype(np.float64), np.full(len(others), 100.0), self.demand, servers)
            found = advise(
                self.ground,
                view,
                Means(self.memories[i], math.inf),
                self.holds[i],
                own_draws(self.ids[i], self.now, self.ground),
            )
            ripe = self.patience[i].ripe(self.now, found.hurry if found.changes else None)
            if found.changes and (ripe or not self.holds[i].any()):
                came += int((found.cells & ~self.holds[i]).sum())
                self.holds[i] = found.cells
        return came

    @property
    def replicas(self) -> Floats:
        """[n], of those that are up."""
        found: Floats = self.holds[self.up].sum(axis=0).astype(np.float64)
        return found


def settled(memory: int, nodes: int, seed: int) -> Swarm:
    swarm = Swarm(ground_of(8, 32, 8, (1,)), [memory] * nodes, seed)
    swarm.look(one_by_one=True)
    for _ in range(60):
        swarm.look()
    return swarm


@pytest.mark.parametrize(("memory", "seed"), [(48, 1), (24, 2)])
def test_together_they_hold_everything_and_then_rest(memory: int, seed: int) -> None:
    swarm = settled(memory, 6 * 256 // memory, seed)
    assert swarm.replicas.min() >= REPLICA_FLOOR
    share = swarm.demand / swarm.replicas
    hot = swarm.replicas[swarm.demand > np.quantile(swarm.demand, 0.9)].mean()
    assert hot > 1.5 * swarm.replicas.mean(), "what is asked for most has most replicas"
    assert share.max() < 6 * share.mean()
    came = sum(swarm.look() for _ in range(30))
    assert came < 0.05 * swarm.holds.sum(), "next to nothing moves in half an hour"


def test_when_a_third_vanish_the_others_fill_in() -> None:
    swarm = settled(20, 6 * 256 // 20, 3)
    swarm.up[np.random.default_rng(3).permutation(len(swarm.up))[: len(swarm.up) * 3 // 10]] = False
    assert swarm.replicas.min() < REPLICA_FLOOR
    for _ in range(10):  # an advert's lifetime
        swarm.look()
    assert swarm.replicas.min() >= 1, "everything is there"
    for _ in range(30):
        swarm.look()
    assert swarm.replicas.min() >= REPLICA_FLOOR


def test_a_gap_is_not_filled_by_all() -> None:
    ground = ground_of(8, 32, 8, (1,))
    held: Bools = np.arange(len(ground)) < 32
    replicas = np.full(len(ground), 5.0)
    replicas[100] = 1.0
    view = View(replicas, np.full(len(ground), 100.0), np.ones(len(ground)), 99.0)
    takers = 0
    for i in range(100):
        draws = own_draws(f"peer {i}", 0.0, ground)
        takers += int(advise(ground, view, Means(32, math.inf), held, draws).cells[100])
    assert 2 <= takers <= 12, "two are missing, twice as many are to take it"
