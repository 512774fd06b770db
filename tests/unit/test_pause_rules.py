"""Whether a node serves: by hand, by schedule, while nobody else uses the device."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from node.device.device_use import UseVerdict
from node.device.pause_rules import MAX_PAUSE_SECONDS, HandPause, PauseRules, Reason
from node.device.schedule import Schedule
from routing.errors import LocalError


def wall(moment: float) -> datetime:
    return datetime.fromtimestamp(moment, UTC).replace(tzinfo=None)


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


NOON = at("2026-11-30T12:00:00")  # a Monday


def rules(*schedule: str, idle_only: bool = False, now: float = NOON) -> PauseRules:
    return PauseRules(Schedule.parse(schedule), idle_only=idle_only, now=now, wall=wall)


def test_without_rules_it_serves() -> None:
    state = rules().look(NOON + 5)
    assert not state.paused and state.text == "" and state.until is None and state.since == NOON


def test_by_hand_until_it_is_ended() -> None:
    made = rules()
    made.hand = HandPause.begin(NOON + 1, None)
    state = made.look(NOON + 1)
    assert state.paused and state.by_hand and state.text == "by hand" and state.until is None
    assert state.since == NOON + 1 and made.look(NOON + 1e6).since == NOON + 1
    made.hand = None
    assert not made.look(NOON + 2e6).paused and made.look(NOON + 2e6).since == NOON + 2e6


def test_by_hand_for_a_while() -> None:
    made = rules()
    made.hand = HandPause.begin(NOON, 7200)
    state = made.look(NOON)
    assert state.text == "by hand until 14:00" and state.until == NOON + 7200
    assert made.look(NOON + 7199).paused
    assert not made.look(NOON + 7200).paused and made.hand is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3600, "13:00"), (86400, "Tue 12:00"), (30 * 86400, "2026-12-30 12:00")],
)
def test_times_as_people_say_them(seconds: float, text: str) -> None:
    made = rules()
    made.hand = HandPause.begin(NOON, seconds)
    assert made.look(NOON).text == f"by hand until {text}"


@pytest.mark.parametrize("seconds", [0.0, -1.0, MAX_PAUSE_SECONDS * 1.01, float("nan"), float("inf")])
def test_what_is_no_pause(seconds: float) -> None:
    with pytest.raises(LocalError, match="a pause of"):
        HandPause.begin(NOON, seconds)


def test_outside_the_schedule() -> None:
    made = rules("mon-fri 22:00-07:00")
    state = made.look(NOON)
    assert state.reasons == (Reason.SCHEDULE,) and state.text == "outside its schedule until 22:00"
    assert state.until == at("2026-11-30T22:00:00") and not state.by_hand
    on = made.look(at("2026-11-30T22:00:00"))
    assert not on.paused and on.until == at("2026-12-01T07:00:00"), "when it will be otherwise"
    assert made.look(at("2026-12-01T07:00:00")).paused


def test_a_resume_ends_no_schedule() -> None:
    made = rules("mon-fri 22:00-07:00")
    made.hand = HandPause.begin(NOON, None)
    both = made.look(NOON)
    assert both.reasons == (Reason.HAND, Reason.SCHEDULE) and both.until is None
    assert both.text == "by hand; outside its schedule until 22:00"
    made.hand = None
    assert made.look(NOON).reasons == (Reason.SCHEDULE,)


def test_the_end_known_last_counts() -> None:
    made = rules("mon-fri 22:00-07:00")
    made.hand = HandPause.begin(NOON, 3600)
    assert made.look(NOON).until == at("2026-11-30T22:00:00")


def test_only_while_idle() -> None:
    busy = UseVerdict(in_use=True, text="keyboard or mouse", seen=True)
    made = rules(idle_only=True)
    made.observe(busy)
    state = made.look(NOON)
    assert state.reasons == (Reason.IN_USE,) and state.text == "this device is in use (keyboard or mouse)"
    made.observe(UseVerdict(on_battery=True, seen=True))
    assert made.look(NOON).reasons == (Reason.BATTERY,)
    made.observe(UseVerdict(seen=True))
    assert not made.look(NOON).paused
    always = rules()
    always.observe(busy)
    assert not always.look(NOON).paused, "not asked for"


def test_as_json() -> None:
    made = rules("daily 22:00-07:00", idle_only=True)
    assert made.look(NOON).as_dict() == {
        "paused": True,
        "reasons": ["schedule"],
        "text": "outside its schedule until 22:00",
        "since": NOON,
        "until": at("2026-11-30T22:00:00"),
        "by_hand": False,
        "schedule": ["daily 22:00-07:00"],
        "idle_only": True,
    }
