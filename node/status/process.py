"""What this process takes of the machine: memory and processor time, as the system counts them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from node.status.facts import Load, Memory
from node.status.rates import Rate

LATELY = 5.0
"""Seconds over which the use of the processors is averaged."""

_STATUS = Path("/proc/self/status")
_FIELDS = {"VmRSS": "rss_bytes", "RssAnon": "anonymous_bytes", "RssFile": "mapped_bytes"}


def memory() -> Memory:
    """Now; unknown where the system has no /proc."""
    try:
        text = _STATUS.read_text(encoding="ascii", errors="replace")
    except OSError:
        return Memory()
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if name in _FIELDS and len(words) == 2 and words[0].isdecimal():
            found[_FIELDS[name]] = int(words[0]) * 1024
    return Memory(**found)


class Processor:
    """How busy this process keeps the processors."""

    def __init__(self) -> None:
        self._seconds = Rate(LATELY)
        self._cores = os.cpu_count() or 1

    def tick(self, now: float) -> None:
        """Look; regularly.

        Args:
            now: on any clock that does not go back.
        """
        self._seconds.note(time.process_time(), now)

    def load(self, wait_ms: int | None) -> Load:
        """Lately.

        Args:
            wait_ms: of a call for experts; goes into the answer as it is.
        """
        used = self._seconds.per_second
        share = None if used is None else round(min(used / self._cores, 1.0), 3)
        return Load(wait_ms=wait_ms, cpu=share, cores=self._cores)
