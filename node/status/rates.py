"""Rates out of counters: how much a second, lately. Pure: whoever reads the counters brings `now`."""

from __future__ import annotations

from collections import deque


class Rate:
    """How fast a counter grows, over its last seconds.

    Args:
        window: seconds that are looked back.
        step: samples closer to each other than this replace one another; so a window holds few of them.
    """

    def __init__(self, window: float, step: float = 0.5) -> None:
        self._window = window
        self._step = step
        self._samples: deque[tuple[float, float]] = deque()

    def note(self, value: float, now: float) -> None:
        """What the counter says now. One that went back has begun anew: what was before is forgotten."""
        samples = self._samples
        if samples and (value < samples[-1][1] or now < samples[-1][0]):
            samples.clear()
        if len(samples) > 1 and now - samples[-2][0] < self._step:
            samples.pop()
        samples.append((now, value))
        # the oldest stays until the next one covers the window too
        while len(samples) > 2 and now - samples[1][0] >= self._window:
            samples.popleft()

    @property
    def grown(self) -> float:
        """By how much the counter has grown over the window; 0 before its second sample."""
        return self._samples[-1][1] - self._samples[0][1] if self._samples else 0.0

    @property
    def per_second(self) -> float | None:
        """None before the second sample."""
        if len(self._samples) < 2:
            return None
        seconds = self._samples[-1][0] - self._samples[0][0]
        return self.grown / seconds if seconds > 0 else None


class Share:
    """How much of one counter's growth another one counts: lost of sent.

    Args:
        window: seconds that are looked back.
        step: seconds between the samples that are kept.
    """

    def __init__(self, window: float, step: float) -> None:
        self._part = Rate(window, step)
        self._whole = Rate(window, step)

    def note(self, part: int, whole: int, now: float) -> None:
        """What both counters say now."""
        self._part.note(part, now)
        self._whole.note(whole, now)

    @property
    def value(self) -> float | None:
        """0 to 1; None while nothing of the whole was counted."""
        whole = self._whole.grown
        return min(max(self._part.grown / whole, 0.0), 1.0) if whole > 0 else None
