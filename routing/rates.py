"""How often something may happen: token buckets, one alone or one for each key. Pure."""

from __future__ import annotations

MAX_KEYS = 4096
"""Keys a table of buckets remembers; of more, the one used longest ago is forgotten, and is full again."""


class Bucket:
    """`burst` times at once, and `per_second` in the long run."""

    __slots__ = ("_burst", "_filled", "_per_second", "_tokens")

    def __init__(self, burst: float, per_second: float, now: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._tokens = burst
        self._filled = now

    def allows(self, now: float) -> bool:
        """Whether it may happen once more now."""
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._filled) * self._per_second)
        self._filled = now
        return self._tokens >= 1

    def take(self, now: float) -> bool:
        """Count one; False, uncounted, if it is one too many."""
        if not self.allows(now):
            return False
        self._tokens -= 1
        return True


class Buckets:
    """A bucket for each key, in a table that cannot grow."""

    def __init__(self, burst: float, per_second: float, *, max_keys: int = MAX_KEYS) -> None:
        self._burst = burst
        self._per_second = per_second
        self._max_keys = max_keys
        self._buckets: dict[str, Bucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def allows(self, key: str, now: float) -> bool:
        """Whether it may happen once more for this key, without counting it."""
        bucket = self._buckets.get(key)
        return bucket is None or bucket.allows(now)

    def take(self, key: str, now: float) -> bool:
        """Count one for a key; False, uncounted, if it is one too many."""
        bucket = self._buckets.pop(key, None)
        if bucket is None:
            if len(self._buckets) >= self._max_keys:
                del self._buckets[next(iter(self._buckets))]
            bucket = Bucket(self._burst, self._per_second, now)
        self._buckets[key] = bucket  # at the end: a dict keeps its order
        return bucket.take(now)

    def forget(self, key: str) -> None:
        """As if nothing had happened for this key yet."""
        self._buckets.pop(key, None)
