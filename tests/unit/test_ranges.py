"""Ranges as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.ranges import MAX_INDEX, RangeError, Ranges

indices = st.sets(st.integers(0, MAX_INDEX), min_size=1, max_size=50)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", [0]),
        ("0-3,8", [0, 1, 2, 3, 8]),
        ("8,0-3", [0, 1, 2, 3, 8]),
        ("5-5", [5]),
        (f"{MAX_INDEX}", [MAX_INDEX]),
    ],
)
def test_parse(text: str, expected: list[int]) -> None:
    assert list(Ranges.parse(text)) == expected


def test_runs_that_touch_become_one() -> None:
    assert str(Ranges.parse("4-5,0-3,6")) == "0-6"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot read"),
        ("a", "cannot read"),
        ("1,", "cannot read"),
        ("-3", "cannot read"),
        ("3-", "cannot read"),
        ("1 - 3", "cannot read"),
        ("0-3\n", "cannot read"),
        ("+1", "cannot read"),
        ("01", "cannot read"),
        ("1_0", "cannot read"),
        ("٣", "cannot read"),
        ("1-2-3", "cannot read"),
        ("3-0", 'write "0-3"'),
        ("0-3,2", "names 2 twice"),
        ("7,7", "names 7 twice"),
        (f"{MAX_INDEX + 1}", "largest index"),
        ("9" * 100, "cannot read"),
        ("1," * 5000 + "1", "limit is 4096"),
    ],
)
def test_refusals_are_one_line_and_say_why(text: str, message: str) -> None:
    with pytest.raises(RangeError) as caught:
        Ranges.parse(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@given(indices)
def test_text_round_trip(wanted: set[int]) -> None:
    ranges = Ranges.parse(",".join(map(str, wanted)))
    assert list(ranges) == sorted(wanted)
    assert len(ranges) == len(wanted)
    assert ranges.last == max(wanted)
    assert Ranges.parse(str(ranges)) == ranges


@given(indices, st.integers(-1, MAX_INDEX + 1))
def test_membership(wanted: set[int], index: int) -> None:
    assert (index in Ranges.parse(",".join(map(str, wanted)))) == (index in wanted)


@given(st.text(max_size=40))
def test_any_text_gives_ranges_or_a_range_error(text: str) -> None:
    try:
        ranges = Ranges.parse(text)
    except RangeError:
        return
    assert ranges.runs and all(first <= last <= MAX_INDEX for first, last in ranges.runs)


def test_below_and_require_below() -> None:
    assert list(Ranges.below(3)) == [0, 1, 2]
    Ranges.parse("0-3").require_below(4, "layers")
    with pytest.raises(RangeError, match="there are 3 layers, 0 to 2"):
        Ranges.parse("0-3").require_below(3, "layers")
    with pytest.raises(RangeError):
        Ranges.below(0)
