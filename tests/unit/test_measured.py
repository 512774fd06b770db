"""Replaying texts: waits and passes against counting them one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from node.home.home_set import HomeSet, LayerShape, Shapes
from node.home.measured import Chosen, Replay

SHAPES: Shapes = {0: LayerShape(0, 4, 400), 2: LayerShape(2, 4, 400, n_calls=2)}
TOKENS = 12

choices = st.integers(0, 2**32 - 1).map(
    lambda seed: Chosen(
        {
            layer: np.random.default_rng([seed, layer]).integers(0, 4, (2, TOKENS, 2), dtype=np.int32)
            for layer in SHAPES
        },
        (TOKENS, 7),
    )
)
homes = st.dictionaries(st.sampled_from([0, 2]), st.sets(st.integers(0, 3))).map(HomeSet.of)


def waits(chosen: Chosen, home: HomeSet, layer: int, text: int, places: range) -> bool:
    held = home.experts().get(layer, [])
    ids = chosen.layers[layer][text]
    return any(int(expert) not in held for place in places for expert in ids[place])


@given(choices, homes, st.integers(1, 5))
def test_waits_of_all_places(chosen: Chosen, home: HomeSet, rows: int) -> None:
    for layer in SHAPES:
        each = [
            waits(chosen, home, layer, text, range(place, place + rows))
            for text, length in enumerate(chosen.lengths)
            for place in range(length - rows + 1)
        ]
        assert abs(chosen.waits(layer, home, SHAPES, rows) - sum(each) / len(each)) < 1e-9


@given(choices, homes, st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(0, 3))))
def test_a_replay_counts_what_a_swarm_would(
    chosen: Chosen, home: HomeSet, passes: list[tuple[int, int, int]]
) -> None:
    replay = Replay(chosen, home, SHAPES)
    trips = plain = tokens = 0
    for text, place, right in passes:
        replay.add(text, place, 3, right)
        tokens += right + 1
        for layer, shape in SHAPES.items():
            trips += shape.n_calls * waits(chosen, home, layer, text, range(place, place + 4))
            plain += shape.n_calls * sum(
                waits(chosen, home, layer, text, range(at, at + 1)) for at in range(place, place + right + 1)
            )
    found = replay.measured()
    assert (found.trips, found.plain_trips, found.tokens, found.passes) == (trips, plain, tokens, len(passes))
    assert found.drafted == 3 * len(passes) and found.calls == 3
    if tokens:
        assert found.trips_per_layer_token == trips / (3 * tokens)


def test_counts_and_lengths() -> None:
    ids = np.array([[[0, 1], [2, 2]], [[3, 3], [3, 3]]], np.int32)
    chosen = Chosen({0: ids}, (2, 1))
    assert chosen.counts(0, 4).tolist() == [1, 1, 2, 2]  # the second text ended after one token
    assert chosen.n_used == 2
