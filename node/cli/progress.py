"""Long work on a terminal: one line on stderr that is rewritten; nothing where nobody looks."""

from __future__ import annotations

import sys
import time
from types import TracebackType

REPORT_SECONDS = 0.1  # between two rewrites: readable, and too seldom to cost anything
QUIET_SECONDS = 0.5  # work that is over sooner is not announced


class Progress:
    """A context manager; `report` is what long functions call."""

    def __init__(self) -> None:
        self._shown = False
        self._last = 0.0
        self._begun = time.monotonic()
        self._on = sys.stderr is not None and sys.stderr.isatty()
        self._stopped = False

    def stop(self) -> None:
        """Make the next `report` raise KeyboardInterrupt: how long work on another thread is ended."""
        self._stopped = True

    def report(self, what: str, done: int, total: int) -> None:
        """Show `what`, with how far it is if `total` (bytes) is known."""
        if self._stopped:
            raise KeyboardInterrupt
        now = time.monotonic()
        if (
            not self._on
            or now - self._begun < QUIET_SECONDS
            or (now - self._last < REPORT_SECONDS and done < total)
        ):
            return
        self._last = now
        text = what
        if total:
            text += f" {done >> 20:,} of {total >> 20:,} MiB ({100 * done / total:.0f} %)"
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        self._shown = True

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
