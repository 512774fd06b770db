"""The ledger's file: what is written is there, what is damaged is refused in one line, growth has an end."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from market.account import Account
from market.ledger import (
    FORGET_EPOCHS,
    MAX_EVIDENCE,
    Drawn,
    Entry,
    Evidence,
    Forgotten,
    Granted,
    Record,
)
from market.ledger_sqlite import SqliteLedger
from market.receipt import EPOCH_SECONDS, Kind, Receipt, SignedReceipt, epoch_of, sign
from market.registry import MAX_STRANGERS, Registry
from routing.errors import LocalError
from tests.market_books import MODEL, NOW, PRICE, QUOTE, Side, folder, identity, settle

ANN, BOB = identity("ann"), identity("bob")
EPOCH = epoch_of(NOW)


@pytest.fixture
def path() -> Iterator[Path]:
    with folder() as path:
        yield path / "market.db"


def proposed(n: int, credits: int, epoch: int = EPOCH, previous: tuple[int, int] = (0, 0)) -> SignedReceipt:
    """Ann owes Bob."""
    receipt = Receipt(
        Kind.WORK, ANN.peer_id, BOB.peer_id, epoch, n, previous, credits // PRICE, credits, MODEL.hex(), QUOTE
    )
    return sign(receipt, ANN.private_key)


def full(n: int, credits: int, epoch: int = EPOCH, previous: tuple[int, int] = (0, 0)) -> SignedReceipt:
    return proposed(n, credits, epoch, previous).countersigned(BOB.private_key)


def entry(signed: SignedReceipt) -> Entry:
    """In Ann's ledger."""
    return Entry(BOB.peer_id, True, signed)


def test_what_is_written_is_read_again(path: Path) -> None:
    ledger = SqliteLedger(path)
    earlier, last = full(1, 100), full(2, 50, EPOCH + 1, (EPOCH, 1))
    pending = proposed(3, 80, EPOCH + 1, (EPOCH, 1))
    drawn = Drawn(((7, "192.0.2.0/24", 3), (7, "", 4)))
    ledger.write([entry(earlier), entry(last), entry(pending), Granted(BOB.peer_id, 9), drawn])
    ledger.close()
    state = SqliteLedger(path).load(NOW)
    (account,) = state.accounts
    (stream,) = account.streams
    assert (account.peer, account.granted, account.fault) == (BOB.peer_id, 9, "")
    assert (stream.we_pay, stream.kind, stream.total_credits) == (True, Kind.WORK, 150)
    assert (stream.earlier, stream.full, stream.pending) == (earlier, last, pending)
    assert state.drawn == {(7, "192.0.2.0/24"): 3, (7, ""): 4}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("again", [full(2, 100), full(1, 60), proposed(2, 100), full(9, 9_000, EPOCH - 1)])
def test_a_receipt_that_is_behind_changes_nothing(path: Path, again: SignedReceipt) -> None:
    ledger = SqliteLedger(path)
    ledger.write([entry(full(2, 100))])
    before = ledger.load(NOW)
    ledger.write([entry(again)])
    assert ledger.load(NOW) == before
    ledger.close()
    assert SqliteLedger(path).load(NOW) == before


def test_a_full_receipt_takes_the_place_of_what_waited_for_it(path: Path) -> None:
    ledger = SqliteLedger(path)
    ledger.write([entry(proposed(1, 100)), entry(proposed(2, 200))])
    assert ledger.balances()[0].due == 200
    ledger.write([entry(full(1, 100))])  # the second still waits
    assert (ledger.balances()[0].owes_us, ledger.balances()[0].due) == (-100, 100)
    ledger.write([entry(full(2, 200))])
    assert (ledger.balances()[0].owes_us, ledger.balances()[0].due) == (-200, 0)
    (row,) = ledger.receipts()
    assert row.we_pay and row.signed == full(2, 200)


def test_a_write_is_all_or_nothing(path: Path) -> None:
    ledger = SqliteLedger(path)

    bad: list[Record] = [entry(full(1, 100)), Drawn(((1, "", 2**80),))]
    with pytest.raises((LocalError, OverflowError)):
        ledger.write(bad)
    assert ledger.load(NOW).accounts == ()


def test_another_process_may_read_and_not_write(path: Path) -> None:
    with pytest.raises(LocalError, match="there are no accounts yet"):
        SqliteLedger.reading(path)
    writer = SqliteLedger(path)
    reader = SqliteLedger.reading(path)
    writer.write([entry(full(1, 100))])
    assert reader.balances() == writer.balances() != []
    assert reader.receipts(peer=BOB.peer_id, since_epoch=EPOCH) == writer.receipts()
    assert reader.receipts(since_epoch=EPOCH + 1) == reader.receipts(peer="nobody") == []
    with pytest.raises(LocalError, match="was opened to be read"):
        reader.write([entry(full(2, 200))])


def test_a_second_writer_ends_the_first(path: Path) -> None:
    first = SqliteLedger(path)
    first.write([entry(full(1, 100))])
    second = SqliteLedger(path)
    with pytest.raises(LocalError, match="written by another process now"):
        first.write([entry(full(2, 200))])
    second.write([entry(full(2, 300))])
    assert second.balances()[0].owes_us == -300


