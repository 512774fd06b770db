"""Which sequences change places, so that those of a pass have consecutive numbers. Pure.

Where each sequence has a cache of its own, a pass is one graph, and so one trip a layer, only over
consecutive ones. What lies in the way is moved to an empty place, as it may be wanted again: a copy of a
whole cache, which is little beside a pass with its trips.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

Move = tuple[int, int]
"""A sequence's cache goes from the first place to the second, whose own is lost; the first is empty then."""


def bring_together(
    count: int, wanted: AbstractSet[int], others: AbstractSet[int], idle: Sequence[int]
) -> list[Move] | None:
    """Moves after which the wanted ones are consecutive; as few copies as may be.

    Args:
        count: places.
        wanted: those of the pass.
        others: in use, but not in the pass; they may be moved, never lost.
        idle: hold what may be wanted again, the least wanted first: lost only if there is no empty place.

    Returns:
        In order; None if there is no place to move anything to.
    """
    width = len(wanted)
    if not wanted or max(wanted) - min(wanted) + 1 == width:
        return []
    rank = {place: number for number, place in enumerate(idle)}
    free = [place for place in range(count) if not (place in wanted or place in others or place in rank)]

    def copies(start: int) -> int:
        places = [place for place in range(start, start + width) if place not in wanted]
        return sum(2 if place in others or place in rank else 1 for place in places)

    first = min(range(count - width + 1), key=copies)
    window = range(first, first + width)
    outside = sorted(wanted - set(window))
    spare = [place for place in free if place not in window]
    lost = [place for place in idle if place not in window]  # may be, the least wanted first
    moves: list[Move] = []
    # Each place that is filled empties another, so those that need none come first.
    for place in sorted(set(window) - wanted, key=lambda each: (each in others, rank.get(each, -1))):
        if place in others or place in rank:
            if spare or lost:
                moves.append((place, spare.pop() if spare else lost.pop(0)))
            elif place in others:
                return None
        source = outside.pop()
        moves.append((source, place))
        spare.append(source)
    return moves
