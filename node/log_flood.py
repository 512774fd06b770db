"""A log that peers cannot fill: so many lines of a kind in a minute, and so many in all.

What a node logs is mostly about what others do, so a hostile one could make it log without end. A kind of
line is where in the program it comes from, so that no text of a peer's makes a new one. The last line of a
kind that is let through says so, and the first one of the next minute says how many were left out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

WINDOW = 60.0
"""Seconds."""

LINES_OF_A_KIND = 30
"""In a window: what a swarm of some dozen nodes says when it starts."""

LINES = 200
"""Of all kinds in a window: some 40 MB a day at the very most."""


@dataclass
class _Kind:
    begun: float
    count: int = 0


class FloodGuard(logging.Filter):
    """For handlers, not loggers: a logger's own filters are not asked about what its children log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[tuple[str, int], _Kind] = {}
        self._all = _Kind(clock())

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written; its text may get an addition."""
        now = self._clock()
        if now - self._all.begun >= WINDOW:
            self._all = _Kind(now)
        kind = self._kinds.setdefault((record.pathname, record.lineno), _Kind(now))
        left_out = 0
        if now - kind.begun >= WINDOW:
            left_out = max(0, kind.count - LINES_OF_A_KIND)
            kind.begun, kind.count = now, 0
        kind.count += 1
        if kind.count > LINES_OF_A_KIND or self._all.count >= LINES:
            return False
        self._all.count += 1
        if left_out:
            _add(record, f"{left_out} like this were left out before")
        if kind.count == LINES_OF_A_KIND or self._all.count == LINES:
            what = "like this " if kind.count == LINES_OF_A_KIND else ""
            _add(record, f"further lines {what}are left out for up to {WINDOW:.0f} s")
        return True


def _add(record: logging.LogRecord, text: str) -> None:
    record.msg, record.args = f"{record.getMessage()} ({text})", None