def change(path: Path, statement: str) -> None:
    db = sqlite3.connect(path)
    with db:
        db.execute(statement)
    db.close()


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE stream SET credits = credits + 1", "do not add up"),
        ("UPDATE stream SET folded_pairs = 1", "do not add up"),
        ("DELETE FROM receipt", "do not add up"),
        ("DELETE FROM stream", "do not add up"),
        ("PRAGMA user_version = 2", "version 2, this program knows 1: update panal"),
        ("PRAGMA application_id = 5", "another program's"),
        ("DROP TABLE receipt", "no such table"),
    ],
)
def test_a_ledger_that_does_not_add_up_is_refused(path: Path, statement: str, said: str) -> None:
    ledger = SqliteLedger(path)
    ledger.write([entry(full(1, 100))])
    ledger.close()
    change(path, statement)
    for opened in (SqliteLedger, SqliteLedger.reading):
        with pytest.raises(LocalError, match=said) as caught:
            opened(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)
        assert "move it" in str(caught.value)


@pytest.mark.parametrize(
    ("statement", "said", "read"),
    [
        ("UPDATE receipt SET n = 7", "says something else than its row", ""),
        ("UPDATE receipt SET signed = x'0102'", "2 bytes, not", "2 bytes, not"),
        ("UPDATE receipt SET signed = 'text'", "a receipt of", "4 bytes, not"),
        ("UPDATE receipt SET signed = hex(signed)", "a receipt of", "not 202 or 266"),
        ("UPDATE receipt SET signed = substr(hex(signed), 1, 202)", "a receipt of", "bytes-like"),
    ],
)
def test_a_receipt_is_looked_at_by_who_will_write_or_reads_it(
    path: Path, statement: str, said: str, read: str
) -> None:
    """Of a full file that takes more than a second, and a command opens it several times."""
    ledger = SqliteLedger(path)
    ledger.write([entry(full(1, 100))])
    ledger.close()
    change(path, statement)
    reader = SqliteLedger.reading(path)
    for each in (reader.balances, reader.receipts):
        if read:
            with pytest.raises(LocalError, match=read) as caught:
                each()
            assert "move it" in str(caught.value)
        else:
            assert len(list(each())) == 1
    reader.close()
    with pytest.raises(LocalError, match=said) as caught:
        SqliteLedger(path)
    assert "move it" in str(caught.value)


@pytest.mark.parametrize("place", [0, 30, 110, 4_096 + 5, -1])
def test_a_damaged_file_is_refused(path: Path, place: int) -> None:
    ledger = SqliteLedger(path)
    ledger.write([entry(full(1, 100))])
    ledger.close()
    data = bytearray(path.read_bytes())
    if place < 0:
        place = data.index(full(1, 100).encode()) - 10  # the row of the receipt
    data[place : place + 60] = b"\xa5" * 60
    path.write_bytes(data)
    with pytest.raises(LocalError, match="can't be used as a ledger") as caught:
        SqliteLedger(path)
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_refused(path: Path) -> None:
    path.mkdir()
    with pytest.raises(LocalError, match="not a regular file"):
        SqliteLedger(path)


def test_old_hours_are_folded_into_the_totals(path: Path) -> None:
    ledger = SqliteLedger(path, max_receipts=5)
    previous = (0, 0)
    for number in range(12):
        ledger.write([entry(full(number + 1, 1_000 + number, EPOCH + number, previous))])
        previous = (EPOCH + number, number + 1)
    balances = ledger.balances()
    before = ledger.load(NOW)
    ledger.close()
    ledger = SqliteLedger(path, max_receipts=5)  # folds as it opens
    assert len(ledger.receipts()) == 5
    assert ledger.balances() == balances
    assert balances[0].owes_us == -sum(1_000 + number for number in range(12))
    assert ledger.load(NOW) == before
    ledger.close()
    SqliteLedger(path).close()  # and it still adds up


def test_evidence_is_kept_and_bounded(path: Path) -> None:
    ledger = SqliteLedger(path)
    one, other = full(1, 100), proposed(1, 90)
    for number in range(MAX_EVIDENCE + 3):
        ledger.write([Evidence(BOB.peer_id, f"why {number}", one, other, number)])
    kept = ledger.evidence()
    assert len(kept) == MAX_EVIDENCE
    assert kept[0] == Evidence(BOB.peer_id, f"why {MAX_EVIDENCE + 2}", one, other, MAX_EVIDENCE + 2)
    assert ledger.load(NOW).accounts[0].fault == f"why {MAX_EVIDENCE + 2}"


def test_what_cannot_be_written_has_not_happened(path: Path) -> None:
    ann, bob = Side("ann", path.parent), Side("bob", path.parent)
    bob.serve(ann, 1_000, NOW)
    bob.ledger.close()  # as a disk that is gone
    with pytest.raises(LocalError, match="can't be written"):
        settle(ann, bob, NOW)
    assert bob.owed_by(ann) == 0
    assert bob.account(ann).unsigned == 1_000 * PRICE
    bob.restart()
    ann.books.account(bob.peer).caught_up = False
    assert settle(ann, bob, NOW) == ""
    assert bob.owed_by(ann) == -ann.owed_by(bob) == 1_000 * PRICE


