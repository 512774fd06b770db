"""Other nodes that serve the same cells, as this node's table of adverts knows them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import numpy as np
import numpy.typing as npt
import trio

from market.answering import Answers
from market.supply import Supply
from node.market.priced_cells import PricedCells
from routing.adverts import AdvertTable
from routing.wire.holdings import Slice
from routing.wire.quote import Quote

ROWS_AT_ONCE = 32
"""Adverts counted before others may run: a few milliseconds."""

MOST_QUOTES = 64
"""That a new cell's first price is the mean of: it moves to its own from there, and the event loop waits
meanwhile, a fourth to half a millisecond for each."""


class Others:
    """What others hold and ask.

    Args:
        answers: which peers have answered this node, and which do not.
    """

    def __init__(self, table: AdvertTable, answers: Callable[[], Answers]) -> None:
        self._table = table
        self._answers = answers

    async def replicas(self, model_id: str, cells: PricedCells) -> npt.NDArray[np.int64]:
        """Live replicas of each cell on other nodes."""
        widths = {layer: int(cells.experts[where][-1]) + 1 for layer, where in cells.by_layer()}
        supply, answers = Supply(model_id, widths), self._answers()
        networks: dict[str, list[list[Slice]]] = {}
        for number, row in enumerate(self._table.holders_of(model_id), 1):
            peer_id, slices = row.advert.peer_id, row.advert.slices
            if peer_id in answers.answered:
                networks.setdefault(answers.answered[peer_id], []).append(slices)
            elif peer_id not in answers.silent:
                supply.add(slices, answered=False)
            if number % ROWS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        for number, together in enumerate(networks.values(), 1):
            if len(together) == 1:
                supply.add(together[0], answered=True)
            else:
                supply.add_network(together)
            if number % ROWS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        return cells.gather({layer: supply.replicas(layer) for layer in widths})

    def quotes(self, model_id: str) -> list[Quote]:
        """Of peers that have answered, MOST_QUOTES at most; what strangers ask is hearsay."""
        counted = self._answers().counted
        rows = [row for row in self._table.holders_of(model_id) if row.advert.peer_id in counted]
        quotes = (row.advert.quote(model_id) for row in rows)
        return list(islice((quote for quote in quotes if quote is not None), MOST_QUOTES))
