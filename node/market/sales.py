"""What this node sells: its expert server's cells, priced by need as far as the node can see it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from market.books import Books
from market.price import BasePrices
from market.quotes import OwnQuotes
from node.config import MarketConfig
from node.device.folder import NodeFolder
from node.market.advisor import Advisor
from node.market.base_prices import base_prices
from node.market.neighbourhood import neighbourhood_of, one_a_network
from node.market.pricing import Pricing
from node.market.quote_memory import QuoteMemory
from node.market.quotes_port import Demand
from node.model.store import Store
from routing.wire.holdings import Slice
from routing.wire.quote import Quote

if TYPE_CHECKING:
    from node.app.serving import ServingPart
    from node.swarm.node import SwarmNode

MEASURED_SECONDS = 1.0
"""Of computing, before its speed is believed: what is read from the disk for the first time is ten times
slower."""


class Sales:
    """Prices of what an expert server holds. What `Pricing` needs to know is looked up here."""

    def __init__(
        self, market: MarketConfig, folder: NodeFolder, node: SwarmNode, serving: ServingPart, books: Books
    ) -> None:
        self._node = node
        self._serving = serving
        self._bases: dict[str, BasePrices] = {}
        self._market = market
        self._demand = Demand(books.payee.demand)
        self._advisor: Advisor | None = None
        self._pricing = Pricing(
            market,
            node.table,
            self._slices,
            self._base_prices,
            self._demand,
            self._capacity,
            self._answered,
            node.offer_changed,
            memory=QuoteMemory(folder.quotes),
            lifetime=node.place.swarm.advert_seconds,
        )

    @property
    def quotes(self) -> OwnQuotes:
        """What is asked, and was."""
        return self._pricing.quotes

    def offered(self) -> list[Quote]:
        """What the advert says."""
        return self._pricing.offered()

    def advisor(self, store: Store) -> Advisor:
        """Who decides what is held where the config leaves that to the node.

        Args:
            store: where the models are.
        """
        self._advisor = Advisor(
            self._market,
            self._node.identity.peer_id,
            store,
            self._demand,
            self._capacity,
            self._answered,
        )
        return self._advisor

    def served(self, model_id: str) -> dict[int, list[float]]:
        """Pairs a day that receipts cover lately, by layer and expert, of what is held by choice."""
        rates = {} if self._advisor is None else self._advisor.served(model_id)
        return {layer: pairs.round(1).tolist() for layer, pairs in rates.items()}

    async def run(self) -> None:
        """Follow need, until cancelled."""
        await self._pricing.run()

    def _slices(self) -> Sequence[Slice]:
        server = self._serving.server
        return [] if server is None else server.holdings.slices

    def _base_prices(self, model_id: str) -> BasePrices:
        known = self._bases.get(model_id)
        if known is None:
            manifest = self._serving.cells.manifest(bytes.fromhex(model_id))
            known = self._bases[model_id] = base_prices(manifest)
        return known

    def _capacity(self) -> float:
        """Pairs a second that this device has computed while it computed."""
        server = self._serving.server
        if server is None or server.counts.compute_seconds < MEASURED_SECONDS:
            return 0.0
        return server.counts.pairs / server.counts.compute_seconds

    def _answered(self) -> Collection[str]:
        """Who is connected has proven its key by a handshake, and answers a PING each second."""
        endpoint = self._node.endpoint
        return one_a_network(
            (each.peer_id, neighbourhood_of(endpoint, each)) for each in endpoint.connections
        )
