"""How often something may happen, for each key, in a table that cannot grow: counts in fixed windows."""

from __future__ import annotations

MAX_KEYS = 1024
"""Keys remembered at once; past it, unknown ones are refused until others' windows have passed."""


class Rate:
    """At most `limit` times in `seconds` for each key.

    Windows begin with a key's first use, so twice the limit may fall together at the seam of two.
    """

    def __init__(self, limit: int, seconds: float, *, max_keys: int = MAX_KEYS) -> None:
        self._limit = limit
        self._seconds = seconds
        self._max_keys = max_keys
        self._windows: dict[str, tuple[float, int]] = {}

    def allows(self, key: str, now: float) -> bool:
        """Count one use; False, uncounted, if it is one too many."""
        begun, count = self._windows.get(key, (now, 0))
        if now - begun >= self._seconds:
            begun, count = now, 0
        if count >= self._limit:
            return False
        if key not in self._windows and len(self._windows) >= self._max_keys:
            self._drop_past(now)
            if len(self._windows) >= self._max_keys:
                return False
        self._windows[key] = begun, count + 1
        return True

    def __len__(self) -> int:
        return len(self._windows)

    def _drop_past(self, now: float) -> None:
        past = [key for key, (begun, _) in self._windows.items() if now - begun >= self._seconds]
        for key in past:
            del self._windows[key]
