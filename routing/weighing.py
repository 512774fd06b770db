"""Between what is known of peers and the table that plans are made by: costs, and whom to ask last. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from routing.estimates import Estimates
from routing.latency import Cost
from routing.table import HolderTable
from routing.tariff import Tariff

WEIGH_SECONDS = 0.25
"""How often the table hears what peers cost, and at once when somebody is doubted: a plan is made for each
layer of each token, and a choice that lasts a quarter of a second is fresh enough."""


PRICE_SECONDS = 2.0
"""How often it hears what they ask, and at once when peers come: quotes change once a minute."""


class Way(Protocol):
    """How a peer is reached."""

    @property
    def path(self) -> str:
        """The route, in few words."""

    @property
    def rtt(self) -> float:
        """Its round trip in seconds."""


class Weighing:
    """Keeps a table in step with estimates.

    Args:
        ways: how a peer is reached; None while it is not connected.

    Attributes:
        tariff: what peers ask and what that is worth; None: nobody asks for anything. May be set at any time.
    """

    def __init__(self, table: HolderTable, estimates: Estimates, ways: Callable[[str], Way | None]) -> None:
        self._table = table
        self._estimates = estimates
        self._ways = ways
        self._due = -math.inf
        self._changes = 0
        self._prices_due = -math.inf
        self._priced: tuple[Tariff | None, list[str]] = (None, [])
        self.tariff: Tariff | None = None

    def look(self, now: float) -> None:
        """Tell the table what is known of its peers, if it is time to."""
        if now < self._due and self._changes == self._estimates.changes:
            return
        self._due = now + WEIGH_SECONDS
        self._changes = self._estimates.changes
        costs: dict[str, Cost] = {}
        doubted: list[str] = []
        for peer_id in self._table.peers():
            way = self._ways(peer_id)
            if way is not None:
                costs[peer_id] = self._estimates.cost(peer_id, way.path, now, rtt=way.rtt)
                if self._estimates.doubted(peer_id, way.path, now):
                    doubted.append(peer_id)
        self._table.weigh(costs, doubted)
        self._look_at_prices(now)

    def prices_changed(self) -> None:
        """Somebody asks something else: look at prices at the next look. What nobody notices of it costs the
        table nothing: plans that are ready stay."""
        self._prices_due = -math.inf

    def _look_at_prices(self, now: float) -> None:
        asked = (self.tariff, self._table.peers() if self.tariff is not None else [])
        if asked == self._priced and (self.tariff is None or now < self._prices_due):
            return
        self._prices_due = now + PRICE_SECONDS
        self._priced = asked
        self._table.price(self.tariff)
