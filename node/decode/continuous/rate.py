"""Tokens a second over the last seconds. Pure."""

from __future__ import annotations

from collections import deque

WINDOW = 10.0
"""Seconds looked back: some passes on slow networks, and soon forgotten."""


class Rate:
    """Counts that came in at times."""

    def __init__(self, window: float = WINDOW) -> None:
        self._window = window
        self._counts: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, count: int, now: float) -> None:
        self._counts.append((now, count))
        self._sum += count
        self._forget(now)

    def per_second(self, now: float) -> float:
        self._forget(now)
        return self._sum / self._window

    def _forget(self, now: float) -> None:
        while self._counts and now - self._counts[0][0] > self._window:
            self._sum -= self._counts.popleft()[1]
