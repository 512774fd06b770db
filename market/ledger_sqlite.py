"""The ledger in an sqlite file (market.ledger_file_sqlite says how it is kept safe).

A balance is not stored: it is what the receipts say, and the totals beside them must agree. Growth is
bounded: accounts by `Forgotten`, receipts of past epochs by folding the oldest into their stream's totals.

Calls block; they may come from any thread, one at a time.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from market.ledger import (
    MAX_EVIDENCE,
    MAX_RECEIPTS,
    Balance,
    Drawn,
    Entry,
    Evidence,
    Forgotten,
    Granted,
    LedgerState,
    Pardoned,
    Record,
)
from market.ledger_file_sqlite import open_for_reading, open_for_writing, unusable
from market.ledger_rows_sqlite import ReceiptRow, balance_of, read_evidence, read_receipts, read_state
from market.receipt import SignedReceipt
from routing.errors import LocalError

FOLD_EVERY = 1_024
"""Receipts written between looks at how many there are."""

_STREAM = "peer = ? AND we_pay = ? AND kind = ?"

_OLDEST = """
SELECT peer, we_pay, kind, epoch, pairs, credits FROM (
    SELECT *, row_number() OVER (PARTITION BY peer, we_pay, kind ORDER BY epoch DESC) AS place FROM receipt
     WHERE is_full)
