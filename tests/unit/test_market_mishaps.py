"""What goes wrong with a node's market without anybody's ill will: clocks, disks, absences."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from market import ledger_file_sqlite
from market.accounts_payee import MOST_UNSIGNED
from market.books import Books
from market.credit_line import Terms
from market.evidence_sqlite import AuditBook
from market.ledger_sqlite import SqliteLedger
from market.quarantine import Strikes
from market.quotes import OwnQuotes
from market.receipt import Kind, epoch_of
from market.reputation import Dealings
from market.scarcity import MAX_RATIO
from node.config.shape import MAX_CAP_RATIO
from node.market.priced import PricedCalls
from node.market.quotes_port import OwnPrices
from routing.errors import LocalError
from tests.market_books import LAYER, MODEL, NOW, PRICE, RICH, Side, experts, folder, greet, say, settle
from tests.unit.test_market_bounds import call
from tests.unit.test_quarantine import EVIDENCE

DAY = 86_400.0


@pytest.fixture
def pair() -> Iterator[tuple[Side, Side]]:
    """A payer and a payee with credit enough."""
    with folder() as path:
        sides = Side("payer", path), Side("payee", path)
        yield sides
        for side in sides:
            side.ledger.close()


def test_a_clock_in_1970_spoils_no_file(pair: tuple[Side, Side]) -> None:
    """A board without a clock of its own starts there, and is told the time later."""
    payer, payee = pair
    for now in (0.0, 100.0, NOW):
        greet(payer, payee, now)
        assert payee.serve(payer, 1_000, now) == ""
        assert settle(payer, payee, now) == ""
        payer.restart()
        payee.restart()
    assert payee.owed_by(payer) == 3_000 * PRICE == -payer.owed_by(payee)


@pytest.mark.parametrize("jumps", [(-3_600, -3_600), (3 * DAY, 3 * DAY), (40 * DAY, 0), (-400 * DAY, 0)])
def test_clocks_that_jump_lose_nothing(pair: tuple[Side, Side], jumps: tuple[float, float]) -> None:
    """An hour back by NTP; a suspended laptop; a wrong year on both that is put right."""
    payer, payee = pair
    for at, jump in enumerate((0.0, *jumps, jumps[-1])):
        now = NOW + 900 * at + jump
        assert payee.serve(payer, 1_000, now) == ""
        assert settle(payer, payee, now) == ""
    assert payee.owed_by(payer) == 4_000 * PRICE == -payer.owed_by(payee)
    assert not payee.account(payer).fault and not payer.account(payee).fault


def test_who_comes_back_when_its_quote_is_over_can_still_sign_for_all_it_had(pair: tuple[Side, Side]) -> None:
    """It owes as much as may go unsigned, so it gets no work, and by that no newer quote to sign by."""
    payer, payee = pair
    own = OwnQuotes()
    cells = {LAYER: (np.arange(60), np.full(60, PRICE))}
    own.issue(MODEL.hex(), cells, NOW, 4_000)
    prices = OwnPrices()
    prices.quotes = own
    terms = Terms(RICH.credit_line, MOST_UNSIGNED)
    payee.books = Books(payee.identity, terms, prices, payee.ledger.load(NOW))
    greet(payer, payee, NOW)
    pairs = MOST_UNSIGNED // PRICE
    assert payee.serve(payer, pairs, NOW) == ""
    later = NOW + DAY / 4
    own.issue(MODEL.hex(), cells, later, 4_000)
    own.issue(MODEL.hex(), cells, later + 1_000, 4_000)
    assert not prices.valid(payer.prices.number, later)
    assert payee.serve(payer, 100, later) != ""
    assert settle(payer, payee, later) == ""
    assert payee.owed_by(payer) == pairs * PRICE and payee.account(payer).unsigned == 0
    # For less than it had, the quote matters.
    payee.books.payee.served(payer.peer, MODEL, LAYER, experts(1_000), later)
    payer.books.payer.answered(payee.peer, MODEL, LAYER, experts(500), payer.prices, later)
    assert "is over" in settle(payer, payee, later)


def full(database: sqlite3.Connection) -> None:
    """No page more fits on the disk."""
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count = {pages}")


def test_a_full_disk_stops_receipts_and_nothing_else(pair: tuple[Side, Side]) -> None:
    """What is not written is not signed. Work goes on within what may go unsigned; then all is caught up."""
    payer, payee = pair
    greet(payer, payee, NOW)
    assert payee.serve(payer, 1_000, NOW) == "" and settle(payer, payee, NOW) == ""
    full(payee.ledger._db)
    fine, failed = 0, ""
    for hour in range(1, 200):
        now = NOW + hour * 3_600
        assert payee.serve(payer, 1_000, now) == ""
        step = payer.books.offer(payee.peer, now)
        assert step is not None
        try:
            reply = payee.do(payee.books.received(payer.peer, payer.do(step), now))
        except LocalError as error:
            failed = str(error)
            break
        payer.do(payer.books.replied(payee.peer, reply, now))
        fine += 1
    assert "full" in failed and "check the disk" in failed
    assert payee.account(payer).standing.consumed == (1 + fine) * 1_000 * PRICE
    payee.ledger._db.execute("PRAGMA max_page_count = 100000")
    assert settle(payer, payee, now + 10) == ""
    assert payee.owed_by(payer) == (2 + fine) * 1_000 * PRICE
    payee.restart()
    assert payee.owed_by(payer) == (2 + fine) * 1_000 * PRICE


def test_a_full_disk_is_one_line_of_the_audits_book(tmp_path: Path) -> None:
    book = AuditBook(tmp_path / "audit.db")
    full(book._db)
    with pytest.raises(LocalError, match=r"audit\.db: cannot be written: database or disk is full"):
        book.keep_dealings([(f"peer {number}" * 20, Dealings(5, 0.5, 2.0)) for number in range(500)])
    assert book.dealings() == []
    book._db.execute("PRAGMA max_page_count = 100000")
    book.strike("liar", Strikes(1, NOW + 60, NOW), EVIDENCE)
    assert [peer for peer, _ in book.strikes()] == ["liar"]
    book.close()


def test_what_config_calls_a_range_is_what_prices_call_one() -> None:
    assert MAX_CAP_RATIO == MAX_RATIO


def test_epochs_begin_at_one() -> None:
    assert [epoch_of(now) for now in (-5.0, 0.0, 3_599.9, 7_200.0)] == [1, 1, 1, 2]


def test_a_ledger_of_another_process_is_left_alone(tmp_path: Path) -> None:
    """Two nodes from one folder: the one that opened it last writes, the other says so and signs nothing."""
    first = SqliteLedger(tmp_path / "market.db")
    second = SqliteLedger(tmp_path / "market.db")
    with pytest.raises(LocalError, match="another process"):
        first.write(())
    second.write(())
    first.close()
    second.close()


def test_a_file_that_cannot_be_written_is_not_called_damaged(tmp_path: Path) -> None:
    """Who is told to move it away, and does, has lost what was fine."""
    path = tmp_path / "market.db"
    SqliteLedger(path).close()
    holder = sqlite3.connect(path)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_file_sqlite, "BUSY_SECONDS", 0.0)
        with pytest.raises(LocalError, match=r"database is locked.*check the disk; what is in it stays"):
            SqliteLedger(path)
    holder.close()
    path.write_bytes(b"something else entirely " * 100)
    with pytest.raises(LocalError, match="move it and its -wal file away"):
        SqliteLedger(path)


def test_what_a_killed_payer_has_forgotten_is_cleared_by_what_it_signs_later(pair: tuple[Side, Side]) -> None:
    """It has lost ten seconds' work, which it never signed for. Each later receipt clears a fiftieth of what
    it says: after some ten minutes' work at the same pace nothing is left, and nobody was kept waiting."""
    payer, payee = pair
    greet(payer, payee, NOW)
    pairs = 4 * 384  # ten seconds at 2.6 s a token
    assert payee.serve(payer, pairs, NOW) == "" and settle(payer, payee, NOW) == ""
    assert payee.serve(payer, pairs, NOW) == ""
    payer.restart()
    assert settle(payer, payee, NOW) == "" and payee.account(payer).unsigned == pairs * PRICE
    left = []
    for turn in range(1, 60):
        assert payee.serve(payer, pairs, NOW + 10 * turn) == ""
        assert settle(payer, payee, NOW + 10 * turn) == ""
        left.append(payee.account(payer).unsigned)
    assert left == sorted(left, reverse=True) and left[40] > 0 == left[49]
    assert payee.owed_by(payer) == 60 * pairs * PRICE == -payer.owed_by(payee)