# --- who is forgotten ---


def registered(registry: Registry, name: str, signed: SignedReceipt, *, we_pay: bool = False) -> Account:
    """An account with one receipt."""
    account = registry.account(name)
    account.stream(we_pay, Kind.WORK).take(signed)
    account.standing.add(we_pay, Kind.WORK, signed.receipt.credits)
    registry.keep(account, ())
    return account


def test_accounts_make_room_in_the_order_of_what_is_lost() -> None:
    gone: list[str] = []
    registry = Registry(ANN.peer_id, lambda account: gone.append(account.peer), max_peers=5)
    registered(registry, "owes much", full(1, 9_000)).counted = 9_000
    registered(registry, "owes little", full(1, 10)).counted = 10
    registered(registry, "is owed", full(1, 10), we_pay=True)
    quits = registered(registry, "even", full(1, 10, EPOCH - FORGET_EPOCHS - 1))
    quits.standing.add(True, Kind.WORK, 10)
    quits.issuing(True, Kind.WORK).take(full(1, 10, EPOCH - FORGET_EPOCHS - 1))
    recent = registered(registry, "even, of late", full(1, 10))
    recent.standing.add(True, Kind.WORK, 10)
    recent.issuing(True, Kind.WORK).take(full(1, 10))
    for wanted in ("even", "owes little", "owes much"):
        room = registry.room(registry.account("new"), NOW)
        assert room == (Forgotten(wanted),)
        registry.keep(registered(registry, f"instead of {wanted}", full(1, 10), we_pay=True), room)
    # those whom we owe, and those whose old receipts could still be shown to us, stay
    assert registry.room(registry.account("one more"), NOW) is None
    assert gone == ["even", "owes little", "owes much"]


def test_strangers_are_bounded() -> None:
    gone: list[str] = []
    registry = Registry(ANN.peer_id, lambda account: gone.append(account.peer))
    for number in range(MAX_STRANGERS + 10):
        registry.account(f"peer {number}")
    assert gone == [f"peer {number}" for number in range(10)]
    assert len(list(registry.everybody())) == MAX_STRANGERS


def test_who_was_forgotten_cannot_bring_back_one_half_of_an_account(path: Path) -> None:
    """Ann and Bob came out even, and Ann forgot; Bob shows what she owed him, and not what he owed her."""
    ann, bob = Side("ann", path.parent), Side("bob", path.parent)
    for payer, payee in ((ann, bob), (bob, ann)):
        payee.serve(payer, 1_000, NOW)
        settle(payer, payee, NOW)
    assert ann.owed_by(bob) == 0
    later = NOW + (FORGET_EPOCHS + 1) * EPOCH_SECONDS
    ann.ledger.write([Forgotten(bob.peer)])
    ann.restart()
    ann.books.account(bob.peer).caught_up = False
    bob.account(ann).accepts.clear()
    assert settle(bob, ann, later) == ""
    assert ann.owed_by(bob) == 0
    # and both go on: what Ann has forgotten does not keep her from paying
    bob.books.account(ann.peer)
    assert bob.serve(ann, 10, later) == ""
    assert settle(ann, bob, later) == ""
    assert ann.owed_by(bob) == -10 * PRICE


def test_a_debtor_that_was_forgotten_may_go_on(path: Path) -> None:
    ann, bob = Side("ann", path.parent), Side("bob", path.parent)
    bob.serve(ann, 1_000, NOW)
    settle(ann, bob, NOW)
    bob.ledger.write([Forgotten(ann.peer)])
    bob.restart()
    later = NOW + FORGET_EPOCHS * EPOCH_SECONDS
    bob.serve(ann, 10, later)
    assert settle(ann, bob, later) == ""
    assert bob.owed_by(ann) == 10 * PRICE


def test_a_payer_that_has_forgotten_a_payee_that_has_not_may_go_on(path: Path) -> None:
    ann, bob = Side("ann", path.parent), Side("bob", path.parent)
    bob.serve(ann, 1_000, NOW)
    settle(ann, bob, NOW)
    ann.ledger.write([Forgotten(bob.peer)])
    ann.restart()
    later = NOW + FORGET_EPOCHS * EPOCH_SECONDS
    bob.serve(ann, 10, later)
    assert settle(ann, bob, later) == ""
    assert bob.owed_by(ann) == 1_010 * PRICE
    assert ann.owed_by(bob) == -10 * PRICE
    assert not bob.account(ann).fault


def test_a_changed_signature_never_gets_in(path: Path) -> None:
    ann, bob = Side("ann", path.parent), Side("bob", path.parent)
    bob.serve(ann, 1_000, NOW)
    settle(ann, bob, NOW)
    assert bob.account(ann).accepting(False, Kind.WORK).full is not None
    rows = bob.ledger.receipts()
    assert [row.signed.fault() for row in rows] == [""]
    assert replace(rows[0].signed, second=bytes(64)).fault() != ""
