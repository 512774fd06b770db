"""Who else serves a node's cells: live replicas, counted from the slices of adverts. Pure.

A peer that has answered this node counts fully. Of those only heard of two count as one, and only up to the
replica floor: an identity and an advert cost nothing, and to answer takes a machine at least. Who was asked
and does not answer is no replica (`market.answering`). What ten claimed replicas do to a price is bounded: a
cell that is above the replica floor costs what its demand says, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from market.scarcity import REPLICA_FLOOR
from routing.wire.holdings import Slice

Counts = npt.NDArray[np.int64]

HEARD_PER_REPLICA = 2
"""Peers only heard of that count as one live replica, where fewer than the floor have answered."""


def counted(answered: Counts, heard: Counts) -> Counts:
    """Live replicas, of so many holders that have answered, and that were only heard of."""
    claimed = np.minimum(answered + heard // HEARD_PER_REPLICA, REPLICA_FLOOR)
    found: Counts = np.maximum(answered, claimed)
    return found


class Supply:
    """Others' replicas of one model's cells.

    Args:
        widths: by layer of interest, how many of its experts, from 0 on, are counted.
    """

    def __init__(self, model_id: str, widths: Mapping[int, int]) -> None:
        self._model_id = model_id
        self._place = {layer: place for place, layer in enumerate(sorted(widths))}
        self._layers = np.array(sorted(widths), np.int64)
        # Of each kind, layer and expert: runs that begin less runs that have ended there.
        self._edges = np.zeros((2, len(widths), max(widths.values(), default=0) + 1), np.int32)

    def add(self, slices: Sequence[Slice], *, answered: bool) -> None:
        """Count a peer's slices."""
        self._mark(self._edges[int(answered)], slices)

    def add_network(self, peers: Iterable[Sequence[Slice]]) -> None:
        """Count slices of peers that have answered in one network: of each cell they are one replica, and the
        others hold it as if they were only heard of."""
        edges = np.zeros_like(self._edges[1])
        for slices in peers:
            self._mark(edges, slices)
        holders = edges.cumsum(axis=1)[:, :-1]
        once = np.minimum(holders, 1)
        self._edges[1] += np.diff(once, prepend=0, append=0)
        self._edges[0] += np.diff(holders - once, prepend=0, append=0)

    def replicas(self, layer: int) -> Counts:
        """Live replicas that others have of each expert of a layer."""
        heard, answered = self._edges[:, self._place[layer], :-1].cumsum(axis=1, dtype=np.int64)
        return counted(answered, heard)

    def _mark(self, edges: npt.NDArray[np.int32], slices: Sequence[Slice]) -> None:
        end = edges.shape[1] - 1
        for held in slices:
            if held.model_id != self._model_id:
                continue
            for first_layer, last_layer, runs in held.experts:
                first, last = np.searchsorted(self._layers, (first_layer, last_layer + 1))
                if first == last:
                    continue
                for first_expert, last_expert in runs:
                    edges[first:last, min(first_expert, end)] += 1
                    edges[first:last, min(last_expert + 1, end)] -= 1
