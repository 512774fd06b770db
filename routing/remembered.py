"""Peers of earlier days: what a node that starts with nobody to ask tries first. One sqlite file.

1. What a call has returned from outlives the process, whatever ends it (WAL; sqlite's own recovery).
   A power cut may cost the last seconds, never the file.
2. A file that is damaged, or is not ours, is moved aside and a new one begun: a node never stays down for
   it. A disk that is full or read-only costs the memory, not the node.
3. An advert that has expired still says where its node was; what it served is nobody's business any more.
   So slices are not given out.

Calls take well under a millisecond and are made from one thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from routing.errors import LocalError
from routing.private_file import close_to_others, make_private
from routing.wire.advert import Advert, AdvertError, SignedAdvert, decode_advert, next_seq

_T = TypeVar("_T")

log = logging.getLogger("panal.remembered")

MAX_PEERS = 512
"""Peers kept: more than anyone dials after a start, and 5 MB at the very most."""

BUSY_SECONDS = 1.0
"""How long to wait for another process that has the file open (a command of the same node)."""

MAX_ASIDE = 10
"""Files moved aside that are kept; the last one is replaced."""

APPLICATION_ID = 0x50_41_4E_41  # "PANA"
SCHEMA_VERSION = 1

_SCHEMA = (
    "CREATE TABLE peer "
    "(peer_id TEXT PRIMARY KEY, advert BLOB NOT NULL, seen REAL NOT NULL, route TEXT NOT NULL)",
    "CREATE TABLE own (key TEXT PRIMARY KEY, value INTEGER NOT NULL)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

# Those that could be reached before those that were only heard of: strangers' adverts displace nobody known.
_ORDER = "(route != '') DESC, seen DESC, peer_id"


@dataclass(frozen=True)
class RememberedPeer:
    """Where a peer was.

    Attributes:
        peer_id: who.
        seen: when it was last known to be there, unix time.
        route: the address that worked last, as given to `route_worked`; "" if none ever did.
        advert: its last one, perhaps expired, without slices.
    """

    peer_id: str
    seen: float
    route: str
    advert: Advert


class RememberedPeers:
    """The file of remembered peers, open until `close`.

    Args:
        path: the file; it and its folder are made if missing, for the owner alone.

    Raises:
        LocalError: there can be no such file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._last_seq = 0
        self._complained = False
        self._db: sqlite3.Connection | None = None
        self._open()

    def close(self) -> None:
        """Close the file. Nothing is lost without it."""
        if self._db is not None:
            self._db.close()
            self._db = None

    def remember(self, signed: SignedAdvert, now: float) -> None:
        """Keep a peer's advert; it was there just now. Meant for peers we are, or were, connected to."""

        def work(db: sqlite3.Connection) -> None:
            db.execute(
                "INSERT INTO peer VALUES (?, ?, ?, '') ON CONFLICT (peer_id) "
                "DO UPDATE SET advert = excluded.advert, seen = excluded.seen",
                (signed.advert.peer_id, signed.data, now),
            )
            db.execute(
                "DELETE FROM peer WHERE peer_id IN "
                f"(SELECT peer_id FROM peer ORDER BY {_ORDER} LIMIT -1 OFFSET ?)",
                (MAX_PEERS,),
            )

        self._do(work, None)

    def route_worked(self, peer_id: str, address: str, now: float) -> None:
        """The address by which a remembered peer was reached just now. Nothing happens for others."""
        statement = "UPDATE peer SET route = ?, seen = ? WHERE peer_id = ?"
        self._do(lambda db: db.execute(statement, (address, now, peer_id)), None)

    def forget(self, peer_id: str) -> None:
        """It is no longer wanted (an expelled member)."""
        self._do(lambda db: db.execute("DELETE FROM peer WHERE peer_id = ?", (peer_id,)), None)

    def peers(self, swarm_id: bytes) -> list[RememberedPeer]:
        """Peers of a swarm, the best to try first: those that were reached, then by when they were seen.

        Takes 0.2 ms a peer, for their signatures: call it once, at the start.
        """
        select = f"SELECT peer_id, advert, seen, route FROM peer ORDER BY {_ORDER}"
        nobody: list[tuple[str, bytes, float, str]] = []
        found = []
        for peer_id, data, seen, route in self._do(lambda db: db.execute(select).fetchall(), nobody):
            if not isinstance(data, bytes):
                continue  # somebody else wrote into the file
            try:
                unproven = decode_advert(data)
                unproven.check_swarm(swarm_id)
                advert = unproven.prove().advert
            except AdvertError:
                continue  # of another swarm, or of another version of this program
            if advert.peer_id == peer_id:
                found.append(RememberedPeer(peer_id, seen, route, msgspec.structs.replace(advert, slices=[])))
        return found

    def next_seq(self, now: float, at_least: int = 0) -> int:
        """The next sequence number for our own advert, written down before it is returned.

        Args:
            now: unix time.
            at_least: a number known from elsewhere (`AdvertTable.own_seq`); the result is above it.
        """
        floor = max(self._last_seq, at_least)

        def work(db: sqlite3.Connection) -> int:
            row = db.execute("SELECT value FROM own WHERE key = 'seq'").fetchone()
            seq = next_seq(now, max(floor, row[0]) if row is not None else floor)
            db.execute("INSERT OR REPLACE INTO own VALUES ('seq', ?)", (seq,))
            return seq

        # without the file the clock alone must keep it growing over restarts
        self._last_seq = self._do(work, next_seq(now, floor))
        return self._last_seq

    # --- inside ---

    def _do(self, work: Callable[[sqlite3.Connection], _T], otherwise: _T) -> _T:
        """One transaction. What goes wrong with the file ends here, with a line in the log."""
        for _ in range(2):
            if self._db is None:
                break
            try:
                return _transact(self._db, work)
            except sqlite3.DatabaseError as error:
                if not _is_damage(error):
                    self._complain(error)
                    break
                self._begin_anew(str(error))
        return otherwise

    def _open(self) -> None:
        for _ in range(2):
            try:
                _prepare(self._path)
            except OSError as error:
                raise LocalError(
                    f"file of remembered peers {self._path} can't be made: {error.strerror}; check its folder"
                ) from None
            try:
                self._db = _connect(self._path)
                fault = _transact(self._db, _check)
                if not fault:
                    _settle(self._path, self._db)
            except sqlite3.DatabaseError as error:
                if not _is_damage(error):
                    self._complain(error)
                    self.close()
                    return
                fault = str(error)
            if not fault:
                return
            self._move_aside(fault)

    def _begin_anew(self, fault: str) -> None:
        try:
            self._move_aside(fault)
            self._open()
        except LocalError as error:  # at the start it is the user's; later the node goes on
            self.close()
            self._complain(error)

    def _move_aside(self, fault: str) -> None:
        self.close()
        aside = _free_name(self._path)
        try:
            for suffix in ("", "-wal", "-shm"):
                part = self._path.with_name(self._path.name + suffix)
                if part.exists():
                    part.rename(aside.with_name(aside.name + suffix))
        except OSError as error:
            raise LocalError(
                f"{self._path} is not usable ({fault}) and can't be moved aside: {error.strerror}; remove it"
            ) from None
        log.warning(
            "%s is not usable (%s): moved to %s, remembered peers start anew", self._path, fault, aside.name
        )

    def _complain(self, error: Exception) -> None:
        if not self._complained:
            self._complained = True
            log.warning(
                "remembered peers: %s: %s; the node goes on without writing them down", self._path, error
            )


