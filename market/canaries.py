"""Past calls that are asked again as if they were work, and what is known of their answers. Pure.

They are real: hidden states of real text, with the sizes, codecs and deadlines that this node always asks
with. From the best to the least, a peer is asked again

1. a call that others have answered alike, and that it has never seen;
2. one that it has itself answered like another once: its own word stands against it;
3. one that only it has answered: who gives two answers to one question has lied once. That is all that can be
   had of cells that nobody else holds.

Each is sent to a peer at most once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from market.audit import Sample

MAX_BYTES = 32 << 20
"""Of all canaries: a thousand calls of one token of a large model."""

MAX_CANARIES = 1_024


class Draws(Protocol):
    """What of `random.Random` is needed."""

    def randrange(self, stop: int, /) -> int: ...


@dataclass(frozen=True, eq=False)
class Canary:
    """A call with an answer.

    Attributes:
        sample: the call and its answer.
        by: all who have given it alike.
        sent: peers that were asked it again.
    """

    sample: Sample
    by: frozenset[str]
    sent: set[str] = field(default_factory=set)

    def rank(self, peer_id: str) -> int | None:
        """How good it is for a peer, 0 the best; None: not at all."""
        if peer_id in self.sent:
            return None
        if peer_id not in self.by:
            return 0 if len(self.by) > 1 else None
        return 1 if len(self.by) > 1 else 2

    @property
    def nbytes(self) -> int:
        return self.sample.request.x.nbytes + self.sample.word.y.nbytes


class Canaries:
    """Those that are kept; the oldest make way."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, Canary] = OrderedDict()
        self._next = 0
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, canary: Canary) -> None:
        """A call that was answered."""
        if canary.nbytes > MAX_BYTES:
            return
        self._kept[self._next] = canary
        self._next += 1
        self._nbytes += canary.nbytes
        while len(self._kept) > MAX_CANARIES or self._nbytes > MAX_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._nbytes -= oldest.nbytes

    def choose(self, peer_id: str, fits: Callable[[Canary], bool], rng: Draws) -> Canary | None:
        """One of the best at random that a peer can answer; None if there is none. It counts as sent."""
        best: list[Canary] = []
        least = 3
        for each in self._kept.values():
            rank = each.rank(peer_id)
            if rank is not None and rank <= least and fits(each):
                best = [*best, each] if rank == least else [each]
                least = rank
        if not best:
            return None
        chosen = best[rng.randrange(len(best))]
        chosen.sent.add(peer_id)
        return chosen

    def doubt(self, peer_id: str) -> None:
        """Forget what rests on this peer's word: it was found out."""
        for number in [number for number, each in self._kept.items() if peer_id in each.by]:
            self._nbytes -= self._kept.pop(number).nbytes
