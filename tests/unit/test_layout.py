"""Which sequences change places so that those of a pass are consecutive."""

from __future__ import annotations

from node.decode.continuous.layout import bring_together


def test_nothing_to_do() -> None:
    assert bring_together(4, set(), {0}, []) == []
    assert bring_together(4, {2}, {0}, [1]) == []
    assert bring_together(4, {1, 2, 3}, set(), [0]) == []


def test_an_empty_gap_is_filled_by_one_copy() -> None:
    assert bring_together(4, {0, 2}, set(), []) == [(2, 1)]
    assert bring_together(6, {0, 1, 3, 4}, set(), []) in ([(4, 2)], [(0, 2)])


def test_the_other_end_moves_if_that_is_less() -> None:
    assert bring_together(4, {0, 2}, {1}, []) == [(0, 3)]


def test_what_lies_in_the_gap_is_kept() -> None:
    assert bring_together(6, {0, 1, 3, 4}, {2}, []) == [(2, 5), (4, 2)]
    assert bring_together(6, {0, 1, 3, 4}, set(), [2]) == [(2, 5), (4, 2)]


def test_without_an_empty_place_the_least_wanted_is_lost() -> None:
    assert bring_together(6, {0, 1, 3, 4}, set(), [5, 2]) == [(2, 5), (4, 2)]
    assert bring_together(6, {0, 1, 3, 4}, {2}, [5]) == [(2, 5), (4, 2)]
    assert bring_together(5, {0, 1, 3, 4}, set(), [2]) == [(4, 2)]  # there is no other


def test_nobody_under_way_is_lost() -> None:
    assert bring_together(3, {0, 2}, {1}, []) is None


def test_the_window_with_the_fewest_copies() -> None:
    # 3 and 4 stay; 0 moves to them.
    assert bring_together(6, {0, 3, 4}, {1}, [2]) == [(0, 5)]
