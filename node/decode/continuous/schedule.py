"""Whose turn it is: reading prompts or writing, and among users. Pure.

1. While some read and others write, passes alternate by time: a chunk of a prompt is followed by passes of
   those who write, until they have had their share. Nobody waits for more than a chunk or two, and a long
   prompt costs the others half of their speed at most, however long it is. Where more read than write,
   reading has the larger share, a part for each: a pass for few of many is badly used.
2. Chunks go round among users, and a user's prompts are read one after the other: the first is answered
   early, and the next finds read what they have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

READING_SHARE = 0.5
"""Share of the time that prompts have at least while others write: a prompt takes twice as long at most."""

MOST_MISSED = 16
"""Passes that one may miss more than another before they change places: three copies of caches, a few per
cent of as many passes."""

MOST_USERS = 1024
"""Users whose last turn is remembered; a forgotten one is taken for new, which costs others one turn."""


class Turns:
    """Reading and writing in turns by time.

    Args:
        reading_share: of the time at least, while there are both; 1: prompts first.
    """

    def __init__(self, reading_share: float = READING_SHARE) -> None:
        self._least = self._share = reading_share
        self._balance = 0.0  # seconds that reading has had beyond its share

    def reads(self, readers: int, writers: int) -> bool:
        """Whether the next pass reads, where so many have this to do, and so many that."""
        if not (readers and writers):
            self._balance = 0.0  # what one had while the other wanted nothing is not owed
            return readers > 0
        self._share = max(self._least, readers / (readers + writers))
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


def window(waited: Sequence[int], most: int) -> range:
    """Who of those that write takes part in a pass with so many rows, where they have to be neighbours.

    As many as may be: windows overlap, so that those in the middle are in more of them, and nobody is in
    fewer than if all took turns.

    Args:
        waited: passes that each has waited for.
    """
    first = max(range(len(waited)), key=lambda index: waited[index], default=0)
    windows = _windows(len(waited), most)
    return next((each for each in windows if first in each), windows[0])


def to_swap(missed: Sequence[int], most: int) -> tuple[int, int] | None:
    """Two that had better change places: one at an end, which is in fewer passes, and one in the middle.

    Args:
        missed: passes that each was not in.
    """
    windows = _windows(len(missed), most)
    seen = [sum(index in each for each in windows) for index in range(len(missed))]
    if not seen or min(seen) == max(seen):
        return None
    behind = max((i for i, times in enumerate(seen) if times == min(seen)), key=lambda index: missed[index])
    ahead = min((i for i, times in enumerate(seen) if times == max(seen)), key=lambda index: missed[index])
    return (behind, ahead) if missed[behind] - missed[ahead] >= MOST_MISSED else None


def _windows(count: int, most: int) -> list[range]:
    """So few that each is in one, spread evenly."""
    if count <= most:
        return [range(count)]
    passes = -(-count // most)
    starts = [number * (count - most) // (passes - 1) for number in range(passes)]
    return [range(start, start + most) for start in starts]
