"""What a node's market tells its status, and what its owner may change: a debt, and what stands against a
peer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import trio

from market.ledger import Balance
from market.receipt import Kind
from node.market.audits_told import audits_told
from node.market.base_prices import base_prices
from node.market.price_map import Floats, PriceMap
from node.market.quote_told import quote_told
from node.status.facts import Asking, Audits, Credit, Market
from node.status.market_facts import Pardon, QuotedPrices
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


QUOTES_AT_ONCE = 4
"""Told before others may run: some ms. Of a large swarm's they are seconds together."""


class MarketTold:
    """Reads a market's facts off (node.status.sources.MarketFacts)."""

    def __init__(self, config: MarketConfig, part: MarketPart, node: SwarmNode) -> None:
        self._config = config
        self._part = part
        self._node = node
        self._maps: dict[str, PriceMap] = {}

    def facts(self, now: float) -> Market:
        """As it stands at `now`, unix time."""
        config, shown = self._config, self._part.books.shown(now, MAX_CREDITS)
        refuses, refused_here = self._part.refuses(), self._part.accounts.unpaid.told()
        answered, silent, heard = (0, 0, 0) if self._part.sales is None else self._part.sales.holders()
        return Market(
            mode=config.mode,
            prefer=config.prefer,
            owed=shown.owed,
            owes=shown.owes,
            spent_today=self._part.spending.purse.today(now),
            budget_day=config.budget_day,
            budget_answer=config.budget_answer,
            asks=[_asking(quote) for quote in self._part.offered()],
            credits=[
                _credit(each, refuses.get(each.peer, ""), refused_here.get(each.peer, ""))
                for each in shown.balances
            ],
            credits_left_out=shown.left_out,
            holders_answered=answered,
            holders_silent=silent,
            holders_heard=heard,
            audits=self._audits(now),
        )

    def _audits(self, now: float) -> Audits | None:
        findings = self._part.findings
        if findings is None:
            return None
        return audits_told(findings, self._part.auditor, self._config.audit, now)

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

    async def quotes(self, peer_id: str = "") -> list[QuotedPrices]:
        """What live adverts ask, this node's own too.

        Args:
            peer_id: of one peer alone, cell by cell.
        """
        told: list[QuotedPrices] = []
        silent = frozenset[str]() if self._part.sales is None else self._part.sales.silent()
        for row in self._node.table.rows():
            if not peer_id or row.advert.peer_id == peer_id:
                for quote in row.advert.quotes:
                    each = quote_told(row.advert, quote, by_cell=bool(peer_id))
                    told.append(msgspec.structs.replace(each, silent=row.advert.peer_id in silent))
                    if len(told) % QUOTES_AT_ONCE == 0:
                        await trio.lowlevel.checkpoint()
        return told

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

    async def pardon(self, peer_id: str) -> Pardon:
        """Forgive a peer its strikes, and that it has signed double; it is asked, and served, again.

        Raises:
            LocalError: nothing stands against it, or that cannot be written.
        """
        return await self._part.pardon(peer_id)


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
        waiting=balance.waiting,
    )


def _asking(quote: Quote) -> Asking:
    told = quote_told(None, quote, by_cell=False)
    return Asking(told.model, told.number, told.until, told.cells, told.lowest, told.mean, told.highest)
