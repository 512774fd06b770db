"""How much of each cell is served, a day: what receipts have covered, lately more than long ago. Pure.

Work, and the time in which the model was sold, both count half as much HALF_LIFE later; the rate is the one
over the other. Time in which nothing could be sold (a pause, a process that was not there) makes both fade
alike: it leaves the rate as it was, and what comes after it counts the more.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from market.ground import Floats

HALF_LIFE = 3_600.0
"""Seconds after which work counts half: prices follow in minutes, what is held need not."""

DAY = 86_400.0


class ServedRate:
    """Of one model, fed with sums that grow.

    Args:
        began: when the sums were zero; None: nobody knows, the first that is told is no work.
        seconds, sums: what was counted before that, as `seconds` and `sums` tell it.
    """

    def __init__(
        self, began: float | None = None, seconds: float = 0.0, sums: Mapping[int, Floats] | None = None
    ) -> None:
        self._before: dict[int, npt.NDArray[np.int64]] = {}
        self._sums: dict[int, Floats] = {} if sums is None else dict(sums)
        self._seconds = seconds
        self._at = began

    @property
    def seconds(self) -> float:
        """In which the model was sold, faded."""
        return self._seconds

    @property
    def sums(self) -> Mapping[int, Floats]:
        """Pairs by layer and expert, faded."""
        return self._sums

    @property
    def pairs(self) -> float:
        """All of them."""
        return float(sum(float(sums.sum()) for sums in self._sums.values()))

    def add(self, now: float, totals: Mapping[int, npt.NDArray[np.int64]], *, sold: bool = True) -> None:
        """Tell the pairs by layer and expert since some beginning, again and again.

        Args:
            sold: whether the model was there to be asked for since the last time.
        """
        passed = 0.0 if self._at is None else max(0.0, now - self._at)
        self.fade(passed)
        if sold:
            self._seconds += passed
        for layer, total in totals.items():
            before = self._before.get(layer, np.zeros(0, np.int64))
            added = total.astype(np.float64)
            if self._at is not None or layer in self._before:
                added[: len(before)] -= before[: len(added)]
            else:
                added[:] = 0.0  # work of nobody knows which time
            sums = self._sums.get(layer, np.zeros(0))
            grown = np.zeros(max(len(added), len(sums)))
            grown[: len(sums)] = sums
            grown[: len(added)] += np.maximum(added, 0.0)
            self._sums[layer] = grown
            self._before[layer] = total.copy()
        self._at = now

    def fade(self, seconds: float) -> None:
        """So much time has passed, in which nothing was sold."""
        kept = 0.5 ** (seconds / HALF_LIFE)
        self._seconds *= kept
        self._sums = {layer: sums * kept for layer, sums in self._sums.items()}

    def a_day(self) -> dict[int, Floats]:
        """Pairs a day by layer and expert."""
        if self._seconds <= 0:
            return {}
        return {layer: sums * (DAY / self._seconds) for layer, sums in self._sums.items()}
