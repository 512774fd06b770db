"""What this node sells: its expert server's cells, priced by need as far as the node can see it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import trio

from market.answering import Answers
from market.books import Books
from market.price import BasePrices
from market.quotes import OwnQuotes
from node.config import MarketConfig
from node.device.folder import NodeFolder
from node.market.advisor import Advisor
from node.market.base_prices import base_prices
from node.market.pricing import Pricing
from node.market.probing import Probing
from node.market.quote_memory import QuoteMemory
from node.market.quotes_port import Demand
from node.market.served import Served
from node.market.served_memory import ServedMemory
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
    """Prices of what an expert server holds. What `Pricing` needs to know is looked up here.

    Args:
        barred: peers that are not asked now for their false answers.
    """

    def __init__(
        self,
        market: MarketConfig,
        folder: NodeFolder,
        node: SwarmNode,
        serving: ServingPart,
        books: Books,
        barred: Callable[[], Collection[str]],
    ) -> None:
        self._node = node
        self._barred = barred
        self._serving = serving
        self._bases: dict[str, BasePrices] = {}
        self._market = market
        self._demand = Demand(books.payee.demand)
        memory = ServedMemory(folder.served, node.identity.peer_id)
        self._served = Served(self._demand, self._sold, memory)
        self._probing = Probing(node, self._models)
        self._pricing = Pricing(
            market,
            node.table,
            self._slices,
            self._base_prices,
            self._demand,
            self._capacity,
            self.answers,
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
        return Advisor(
            self._market,
            self._node.identity.peer_id,
            store,
            self._served.a_day,
            self._capacity,
            self.answers,
        )

    def served(self, model_id: str) -> dict[int, list[float]]:
        """Pairs a day that receipts cover lately, by layer and expert, whoever chose what is held."""
        return {layer: pairs.round(1).tolist() for layer, pairs in self._served.a_day(model_id).items()}

    def answers(self) -> Answers:
        """Which others have answered this node, and which do not, or do not tell the truth."""
        return self._probing.answers().without(self._barred())

    def silent(self) -> frozenset[str]:
        """Who has been asked whether it is there, and does not answer."""
        return self._probing.answers().silent

    def holders(self) -> tuple[int, int, int]:
        """How many others that hold anything of what is served here, or may be, have answered, do not
        answer, and were only heard of."""
        return self._probing.answers().counts(self._probing.holders())

    async def run(self) -> None:
        """Follow need, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._served.run)
            nursery.start_soon(self._probing.run)
            await self._pricing.run()

    def close(self) -> None:
        """Keep what was served, for the last time."""
        self._served.close()

    def _sold(self) -> Collection[str]:
        return {each.model_id for each in self._slices() if each.kind == "experts"}

    def _models(self) -> Collection[str]:
        """What is served, and what may be."""
        chosen = self._serving.chosen
        may_be = set() if chosen is None else {each.model_id for each in chosen.facts()}
        return {each.model_id for each in self._slices()} | may_be

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
