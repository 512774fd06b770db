"""Signing off a debt while the node does not run; its peer is told when it does."""

from __future__ import annotations

import time

from market.books import Books
from market.credit_line import Terms
from market.ledger_sqlite import SqliteLedger
from market.receipt import Kind
from node.config import NodeConfig
from node.device.folder import NodeFolder
from node.market.books_lock import books_lock
from node.market.quotes_port import OwnPrices
from routing.identity import Identity


def settle_offline(config: NodeConfig, peer_id: str, credits: int, *, forgiven: bool) -> None:
    """Write a settlement into the books.

    Args:
        credits: µcr.

    Raises:
        LocalError: it does not owe as much, or another process keeps the books.
    """
    folder = NodeFolder.of(config)
    with books_lock(folder):
        ledger = SqliteLedger(folder.market)
        try:
            now = time.time()
            terms = Terms(config.market.credit_line, config.market.newcomers)
            identity = Identity.load(config.identity_path)
            books = Books(identity, terms, OwnPrices(), ledger.load(now))
            step = books.settle(peer_id, credits, Kind.FORGIVEN if forgiven else Kind.PAID, now)
            ledger.write(step.write)
            books.written(step)
        finally:
            ledger.close()
