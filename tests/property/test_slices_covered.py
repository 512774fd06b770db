"""What a peer tells it serves against what its advert claimed: by cells, in whatever runs they are said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from routing.wire.holdings import Slice, compact_cells, slice_fault

MODEL = "ab" * 32
CELLS = st.sets(st.tuples(st.integers(0, 4), st.integers(0, 7)), min_size=1)


def compact(cells: set[tuple[int, int]]) -> Slice:
    by_layer = {layer: [expert for at, expert in cells if at == layer] for layer, _ in sorted(cells)}
    return Slice("experts", MODEL, "test", experts=compact_cells(by_layer))


def one_by_one(cells: set[tuple[int, int]]) -> Slice:
    """The same in as many runs as there are cells."""
    layers = sorted({layer for layer, _ in cells})
    runs = [
        (layer, layer, [(expert, expert) for at, expert in sorted(cells) if at == layer]) for layer in layers
    ]
    return Slice("experts", MODEL, "test", experts=runs)


@given(CELLS, CELLS)
def test_a_slice_covers_what_it_has_the_cells_of(
    told: set[tuple[int, int]], claimed: set[tuple[int, int]]
) -> None:
    for mine in (compact(told), one_by_one(told)):
        for other in (compact(claimed), one_by_one(claimed)):
            assert not slice_fault(mine) and not slice_fault(other)
            assert mine.covers(other) == (claimed <= told)


def test_whole_layers_are_no_experts_and_models_are_not_mixed() -> None:
    layers = Slice("layers", MODEL, "test", layers=[(0, 1), (2, 5)])
    assert layers.covers(Slice("layers", MODEL, "test", layers=[(1, 4)]))
    assert not layers.covers(Slice("layers", MODEL, "test", layers=[(1, 6)]))
    assert not layers.covers(Slice("layers", "cd" * 32, "test", layers=[(1, 4)]))
    assert not layers.covers(Slice("experts", MODEL, "test", experts=[(1, 1, [(0, 0)])]))
