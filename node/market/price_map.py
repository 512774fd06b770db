"""What the swarm asks for each cell of a model, as a matrix for people to look at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from market.quote_rows import quote_rows
from routing.advert_rows import Row
from routing.wire.quote import Quote

LOOK_SECONDS = 15.0
"""Between looks at what all adverts ask; prices change once a minute."""

RANGES_AT_ONCE = 512
"""Ranges of layers, of quotes, added to or taken out of the sums in one look: 20 µs each on the event loop.
They are ten of the largest quotes; the others follow at the next looks."""

MOST_QUOTES = 256
"""Quotes that the means are of, those counted first: for people to look at, the mean of so many is as good as
one of thousands. Each is kept as it came, 6 KB at most; laid out, one would take 49 KB."""

Floats = npt.NDArray[np.float64]


class PriceMap:
    """Of one model.

    Args:
        layers: numbers of the matrix's rows, ascending; experts: its columns.
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
        self._numbers = np.array(layers)
        self._experts = experts
        self._base = np.array([max(1, bases.get(layer, 1)) for layer in layers], np.float64)[:, None]
        self._floor, self._span = np.log(floor), max(np.log(cap / floor), 1e-9)
        self._asked = np.zeros((len(layers), experts), np.int64)  # sums of what is asked for each cell
        self._quoting = np.zeros((len(layers), experts), np.int64)  # by so many
        self._counted: dict[tuple[str, int], Quote] = {}  # what is in them
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
        live = {
            (row.advert.peer_id, quote.number): quote
            for row in rows
            for quote in row.advert.quotes
            if quote.model_id == self._model_id
        }
        budget = RANGES_AT_ONCE
        for key in [key for key in self._counted if key not in live]:
            if budget > 0:
                budget -= self._count(self._counted.pop(key), -1)
        for key, quote in live.items():
            if budget <= 0 or len(self._counted) >= MOST_QUOTES:
                break
            if key not in self._counted:
                self._counted[key] = quote
                budget -= self._count(quote, 1)
        if not self._counted:
            return None
        mean = self._asked / np.maximum(self._quoting, 1)
        height = (np.log(np.maximum(mean / self._base * 100, 1e-9)) - self._floor) / self._span
        return np.where(self._quoting > 0, np.clip(height, 0, 1), 0.0)

    def _count(self, quote: Quote, sign: int) -> int:
        """Add the prices of the cells that a quote names, or take them out: in whole numbers, so that nothing
        of them is left.

        Returns:
            How many ranges of layers it has.
        """
        for layers, asked, _ in quote_rows(quote, self._numbers, self._experts):
            self._asked[layers, : len(asked)] += sign * asked
            self._quoting[layers, : len(asked)] += sign * (asked > 0)
        return len(quote.layers)
