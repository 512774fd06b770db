"""When a way that failed is tried again: pauses that grow with each failure, forgotten in time. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

MAX_RECORDS = 4096
"""Keys remembered; of more, the one that failed longest ago is as new. Peers can name others without end."""


@dataclass
class _Record:
    failures: int
    until: float
    last: float


class Backoff:
    """Pauses by key (a peer and a way to it).

    Args:
        first: seconds after the first failure; each further one doubles it.
        longest: seconds no pause exceeds.
        forgiven: seconds without a failure after which a key is as new.
    """

    def __init__(self, first: float, longest: float, forgiven: float) -> None:
        self._first = first
        self._longest = longest
        self._forgiven = forgiven
        self._records: dict[Hashable, _Record] = {}

    def failed(self, key: Hashable, now: float) -> float:
        """Note a failure; returns the pause in seconds."""
        record = self._records.get(key)
        count = 1 if record is None or now - record.last > self._forgiven else record.failures + 1
        # 2 ** count would grow without bound for a peer that is off for months
        pause = min(self._first * 2.0 ** min(count - 1, 30), self._longest)
        self._records.pop(key, None)  # and to the end: the oldest failure goes first
        if len(self._records) >= MAX_RECORDS:
            del self._records[next(iter(self._records))]
        self._records[key] = _Record(count, now + pause, now)
        return pause

    def worked(self, key: Hashable) -> None:
        """It works: forgiven at once."""
        self._records.pop(key, None)

    def ready_at(self, key: Hashable, now: float) -> float:
        """When it may be tried; `now` if it may be now."""
        record = self._records.get(key)
        if record is None:
            return now
        if now - record.last > self._forgiven:
            del self._records[key]
            return now
        return max(now, record.until)

    def forget(self, keep: set[Hashable]) -> None:
        """Drop what is not kept, so that peers long gone take no memory."""
        self._records = {key: record for key, record in self._records.items() if key in keep}
