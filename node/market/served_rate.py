"""How much of each cell is served, a day: what receipts have covered, lately more than long ago. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from market.ground import Floats

HALF_LIFE = 3_600.0
"""Seconds after which work counts half: prices follow in minutes, what is held need not."""

DAY = 86_400.0


class ServedRate:
    """Of one model, fed with sums that grow."""

    def __init__(self) -> None:
        self._before: dict[int, npt.NDArray[np.int64]] = {}
        self._sums: dict[int, Floats] = {}
        self._seconds = 0.0  # of work that is counted, faded like it
        self._at: float | None = None

    def add(self, now: float, totals: Mapping[int, npt.NDArray[np.int64]]) -> None:
        """Tell the pairs by layer and expert since some beginning, again and again."""
        passed = 0.0 if self._at is None else max(0.0, now - self._at)
        kept = 0.5 ** (passed / HALF_LIFE)
        self._seconds = self._seconds * kept + passed
        for layer, total in totals.items():
            before = self._before.get(layer, np.zeros(0, np.int64))
            added = total.astype(np.float64)
            if self._at is not None or layer in self._before:
                added[: len(before)] -= before[: len(added)]
            else:
                added[:] = 0.0  # work of nobody knows which time
            sums = self._sums.get(layer, np.zeros(0))
            grown = np.zeros(len(added))
            grown[: len(sums)] = sums[: len(grown)] * kept
            self._sums[layer] = grown + np.maximum(added, 0.0)
            self._before[layer] = total.copy()
        for layer in self._sums.keys() - totals.keys():
            self._sums[layer] = self._sums[layer] * kept
        self._at = now

    def a_day(self) -> dict[int, Floats]:
        """Pairs a day by layer and expert."""
        if self._seconds <= 0:
            return {}
        return {layer: sums * (DAY / self._seconds) for layer, sums in self._sums.items()}
