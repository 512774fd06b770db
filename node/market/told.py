"""What a node's market tells its status, and the one thing that its owner may change: a debt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from market.ledger import Balance
from market.receipt import Kind
from node.market.base_prices import base_prices
from node.market.price_map import Floats, PriceMap
from node.market.quote_told import quote_told
from node.status.facts import Asking, Credit, Market
from node.status.market_facts import QuotedPrices
from routing.wire.quote import Quote
from routing.wire.text import sanitise

if TYPE_CHECKING:
    from node.config import MarketConfig
    from node.market.part import MarketPart
    from node.model.manifest import Manifest
    from node.swarm.node import SwarmNode

WHY_BYTES = 300
"""Of a peer's reason: a line."""

MAX_CREDITS = 256
"""Peers whose credit is told of, those with most at stake first; the file has all."""


class MarketTold:
    """Reads a market's facts off (node.status.sources.MarketFacts)."""

    def __init__(self, config: MarketConfig, part: MarketPart, node: SwarmNode) -> None:
        self._config = config
        self._part = part
        self._node = node
        self._maps: dict[str, PriceMap] = {}

    def facts(self, now: float) -> Market:
        """As it stands at `now`, unix time."""
        config, balances = self._config, self._part.books.balances()
        refuses, refused_here = self._part.refuses(), self._part.accounts.unpaid.told()
        balances.sort(key=lambda each: (-_stake(each), each.peer))
        return Market(
            mode=config.mode,
            prefer=config.prefer,
            owed=sum(max(0, each.owes_us) for each in balances),
            owes=sum(max(0, -each.owes_us) for each in balances),
            spent_today=self._part.spending.purse.today(now),
            budget_day=config.budget_day,
            budget_answer=config.budget_answer,
            asks=[_asking(quote) for quote in self._part.offered()],
            credits=[
                _credit(each, refuses.get(each.peer, ""), refused_here.get(each.peer, ""))
                for each in balances[:MAX_CREDITS]
            ],
            credits_left_out=max(0, len(balances) - MAX_CREDITS),
        )

    def heights(
        self, model_id: str, layers: tuple[int, ...], experts: int, manifest: Manifest, clock: float
    ) -> Floats | None:
        """Where the swarm's prices of a model's cells lie between floor and cap (price_map)."""
        known = self._maps.get(model_id)
        if known is None or known.shape != (layers, experts):
            floor, cap = self._config.floor, self._config.cap
            bases = base_prices(manifest)
            known = self._maps[model_id] = PriceMap(model_id, layers, experts, bases, floor, cap)
        return known.height(self._node.table.rows(), clock)

    def quotes(self, peer_id: str = "") -> list[QuotedPrices]:
        """What live adverts ask, this node's own too.

        Args:
            peer_id: of one peer alone, cell by cell.
        """
        return [
            quote_told(row.advert, quote, by_cell=bool(peer_id))
            for row in self._node.table.rows()
            if not peer_id or row.advert.peer_id == peer_id
            for quote in row.advert.quotes
        ]

    def served(self, model_id: str) -> dict[int, list[float]]:
        """Pairs a day that receipts cover lately of a model, by layer and expert."""
        sales = self._part.sales
        return {} if sales is None else sales.served(model_id)

    async def settle(self, peer_id: str, credits: int, *, forgiven: bool) -> None:
        """Sign off a debt of a peer; it is told as soon as it can be.

        Raises:
            LocalError: it does not owe as much, or the books cannot be written.
        """
        await self._part.settler.settle(peer_id, credits, Kind.FORGIVEN if forgiven else Kind.PAID)


def _stake(balance: Balance) -> int:
    return abs(balance.owes_us) + balance.unsigned + balance.due


def _credit(balance: Balance, refuses: str, refused_here: str) -> Credit:
    return Credit(
        peer=balance.peer,
        owes=balance.owes_us,
        unsigned=balance.unsigned,
        due=balance.due,
        limit=balance.limit,
        refused=sanitise(balance.refused, WHY_BYTES),
        refuses=sanitise(refuses, WHY_BYTES),
        refused_here=refused_here,
        fault=balance.fault,
    )


def _asking(quote: Quote) -> Asking:
    told = quote_told(None, quote, by_cell=False)
    return Asking(told.model, told.number, told.until, told.cells, told.lowest, told.mean, told.highest)
