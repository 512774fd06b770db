"""Who waits for a place, who is next, and how long it may take. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from node.decode.continuous.schedule import RoundRobin

T = TypeVar("T")

REMEMBERED = 32
"""Answers whose durations count for an estimate: a few rounds of all places."""

LEAST_RETRY, MOST_RETRY = 1.0, 120.0
"""Seconds: sooner nothing will have changed; who would wait longer had better look again."""

UNKNOWN_RETRY = 5.0
"""Seconds to come back after while no answer has ended yet."""


class WaitingRoom(Generic[T]):
    """Waits for places: a queue for each user, users in turn.

    Args:
        bound: how many may wait.
    """

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self._queues: dict[str, deque[T]] = {}
        self._turns = RoundRobin()
        self._durations: deque[float] = deque(maxlen=REMEMBERED)

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def is_full(self, free: int) -> bool:
        """Whether one more would wait in vain, with so many places free for those that wait."""
        return len(self) >= self.bound + free

    def add(self, user: str, item: T) -> None:
        self._queues.setdefault(user, deque()).append(item)

    def peek(self, under_way: Iterable[str]) -> tuple[str, T] | None:
        """The next one: of the user with the fewest under way, of these the one whose turn is longest ago.

        Args:
            under_way: the user of each sequence that has a place.
        """
        if not self._queues:
            return None
        has = Counter(under_way)
        user = self._turns.next(self._queues, lambda each: has[each])
        return user, self._queues[user][0]

    def take(self, user: str) -> T:
        """The first of a user's leaves the queue for a place."""
        item = self._queues[user].popleft()
        self._tidy(user)
        self._turns.took(user)
        return item

    def remove(self, user: str, item: T) -> bool:
        """One does not want to wait any more; False if it did not wait."""
        queue = self._queues.get(user)
        if queue is None or item not in queue:
            return False
        queue.remove(item)
        self._tidy(user)
        return True

    def drain(self) -> list[T]:
        """All leave."""
        items = [item for queue in self._queues.values() for item in queue]
        self._queues.clear()
        return items

    def answered(self, seconds: float) -> None:
        """A sequence had its place for so long."""
        self._durations.append(seconds)

    def retry_after(self, places: int) -> float:
        """Seconds until one more may find room: a place in the queue is free when a sequence ends."""
        if not self._durations:
            return UNKNOWN_RETRY
        mean = sum(self._durations) / len(self._durations)
        return min(MOST_RETRY, max(LEAST_RETRY, mean / places))

    def _tidy(self, user: str) -> None:
        if not self._queues[user]:
            del self._queues[user]
