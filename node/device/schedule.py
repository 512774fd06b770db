"""When a device serves: weekly times as its owner writes them, in the device's own wall time. Pure.

    "mon-fri 22:00-07:00"    "sat-sun 00:00-24:00"    "daily 01:30-06:00"    "mon,wed 20:00-23:00"

A time that ends before it begins goes on into the next day: the first one above ends on Saturday at 07:00.

What counts is what the clock on the wall shows. So nothing here adds up hours: on the day that has 23 or 25
of them a window still begins and ends when the clock says so, one that falls into the hour that is left out
does not happen, and one in the hour that comes twice happens twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from routing.errors import LocalError

Wall = Callable[[float], datetime]
"""What the clock on the wall shows at a unix time, without a time zone; `datetime.fromtimestamp` is one."""

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 24 * 60
MAX_TEXT = 100
"""Characters of a window: all days with commas between them are 27."""

AHEAD_SECONDS = 8 * 24 * 3600
"""How far `next_change` looks: a week repeats, and clocks are put forward or back by some hours at most."""

QUARTER = 900
"""Seconds. Clocks on walls are put forward and back at full quarters of an hour, and only then."""

_WINDOW = re.compile(r"([a-z,-]+) +([0-9]{1,2}):([0-9]{2}) *- *([0-9]{1,2}):([0-9]{2})", re.ASCII)


class ScheduleError(LocalError):
    """A text that does not say when."""


@dataclass(frozen=True, slots=True)
class Window:
    """Some minutes of some days of each week.

    Attributes:
        days: on which it begins; 0 is Monday.
        begins, ends: minutes of the day it begins on; past DAY_MINUTES it ends on the next one.
    """

    days: frozenset[int]
    begins: int
    ends: int

    @classmethod
    def parse(cls, text: str) -> Window:
        """Read one window.

        Raises:
            ScheduleError: names what is wrong and how it is written.
        """
        match = _WINDOW.fullmatch(text.strip().lower()) if len(text) <= MAX_TEXT else None
        if match is None:
            raise ScheduleError(f'cannot read {text[:MAX_TEXT]!r}; write it like "mon-fri 22:00-07:00"')
        begins, ends = _minute(match[2], match[3], text), _minute(match[4], match[5], text)
        if begins == ends:
            raise ScheduleError(f'{text!r} ends when it begins; a whole day is "00:00-24:00"')
        if begins == DAY_MINUTES:
            raise ScheduleError(f"{text!r} begins when the day is over; write 00:00 of the next")
        return cls(_days(match[1], text), begins, ends if ends > begins else ends + DAY_MINUTES)

    def has(self, wall: datetime) -> bool:
        """Whether it is on."""
        minute = wall.hour * 60 + wall.minute
        if wall.weekday() in self.days and self.begins <= minute < self.ends:
            return True
        return (wall.weekday() - 1) % 7 in self.days and minute < self.ends - DAY_MINUTES


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a device serves: in any of these windows; without any, always.

    Attributes:
        texts: as they were written.
    """

    windows: tuple[Window, ...] = ()
    texts: tuple[str, ...] = ()

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Schedule:
        """Read windows; ScheduleError as for `Window.parse`."""
        return cls(tuple(Window.parse(text) for text in texts), tuple(texts))

    def is_on(self, now: float, wall: Wall) -> bool:
        """Whether the device serves at a unix time."""
        shown = wall(now)
        return not self.windows or any(window.has(shown) for window in self.windows)

    def next_change(self, now: float, wall: Wall) -> float | None:
        """The unix time from which on it is otherwise than now; None if it stays so."""
        if not self.windows:
            return None
        state = self.is_on(now, wall)
        for moment in self._moments(now, wall):
            if self.is_on(moment, wall) is not state:
                return moment
        return None

    def _moments(self, now: float, wall: Wall) -> Iterator[float]:
        """When it may change, in order: where a window begins or ends, where the clock may be put forward."""
        edges = sorted({edge % DAY_MINUTES for each in self.windows for edge in (each.begins, each.ends)})
        moment = now
        while moment - now < AHEAD_SECONDS:
            shown = wall(moment)
            passed = shown.hour * 3600 + shown.minute * 60 + shown.second + shown.microsecond / 1e6
            to_edge = min((edge * 60 - passed) % (DAY_MINUTES * 60) or DAY_MINUTES * 60 for edge in edges)
            # To a whole second, up: never just before an edge, and always on.
            edge, quarter = round(moment + to_edge), (moment // QUARTER + 1) * QUARTER
            moment = edge if moment < edge <= quarter else quarter
            yield moment


ALWAYS = Schedule()


def _minute(hour: str, minute: str, text: str) -> int:
    found = int(hour) * 60 + int(minute)
    if int(minute) > 59 or found > DAY_MINUTES:
        raise ScheduleError(f"{text!r}: {hour}:{minute} is no time of day; 00:00 to 24:00 are")
    return found


def _days(text: str, window: str) -> frozenset[int]:
    if text == "daily":
        return frozenset(range(7))
    days: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first not in DAYS or (last or first) not in DAYS:
            raise ScheduleError(f"{window!r}: {part!r} is no day; days are {', '.join(DAYS)}, daily")
        begin, end = DAYS.index(first), DAYS.index(last or first)
        days.update((begin + i) % 7 for i in range((end - begin) % 7 + 1))
    return frozenset(days)
