"""Prices and demand between those who make prices and those who keep books: they name models differently."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from market.quotes import OwnQuotes


class OwnPrices:
    """What this node asks, for its books; nothing until there are quotes.

    Attributes:
        quotes: this node's; None: it serves nothing, or not yet.
    """

    def __init__(self) -> None:
        self.quotes: OwnQuotes | None = None
        self._looked_up: tuple[weakref.ref[npt.NDArray[np.uint16]], int] | None = None

    def total_lowest(self, model_id: bytes, layer: int, experts: npt.NDArray[np.uint16], now: float) -> int:
        """The least micro-credits that these pairs may be paid with; 0 for what was never quoted.

        A call's pairs are looked up twice in a row, when it comes and when it is answered: the second time
        gives what the first one gave.
        """
        known = self._looked_up
        if known is not None and known[0]() is experts:
            return known[1]
        if self.quotes is None:
            return 0
        cost = self.quotes.total_lowest(model_id.hex(), layer, experts, now)
        self._looked_up = weakref.ref(experts), cost  # weak: it is a view of the whole request
        return cost

    def valid(self, number: int, now: float) -> bool:
        """Whether work may be paid by this quote."""
        return self.quotes is not None and self.quotes.valid(number, now)


class Demand:
    """Pairs by expert that receipts have covered since this process began.

    Args:
        taken: those since it was called last, by model and layer.
    """

    def __init__(self, taken: Callable[[], Mapping[tuple[bytes, int], npt.NDArray[np.int64]]]) -> None:
        self._taken = taken
        self._sums: dict[tuple[str, int], npt.NDArray[np.int64]] = {}

    def demand(self) -> Mapping[tuple[str, int], npt.NDArray[np.int64]]:
        """By model id in hex and layer."""
        for (model_id, layer), pairs in self._taken().items():
            key = model_id.hex(), layer
            before = self._sums.get(key)
            self._sums[key] = pairs.copy() if before is None else _sum(before, pairs)
        return self._sums


def _sum(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Added, as long as the longer one."""
    if one.size < other.size:
        one, other = other, one
    total = one.copy()
    total[: other.size] += other
    return total
