"""What was found of peers, kept in a database: strikes with their evidence, and standing. One process writes,
others may read meanwhile.

Evidence is digests, not answers: whoever is told of a strike can see which call it was and that the two
answers were others, and who has the cells can compute the call again while its caller still has it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from market.quarantine import MAX_REMEMBERED, Strikes
from market.reputation import Dealings
from market.tally import Tally
from routing.errors import LocalError
from routing.private_file import make_private

MAX_EVIDENCE = 4_096
"""Rows of evidence kept, the newest: a megabyte."""

BUSY_SECONDS = 5.0
"""How long a reader (`panal market`) may hold up the writer."""

_SCHEMA = """
create table if not exists strikes (peer text primary key, count integer, until real, at real) strict;
create table if not exists standing (peer text primary key, answers integer, agreed real, paid real) strict;
create table if not exists evidence (
    number integer primary key, at real, peer text, model text, layer integer, call_index integer, pairs
    integer, request blob, answer blob, other text, other_answer blob, cosine real, length real, reason text
) strict;
create table if not exists checks (peer text primary key, checked integer, agreed integer, build text) strict;
create table if not exists pardons (peer text primary key, at real, last_number integer) strict;
"""


@dataclass(frozen=True)
class Evidence:
    """A false answer.

    Attributes:
        at: unix time at which it was found; peer_id: who gave it.
        model_id: 64 hex digits; layer, call_index, pairs: which call.
        request, answer: digests (BLAKE3) of what was asked and of what came.
        other: whose answer it was held against; other_answer: that one's digest.
        cosine, length: how far apart the worst row was (market.verdict).
        reason: one line.
        pardoned: unix time at which the owner forgave it; 0: that was not done.
    """

    at: float
    peer_id: str
    model_id: str
    layer: int
    call_index: int
    pairs: int
    request: bytes
    answer: bytes
    other: str
    other_answer: bytes
    cosine: float
    length: float
    reason: str
    pardoned: float = 0.0


class AuditBook:
    """The database. For one thread at a time.

    Raises:
        LocalError: the file cannot be opened, or is none of ours.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            make_private(path)  # before sqlite makes it readable for all
            self._db = sqlite3.connect(path, timeout=BUSY_SECONDS, check_same_thread=False)
            self._db.execute("pragma journal_mode=wal")
            self._db.execute("pragma synchronous=full")
            self._db.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise LocalError(
                f"{path}: cannot be used as the audit's database: {error}; move it away"
            ) from None

    @classmethod
    def reading(cls, path: Path) -> AuditBook | None:
        """The same beside the process that writes it; None if there is none.

        Raises:
            LocalError: the file cannot be read, or is none of ours.
        """
        if not path.exists():
            return None
        book = cls(path)
        book._db.execute("pragma query_only = on")
        return book

    def close(self) -> None:
        self._db.close()

    def strikes(self) -> list[tuple[str, Strikes]]:
        """What stood against peers when this was written last."""
        rows = self._rows("select peer, count, until, at from strikes")
        return [(peer, Strikes(count, until, at)) for peer, count, until, at in rows]

    def strike(self, peer_id: str, strikes: Strikes, evidence: Evidence) -> None:
        """A peer was convicted: both are there, or neither is.

        Raises:
            LocalError: it cannot be written; the disk is full, say.
        """
        with self._written():
            self._db.execute(
                "insert or replace into strikes values (?, ?, ?, ?)",
                (peer_id, strikes.count, strikes.until, strikes.at),
            )
            self._db.execute(
                "delete from strikes where peer not in "
                "(select peer from strikes order by until desc limit ?)",
                (MAX_REMEMBERED,),
            )
            self._db.execute(
                "insert into evidence values (null, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    evidence.at, evidence.peer_id, evidence.model_id, evidence.layer, evidence.call_index,
                    evidence.pairs, evidence.request, evidence.answer, evidence.other, evidence.other_answer,
                    evidence.cosine, evidence.length, evidence.reason,
                ),
            )  # fmt: skip
            self._db.execute(
                "delete from evidence where number <= (select max(number) from evidence) - ?", (MAX_EVIDENCE,)
            )

    def evidence(self, limit: int = MAX_EVIDENCE) -> list[Evidence]:
        """The newest first."""
        rows = self._rows(
            "select evidence.at, evidence.peer, model, layer, call_index, pairs, request, answer, other, "
            "other_answer, cosine, length, reason, "
            "case when number <= pardons.last_number then pardons.at else 0.0 end "
            "from evidence left join pardons on pardons.peer = evidence.peer order by number desc limit ?",
            limit,
        )
        return [Evidence(*row) for row in rows]

    def pardon(self, peer_id: str, now: float) -> None:
        """The owner forgives a peer: nothing stands against it, and its evidence is marked.

        Args:
            now: unix time.

        Raises:
            LocalError: it cannot be written.
        """
        with self._written():
            self._db.execute("delete from strikes where peer = ?", (peer_id,))
            self._db.execute(
                "insert or replace into pardons "
                "select peer, ?, max(number) from evidence where peer = ? group by peer",
                (now, peer_id),
            )
            self._db.execute("delete from pardons where peer not in (select peer from evidence)")

    def dealings(self) -> list[tuple[str, Dealings]]:
        """Own experience with peers."""
        rows = self._rows("select peer, answers, agreed, paid from standing")
        return [(peer, Dealings(answers, agreed, paid)) for peer, answers, agreed, paid in rows]

    def keep_dealings(self, dealings: Iterable[tuple[str, Dealings]]) -> None:
        """Own experience, all of it.

        Raises:
            LocalError: it cannot be written.
        """
        with self._written():
            self._db.execute("delete from standing")
            self._db.executemany(
                "insert into standing values (?, ?, ?, ?)",
                [(peer, each.answers, each.agreed, each.paid) for peer, each in dealings],
            )

    def tallies(self) -> list[tuple[str, Tally]]:
        """How audits of peers went, whoever was audited longest ago first."""
        rows = self._rows("select peer, checked, agreed, build from checks order by rowid")
        return [(peer, Tally(checked, agreed, build)) for peer, checked, agreed, build in rows]

    def keep_tallies(self, tallies: Iterable[tuple[str, Tally]]) -> None:
        """How audits of peers went, all of it.

        Raises:
            LocalError: it cannot be written.
        """
        with self._written():
            self._db.execute("delete from checks")
            self._db.executemany(
                "insert into checks values (?, ?, ?, ?)",
                [(peer, each.checked, each.agreed, each.build) for peer, each in tallies],
            )

    def _rows(self, query: str, *values: object) -> list[Any]:
        """What a query finds.

        Raises:
            LocalError: the file is damaged.
        """
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise LocalError(f"{self.path}: cannot be read: {error}; move it away") from None

    @contextmanager
    def _written(self) -> Iterator[None]:
        """All of it or nothing."""
        try:
            with self._db:
                yield
        except sqlite3.IntegrityError:
            raise  # not the disk's fault
        except sqlite3.DatabaseError as error:
            raise LocalError(
                f"{self.path}: cannot be written: {error}; a restart forgets what has changed"
            ) from None