WHERE place > 2 ORDER BY epoch LIMIT ?
"""


class SqliteLedger:
    """A ledger's file, open until `close`.

    Args:
        path: made if it is missing, for the owner alone.

    Raises:
        LocalError: it is damaged, not ours, or cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], *, max_receipts: int = MAX_RECEIPTS) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._max_receipts = max_receipts
        self._written = 0
        self._mark: bytes | None = None
        self._db, self._mark = open_for_writing(self._path)
        with self._lock, self._transaction():
            self._fold()

    @classmethod
    def reading(cls, path: str | os.PathLike[str]) -> SqliteLedger:
        """The same file beside the process that writes it.

        Raises:
            LocalError: there is none, or it is damaged or not ours.
        """
        ledger = cls.__new__(cls)
        ledger._path = Path(path)
        ledger._lock = threading.Lock()
        ledger._max_receipts = MAX_RECEIPTS
        ledger._written = 0
        ledger._mark = None
        ledger._db = open_for_reading(ledger._path)
        return ledger

    def close(self) -> None:
        """Nothing is lost without it."""
        with self._lock:
            self._db.close()

    # --- written ---

    def write(self, records: Sequence[Record]) -> None:
        """All of it, on the disk on return.

        Raises:
            LocalError: nothing was written.
        """
        with self._lock, self._transaction():
            for record in records:
                match record:
                    case Entry(peer, we_pay, signed):
                        self._enter(peer, we_pay, signed)
                    case Granted(peer, credits):
                        self._account(peer)
                        self._db.execute("UPDATE account SET granted = ? WHERE peer = ?", (credits, peer))
                    case Drawn(by_subnet):
                        self._db.execute("DELETE FROM drawn")
                        self._db.executemany("INSERT INTO drawn VALUES (?, ?, ?)", by_subnet)
                    case Evidence():
                        self._convict(record)
                    case Pardoned(peer, at):
                        self._pardon(peer, at)
                    case Forgotten(peer):
                        for table in ("account", "stream", "receipt"):
                            self._db.execute(f"DELETE FROM {table} WHERE peer = ?", (peer,))
            if self._written >= FOLD_EVERY:
                self._fold()

    def _enter(self, peer: str, we_pay: bool, signed: SignedReceipt) -> None:
        self._account(peer)
        receipt = signed.receipt
        stream = (peer, int(we_pay), int(receipt.kind))
        self._db.execute("INSERT OR IGNORE INTO stream (peer, we_pay, kind) VALUES (?, ?, ?)", stream)
        select = (
            f"SELECT epoch, n, pairs, credits FROM receipt WHERE {_STREAM} AND is_full ORDER BY epoch DESC"
        )
        known = self._db.execute(select + " LIMIT 1", stream).fetchone()
        if not signed.full:
            if known is not None and receipt.n <= known[1]:
                return
            self._db.execute(f"DELETE FROM receipt WHERE {_STREAM} AND NOT is_full", stream)
            self._insert(stream, signed)
            return
        if known is not None and (receipt.epoch, receipt.n) <= known[:2]:
            return
        pairs, credits = receipt.pairs, receipt.credits
        if known is not None and known[0] == receipt.epoch:
            pairs, credits = pairs - known[2], credits - known[3]
            if pairs < 0 or credits < 0:
                return
        self._insert(stream, signed)
        self._written += 1
        self._db.execute(
            f"UPDATE stream SET pairs = pairs + ?, credits = credits + ? WHERE {_STREAM}",
            (pairs, credits, *stream),
        )
        self._db.execute(
            f"DELETE FROM receipt WHERE {_STREAM} AND NOT is_full AND (epoch, n) <= (?, ?)",
            (*stream, receipt.epoch, receipt.n),
        )

    def _insert(self, stream: tuple[str, int, int], signed: SignedReceipt) -> None:
        receipt = signed.receipt
        row = (receipt.epoch, int(signed.full), receipt.n, receipt.pairs, receipt.credits, signed.encode())
        self._db.execute("INSERT OR REPLACE INTO receipt VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*stream, *row))

    def _account(self, peer: str) -> None:
        self._db.execute("INSERT OR IGNORE INTO account (peer) VALUES (?)", (peer,))

    def _convict(self, proof: Evidence) -> None:
        self._account(proof.peer)
        self._db.execute("UPDATE account SET fault = ? WHERE peer = ?", (proof.why, proof.peer))
        self._db.execute(
            "INSERT INTO evidence (peer, why, one, other, at) VALUES (?, ?, ?, ?, ?)",
            (proof.peer, proof.why, proof.one.encode(), proof.other.encode(), proof.at),
        )
        self._db.execute(
            "DELETE FROM evidence WHERE id IN (SELECT id FROM evidence ORDER BY id DESC LIMIT -1 OFFSET ?)",
            (MAX_EVIDENCE,),
        )

    def _pardon(self, peer: str, at: int) -> None:
        self._db.execute("UPDATE account SET fault = '' WHERE peer = ?", (peer,))
        self._db.execute(
            "INSERT OR REPLACE INTO pardon "
            "SELECT peer, ?, max(id) FROM evidence WHERE peer = ? GROUP BY peer",
            (at, peer),
        )
        self._db.execute("DELETE FROM pardon WHERE peer NOT IN (SELECT peer FROM evidence)")

    def _fold(self) -> None:
        """Keep of the oldest epochs only what they add to the totals."""
        self._written = 0
        (count,) = self._db.execute("SELECT count(*) FROM receipt WHERE is_full").fetchone()
        if count <= self._max_receipts:
            return
        for *stream, epoch, pairs, credits in self._db.execute(
            _OLDEST, (count - self._max_receipts,)
        ).fetchall():
            self._db.execute(
                "UPDATE stream SET folded_pairs = folded_pairs + ?, folded_credits = folded_credits + ? "
                f"WHERE {_STREAM}",
                (pairs, credits, *stream),
            )
            self._db.execute(
                f"DELETE FROM receipt WHERE {_STREAM} AND epoch = ? AND is_full", (*stream, epoch)
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        if self._mark is None:
            raise LocalError(f"{self._path} was opened to be read: its node writes it")
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                if self._db.execute("SELECT mark FROM writer").fetchone() != (self._mark,):
                    raise LocalError(
                        f"{self._path} is written by another process now: one node at a time may use it"
                    )
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise LocalError(
                f"{self._path} can't be written ({error}): receipts wait until it can; check the disk"
            ) from None

    # --- read ---

    def load(self, now: float) -> LedgerState:
        """All that was written down.

        Raises:
            LocalError: it cannot be read.
        """
        with self._reading():
            return read_state(self._db)

    def balances(self) -> list[Balance]:
        """How we stand with each peer, by what is in the file."""
        return [balance_of(account) for account in self.load(0.0).accounts]

    def receipts(self, peer: str = "", since_epoch: int = 0, limit: int = 1_000) -> list[ReceiptRow]:
        """Receipts, those of the latest epochs first.

        Args:
            peer: only its; "": everybody's.
        """
        with self._reading():
            return read_receipts(self._db, peer, since_epoch, limit)

    def evidence(self, limit: int = MAX_EVIDENCE) -> list[Evidence]:
        """Proofs of double signing, the latest first."""
        with self._reading():
            return read_evidence(self._db, limit)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """One consistent look at the file."""
        with self._lock:
            try:
                self._db.execute("BEGIN")
                try:
                    yield
                finally:
                    self._db.execute("ROLLBACK")
            except sqlite3.Error as error:
                raise LocalError(f"{self._path} can't be read ({error})") from None
            except (ValueError, TypeError) as error:
                raise unusable(self._path, str(error)) from None