def test_the_file_counts_as_due_what_a_restart_would_find_due(pair: tuple[Side, Side]) -> None:
    """A reply is lost at the hour's end: the receipt of the next one says nothing that the first did not."""
    payer, payee = pair
    greet(payer, payee, NOW)
    assert payee.serve(payer, 1_000, NOW) == ""
    first = payer.books.offer(payee.peer, NOW)
    assert first is not None
    payee.do(payee.books.received(payer.peer, payer.do(first), NOW))

    def due() -> list[int]:
        return [payer.pays(payee).due_credits, *(each.due for each in payer.ledger.balances())]

    assert due() == [1_000 * PRICE] * 2
    again = payer.books.offer(payee.peer, NOW + 3_600)
    assert again is not None
    said = say(payer, payee, payer.do(again), NOW + 3_600)
    assert said.again and due() == [0, 0]
    payer.restart()
    assert due() == [0, 0] and payer.pays(payee).pending is not None
    assert payer.owed_by(payee) == -1_000 * PRICE


def test_what_is_signed_for_while_it_is_given_up_is_given_up_no_more(pair: tuple[Side, Side]) -> None:
    """The owner forgives what a peer has not signed for; meanwhile the rest is given up anyway."""
    payer, payee = pair
    greet(payer, payee, NOW)
    assert payee.serve(payer, 1_000, NOW) == "" and settle(payer, payee, NOW) == ""
    payee.books.payee.served(payer.peer, MODEL, LAYER, experts(MOST_UNSIGNED // PRICE), NOW)
    account = payee.account(payer)
    step = payee.books.settle(payer.peer, account.standing.owes + account.unsigned, Kind.FORGIVEN, NOW + 700)
    assert payee.books.payee.refusal(payer.peer, NOW + 700, 100 * PRICE) == "", "it is let in again"
    assert account.unsigned == 0
    payee.do(step)
    assert account.unsigned == 0
    greet(payer, payee, NOW + 700)  # and what is left can be told


def test_looking_at_balances_after_a_restart_gives_newcomers_nothing_new(pair: tuple[Side, Side]) -> None:
    """Whoever makes a node with an open page start again would get the day's credit once more."""
    payer, payee = pair
    terms = Terms(RICH.credit_line, 10**7)
    payee.books = Books(payee.identity, terms, payee.prices, payee.ledger.load(NOW))
    greet(payer, payee, NOW)
    assert payee.serve(payer, 3_000, NOW) == "" and settle(payer, payee, NOW) == ""
    payee.do(payee.books.flush())
    payee.books = Books(payee.identity, terms, payee.prices, payee.ledger.load(NOW))
    for now in (0.0, NOW, NOW + DAY, NOW):
        (balance,) = payee.books.balances(now)
        left = 10**7 - (3_000 * PRICE if now == NOW else 0)
        assert balance.limit == 3_000 * PRICE + left, "what it had, and what it could have"
    assert payee.books.payee.pool.left("", NOW) == 10**7 - 3_000 * PRICE
    assert payee.books.flush().write == (), "nothing was drawn since"


def test_one_call_may_cost_more_than_goes_unsigned(pair: tuple[Side, Side]) -> None:
    """Prompts of a large model do. All before it has to be signed for, and nothing else be under way."""
    payer, payee = pair
    refusal = payee.books.payee.refusal
    greet(payer, payee, NOW)
    dear = 3 * MOST_UNSIGNED
    assert "go unsigned" in refusal(payer.peer, NOW, dear), "beside others"
    assert refusal(payer.peer, NOW, dear, is_alone=True) == ""
    payee.books.payee.served(payer.peer, MODEL, LAYER, experts(dear // PRICE), NOW)
    payer.books.payer.answered(payee.peer, MODEL, LAYER, experts(dear // PRICE), payer.prices, NOW)
    for cost in (PRICE, dear):
        assert "go unsigned" in refusal(payer.peer, NOW, cost, is_alone=True), "until it is signed for"
    assert settle(payer, payee, NOW) == ""
    assert refusal(payer.peer, NOW, dear, is_alone=True) == ""
    payee.books = Books(payee.identity, Terms(dear - 1, dear - 1), payee.prices, payee.ledger.load(NOW))
    other = "12D3KooWNobody"
    assert "may owe" in payee.books.payee.refusal(other, NOW, dear, is_alone=True), "within the line only"


def test_reading_makes_no_accounts(pair: tuple[Side, Side]) -> None:
    payer, payee = pair
    greet(payer, payee, NOW)
    assert payee.serve(payer, 1_000, NOW) == "" and settle(payer, payee, NOW) == ""
    before = {account.peer: set(account.issues) for account in payee.books._registry.everybody()}
    payee.books.balances(NOW)
    payee.books.given()
    assert payee.books.payer.due(NOW) == payee.books.payer.open_accounts() == []
    assert not payee.books.payer.urgent("12D3KooWNobody") and not payee.books.fault_of("12D3KooWNobody")
    after = {account.peer: set(account.issues) for account in payee.books._registry.everybody()}
    assert after == before == {payer.peer: set()}


def test_most_at_stake_is_shown_first_and_all_is_summed(pair: tuple[Side, Side]) -> None:
    payer, payee = pair
    greet(payer, payee, NOW)
    assert payee.serve(payer, 1_000, NOW) == "" and settle(payer, payee, NOW) == ""
    for number in range(5):
        payee.books.payee.served(f"caller {number}", MODEL, LAYER, experts(100 * number), NOW)
    told = payee.books.shown(NOW, 3)
    assert [each.peer for each in told.balances] == [payer.peer, "caller 4", "caller 3"]
    assert (told.owed, told.owes, told.left_out) == (1_000 * PRICE, 0, 2)
    assert [each.peer for each in payee.books.balances(NOW)][3:] == ["caller 2", "caller 1"]


def test_a_dear_call_is_served_where_nothing_else_is_under_way(pair: tuple[Side, Side]) -> None:
    payer, payee = pair
    greet(payer, payee, NOW)
    calls = PricedCalls(payee.books.payee, payee.prices, lambda: NOW)
    payee.prices.price = 100 * PRICE
    dear, cheap = call(2 * MOST_UNSIGNED // payee.prices.price), call(1)
    assert calls.refusal(payer.peer, cheap) == ""
    assert "go unsigned" in calls.refusal(payer.peer, dear)
    calls.dropped(payer.peer, cheap)
    assert calls.refusal(payer.peer, dear) == ""
    assert "go unsigned" in calls.refusal(payer.peer, cheap)
    calls.served(payer.peer, dear)
    assert "go unsigned" in calls.refusal(payer.peer, cheap), "it is to be signed for first"


def test_what_was_countersigned_long_ago_is_not_signed_for_once_more(pair: tuple[Side, Side]) -> None:
    """The answer was lost, and the two did not meet again for longer than old receipts are believed."""
    payer, payee = pair
    greet(payer, payee, NOW)
    assert payee.serve(payer, 1_000, NOW) == ""
    step = payer.books.offer(payee.peer, NOW)
    assert step is not None
    lost = payee.do(payee.books.received(payer.peer, payer.do(step), NOW))
    assert lost and payee.owed_by(payer) == 1_000 * PRICE
    for late in (40 * DAY, 41 * DAY):
        payer.restart()
        assert settle(payer, payee, NOW + late) == ""
        assert payee.serve(payer, 1_000, NOW + late) == ""
        assert settle(payer, payee, NOW + late) == ""
    assert payee.owed_by(payer) == 3_000 * PRICE == -payer.owed_by(payee)


def test_an_orderly_end_signs_for_nothing_twice(pair: tuple[Side, Side]) -> None:
    """The answer to a receipt was lost; the payer is stopped and started in later hours, and the two do not
    meet for longer than old receipts are believed."""
    payer, payee = pair
    greet(payer, payee, NOW)
    assert payee.serve(payer, 1_000, NOW) == ""
    step = payer.books.offer(payee.peer, NOW)
    assert step is not None
    payee.do(payee.books.received(payer.peer, payer.do(step), NOW))
    assert payer.books.sign_all(payee.peer, NOW + DAY) is None
    payer.restart()
    assert settle(payer, payee, NOW + 40 * DAY) == ""
    assert payee.owed_by(payer) == 1_000 * PRICE == -payer.owed_by(payee)
