"""What the swarm asks for each cell of a model, as a matrix for people to look at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from market.price_book import PriceBook
from routing.advert_rows import Row
from routing.wire.quote import Quote

LOOK_SECONDS = 15.0
"""Between looks at what all adverts ask; prices change once a minute."""

LAID_OUT_AT_ONCE = 64
"""Quotes laid out anew in one look: each takes a quarter of a millisecond for 48 layers, on the event loop.
The others follow at the next ones."""

Floats = npt.NDArray[np.float64]


class PriceMap:
    """Of one model.

    Args:
        layers: numbers of the matrix's rows; experts: its columns.
        bases: base price of a layer's cells, micro-credits a pair.
        floor, cap: per cent of it, between which prices move here.
    """

    def __init__(
        self,
        model_id: str,
        layers: tuple[int, ...],
        experts: int,
        bases: Mapping[int, int],
        floor: int,
        cap: int,
    ) -> None:
        self.shape = (layers, experts)
        self._model_id = model_id
        self._layers = layers
        self._experts = experts
        self._base = np.array([max(1, bases.get(layer, 1)) for layer in layers], np.float64)[:, None]
        self._floor, self._span = np.log(floor), max(np.log(cap / floor), 1e-9)
        self._laid_out: dict[tuple[str, int], Floats] = {}
        self._looked = -LOOK_SECONDS
        self._height: Floats | None = None

    def height(self, rows: Iterable[Row], clock: float) -> Floats | None:
        """Where the mean price of each cell lies between floor (0) and cap (1), by their logarithms; 0 where
        nobody quotes one. The same object until it is looked again; None if nobody quotes anything.

        Args:
            rows: live adverts.
            clock: seconds on a clock that does not go back.
        """
        if self._height is None or clock - self._looked >= LOOK_SECONDS:
            self._looked = clock
            self._height = self._look(rows)
        return self._height

    def _look(self, rows: Iterable[Row]) -> Floats | None:
        found: dict[tuple[str, int], Floats] = {}
        fresh = 0
        for row in rows:
            for quote in row.advert.quotes:
                if quote.model_id != self._model_id:
                    continue
                key = row.advert.peer_id, quote.number
                prices = self._laid_out.get(key)
                if prices is None and fresh < LAID_OUT_AT_ONCE:
                    fresh += 1
                    prices = self._lay_out(quote)
                if prices is not None:
                    found[key] = prices
        self._laid_out = found
        if not found:
            return None
        asked = np.zeros((len(self._layers), self._experts))
        quoting = np.zeros((len(self._layers), self._experts))
        for prices in found.values():
            asked += prices
            quoting += prices > 0
        mean = asked / np.maximum(quoting, 1)
        height = (np.log(np.maximum(mean / self._base * 100, 1e-9)) - self._floor) / self._span
        return np.where(quoting > 0, np.clip(height, 0, 1), 0.0)

    def _lay_out(self, quote: Quote) -> Floats:
        """Prices of the cells that a quote names, 0 elsewhere."""
        prices = np.zeros((len(self._layers), self._experts))
        book = PriceBook.of(quote)
        for number, layer in enumerate(self._layers):
            for first, last, _ in quote.runs(layer):
                if first < self._experts:
                    prices[number, first : last + 1] = book.prices(layer, self._experts)[first : last + 1]
        return prices