def _prepare(path: Path) -> None:
    """Make the file, or see that it is one, for the owner alone."""
    if not make_private(path):
        raise LocalError(
            f"{path} is not a regular file: remembered peers need another name or that one moved"
        )


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    db.execute("PRAGMA trusted_schema = OFF")
    return db


def _settle(path: Path, db: sqlite3.Connection) -> None:
    """The file is ours: make it as we want it. Nothing is changed in one that is not."""
    close_to_others(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")  # the process may die at any time, power cuts are rare


def _transact(db: sqlite3.Connection, work: Callable[[sqlite3.Connection], _T]) -> _T:
    db.execute("BEGIN IMMEDIATE")
    try:
        result = work(db)
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
    return result


def _check(db: sqlite3.Connection) -> str:
    """Make the tables in a new file; what is wrong with another, "" if nothing."""
    marks = (_pragma(db, "application_id"), _pragma(db, "user_version"))
    if marks == (0, 0) and not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        for statement in _SCHEMA:
            db.execute(statement)
        return ""
    if marks[0] != APPLICATION_ID:
        return "it is another program's"
    if marks[1] != SCHEMA_VERSION:
        return f"it is of version {marks[1]}, this program writes {SCHEMA_VERSION}"
    verdict = str(_pragma(db, "quick_check"))
    return "" if verdict == "ok" else verdict.splitlines()[0][:200]


def _pragma(db: sqlite3.Connection, name: str) -> object:
    return db.execute(f"PRAGMA {name}").fetchone()[0]


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _free_name(path: Path) -> Path:
    for number in range(1, MAX_ASIDE):
        aside = path.with_name(f"{path.name}.damaged-{number}")
        if not aside.exists():
            break
    return aside
