"""What this node has served of each model that it sells: the one place that counts it, over restarts too."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import numpy as np
import numpy.typing as npt
import trio

from market.ground import Floats
from node.market.pricing import Demand
from node.market.served_memory import LEAST_PAIRS, ServedMemory
from node.market.served_rate import ServedRate

KEEP_SECONDS = 120.0
"""Between two times that it is written down: what a killed process forgets at most."""


class Served:
    """Counts it, whoever chose what is held.

    Args:
        demand: work that receipts have covered.
        sold: ids of the models of which cells are served now.
        memory: what outlives the process.
        clock: seconds that never go back.
        wall: unix time.
    """

    def __init__(
        self,
        demand: Demand,
        sold: Callable[[], Collection[str]],
        memory: ServedMemory,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._demand = demand
        self._sold = sold
        self._memory = memory
        self._clock = clock
        self._wall = wall
        self._looked = clock()
        self._were_sold = frozenset(sold())  # at the last look
        self._rates = memory.recalled(wall(), self._looked)

    def a_day(self, model_id: str) -> dict[int, Floats]:
        """Pairs a day that receipts cover lately of a model, by layer and expert."""
        self.look()
        rate = self._rates.get(model_id)
        return {} if rate is None else rate.a_day()

    def look(self) -> None:
        """Count what has been covered since the last look."""
        now, sold = self._clock(), frozenset(self._sold())
        totals: dict[str, dict[int, npt.NDArray[np.int64]]] = {}
        for (model_id, layer), pairs in self._demand.demand().items():
            totals.setdefault(model_id, {})[layer] = pairs
        for model_id in sold | self._were_sold | totals.keys():
            if model_id not in self._rates:
                self._rates[model_id] = ServedRate(self._looked)
        for model_id, rate in self._rates.items():
            rate.add(now, totals.get(model_id, {}), sold=model_id in sold | self._were_sold)
        self._looked, self._were_sold = now, sold

    async def run(self) -> None:
        """Keep it, until cancelled."""
        while True:
            await trio.sleep(KEEP_SECONDS)
            if (encoded := self._encoded()) is not None:
                await trio.to_thread.run_sync(self._memory.save, encoded)

    def close(self) -> None:
        """Keep it for the last time."""
        if (encoded := self._encoded()) is not None:
            self._memory.save(encoded)

    def _encoded(self) -> bytes | None:
        """What is to be kept; None if nothing was served."""
        self.look()
        kept = {model_id: rate for model_id, rate in self._rates.items() if rate.pairs >= LEAST_PAIRS}
        return self._memory.encoded(kept, self._wall()) if kept else None
