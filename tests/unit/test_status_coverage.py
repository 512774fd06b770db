"""Live replicas of each cell, against counting one by one."""

from __future__ import annotations

import base64

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from node.status.coverage import (
    MAX_EXPERTS,
    MAX_LAYERS,
    MAX_UNKNOWN_MODELS,
    Coverage,
    Extent,
    Shape,
    runs_of,
)
from routing.wire.holdings import Slice, compact_cells

MODEL, OTHER = "0f" * 32, "ab" * 32
SHAPE = Shape(layers=(1, 2, 5), experts=(8, 8, 6))

Cells = dict[int, set[int]]


def held(cells: Cells, model: str = MODEL) -> Slice:
    return Slice("experts", model, "test", experts=compact_cells(cells))


_cells = st.dictionaries(st.integers(0, 7), st.sets(st.integers(0, 9), min_size=1), max_size=6)


@given(st.lists(_cells, max_size=6), st.data())
def test_matrix_is_what_counting_gives(nodes: list[Cells], data: st.DataObject) -> None:
    coverage = Coverage()
    coverage.know(MODEL, SHAPE)
    for number, cells in enumerate(nodes):
        coverage.note(f"n{number}", [held(cells)] if cells else [])
    gone = data.draw(st.sets(st.integers(0, 5)))
    for number in gone:
        coverage.note(f"n{number}", [])
    left = [cells for number, cells in enumerate(nodes) if number not in gone and cells]
    matrix = coverage.models()[MODEL].matrix()
    assert matrix.nodes == len(left)
    counts = np.frombuffer(base64.b64decode(matrix.encoded()), np.uint8).reshape(3, 8)
    for row, (layer, experts) in enumerate(zip(SHAPE.layers, SHAPE.experts, strict=True)):
        for expert in range(8):
            wanted = sum(expert in cells.get(layer, ()) for cells in left) if expert < experts else 0
            assert counts[row, expert] == wanted, (layer, expert)


def test_a_shape_that_is_learnt_later_counts_those_already_noted() -> None:
    coverage = Coverage()
    coverage.note("a", [held({1: {0, 1}, 2: {7}})])
    unknown = coverage.models()[MODEL].matrix()
    assert (unknown.layers, unknown.counts.shape) == ((1, 2), (2, 8))
    coverage.know(MODEL, SHAPE)
    matrix = coverage.models()[MODEL].matrix()
    assert matrix.layers == SHAPE.layers and matrix.counts.sum() == 3


def test_an_unchanged_matrix_is_the_same_object() -> None:
    coverage = Coverage()
    coverage.know(MODEL, SHAPE)
    coverage.note("a", [held({1: {0}})])
    matrix = coverage.models()[MODEL].matrix()
    coverage.note("a", [held({1: {0}})])  # an equal slice of a newer advert
    assert coverage.models()[MODEL].matrix() is matrix
    coverage.note("a", [held({1: {0, 1}})])
    assert coverage.models()[MODEL].matrix() is not matrix


def test_more_than_255_replicas_are_255() -> None:
    coverage = Coverage()
    coverage.know(MODEL, SHAPE)
    for number in range(300):
        coverage.note(str(number), [held({1: {3}})])
    assert coverage.models()[MODEL].matrix().counts[0, 3] == 255


def test_numbers_that_no_model_has_are_left_out() -> None:
    wild = Slice("experts", OTHER, "test", experts=[(0, 65_535, [(0, 65_535)])])
    extent = Extent.of(wild)
    assert extent.cells == MAX_LAYERS * MAX_EXPERTS
    coverage = Coverage()
    coverage.note("liar", [wild, Slice("experts", MODEL, "test", experts=[(9_000, 9_001, [(5, 6)])])])
    matrix = coverage.models()[OTHER].matrix()
    assert matrix.counts.shape == (MAX_LAYERS, MAX_EXPERTS)
    assert coverage.models()[MODEL].matrix().counts.size == 0


def test_models_that_nobody_has_do_not_crowd_out_ours() -> None:
    coverage = Coverage()
    coverage.know(MODEL, SHAPE)
    made_up = [held({0: {0}}, f"{number:064x}") for number in range(64)]
    coverage.note("liar", made_up)
    coverage.note("a", [held({0: {0}}, OTHER)])
    coverage.note("b", [held({0: {0}}, OTHER)])
    models = list(coverage.models())
    assert models[:2] == [MODEL, OTHER] and len(models) == 1 + MAX_UNKNOWN_MODELS
    coverage.keep({"a"})
    assert list(coverage.models()) == [MODEL, OTHER]


def test_a_node_that_says_the_same_twice_counts_once() -> None:
    coverage = Coverage()
    coverage.know(MODEL, SHAPE)
    extents = coverage.note("liar", [held({1: {0}}), held({1: {0, 1}})])
    assert extents[MODEL].cells == 1 and coverage.models()[MODEL].matrix().counts.sum() == 1


def test_layers_kind_is_no_experts() -> None:
    coverage = Coverage()
    assert coverage.note("a", [Slice("layers", MODEL, "test", layers=[(0, 3)])]) == {}


@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=5), max_size=8))
def test_runs_say_the_same_as_the_places(rows: list[list[bool]]) -> None:
    wanted = np.array(rows, np.bool_).reshape(len(rows), 5)
    layers = [number + (number > 3) for number in range(len(rows))]  # one number is left out
    cells: Cells = {}
    for layer, row in zip(layers, wanted, strict=True):
        if row.any():
            cells[layer] = set(np.flatnonzero(row).tolist())
    assert runs_of(wanted, layers) == compact_cells(cells)
