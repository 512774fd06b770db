"""When a device serves: weekly windows by the clock on the wall, across midnight and changes of the clock."""

from __future__ import annotations

import random
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.device.schedule import AHEAD_SECONDS, DAYS, Schedule, ScheduleError, Wall, Window

BERLIN = ZoneInfo("Europe/Berlin")
ZONES = [
    ZoneInfo(name) for name in ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu")
]


def wall_of(zone: ZoneInfo) -> Wall:
    return lambda moment: datetime.fromtimestamp(moment, zone).replace(tzinfo=None)


def at(text: str, zone: ZoneInfo = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


NIGHTS = Schedule.parse(["mon-fri 22:00-07:00", "sat-sun 00:00-24:00"])


@pytest.mark.parametrize(
    ("moment", "is_on"),
    [
        ("2026-11-30T21:59:59", False),  # a Monday
        ("2026-11-30T22:00:00", True),
        ("2026-12-01T06:59:59", True),
        ("2026-12-01T07:00:00", False),
        ("2026-12-04T23:00:00", True),  # Friday, into Saturday, which is on all day
        ("2026-12-05T12:00:00", True),
        ("2026-12-06T23:59:59", True),
        ("2026-12-07T00:00:00", False),  # Monday: Sunday's window has ended, Monday's begins at 22:00
    ],
)
def test_nights_and_weekends(moment: str, is_on: bool) -> None:
    assert NIGHTS.is_on(at(moment), wall_of(BERLIN)) is is_on


def test_the_next_change() -> None:
    wall = wall_of(BERLIN)
    assert NIGHTS.next_change(at("2026-11-30T12:00:00"), wall) == at("2026-11-30T22:00:00")
    assert NIGHTS.next_change(at("2026-12-04T23:00:00"), wall) == at("2026-12-07T00:00:00")
    assert Schedule().next_change(0.0, wall) is None and Schedule().is_on(0.0, wall)
    assert Schedule.parse(["daily 00:00-24:00"]).next_change(at("2026-12-04T23:00:00"), wall) is None


def test_when_the_clock_is_put_forward_and_back() -> None:
    wall = wall_of(BERLIN)
    early = Schedule.parse(
        ["daily 02:15-02:45"]
    )  # does not happen on 2026-03-29, happens twice on 2026-10-25
    assert not any(early.is_on(at("2026-03-29T00:00:00") + 60 * i, wall) for i in range(23 * 60))
    twice = [early.is_on(at("2026-10-25T00:00:00") + 60 * i, wall) for i in range(25 * 60)]
    assert sum(twice) == 60
    night = Schedule.parse(["sat 22:00-07:00"])
    assert night.next_change(at("2026-03-28T22:00:00"), wall) == at("2026-03-29T07:00:00")
    assert at("2026-03-29T07:00:00") - at("2026-03-28T22:00:00") == 8 * 3600, "an hour shorter"
    # from 01:59 the clock goes to 03:00: into the window, though 02:30 never was
    late = Schedule.parse(["sun 02:30-05:00"])
    assert late.next_change(at("2026-03-29T01:30:00"), wall) == at("2026-03-29T03:00:00")


@pytest.mark.parametrize(
    ("text", "days", "begins", "ends"),
    [
        ("mon 00:00-24:00", {0}, 0, 1440),
        ("daily 1:30-6:00", set(range(7)), 90, 360),
        ("fri-mon 23:00-01:00", {4, 5, 6, 0}, 1380, 1500),
        ("MON,wed,sat-sun 8:00 - 9:00", {0, 2, 5, 6}, 480, 540),
    ],
)
def test_windows(text: str, days: set[int], begins: int, ends: int) -> None:
    assert Window.parse(text) == Window(frozenset(days), begins, ends)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'write it like "mon-fri 22:00-07:00"'),
        ("22:00-07:00", "cannot read"),
        ("montag 22:00-07:00", "'montag' is no day"),
        ("mon-fry 22:00-07:00", "'mon-fry' is no day"),
        ("mon 25:00-07:00", "25:00 is no time of day"),
        ("mon 22:60-07:00", "22:60 is no time of day"),
        ("mon 08:00-08:00", 'a whole day is "00:00-24:00"'),
        ("mon 24:00-08:00", "write 00:00 of the next"),
        ("mon 08:00-09:00" + " " * 200, "cannot read"),
    ],
)
def test_what_is_no_window(text: str, message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        Window.parse(text)
    assert message in str(caught.value) and "\n" not in str(caught.value)


times = st.integers(0, 1440).map(lambda minute: f"{minute // 60:02}:{minute % 60:02}")
windows = st.builds(
    lambda first, last, begin, end: f"{first}-{last} {begin}-{end}",
    st.sampled_from(DAYS),
    st.sampled_from(DAYS),
    times.filter(lambda text: text != "24:00"),
    times,
).filter(lambda text: text[8:13] != text[14:19])


@settings(max_examples=60)
@given(
    texts=st.lists(windows, min_size=1, max_size=3),
    zone=st.sampled_from(ZONES),
    day=st.sampled_from(["2026-03-08", "2026-03-28", "2026-10-03", "2026-10-24", "2026-11-01", "2026-04-04"]),
    seed=st.integers(0, 1 << 16),
)
def test_the_next_change_is_when_it_changes(texts: list[str], zone: ZoneInfo, day: str, seed: int) -> None:
    schedule, wall = Schedule.parse(texts), wall_of(zone)
    now = at(f"{day}T12:00:00", zone) + random.Random(seed).random() * 86400
    change = schedule.next_change(now, wall)
    end = change if change is not None else now + AHEAD_SECONDS - 86400
    state = schedule.is_on(now, wall)
    for step in range(int((end - now) // 60)):
        assert schedule.is_on(now + 60 * step, wall) is state, "not before"
    if change is not None:
        assert change > now and schedule.is_on(change, wall) is not state
        assert schedule.is_on(change - 0.5, wall) is state


@given(text=st.text(max_size=30))
def test_any_text_is_a_window_or_one_line(text: str) -> None:
    try:
        assert Window.parse(text).ends <= 2 * 1440
    except ScheduleError as error:
        assert "\n" not in str(error)
