"""The audits of one backbone, put together: database, rules, own cells, task."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from random import Random, SystemRandom

import trio

from market.audit import Audits
from market.evidence_sqlite import AuditBook
from market.quarantine import Quarantine
from node.config import MarketConfig
from node.decode.live_backbone import LiveBackbone
from node.device.folder import NodeFolder
from node.market.auditor import IDLE_SECONDS, Auditor
from node.market.checkers import Checkers, Paid
from node.market.findings import Findings, known_reputation
from node.market.home_audit import HomeAudit
from routing.dispatch.plan import LayerHolders
from routing.dispatch.star import ExpertPeer
from routing.estimates import Estimates


class LivePeers:
    """A live backbone's swarm, as audits see it."""

    def __init__(self, live: LiveBackbone) -> None:
        self._live = live

    @property
    def estimates(self) -> Estimates:
        return self._live.port.estimates

    def peer(self, peer_id: str) -> ExpertPeer | None:
        return self._live.links.find(peer_id)

    def holders(self, layer: int, index: int) -> LayerHolders:
        return self._live.table.holders(layer, index)

    def build_of(self, peer_id: str) -> str:
        return self._live.table.build_of(peer_id)

    def next_call_id(self) -> int:
        return self._live.port.next_call_id()

    def bar(self, reasons: dict[str, str]) -> None:
        self._live.table.bar(reasons)


def _unpaid(*_: object) -> None:
    """Nothing is owed."""


@asynccontextmanager
async def kept_out(live: LiveBackbone, folder: NodeFolder) -> AsyncIterator[Findings | None]:
    """Have a backbone ask nobody who was found out in an earlier run, meanwhile; nothing is run again.

    Yields:
        What was found; None if nothing ever was: then nothing is made.

    Raises:
        LocalError: the database cannot be opened.
    """
    if not folder.audit.exists():
        yield None
        return
    with closing(await trio.to_thread.run_sync(AuditBook, folder.audit)) as book:
        findings = Findings(live.table.bar, book, known_reputation(book), Quarantine(book.strikes()))
        findings.bar()  # before anybody is asked
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_keep_out, findings)
            try:
                yield findings
            finally:
                nursery.cancel_scope.cancel()


async def _keep_out(findings: Findings) -> None:
    """Let peers in again whose quarantine ends."""
    while True:
        await trio.sleep(IDLE_SECONDS)
        findings.bar()


@asynccontextmanager
async def audit_on(
    live: LiveBackbone,
    folder: NodeFolder,
    config: MarketConfig,
    *,
    paid: Paid = _unpaid,
    dealt: Callable[[], Mapping[str, float]] = dict,
    rng: Random | None = None,
) -> AsyncIterator[Auditor]:
    """Audits of a backbone's answers meanwhile, of those that are shown to `Auditor.watch`.

    Args:
        paid: told of each answer to a call that audits have sent.
        dealt: see `Auditor`.
        rng: draws the calls; the system's by default, so that nobody can foresee it.

    Raises:
        LocalError: the database cannot be opened.
    """
    draws = rng or SystemRandom()
    with closing(await trio.to_thread.run_sync(AuditBook, folder.audit)) as book:
        reputation, quarantine = known_reputation(book), Quarantine(book.strikes())
        library, stored = live.backbone.model.library, live.backbone.stored
        home = await trio.to_thread.run_sync(HomeAudit, library, stored, lambda: live.port.home)
        with home:
            peers = LivePeers(live)
            checkers = Checkers(peers, home, draws, paid)
            audits = Audits(config.audit, reputation)
            auditor = Auditor(
                peers, checkers, live.port.convictions, audits, reputation, quarantine, book, draws, dealt
            )
            async with trio.open_nursery() as nursery:
                await nursery.start(auditor.run)
                before, live.port.settle = live.port.settle, auditor.settle
                try:
                    yield auditor
                finally:
                    live.port.settle = before
                    nursery.cancel_scope.cancel()
