"""A node's market put together: books, prices, settling, spending, audits. Only where mode is not "free"."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import trio

from market.books import Books
from market.credit_line import Terms
from market.ledger_sqlite import SqliteLedger
from market.market_wire import PROTOCOL_ID
from market.price import percent_of
from market.quarantine import Quarantine
from market.receipt import CREDIT
from market.vouch_wire import PROTOCOL_ID as VOUCH_PROTOCOL_ID
from node.device.folder import NodeFolder
from node.market.base_prices import base_prices
from node.market.books_lock import books_lock
from node.market.findings import found_earlier
from node.market.further import Further, FurtherBook, Share
from node.market.neighbourhood import neighbourhood_of
from node.market.priced import PricedCalls
from node.market.quoted import Quoted, Unheard
from node.market.quotes_port import OwnPrices
from node.market.sales import Sales
from node.market.settling import DONE_SECONDS, Settler
from node.market.spending import Spending
from node.market.told import MarketTold
from node.market.vouching import Asker, Teller
from node.model.store import Store
from node.swarm.watching import Watching
from routing.advert_rows import Offer
from routing.dispatch.call import MoeCall
from routing.dispatch.plan import ServerCall
from routing.dispatch.star import OnAnswer
from routing.identity import Identity
from routing.wire.advert import Advert
from routing.wire.experts import ExpertsAnswer, ExpertsRequest
from routing.wire.holdings import Holdings

if TYPE_CHECKING:
    from node.app.serving import ServingPart
    from node.config import NodeConfig
    from node.decode.live_backbone import LiveBackbone
    from node.market.auditor import Auditor
    from node.market.findings import Findings
    from node.model.manifest import Manifest
    from node.status.market_facts import Pardon
    from node.swarm.node import SwarmNode
    from routing.quic.connection import Connection
    from routing.quic.endpoint import Handler
    from routing.wire.quote import Quote

MOST_UNHEARD = 1024
"""Answers of peers whose adverts have not come yet, kept until they have: a second of a fast backbone."""


class _Pairs(NamedTuple):
    """What an answer is paid for."""

    model_id: bytes
    layer: int
    experts: npt.NDArray[np.uint16]
    share: Share | None  # of a layer's further calls


class MarketPart:
    """Made by `opened`.

    Attributes:
        books, ledger: who owes whom; the file they are in.
        accounts: what callers owe, for the expert server.
        spending: budgets, and the choice by price.
        sales: this node's own prices; None where it serves nothing.
        settler: who exchanges receipts.
        auditor: who runs a backbone's calls again; None without a backbone, or where nothing is audited.
        findings: what its audits found, or those of earlier runs; None without a backbone, or if nothing was.
    """

    def __init__(
        self, config: NodeConfig, identity: Identity, folder: NodeFolder, ledger: SqliteLedger
    ) -> None:
        market = config.market
        self._config = config
        self._folder = folder
        self._identity = identity
        self._node: SwarmNode | None = None
        self._live: LiveBackbone | None = None
        self._serving: ServingPart | None = None
        self._unheard: deque[tuple[str, _Pairs]] = deque(maxlen=MOST_UNHEARD)
        self._prices = OwnPrices()
        self._further = Further(self._manifest)
        self._most: dict[bytes, dict[int, int]] = {}  # by model and layer, what a pair is paid with
        self._quoted = Quoted(self._advert, lambda model_id: self._most.get(model_id, {}))
        self.ledger = ledger
        self.books = Books(
            identity, Terms(market.credit_line, market.newcomers), self._prices, ledger.load(time.time())
        )
        self.accounts = PricedCalls(self.books.payee, self._prices, time.time, self._whence)
        self.accounts.further = self._further
        self.spending = Spending(market, folder)
        self.books.payer.on_claimed = lambda credits: self.spending.purse.pay(credits, time.time())
        self.settler = Settler(self.books, ledger, self._connection, time.time)
        self.sales: Sales | None = None
        self._teller = Teller(self.books.has_receipts, self.books.vouches, time.time)
        self._asker: Asker | None = None
        self.auditor: Auditor | None = None
        self.findings: Findings | None = None
        self._quarantine = Quarantine()

    @classmethod
    @contextmanager
    def opened(cls, config: NodeConfig, identity: Identity) -> Iterator[MarketPart]:
        """A node's market, with its files open meanwhile.

        Raises:
            LocalError: another process keeps these books, or they cannot be read.
        """
        folder = NodeFolder.of(config)
        with ExitStack() as ends:
            ends.enter_context(books_lock(folder))
            ledger = SqliteLedger(folder.market)
            ends.callback(ledger.close)
            part = cls(config, identity, folder, ledger)
            ends.callback(part.close)
            part.go_by_the_known()
            yield part

    def go_by_the_known(self) -> None:
        """Until a backbone goes on auditing, what a peer has done counts as far as earlier audits found it
        right. If there were none, everybody's does: nobody has been asked for anything to be audited."""
        with found_earlier(self._folder) as findings:
            if findings is not None:
                self._quarantine = findings.quarantine
                audited = self._config.market.audit > 0
                self.books.payee.honours = findings.is_proved if audited else findings.honours

    def close(self) -> None:
        """Keep what is spent, and what was served, for the last time."""
        self.spending.close()
        if self.sales is not None:
            self.sales.close()

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """Streams that the node serves for it."""
        vouching = {VOUCH_PROTOCOL_ID: self._teller.serve} if self._config.market.vouch else {}
        return {PROTOCOL_ID: self.settler.serve, **vouching}

    def refuses(self) -> Mapping[str, str]:
        """Why peers do not compute for this node's backbone before they are paid, by peer id."""
        return {} if self._live is None else self._live.port.unpaid.told()

    def told(self, node: SwarmNode) -> MarketTold:
        """Who tells the node's status of it."""
        return MarketTold(self._config.market, self, node)

    # --- as a server ---

    def sell(self, node: SwarmNode, serving: ServingPart) -> None:
        """Quote prices for what is served, from before the node first announces itself."""
        self._node = node  # whose callers come before `run`
        self.sales = Sales(self._config.market, self._folder, node, serving, self.books, self._barred)
        self._prices.quotes = self.sales.quotes
        self._serving = serving
        if serving.chosen is not None:
            serving.chosen.advisor = self.sales.advisor(Store(self._config.store))

    def offered(self) -> list[Quote]:
        """What the advert says."""
        return [] if self.sales is None else self.sales.offered()

    # --- as a node ---

    async def run(
        self, node: SwarmNode, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Settle with the node's peers, until cancelled."""
        self._node = node
        watching = Watching(connected=self._connected, heard=self._heard)
        node.last_words.append(self.settler.finish)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.settler.run)
            nursery.start_soon(self.spending.run)
            if self.sales is not None:
                nursery.start_soon(self.sales.run)
            node.watch(watching)
            try:
                task_status.started()
                await trio.sleep_forever()
            finally:
                node.unwatch(watching)

    # --- as a backbone ---

    @asynccontextmanager
    async def attached(self, live: LiveBackbone) -> AsyncIterator[None]:
        """Price, weigh and audit a backbone's answers meanwhile."""
        self._live = live
        bases, cap = base_prices(live.backbone.stored.manifest), self._config.market.cap
        self._most[bytes.fromhex(live.backbone.stored.model_id)] = {
            layer: percent_of(base, cap) for layer, base in bases.items()
        }  # whatever a server asks, and from one moment to the next
        self._weigh(live)
        async with self._audited(live) as watch:

            def on_answer(
                call: MoeCall, part: ServerCall, request: ExpertsRequest, answer: ExpertsAnswer, path: str
            ) -> int:
                if watch is not None:
                    watch(call, part, request, answer, path)
                return self._pay(part.peer_id, self._pairs(request))

            live.port.watch_answers(on_answer, self._given_up)
            try:
                yield
            finally:
                live.port.watch_answers(None)
                self._live = None
        await self.settler.finish(DONE_SECONDS)  # nothing has gone wrong, so nobody waits for the end

    def _weigh(self, live: LiveBackbone) -> None:
        """Have servers chosen by what they ask now."""
        model_id = bytes.fromhex(live.backbone.stored.model_id)
        self.spending.attach(live, lambda peer_id, layer: self._quoted.mean(peer_id, model_id, layer))

    @asynccontextmanager
    async def _audited(self, live: LiveBackbone) -> AsyncIterator[OnAnswer | None]:
        """Run a share of a backbone's calls again meanwhile; who has to be told of answers for that."""
        from node.market.audit_part import audit_on, kept_out

        if not self._config.market.audit:
            async with kept_out(live, self._folder) as self.findings:
                if self.findings is not None:
                    self._quarantine = self.findings.quarantine
                    self.books.payee.honours = self.findings.honours
                try:
                    yield None
                finally:
                    self.findings = None
            return
        async with audit_on(
            live, self._folder, self._config.market, paid=self._paid_for_audit, dealt=self._dealt
        ) as auditor:
            self.auditor, self.findings = auditor, auditor.findings
            self._quarantine = auditor.quarantine
            self.books.payee.honours = auditor.findings.is_proved  # and later on, by what was known then
            self._asker = Asker(
                self._identity.peer_id,
                auditor.reputation,
                self._connection,
                self.books.has_receipts,
                time.time,
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._asker.run)
                try:
                    yield auditor.watch
                finally:
                    nursery.cancel_scope.cancel()
                    self.auditor = self.findings = self._asker = None

    def _dealt(self) -> dict[str, float]:
        """Credits that each peer has earned by work for this node, or has paid it. For what it has consumed
        it only signs, and could sign for anything."""
        return {peer: credits / CREDIT for peer, credits in self.books.given().items()}

    def _pairs(self, request: ExpertsRequest) -> _Pairs:
        share = self._further.share(request) if request.call_index else None
        return _Pairs(request.model_id, request.layer, request.experts, share)

    def _manifest(self, model_id: bytes) -> Manifest | None:
        live = self._live
        if live is not None and bytes.fromhex(live.backbone.stored.model_id) == model_id:
            return live.backbone.stored.manifest
        server = None if self._serving is None else self._serving.server
        if server is None or not server.cells.knows(model_id):
            return None
        return server.cells.manifest(model_id)

    def _pay(self, peer_id: str, pairs: _Pairs) -> int:
        """Owe a peer for an answer; the micro-credits."""
        book = self._quoted.book(peer_id, pairs.model_id)
        if book is None:
            return 0
        if isinstance(book, Unheard):
            self._unheard.append((peer_id, pairs))
            return 0
        asked = book if pairs.share is None else FurtherBook(book, pairs.share)
        cost = self.books.payer.answered(
            peer_id, pairs.model_id, pairs.layer, pairs.experts, asked, time.time()
        )
        self.settler.answered(peer_id)
        return cost

    def _given_up(self, peer_id: str, request: ExpertsRequest) -> None:
        """What a peer was asked, and is not waited for any longer, is owed if it says that it computed it."""
        pairs = self._pairs(request)
        book = self._quoted.book(peer_id, pairs.model_id)
        if book is None or isinstance(book, Unheard):
            return
        asked = book if pairs.share is None else FurtherBook(book, pairs.share)
        self.books.payer.given_up(peer_id, pairs.layer, pairs.experts, asked, time.time())

    def _paid_for_audit(
        self, peer_id: str, request: ExpertsRequest, answer: ExpertsAnswer, path: str
    ) -> None:
        self.spending.purse.pay(self._pay(peer_id, self._pairs(request)), time.time())

    async def pardon(self, peer_id: str) -> Pardon:
        """Forgive a peer its strikes, and that it has signed double.

        Raises:
            LocalError: nothing stands against it, or that cannot be written.
        """
        from node.market.pardoning import pardon

        return await pardon(self, self._folder, peer_id)

    # --- what the node tells ---

    def _heard(self, offer: Offer) -> None:
        if self._quoted.heard(offer) and self._live is not None:
            self._live.port.prices_changed()
        if offer.advert is not None and offer.advert.quotes:
            self.settler.met(offer.peer_id)  # if it is connected
        if self._unheard:
            waiting, self._unheard = self._unheard, deque(maxlen=MOST_UNHEARD)
            for peer_id, pairs in waiting:  # those whose advert this is have a price now
                if peer_id == offer.peer_id:
                    self.spending.purse.pay(self._pay(peer_id, pairs), time.time())
                else:
                    self._unheard.append((peer_id, pairs))

    def _connected(self, peer_id: str, _: Holdings) -> None:
        advert = self._advert(peer_id)
        if advert is not None and advert.quotes:
            self.settler.met(peer_id)
        if self._asker is not None:
            self._asker.met(peer_id)

    def _advert(self, peer_id: str) -> Advert | None:
        row = None if self._node is None else self._node.table.get(peer_id)
        return None if row is None else row.advert

    def _whence(self, peer_id: str) -> str | None:
        connection = self._connection(peer_id)
        if self._node is None or connection is None:
            return None
        return neighbourhood_of(self._node.endpoint, connection)

    def _barred(self) -> Collection[str]:
        return self._quarantine.barred(time.time())

    def _connection(self, peer_id: str) -> Connection | None:
        return None if self._node is None else self._node.endpoint.connection_to(peer_id)
