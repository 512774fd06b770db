"""What this node asks for its cells: once a period it looks at need and says so in its advert.

Demand is what receipts have covered, supply what adverts tell and answers confirm. Prices change when they
must, by more than a trifle; then a new quote is issued and the node announces itself anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import trio

from market.answering import Answers
from market.price import BasePrices, percent_of
from market.scarcity import Levels, Need, Scarcity, is_trifle
from node.config.settings import MarketConfig
from node.market.others import Others
from node.market.priced_cells import PricedCells
from node.market.quote_memory import FORGETFUL, QuoteMemory
from routing.adverts import AdvertTable
from routing.wire.advert import ADVERT_LIFETIME, MAX_ADVERT_BYTES
from routing.wire.holdings import Slice
from routing.wire.quote import Quote

PERIOD = 60.0
"""Seconds between looks: a price that is wrong is right in twenty minutes, and adverts change once a minute
at most."""

MAX_QUOTE_BYTES = 6_000
"""Of all quotes in an advert: 5,500 cells with prices of their own, nearly all of the largest server there
is. Most servers need a tenth."""

OTHER_BYTES = 2_500
"""Of an advert besides slices and quotes: addresses, relays, certificate."""

LEAST_QUOTE_BYTES = 200
"""One price for a whole model, which is always said."""


class Demand(Protocol):
    """Work that receipts signed by callers have covered."""

    def demand(self) -> Mapping[tuple[str, int], npt.NDArray[np.int64]]:
        """Pairs by expert of each model and layer since this process began."""


class Pricing:
    """Makes this node's quotes.

    Args:
        market: of mode "fixed" or "scarcity".
        table: adverts, for who else holds what.
        slices: what this node serves now.
        bases: base prices of a model that is served, by layer.
        capacity: pairs a second that this node could compute; 0 if it does not know.
        answers: which peers have answered this node, and which do not.
        changed: called when the advert is no longer right.
        memory: what callers may still pay by, over restarts.
        lifetime: seconds that this node's adverts live.
        clock: unix time.

    Attributes:
        quotes: what it asks and asked.
    """

    def __init__(
        self,
        market: MarketConfig,
        table: AdvertTable,
        slices: Callable[[], Sequence[Slice]],
        bases: Callable[[str], BasePrices],
        demand: Demand,
        capacity: Callable[[], float],
        answers: Callable[[], Answers],
        changed: Callable[[], None],
        *,
        memory: QuoteMemory = FORGETFUL,
        lifetime: int = ADVERT_LIFETIME,
        period: float = PERIOD,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._percent = market.price
        self._rule = Scarcity(market.floor, market.cap) if market.mode == "scarcity" else None
        self._others = Others(table, answers)
        self._slices = slices
        self._bases = bases
        self._demand = demand
        self._capacity = capacity
        self._changed = changed
        self._memory = memory
        self._period = period
        self._clock = clock
        self._priced: Sequence[Slice] = []
        self._cells: dict[str, PricedCells] = {}
        self._former: dict[str, PricedCells] = {}  # not served now: a pause forgets no price
        self._known = set[str]()  # models that this process has priced
        self._told: dict[str, Levels] = {}  # what the current quotes say
        self._served: dict[tuple[str, int], npt.NDArray[np.int64]] = {}  # at the last look
        self._unsaved = trio.Event()
        self.quotes = memory.recalled(clock(), lifetime)

    def offered(self) -> list[Quote]:
        """What the advert says. Cells that are new since the last look are priced now."""
        self._follow_slices(self._clock())
        return self.quotes.current

    async def run(self) -> None:
        """Look once a period, until cancelled."""
        looked = trio.current_time()
        while True:
            with trio.move_on_at(looked + self._period):
                while True:
                    await self._unsaved.wait()
                    self._unsaved = trio.Event()
                    await self._memory.save(self.quotes.encoded())
            passed, looked = trio.current_time() - looked, trio.current_time()
            if await self.look(passed):
                self._changed()

    async def look(self, seconds: float) -> bool:
        """Price all cells anew.

        Args:
            seconds: since the last look.

        Returns:
            Whether the advert is no longer right.
        """
        is_news = self._follow_slices(self._clock())
        served = {key: pairs.copy() for key, pairs in self._demand.demand().items()}
        done = {key: _since(pairs, self._served.get(key)) for key, pairs in served.items()}
        self._served = served
        load = sum(int(pairs.sum()) for pairs in done.values())
        # Not known yet: half busy, so that only what is hotter than the rest is dearer.
        capacity = self._capacity() * seconds or 2 * load
        for model_id, cells in list(self._cells.items()):
            if self._rule is not None:
                need = Need(
                    demand=cells.gather({layer: done[m, layer] for m, layer in done if m == model_id}),
                    load=load,
                    capacity=capacity,
                    held=sum(len(each.base) for each in self._cells.values()),
                    replicas=1 + await self._others.replicas(model_id, cells),
                )
                if self._cells.get(model_id) is not cells:
                    continue  # what is served has changed while adverts were counted
                self._cells[model_id] = cells.at(self._rule.next(cells.levels, need))
            is_news |= self._issue(model_id, self._clock())
        return is_news

    def _follow_slices(self, now: float) -> bool:
        """Price what is served now, if that is not what was; whether it is not."""
        slices = self._slices()
        if slices == self._priced:
            return False
        self._priced = list(slices)
        self._former |= self._cells
        self._known |= self._cells.keys()
        self._cells, self._told = {}, {}
        for model_id in {each.model_id for each in slices if each.kind == "experts"}:
            cells = PricedCells.of(slices, model_id, self._bases(model_id))
            if len(cells.base):
                before, asked = self._former.pop(model_id, None), partial(self._asked, model_id, now)
                self._cells[model_id] = cells.following(before, asked)
        for model_id in self._former:
            self.quotes.withdraw(model_id)
        for model_id in sorted(self._cells):
            self._issue(model_id, now)
        return True

    def _asked(self, model_id: str, now: float) -> Sequence[Quote]:
        """What new cells begin at: what an earlier process asked a while ago, else what others ask."""
        if self._rule is None:
            return []
        own = None if model_id in self._known else self.quotes.latest(model_id, now)
        return self._others.quotes(model_id) if own is None else [own]

    def _issue(self, model_id: str, now: float) -> bool:
        """Say what a model's cells cost, unless it is said already; whether it is something else."""
        cells = self._cells[model_id]
        told = self._told.get(model_id)
        is_said = told is not None and is_trifle(told.shown, cells.levels.shown)
        if is_said and not self.quotes.is_due(model_id, now):
            return False
        if self._rule is None:
            prices = percent_of(cells.base, self._percent)
        else:
            prices = self._rule.price(cells.base, cells.levels)
        is_news = self.quotes.issue(model_id, cells.prices(prices), now, self._room())
        self._told[model_id] = cells.levels
        self._unsaved.set()
        return is_news

    def _room(self) -> int:
        """Bytes for each model's quote."""
        slices = len(msgspec.msgpack.encode(self._priced))
        room = min(MAX_QUOTE_BYTES, MAX_ADVERT_BYTES - OTHER_BYTES - slices)
        return max(LEAST_QUOTE_BYTES, room // len(self._cells))


def _since(now: npt.NDArray[np.int64], before: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
    """What has been added; sums may have become longer."""
    added = now.copy()
    if before is not None:
        added[: len(before)] -= before[: len(added)]
    return np.maximum(added, 0)
