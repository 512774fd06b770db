"""Other nodes that serve the same cells, as this node's table of adverts knows them."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import numpy.typing as npt
import trio

from market.supply import Supply
from node.market.priced_cells import PricedCells
from routing.adverts import AdvertTable
from routing.wire.quote import Quote

ROWS_AT_ONCE = 32
"""Adverts counted before others may run: a few milliseconds."""


class Others:
    """What others hold and ask.

    Args:
        answered: peers that have answered this node, connected ones above all.
    """

    def __init__(self, table: AdvertTable, answered: Callable[[], Collection[str]]) -> None:
        self._table = table
        self._answered = answered

    async def replicas(self, model_id: str, cells: PricedCells) -> npt.NDArray[np.int64]:
        """Live replicas of each cell on other nodes."""
        widths = {layer: int(cells.experts[where][-1]) + 1 for layer, where in cells.by_layer()}
        supply, answered = Supply(model_id, widths), self._answered()
        for number, row in enumerate(self._table.holders_of(model_id), 1):
            supply.add(row.advert.slices, answered=row.advert.peer_id in answered)
            if number % ROWS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        return cells.gather({layer: supply.replicas(layer) for layer in widths})

    def quotes(self, model_id: str) -> list[Quote]:
        """Of peers that have answered; what strangers ask is hearsay."""
        answered = self._answered()
        rows = [row for row in self._table.holders_of(model_id) if row.advert.peer_id in answered]
        quotes = [row.advert.quote(model_id) for row in rows]
        return [quote for quote in quotes if quote is not None]
