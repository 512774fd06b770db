"""Whose turn it is: reading prompts or writing, and among users. Pure.

1. While some read and others write, passes alternate by time: a chunk of a prompt is followed by passes of
   those who write, until they have had their share. Nobody waits for more than a chunk, and a long prompt
   costs the others a share of their speed, however long it is.
2. Chunks go round among users, and a user's prompts are read one after the other: the first is answered
   early, and the next finds read what they have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

READING_SHARE = 0.5
"""Share of the time for prompts while others write. Whoever writes then has half their speed at least, and a
prompt takes twice as long at most."""

MOST_USERS = 1024
"""Users whose last turn is remembered; a forgotten one is taken for new, which costs others one turn."""


class Turns:
    """Reading and writing in turns by time.

    Args:
        reading_share: of the time while there are both; 1: prompts first.
    """

    def __init__(self, reading_share: float = READING_SHARE) -> None:
        self._share = reading_share
        self._balance = 0.0  # seconds that reading has had beyond its share

    def reads(self, reading: bool, writing: bool) -> bool:
        """Whether the next pass reads, where there is this to do."""
        if not (reading and writing):
            self._balance = 0.0  # what one had while the other wanted nothing is not owed
            return reading
        return self._balance <= 0

    def spent(self, seconds: float, *, reading: bool) -> None:
        """A pass took so long."""
        self._balance += seconds * (1 - self._share if reading else -self._share)


class RoundRobin:
    """Users in turn."""

    def __init__(self) -> None:
        self._count = 0
        self._last: dict[str, int] = {}

    def next(self, users: Iterable[str], weight: Callable[[str], int] = lambda user: 0) -> str:
        """Of those with the least weight the one whose turn is longest ago; new ones first, as they come."""
        return min(users, key=lambda user: (weight(user), self._last.get(user, 0)))

    def took(self, user: str) -> None:
        """It was this one's turn."""
        self._count += 1
        self._last.pop(user, None)
        self._last[user] = self._count
        if len(self._last) > MOST_USERS:
            del self._last[next(iter(self._last))]


def split_evenly(count: int, most: int) -> int:
    """Members of a pass, of so many in all: as few passes as may be, of about the same size.

    Nobody goes alone if there is company.
    """
    return -(-count // -(-count // most)) if count else 0
