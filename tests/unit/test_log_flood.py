"""The log under a flood: bounded, and it says so."""

from __future__ import annotations

import logging

from node.log_flood import LINES, LINES_OF_A_KIND, WINDOW, FloodGuard


class Log:
    """What is let through, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.guard = FloodGuard(lambda: self.now)

    def say(self, text: str, *args: object, line: int = 1) -> str | None:
        record = logging.LogRecord("panal", logging.INFO, "x.py", line, text, args, None)
        return record.getMessage() if self.guard.filter(record) else None


def test_of_one_kind_some_are_written_and_the_last_says_so() -> None:
    log = Log()
    said = [log.say("peer %d", number) for number in range(1000)]
    assert said[:2] == ["peer 0", "peer 1"]
    assert said[LINES_OF_A_KIND - 1] == (
        f"peer {LINES_OF_A_KIND - 1} (further lines like this are left out for up to 60 s)"
    )
    assert said[LINES_OF_A_KIND:] == [None] * (1000 - LINES_OF_A_KIND)
    assert log.say("another", line=2) == "another"


def test_the_next_minute_begins_with_how_many_were_left_out() -> None:
    log = Log()
    for number in range(100):
        log.say("peer %d", number)
    log.now = WINDOW
    assert log.say("peer %s", "x") == f"peer x ({100 - LINES_OF_A_KIND} like this were left out before)"
    assert log.say("peer %s", "y") == "peer y"


def test_all_kinds_together_are_bounded() -> None:
    log = Log()
    said = [log.say("kind", line=number) for number in range(1000)]
    assert [each for each in said if each is not None] == [
        *["kind"] * (LINES - 1), "kind (further lines are left out for up to 60 s)"
    ]  # fmt: skip
    log.now = WINDOW
    assert log.say("kind", line=1) == "kind"


def test_a_quiet_log_is_left_alone() -> None:
    log = Log()
    for _ in range(1000):
        log.now += WINDOW / LINES_OF_A_KIND * 2
        assert log.say("100 %") == "100 %"
