"""Who else serves a node's cells: live replicas, counted from the slices of adverts. Pure.

A peer that has answered this node counts fully. Of those only heard of two count as one: an identity and an
advert cost nothing, and to answer takes a machine at least. What ten claimed replicas can do to a price is
bounded: a cell that is above the replica floor costs what its demand says, however many there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from routing.wire.holdings import Slice

HEARD_PER_REPLICA = 2
"""Peers only heard of that count as one live replica."""


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
        edges = self._edges[int(answered)]
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

    def replicas(self, layer: int) -> npt.NDArray[np.int64]:
        """Live replicas that others have of each expert of a layer."""
        heard, answered = self._edges[:, self._place[layer], :-1].cumsum(axis=1, dtype=np.int64)
        counted: npt.NDArray[np.int64] = answered + heard // HEARD_PER_REPLICA
        return counted
