"""Experts that are used together come into one group; servers that a token asks are counted right."""

from __future__ import annotations

import numpy as np
import pytest

from market.affinity import (
    between,
    group_cells,
    groups_of,
    servers_touched,
    together_by_choices,
    together_by_router,
)
from market.own_order import own_generator

EXPERTS = 12
PLANTED = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2])


def choices() -> np.ndarray:
    rng = np.random.default_rng(0)
    rows = [rng.choice(np.flatnonzero(i % 3 == PLANTED), 2, replace=False) for i in range(300)]
    rows += [rng.choice(EXPERTS, 2, replace=False) for _ in range(30)]
    return np.array(rows)


def same_partition(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(((one[:, None] == one) == (other[:, None] == other)).all())


@pytest.mark.parametrize("seed", range(5))
def test_planted_groups_are_found_from_choices(seed: int) -> None:
    together = together_by_choices(choices(), EXPERTS)
    assert (together == together.T).all() and together.trace() == 2 * 330
    assert same_partition(groups_of(together, 4, np.random.default_rng(seed)), PLANTED)


@pytest.mark.parametrize("seed", range(5))
def test_and_from_the_router_s_weights(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = np.eye(3)[PLANTED] @ rng.standard_normal((3, 64)) + 0.5 * rng.standard_normal((EXPERTS, 64)) + 9
    assert same_partition(groups_of(together_by_router(weights), 4, rng), PLANTED)


def test_a_router_of_zeros_says_nothing() -> None:
    together = together_by_router(np.zeros((4, 8), np.float32))
    assert (together == 0).all()
    assert sorted(np.bincount(groups_of(together, 2, np.random.default_rng(0)))) == [2, 2]


def test_groups_are_as_equal_as_can_be() -> None:
    together = together_by_choices(choices(), EXPERTS)
    for size in range(1, EXPERTS + 1):
        counts = np.bincount(groups_of(together, size, np.random.default_rng(size)))
        assert counts.max() <= size and counts.max() - counts.min() <= 1 and counts.sum() == EXPERTS


def test_each_peer_groups_in_its_own_way_and_always_so() -> None:
    rng = np.random.default_rng(1)
    together = together_by_choices(np.array([rng.choice(32, 4, replace=False) for _ in range(500)]), 32)
    made = {tuple(groups_of(together, 8, own_generator(f"peer {i}", "groups", 0))) for i in range(8)}
    assert len(made) == 8
    again = groups_of(together, 8, own_generator("peer 0", "groups", 0))
    assert tuple(again) in made


def test_a_group_holds_what_some_tokens_need() -> None:
    assert group_cells(128, 8) == 16 and group_cells(12, 2) == 4
    assert group_cells(4, 8) == 4 and group_cells(1, 1) == 1


def test_parts_that_are_served_whole_go_by_the_sum_of_their_experts() -> None:
    together = together_by_choices(np.array([[0, 2], [1, 3], [4, 5]]), 6)
    bonds = between(together, np.array([0, 0, 1, 1, -1, 2]))
    assert bonds.shape == (3, 3) and bonds[0, 1] == bonds[1, 0] == 2 and bonds[0, 2] == bonds[1, 2] == 0


def test_a_token_asks_the_fewest_that_greed_finds() -> None:
    ids = np.array([[0, 1, 2], [3, 4, 5], [0, 3, 5]])
    whole = np.ones((1, 6), np.bool_)
    assert servers_touched(ids, whole) == 1.0
    halves = np.array([[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]], np.bool_)
    assert servers_touched(ids, halves) == pytest.approx((1 + 1 + 2) / 3)
    assert servers_touched(ids, np.eye(6, dtype=np.bool_)) == 3.0
    assert servers_touched(ids, np.concatenate([halves, np.eye(6, dtype=np.bool_)])) == pytest.approx(4 / 3)


def test_an_expert_that_nobody_holds_is_told() -> None:
    with pytest.raises(ValueError):
        servers_touched(np.array([[0, 1]]), np.array([[True, False]]))
