"""The file of a ledger: made, opened, and checked before anything in it is believed.

1. WAL and synchronous = FULL: what a write has returned from outlives a killed process and a power cut. Who
   forgot a receipt that was sent would sign double.
2. One writer: who opens the file for writing leaves a mark, and who finds another's mark in it writes no
   more. Others may read meanwhile.
3. A file that is damaged, or does not add up, is refused with one line. Nothing is mended: what it should say
   the peers know, and show. Each receipt is looked at only by who will write: of a full file that takes more
   than a second, and who reads one finds out then.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from market.receipt import BadReceiptBytes, SignedReceipt
from routing.errors import LocalError
from routing.private_file import close_to_others, make_private

BUSY_SECONDS = 5.0
"""How long to wait for another process that has the file open: a reader's checkpoint takes less."""

_ELSEWHERE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
}

APPLICATION_ID = 0x50_4C_45_44  # "PLED"
SCHEMA_VERSION = 1

SCHEMA = (
    "CREATE TABLE account (peer TEXT PRIMARY KEY, granted INTEGER NOT NULL DEFAULT 0, "
    "fault TEXT NOT NULL DEFAULT '') WITHOUT ROWID",
    # totals of all epochs; what they contain of epochs that have no receipt here any more is folded
    "CREATE TABLE stream (peer TEXT NOT NULL, we_pay INTEGER NOT NULL, kind INTEGER NOT NULL, "
    "pairs INTEGER NOT NULL DEFAULT 0, credits INTEGER NOT NULL DEFAULT 0, "
    "folded_pairs INTEGER NOT NULL DEFAULT 0, folded_credits INTEGER NOT NULL DEFAULT 0, "
    "PRIMARY KEY (peer, we_pay, kind)) WITHOUT ROWID",
    # one a stream and epoch that is full, the highest; and the one that waits to be countersigned
    "CREATE TABLE receipt (peer TEXT NOT NULL, we_pay INTEGER NOT NULL, kind INTEGER NOT NULL, "
    "epoch INTEGER NOT NULL, is_full INTEGER NOT NULL, n INTEGER NOT NULL, pairs INTEGER NOT NULL, "
    "credits INTEGER NOT NULL, signed BLOB NOT NULL, "
    "PRIMARY KEY (peer, we_pay, kind, epoch, is_full)) WITHOUT ROWID",
    "CREATE TABLE evidence (id INTEGER PRIMARY KEY, peer TEXT NOT NULL, why TEXT NOT NULL, "
    "one BLOB NOT NULL, other BLOB NOT NULL, at INTEGER NOT NULL)",
    "CREATE TABLE drawn (day INTEGER NOT NULL, subnet TEXT NOT NULL, credits INTEGER NOT NULL, "
    "PRIMARY KEY (day, subnet)) WITHOUT ROWID",
    "CREATE TABLE writer (id INTEGER PRIMARY KEY CHECK (id = 1), mark BLOB NOT NULL)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

PARDON = (
    "CREATE TABLE IF NOT EXISTS pardon (peer TEXT PRIMARY KEY, at INTEGER NOT NULL, proof INTEGER NOT NULL) "
    "WITHOUT ROWID"
)
"""Of each peer that was pardoned, when, and its last proof then. A program that does not know this table
passes over it, so the version stays; files of before get it when they are opened to be written."""

_SUMS_DIFFER = """
SELECT stream.peer FROM stream LEFT JOIN receipt
ON receipt.peer = stream.peer AND receipt.we_pay = stream.we_pay AND receipt.kind = stream.kind AND is_full
GROUP BY stream.peer, stream.we_pay, stream.kind
HAVING stream.credits != folded_credits + coalesce(sum(receipt.credits), 0)
OR stream.pairs != folded_pairs + coalesce(sum(receipt.pairs), 0)
LIMIT 1
"""

_WITHOUT_STREAM = """
SELECT receipt.peer FROM receipt LEFT JOIN stream USING (peer, we_pay, kind) WHERE stream.peer IS NULL LIMIT 1
"""


def open_for_writing(path: Path) -> tuple[sqlite3.Connection, bytes]:
    """The file, made if it is missing, and our mark in it.

    Raises:
        LocalError: it is damaged, not ours, or cannot be written.
    """
    try:
        _prepare(path)
    except OSError as error:
        raise LocalError(f"{path} can't be made: {error.strerror}; check its folder") from None
    mark = os.urandom(16)
    try:
        db = _connect(path)
        try:
            db.execute("BEGIN IMMEDIATE")
            fault = _check(db, writes=True)
            if not fault:
                db.execute(PARDON)
                db.execute("INSERT OR REPLACE INTO writer VALUES (1, ?)", (mark,))
            db.execute("ROLLBACK" if fault else "COMMIT")
            if fault:
                raise unusable(path, fault)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
        except BaseException:
            db.close()
            raise
    except (sqlite3.Error, ValueError) as error:
        raise _refused(path, error) from None
    return db, mark


def open_for_reading(path: Path) -> sqlite3.Connection:
    """The file of a node that may be running.

    Raises:
        LocalError: there is none, or it is damaged or not ours.
    """
    if not path.exists():
        raise LocalError(
            f"{path}: there are no accounts yet: panal run makes them, with a [market] mode that is not free"
        )
    try:
        db = _connect(path)
        try:
            db.execute("PRAGMA query_only = ON")
            fault = _check(db, writes=False)
            if fault:
                raise unusable(path, fault)
        except BaseException:
            db.close()
            raise
    except (sqlite3.Error, ValueError) as error:
        raise _refused(path, error) from None
    return db


def _refused(path: Path, error: Exception) -> LocalError:
    """What the disk, or another process, does not let happen is no fault of the file's."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest says more of the same
    if code in _ELSEWHERE:
        return LocalError(f"{path} can't be opened ({error}): check the disk; what is in it stays as it is")
    return unusable(path, str(error))


def unusable(path: Path, fault: str) -> LocalError:
    """What is said of a file that does not add up, or holds what is no receipt."""
    said = " ".join(fault.split())[:200]
    return LocalError(
        f"{path} can't be used as a ledger ({said}): move it and its -wal file away, and peers will show "
        "this node its latest receipts again"
    )


def _prepare(path: Path) -> None:
    """Make the file, or see that it is one, for the owner alone."""
    if not make_private(path):
        raise LocalError(f"{path} is not a regular file: move it away")
    close_to_others(path)


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA trusted_schema = OFF")
    return db


def _check(db: sqlite3.Connection, *, writes: bool) -> str:
    """What is wrong with the file, "" if nothing. Who will write makes the tables in a new one."""
    marks = (_pragma(db, "application_id"), _pragma(db, "user_version"))
    if writes and marks == (0, 0) and not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        for statement in SCHEMA:
            db.execute(statement)
        return ""
    if marks[0] != APPLICATION_ID:
        return "it is another program's"
    if marks[1] != SCHEMA_VERSION:
        return f"it is of version {marks[1]}, this program knows {SCHEMA_VERSION}: update panal"
    verdict = str(_pragma(db, "integrity_check(1)"))
    fault = verdict if verdict != "ok" else _sums_fault(db)
    return fault or (_receipts_fault(db) if writes else "")


def _sums_fault(db: sqlite3.Connection) -> str:
    for statement in (_SUMS_DIFFER, _WITHOUT_STREAM):
        row = db.execute(statement).fetchone()
        if row is not None:
            return f"the receipts of {row[0]} do not add up to its total"
    return ""


def _receipts_fault(db: sqlite3.Connection) -> str:
    """Whether each row says what its receipt says. Takes some 20 to 50 µs a receipt."""
    rows = db.execute("SELECT peer, we_pay, kind, epoch, is_full, n, pairs, credits, signed FROM receipt")
    for peer, we_pay, *columns, data in rows:
        try:
            signed = SignedReceipt.decode(data)
        except (BadReceiptBytes, TypeError) as error:
            return f"a receipt of {peer}: {error}"
        receipt = signed.receipt
        says = [receipt.kind, receipt.epoch, signed.full, receipt.n, receipt.pairs, receipt.credits]
        if says != columns or peer != (receipt.payee if we_pay else receipt.payer):
            return f"a receipt of {peer} says something else than its row"
    return ""


def _pragma(db: sqlite3.Connection, name: str) -> object:
    return db.execute(f"PRAGMA {name}").fetchone()[0]
