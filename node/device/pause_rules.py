"""Whether a node serves now: its owner's word, the schedule, and what else the device is used for. Pure.

Rules
1. A pause by hand ends when it was said to end, or when it is ended by hand; nothing else ends it, and the
   rules below go on beneath it.
2. Outside the schedule, in use by somebody else, and on battery it does not serve either. Ending the pause by
   hand does not change that: what the owner has written into the config holds until he changes it there.
3. Each reason that holds is named, the one that ends last known first.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from node.device.device_use import UseVerdict
from node.device.schedule import Schedule, Wall
from routing.errors import LocalError

MAX_PAUSE_SECONDS = 366 * 24 * 3600.0
"""Of a pause by hand with an end: past a year somebody has slipped with the unit."""


class Reason(StrEnum):
    """Why a node does not serve."""

    HAND = "hand"
    SCHEDULE = "schedule"
    IN_USE = "in_use"
    BATTERY = "battery"


@dataclass(frozen=True, slots=True)
class HandPause:
    """A pause by hand.

    Attributes:
        since, until: unix times; until None: until it is ended.
    """

    since: float
    until: float | None

    @classmethod
    def begin(cls, now: float, seconds: float | None) -> HandPause:
        """From now on.

        Raises:
            LocalError: no length of a pause.
        """
        if seconds is not None and not 0 < seconds <= MAX_PAUSE_SECONDS:
            raise LocalError(
                f"a pause of {seconds:g} s: more than nothing and at most {MAX_PAUSE_SECONDS / 86400:.0f} "
                "days are possible; without an end it lasts until `panal resume`"
            )
        return cls(now, None if seconds is None else now + seconds)

    def holds(self, now: float) -> bool:
        return self.until is None or now < self.until


@dataclass(frozen=True, slots=True)
class PauseState:
    """Whether a node serves, and why not.

    Attributes:
        reasons: all that hold; none: it serves.
        text: for people, "" if it serves: "by hand until 18:30".
        since: unix time since when it has been so.
        until: unix time when it will be otherwise, as far as that is known.
        by_hand: a pause by hand is among the reasons: `panal resume` changes something.
        schedule, idle_only: as configured.
    """

    paused: bool
    reasons: tuple[Reason, ...]
    text: str
    since: float
    until: float | None
    by_hand: bool
    schedule: tuple[str, ...] = ()
    idle_only: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "paused": self.paused,
            "reasons": [str(reason) for reason in self.reasons],
            "text": self.text,
            "since": self.since,
            "until": self.until,
            "by_hand": self.by_hand,
            "schedule": list(self.schedule),
            "idle_only": self.idle_only,
        }

    def says_otherwise(self, other: PauseState) -> bool:
        """Whether it differs from another in more than figures that change all the time."""
        return (self.paused, self.reasons, self.until) != (other.paused, other.reasons, other.until)


class PauseRules:
    """The state of one node.

    Args:
        wall: what the clock on the wall shows at a unix time.
    """

    def __init__(self, schedule: Schedule, *, idle_only: bool, now: float, wall: Wall) -> None:
        self._schedule = schedule
        self._idle_only = idle_only
        self._wall = wall
        self._use = UseVerdict()
        self._change: tuple[bool, float | None] | None = None  # on or off, and until when
        self.hand: HandPause | None = None
        self._state = self._judge(now, now)

    def observe(self, use: UseVerdict) -> None:
        """What else the device is used for now."""
        self._use = use

    def look(self, now: float) -> PauseState:
        """The state at a time; times must not go back by more than clocks do."""
        if self.hand is not None and not self.hand.holds(now):
            self.hand = None
        found = self._judge(now, self._state.since)
        if found.paused is not self._state.paused:
            found = self._judge(now, now)
        self._state = found
        return found

    def _judge(self, now: float, since: float) -> PauseState:
        reasons: list[Reason] = []
        texts: list[str] = []
        ends: list[float | None] = []

        def add(reason: Reason, text: str, end: float | None) -> None:
            reasons.append(reason)
            texts.append(text if end is None else f"{text} until {self._clock(end, now)}")
            ends.append(end)

        is_on, change = self._scheduled(now)
        if self.hand is not None and self.hand.holds(now):
            add(Reason.HAND, "by hand", self.hand.until)
        if not is_on:
            add(Reason.SCHEDULE, "outside its schedule", change)
        if self._idle_only and self._use.on_battery:
            add(Reason.BATTERY, "on battery", None)
        if self._idle_only and self._use.in_use:
            add(Reason.IN_USE, f"this device is in use ({self._use.text})", None)
        until: float | None = None
        if not reasons:
            until = change
        elif None not in ends:
            until = max(end for end in ends if end is not None)
        return PauseState(
            bool(reasons),
            tuple(reasons),
            "; ".join(texts),
            since,
            until,
            Reason.HAND in reasons,
            self._schedule.texts,
            self._idle_only,
        )

    def _scheduled(self, now: float) -> tuple[bool, float | None]:
        """Whether the schedule lets it serve, and until when it is so."""
        known = self._change
        is_on = self._schedule.is_on(now, self._wall)
        if known is None or known[0] is not is_on or (known[1] is not None and known[1] <= now):
            known = self._change = is_on, self._schedule.next_change(now, self._wall)
        return known

    def _clock(self, moment: float, now: float) -> str:
        """A time as people say it today: "18:30", "Fri 22:00", "2026-12-24 18:00"."""
        shown, today = self._wall(moment), self._wall(now)
        if shown.date() == today.date():
            return f"{shown:%H:%M}"
        if shown - today < timedelta(days=6):
            return f"{shown:%a %H:%M}"
        return f"{shown:%Y-%m-%d %H:%M}"
