"""Sets of cells: what is in them, what they take, how they are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.home.home_set import HomeSet, LayerShape, Shapes, total_bytes
from routing.errors import LocalError

SHAPES: Shapes = {layer: LayerShape(layer, 8, 800 + 80 * layer) for layer in (1, 2, 5)}

sets = st.dictionaries(st.sampled_from([1, 2, 5]), st.sets(st.integers(0, 7))).map(HomeSet.of)


@given(sets)
def test_ranges_and_back(home: HomeSet) -> None:
    assert HomeSet.from_ranges(home.as_ranges(), SHAPES) == home
    assert HomeSet.of(home.experts()) == home


@given(sets, sets)
def test_it_is_a_set_of_cells(a: HomeSet, b: HomeSet) -> None:
    def cells(home: HomeSet) -> set[tuple[int, int]]:
        return {(layer, expert) for layer, experts in home.experts().items() for expert in experts}

    assert cells(a | b) == cells(a) | cells(b)
    assert cells(a & b) == cells(a) & cells(b)
    assert cells(a - b) == cells(a) - cells(b)
    assert a.count() == len(cells(a)) and bool(a) == bool(cells(a))
    assert a.n_bytes(SHAPES) == sum(
        round(len(e) * SHAPES[layer].cell_bytes) for layer, e in a.experts().items()
    )
    assert all(a.mask(SHAPES[layer]).nonzero()[0].tolist() == a.experts().get(layer, []) for layer in SHAPES)


def test_whole_layers() -> None:
    home = HomeSet.whole([1, 5], SHAPES) | HomeSet.of({2: range(7)})
    assert home.whole_layers(SHAPES) == [1, 5]
    assert home.as_ranges() == {"1,5": "0-7", "2": "0-6"}
    assert HomeSet.whole(SHAPES, SHAPES).n_bytes(SHAPES) == total_bytes(SHAPES)


@pytest.mark.parametrize(
    "ranges", [{"3": "0"}, {"1": "0-8"}, {"1": "0", "1-2": "0"}, {"x": "0"}, {"1": ""}, {"1": "3-1"}]
)
def test_what_the_model_lacks_is_refused(ranges: dict[str, str]) -> None:
    with pytest.raises(LocalError) as caught:
        HomeSet.from_ranges(ranges, SHAPES)
    assert "\n" not in str(caught.value)
