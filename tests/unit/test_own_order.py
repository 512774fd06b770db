"""Draws, turns and patience: a peer's own, the same each time, and not another's."""

from __future__ import annotations

import numpy as np
import pytest

from market.ground import Ground
from market.own_order import (
    GAP_PATIENCE,
    MOVE_PATIENCE,
    ROUND_SECONDS,
    SPREAD,
    TURN_SECONDS,
    Patience,
    giving_order,
    holder_key,
    own_draws,
)

GROUND = Ground.of(np.repeat(np.arange(4), 64), np.ones(256, np.int64), np.arange(256) // 8)


def test_draws_are_a_peer_s_own_and_stay_for_a_round() -> None:
    mine, yours = own_draws("me", 0.0, GROUND), own_draws("you", 0.0, GROUND)
    assert (len(mine.units), len(mine.groups), len(mine.layers)) == (256, 32, 4)
    assert (mine.units != yours.units).all()
    assert (mine.units == own_draws("me", 0.0, GROUND).units).all()
    later = [own_draws("me", at, GROUND).units for at in np.arange(0, ROUND_SECONDS, ROUND_SECONDS / 20)]
    assert len({tuple(each) for each in later}) == 2, "another round began once, at a time of this peer's"
    assert 0.4 < float(mine.units.mean()) < 0.6


def test_of_each_unit_s_holders_one_is_first() -> None:
    keys = np.array([holder_key(f"peer {i}") for i in range(5)], np.uint64)
    unit, holder = np.repeat(np.arange(100), 5), np.tile(keys, 100)
    place = giving_order(unit, holder, 0.0).reshape(100, 5)
    assert (np.sort(place, axis=1) == np.arange(5)).all()
    firsts = np.bincount(place.argmin(axis=1), minlength=5)
    assert firsts.min() > 5, "not always the same"
    next_turn = giving_order(unit, holder, TURN_SECONDS).reshape(100, 5)
    assert (place != next_turn).any()
    shuffled = np.random.default_rng(0).permutation(500)
    other = giving_order(unit[shuffled], holder[shuffled], TURN_SECONDS / 2)
    assert (other == place.ravel()[shuffled]).all(), "whoever sees them in whatever order"


def test_nobody_has_an_order() -> None:
    assert len(giving_order(np.zeros(0, np.int64), np.zeros(0, np.uint64), 5.0)) == 0


@pytest.mark.parametrize(("hurry", "least"), [(True, GAP_PATIENCE), (False, MOVE_PATIENCE)])
def test_patience_has_an_end(hurry: bool, least: float) -> None:
    patience = Patience("me")
    seconds = patience.seconds(hurry)
    assert least <= seconds <= SPREAD * least
    assert not patience.ripe(0.0, hurry)
    assert not patience.ripe(seconds - 0.1, hurry)
    assert patience.ripe(seconds, hurry) and patience.moves == 1
    assert patience.seconds(hurry) != seconds, "the next time it is another while"


def test_patience_begins_anew_when_nothing_is_better_or_it_is_something_else() -> None:
    patience = Patience("me", gap=10, move=10, spread=1)
    assert not patience.ripe(0.0, True)
    assert not patience.ripe(5.0, None)
    assert not patience.ripe(12.0, True)
    assert not patience.ripe(20.0, False)
    assert not patience.ripe(29.0, False)
    assert patience.ripe(30.0, False)


def test_peers_differ_in_patience() -> None:
    assert len({Patience(f"peer {i}").seconds(True) for i in range(20)}) == 20
