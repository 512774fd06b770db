"""Placing cells on devices by hand: whole layers first, every cell once at least, hot ones again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.errors import LocalError
from routing.placement import LayerNeed, place

Placed = list[dict[int, int]]


def even(layers: int, experts: int = 8, cell_bytes: int = 10) -> dict[int, LayerNeed]:
    return {layer: LayerNeed(cell_bytes, [1.0] * experts) for layer in range(layers)}


def used(placed: Placed, layers: dict[int, LayerNeed]) -> list[int]:
    return [
        sum(bits.bit_count() * layers[layer].cell_bytes for layer, bits in each.items()) for each in placed
    ]


def test_layers_go_whole_where_they_fit() -> None:
    placed = place(even(6), [160, 160, 160])
    assert [sorted(each) for each in placed] == [[0, 3], [1, 4], [2, 5]]
    assert all(bits == 0xFF for each in placed for bits in each.values())


def test_a_layer_that_fits_nowhere_is_split_into_few_parts() -> None:
    placed = place(even(1), [30, 50])
    assert placed == [{0: 0b11100000}, {0: 0b00011111}]


def test_too_little_room_is_told() -> None:
    with pytest.raises(LocalError, match="hold 50 bytes together, the experts take 80 bytes: add a device"):
        place(even(1), [20, 30])
    with pytest.raises(LocalError, match=r"layer 0: 1 of its 8 experts fit on no device; 10 bytes more"):
        place(even(1), [39, 45])


def test_room_for_layers_takes_whole_replicas() -> None:
    placed = place(even(2), [160, 80])
    assert placed[0] == {0: 0xFF, 1: 0xFF} or placed[1] in ({0: 0xFF}, {1: 0xFF})
    assert used(placed, even(2)) == [160, 80]


def test_the_hottest_cells_are_replicated() -> None:
    layers = {0: LayerNeed(10, [1, 9, 1, 5]), 1: LayerNeed(10, [2, 2, 20, 2])}
    placed = place(layers, [40, 40, 20])
    assert sorted((layer, bits) for each in placed[:2] for layer, bits in each.items()) == [(0, 15), (1, 15)]
    assert placed[2] == {0: 0b0010, 1: 0b0100}
    # one cell far hotter than all others is held by everybody before the next one is held twice
    layers = {0: LayerNeed(10, [100, 1, 1, 1])}
    assert [each[0] & 1 for each in place(layers, [40, 10, 10])] == [1, 1, 1]


def test_splits_fall_between_runs() -> None:
    layers = {0: LayerNeed(10, [1.0] * 12, run_length=4)}
    assert place(layers, [70, 90], whole_runs=True) == [{0: 0xF00}, {0: 0x0FF}]
    # unless nothing else fits
    assert [each[0].bit_count() for each in place(layers, [60, 60])] == [6, 6]
    with pytest.raises(LocalError, match="fit on no device"):
        place(layers, [60, 60], whole_runs=True)
    # replicas are whole runs too where nothing else is of use
    hot = {0: LayerNeed(10, [9, 1, 1, 1, 5, 5, 5, 5], run_length=4)}
    assert place(hot, [80, 50], whole_runs=True)[1] == {0: 0xF0}


@given(
    st.lists(st.lists(st.floats(0, 100), min_size=1, max_size=12), min_size=1, max_size=6),
    st.lists(st.integers(0, 300), min_size=1, max_size=6),
    st.integers(1, 20),
)
def test_every_cell_has_a_holder_and_no_device_too_much(
    heats: list[list[float]], rooms: list[int], cell_bytes: int
) -> None:
    layers = {number: LayerNeed(cell_bytes, heat) for number, heat in enumerate(heats)}
    try:
        placed = place(layers, rooms)
    except LocalError:
        # only ever for want of room: cells are of one size, so what fits does
        assert sum(room // cell_bytes for room in rooms) < sum(map(len, heats))
        return
    for layer, need in layers.items():
        held = 0
        for each in placed:
            held |= each.get(layer, 0)
        assert held == need.whole
    assert all(took <= room for took, room in zip(used(placed, layers), rooms, strict=True))
