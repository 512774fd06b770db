"""What stands against a peer is forgiven by the owner: its strikes, and that it has signed double."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

import trio

from market.books import Books
from market.credit_line import Terms
from market.evidence_sqlite import AuditBook
from market.ledger_sqlite import SqliteLedger
from market.quarantine import Quarantine, Strikes
from node.config import NodeConfig
from node.device.folder import NodeFolder
from node.market.books_lock import books_lock
from node.market.quotes_port import OwnPrices
from node.status.market_facts import Pardon
from routing.errors import LocalError
from routing.identity import Identity

if TYPE_CHECKING:
    from node.market.part import MarketPart


async def pardon(part: MarketPart, folder: NodeFolder, peer_id: str) -> Pardon:
    """By the node that runs.

    Raises:
        LocalError: nothing stands against the peer, or that cannot be written.
    """
    fault = part.books.fault_of(peer_id)
    strikes: Strikes | None
    if part.auditor is not None:
        strikes = await part.auditor.pardon(peer_id)
    elif part.findings is not None:
        strikes = await part.findings.pardon(peer_id)
    else:
        strikes = await trio.to_thread.run_sync(_pardon_in_book, folder, peer_id)
        part.go_by_the_known()
    if fault:
        await part.settler.pardon(peer_id)
    return _pardoned(peer_id, strikes, fault)


def pardon_offline(config: NodeConfig, peer_id: str) -> Pardon:
    """While the node does not run.

    Raises:
        LocalError: nothing stands against the peer, another process keeps the books, or they cannot be
            written.
    """
    folder = NodeFolder.of(config)
    with books_lock(folder):
        strikes = _pardon_in_book(folder, peer_id)
        return _pardoned(peer_id, strikes, _pardon_in_ledger(config, folder, peer_id))


def _pardoned(peer_id: str, strikes: Strikes | None, fault: str) -> Pardon:
    if strikes is None and not fault:
        raise LocalError(
            f"nothing stands against {peer_id}: there is nothing to be pardoned (panal market audits)"
        )
    now = time.time()
    return Pardon(
        peer_id,
        0 if strikes is None else strikes.count,
        round(strikes.until, 1) if strikes is not None and strikes.holds(now) else None,
        fault,
    )


def _pardon_in_book(folder: NodeFolder, peer_id: str) -> Strikes | None:
    """Strikes, where no backbone goes by them now."""
    if not folder.audit.exists():
        return None
    with closing(AuditBook(folder.audit)) as book:
        now = time.time()
        strikes = Quarantine(book.strikes()).pardon(peer_id, now)
        if strikes is not None:
            book.pardon(peer_id, now)
        return strikes


def _pardon_in_ledger(config: NodeConfig, folder: NodeFolder, peer_id: str) -> str:
    """Of a double signer; what it was, "" if nothing."""
    if not folder.market.exists():
        return ""
    with closing(SqliteLedger(folder.market)) as ledger:
        now = time.time()
        state = ledger.load(now)
        fault = next((each.fault for each in state.accounts if each.peer == peer_id), "")
        if fault:
            terms = Terms(config.market.credit_line, config.market.newcomers)
            books = Books(Identity.load(config.identity_path), terms, OwnPrices(), state)
            step = books.pardon(peer_id, now)
            ledger.write(step.write)
            books.written(step)
        return fault
