"""Answered calls that wait to be run again: bounded, and cut to a size that costs others little. Pure.

1. An expert's rows stay together, so that one build class gives the same bytes again (design/llama-hook.md):
   a call that is too large, or of which a replica holds only some experts, is cut by experts.
2. Where the answer has sums over experts, it cannot be cut so: it is cut by rows, and then compared by how
   far it is off, not by bytes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import islice

import numpy as np
import numpy.typing as npt

from market.audit import Sample
from routing.wire.codecs import Float32Array
from routing.wire.experts import Combine
from routing.wire.runs import run_groups

MAX_PAIRS = 64
"""Pairs that are run again of a call: eight tokens of a large model. A prompt's thousands would keep a
replica from its work for seconds."""

MAX_SAMPLES = 256
MAX_OF_PEER = 64
"""Calls that wait, in all and of one peer: at 5 % those of 1,000 calls of a peer that nobody has time to
check."""

MAX_BYTES = 64 << 20
"""Of all that wait."""

MAX_AGE = 60.0
"""Seconds after which nobody waits any more for a replica that has time."""


class Samples:
    """Calls that wait, the oldest first.

    Attributes:
        missed: calls that were drawn and not run again: there was no room, or nobody had time.
    """

    def __init__(self) -> None:
        self._waiting: deque[Sample] = deque()
        self._of: Counter[str] = Counter()
        self._nbytes = 0
        self.missed = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def has_room(self, peer_id: str) -> bool:
        """Whether one more call of this peer may wait."""
        room = len(self._waiting) < MAX_SAMPLES and self._nbytes < MAX_BYTES
        if room and self._of[peer_id] < MAX_OF_PEER:
            return True
        self.missed += 1
        return False

    def add(self, sample: Sample) -> None:
        """Let it wait; whoever adds has asked for room."""
        self._waiting.append(sample)
        self._of[sample.word.peer_id] += 1
        self._nbytes += _nbytes(sample)

    def first(self, number: int) -> list[Sample]:
        """The oldest."""
        return list(islice(self._waiting, number))

    def remove(self, sample: Sample) -> None:
        """It waits no longer."""
        self._waiting.remove(sample)
        self._of[sample.word.peer_id] -= 1
        self._nbytes -= _nbytes(sample)

    def waits_for(self, peers: Collection[str]) -> bool:
        """Whether any call of these peers waits."""
        return any(self._of[peer_id] for peer_id in peers)

    def drop(self, which: Callable[[Sample], bool]) -> list[Sample]:
        """Take out all of these."""
        dropped = [sample for sample in self._waiting if which(sample)]
        for sample in dropped:
            self.remove(sample)
        return dropped

    def expire(self, now: float) -> None:
        """Take out what has waited too long."""
        self.missed += len(self.drop(lambda sample: now - sample.at > MAX_AGE))


def _nbytes(sample: Sample) -> int:
    return sample.request.x.nbytes + sample.word.y.nbytes


def cut(
    sample: Sample, shuffled: Callable[[list[int]], None], *, held: int | None = None, most: int = MAX_PAIRS
) -> Sample | None:
    """The part of a call that is run again; the call itself if that is small and all of it is held.

    Args:
        shuffled: brings a list into random order: which part it is must not be known before.
        held: experts (as bits) that can be asked; None for all of them.
        most: pairs, about.

    Returns:
        None if nothing of it can be asked again.
    """
    request = sample.request
    whole = held is None or not sample.experts & ~held
    if whole and request.pairs <= most:
        return sample
    if request.combine is not Combine.ROWS:
        return _cut_rows(sample, shuffled, most) if whole else None
    counted = Counter(request.experts.tolist())
    experts = [expert for expert in counted if held is None or held >> expert & 1]
    if not experts:
        return None
    shuffled(experts)
    chosen, pairs = [experts[0]], counted[experts[0]]
    for expert in experts[1:]:
        if pairs + counted[expert] <= most:
            chosen.append(expert)
            pairs += counted[expert]
    if pairs > most * 4:  # one expert with hundreds of rows: by rows, and not by bytes
        part = _parted(sample, np.isin(request.experts, chosen), whole=sample.whole)
        return _cut_rows(part, shuffled, most)
    return _parted(sample, np.isin(request.experts, chosen), whole=sample.whole)


def _cut_rows(sample: Sample, shuffled: Callable[[list[int]], None], most: int) -> Sample:
    """Some of its rows, with all their pairs."""
    request = sample.request
    rows = list(range(request.rows))
    shuffled(rows)
    chosen, pairs = [rows[0]], int(request.counts[rows[0]])
    for row in rows[1:]:
        if pairs + int(request.counts[row]) > most:
            break
        chosen.append(row)
        pairs += int(request.counts[row])
    of_pair = np.repeat(np.arange(request.rows), request.counts)
    return _parted(sample, np.isin(of_pair, chosen), whole=False)


def _parted(sample: Sample, kept: npt.NDArray[np.bool_], *, whole: bool) -> Sample:
    """A call of some pairs. Sums keep whole rows, which is for the caller to see to."""
    request = sample.request
    of_pair = np.repeat(np.arange(request.rows), request.counts)
    counts = np.bincount(of_pair[kept], minlength=request.rows).astype(np.uint16)
    rows = counts > 0
    y: Float32Array = sample.word.y
    if request.combine is Combine.ROWS:
        y = y[kept]
    elif request.combine is Combine.SUM:
        y = y[rows]
    else:
        y = y[rows[run_groups(request.counts, request.experts, request.run_length).rows]]
    part = replace(
        request,
        x=np.ascontiguousarray(request.x[rows]),
        counts=counts[rows],
        experts=request.experts[kept],
        weights=None if request.weights is None else request.weights[kept],
    )
    return replace(sample, request=part, word=replace(sample.word, y=np.ascontiguousarray(y)), whole=whole)
