"""What is in a ledger's file, as records: reading only."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from market.ledger import AccountState, Balance, Evidence, LedgerState, StreamState
from market.receipt import Kind, SignedReceipt
from market.standing import Standing
from market.stream import beyond


@dataclass(frozen=True, slots=True)
class ReceiptRow:
    """A receipt in the file: of each stream and epoch the last full one, and the one that waits."""

    peer: str
    we_pay: bool
    signed: SignedReceipt


def read_state(db: sqlite3.Connection) -> LedgerState:
    """All that a process goes on from."""
    streams: dict[str, list[StreamState]] = {}
    for peer, we_pay, kind, pairs, credits in db.execute(
        "SELECT peer, we_pay, kind, pairs, credits FROM stream ORDER BY peer, we_pay, kind"
    ):
        full = _last(db, peer, we_pay, kind, is_full=True)
        pending = _last(db, peer, we_pay, kind, is_full=False)
        state = StreamState(bool(we_pay), Kind(kind), pairs, credits, full[0], full[1], pending[0])
        streams.setdefault(peer, []).append(state)
    accounts = tuple(
        AccountState(peer, granted, fault, tuple(streams.get(peer, ())))
        for peer, granted, fault in db.execute("SELECT peer, granted, fault FROM account ORDER BY peer")
    )
    drawn = db.execute("SELECT day, subnet, credits FROM drawn")
    return LedgerState(accounts, {(day, subnet): credits for day, subnet, credits in drawn})


def read_receipts(db: sqlite3.Connection, peer: str, since_epoch: int, limit: int) -> list[ReceiptRow]:
    """Receipts, those of the latest epochs first; of one peer, or "" of all."""
    rows = db.execute(
        "SELECT peer, we_pay, signed FROM receipt WHERE epoch >= ? AND (? = '' OR peer = ?) "
        "ORDER BY epoch DESC, peer, we_pay, kind, is_full DESC LIMIT ?",
        (since_epoch, peer, peer, limit),
    )
    return [ReceiptRow(who, bool(we_pay), SignedReceipt.decode(data)) for who, we_pay, data in rows]


def read_evidence(db: sqlite3.Connection, limit: int) -> list[Evidence]:
    """Proofs of double signing, the latest first."""
    rows = db.execute(
        "SELECT peer, why, one, other, at, id FROM evidence ORDER BY id DESC LIMIT ?", (limit,)
    ).fetchall()
    pardons = _pardons(db)
    return [
        Evidence(
            peer, why, SignedReceipt.decode(one), SignedReceipt.decode(other), at,
            pardoned=pardons[peer][0] if peer in pardons and number <= pardons[peer][1] else 0,
        )
        for peer, why, one, other, at, number in rows
    ]  # fmt: skip


def _pardons(db: sqlite3.Connection) -> dict[str, tuple[int, int]]:
    """When peers were pardoned, and the last proof that it was for; none in a file of before."""
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'pardon'").fetchone() is None:
        return {}
    return {peer: (at, proof) for peer, at, proof in db.execute("SELECT peer, at, proof FROM pardon")}


def balance_of(account: AccountState) -> Balance:
    """How we stand with a peer, by what is in the file."""
    standing = Standing()
    due = waiting = last_epoch = 0
    for stream in account.streams:
        standing.add(stream.we_pay, stream.kind, stream.total_credits)
        if stream.full is not None:
            last_epoch = max(last_epoch, stream.full.receipt.epoch)
        if stream.pending is not None and stream.we_pay and stream.kind is Kind.WORK:
            due = _due_by(stream.pending, stream.full)
        elif stream.pending is not None and not stream.we_pay:
            waiting += _due_by(stream.pending, stream.full)
    return Balance(
        account.peer,
        *standing.sums(),
        due=due,
        granted=account.granted,
        last_epoch=last_epoch,
        fault=account.fault,
        waiting=waiting,
    )


def _last(
    db: sqlite3.Connection, peer: str, we_pay: int, kind: int, *, is_full: bool
) -> tuple[SignedReceipt | None, SignedReceipt | None]:
    """A stream's receipt of the latest epoch, and of the one before."""
    rows = db.execute(
        "SELECT signed FROM receipt WHERE peer = ? AND we_pay = ? AND kind = ? AND is_full = ? "
        "ORDER BY epoch DESC LIMIT 2",
        (peer, we_pay, kind, int(is_full)),
    ).fetchall()
    found = [SignedReceipt.decode(data) for (data,) in rows]
    return (found[0] if found else None, found[1] if len(found) > 1 else None)


def _due_by(pending: SignedReceipt, full: SignedReceipt | None) -> int:
    _, credits = beyond(pending.receipt, None if full is None else full.receipt)
    return credits
