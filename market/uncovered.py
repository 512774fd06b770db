"""Pairs that were computed for peers and that no receipt covers yet, by cell: what becomes demand. Pure.

They are counted for each peer and cell, and most peers that ever come never sign anything: so what is kept
grows with the pairs that were computed, each of which was lent, and not with peers times cells. All of it
together is bounded.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Cells = tuple[bytes, int]
"""Model id and layer."""

LOG_PAIRS = 1_024
"""Pairs of one peer that are kept one by one, 4 KB, before they are summed up by cell, which takes 50 µs."""

MOST_ENTRIES = 2**20
"""Pairs and sums kept for all peers together: 12 MB. At the base price of a large model's cells that is 2,700
credits nobody has signed for, more than ten times what newcomers are given a day. Past it the pairs of who
has neither come nor signed for longest are forgotten: they are owed for as before, and are no demand."""

SHED_TO = MOST_ENTRIES * 7 // 8
"""What is left then, so that it is seldom."""

MAX_KEYS = 2**16
"""Layers of models that pairs can be of: what a process serves in its life."""

_EXPERT_BITS = 16


@dataclass(slots=True)
class _Pairs:
    """One peer's: a cell is the number of its layer and model, and its expert.

    Attributes:
        log: cells of single pairs.
        cells, counts: of those before, ascending, and how many each.
    """

    log: array[int] = field(default_factory=lambda: array("I"))
    cells: npt.NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.log) + len(self.cells)

    def fold(self) -> None:
        """Sum the log up."""
        if not self.log:
            return
        cells, counts = np.unique(np.array(self.log, np.uint32), return_counts=True)
        if len(self.cells):
            both, place = np.unique(np.concatenate([self.cells, cells]), return_inverse=True)
            sums = np.zeros(len(both), np.int64)
            np.add.at(sums, place, np.concatenate([self.counts, counts]))
            cells, counts = both, sums
        self.cells, self.counts, self.log = cells, counts.astype(np.int64, copy=False), array("I")


class Uncovered:
    """Of all peers.

    Attributes:
        entries: what is kept for them, in pairs and sums.
    """

    def __init__(self, most_entries: int = MOST_ENTRIES, shed_to: int = SHED_TO) -> None:
        self._most, self._shed_to = most_entries, shed_to
        self._numbers: dict[Cells, np.uint32] = {}
        self._peers: OrderedDict[str, _Pairs] = OrderedDict()  # who came or signed last is last
        self.entries = 0

    def add(self, peer: str, key: Cells, experts: npt.NDArray[np.uint16]) -> None:
        """A call was computed. A µs or two."""
        number = self._numbers.get(key)
        if number is None:
            if len(self._numbers) == MAX_KEYS:
                return
            number = self._numbers[key] = np.uint32(len(self._numbers) << _EXPERT_BITS)
        pairs = self._peers.get(peer)
        if pairs is None:
            pairs = self._peers[peer] = _Pairs()
        pairs.log.frombytes((experts | number).tobytes())
        self.entries += experts.size
        if len(pairs.log) >= LOG_PAIRS:
            self._fold(pairs)
        if self.entries > self._most:
            self._shed()

    def take(self, peer: str, share: int, of: int) -> Iterator[tuple[Cells, npt.NDArray[np.int64]]]:
        """Take `share` of each `of` pairs out, rounded down by cell; all of them where the two are the same.

        Returns:
            By model and layer, pairs by expert. The peer has signed, so it is kept longer than who has not.
        """
        pairs = self._peers.get(peer)
        if pairs is None:
            return iter(())
        self._fold(pairs)
        cells, counts = pairs.cells, pairs.counts
        taken = counts if share >= of else counts * share // of
        left = counts - taken
        stay = left > 0
        self.entries -= len(cells) - int(stay.sum())
        if stay.any():
            pairs.cells, pairs.counts = cells[stay], left[stay]
            self._peers.move_to_end(peer)
        else:
            del self._peers[peer]
        return self._by_layer(cells, taken)

    def forget(self, peer: str) -> None:
        """Nobody will sign for them."""
        pairs = self._peers.pop(peer, None)
        if pairs is not None:
            self.entries -= len(pairs)

    def _by_layer(
        self, cells: npt.NDArray[np.uint32], counts: npt.NDArray[np.int64]
    ) -> Iterator[tuple[Cells, npt.NDArray[np.int64]]]:
        keys = list(self._numbers)
        layers = cells >> _EXPERT_BITS
        begins = np.flatnonzero(np.diff(layers, prepend=np.uint32(MAX_KEYS)))
        for begin, end in zip(begins, [*begins[1:], len(cells)], strict=True):
            experts = cells[begin:end] & np.uint32(2**_EXPERT_BITS - 1)
            pairs = np.zeros(int(experts[-1]) + 1, np.int64)
            pairs[experts] = counts[begin:end]
            yield keys[int(layers[begin])], pairs

    def _fold(self, pairs: _Pairs) -> None:
        before = len(pairs)
        pairs.fold()
        self.entries += len(pairs) - before

    def _shed(self) -> None:
        """Make room: first by summing up, then by forgetting."""
        for pairs in self._peers.values():
            self._fold(pairs)
        while self.entries > self._shed_to:
            self.forget(next(iter(self._peers)))
