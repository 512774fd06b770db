"""Counting choices: adding and fading."""

from __future__ import annotations

import numpy as np
import pytest

from node.home.heat import HALF_LIFE, LOG_LENGTH, Heat, HeatLog, HeatNumbers, merged
from node.home.home_set import LayerShape, Shapes

SHAPES: Shapes = {0: LayerShape(0, 4, 400), 3: LayerShape(3, 4, 400)}


def ids(*rows: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    return np.array(rows, np.int32)


def test_the_log_gives_everything_once_and_forgets_what_nobody_fetches() -> None:
    log = HeatLog()
    log.note(0, 0, ids((1, 2)))
    log.note(0, 1, ids((0, 1)))  # chunk experts are not counted
    assert [layer for layer, _ in log.drain()] == [0] and log.drain() == []
    for _ in range(LOG_LENGTH + 5):
        log.note(0, 0, ids((0, 1)))
    assert len(log.drain()) == LOG_LENGTH


def test_choices_add_up_and_fade() -> None:
    heat = Heat(SHAPES)
    assert heat.shares(0).tolist() == [0.25] * 4  # nothing is known
    heat.add([(0, ids((1, 2), (1, 3))), (3, ids((0, 1), (0, 1)))])
    assert heat.tokens == 2
    assert heat.shares(0).tolist() == [0, 0.5, 0.25, 0.25]
    heat.add([(0, np.zeros((HALF_LIFE, 2), np.int32)), (3, np.zeros((HALF_LIFE, 2), np.int32))])
    assert heat.tokens == pytest.approx(1 + HALF_LIFE)
    assert heat.numbers().layers[0][1] == pytest.approx(1.0)  # 2, half of it


def test_kept_numbers_come_back_and_nonsense_does_not() -> None:
    heat = Heat(SHAPES)
    heat.add([(0, ids((1, 2))), (3, ids((3, 2)))])
    again = Heat(SHAPES, heat.numbers())
    assert again.numbers() == heat.numbers()
    for numbers in (
        HeatNumbers(-1.0, {}),
        HeatNumbers(float("nan"), {}),
        HeatNumbers(1.0, {0: (1.0, float("inf"), 0.0, 0.0)}),
        HeatNumbers(1.0, {0: (-1.0, 0.0, 0.0, 0.0)}),
    ):
        assert Heat(SHAPES, numbers).tokens == 0
    other = Heat(SHAPES, HeatNumbers(5.0, {0: (1.0, 1.0), 7: (1.0,)}))  # of another model
    assert other.shares(0).tolist() == [0.25] * 4


def test_merging_weighs_by_tokens() -> None:
    one, two = Heat(SHAPES), Heat(SHAPES)
    one.add([(layer, ids((0, 1))) for layer in SHAPES])
    two.add([(layer, ids((2, 3))) for layer in SHAPES])
    both = merged(SHAPES, {one: 3.0, two: 1.0})
    assert both.shares(0).tolist() == pytest.approx([0.375, 0.375, 0.125, 0.125])
    assert merged(SHAPES, {one: 1.0, two: 0.0}).shares(0).tolist() == [0.5, 0.5, 0, 0]
