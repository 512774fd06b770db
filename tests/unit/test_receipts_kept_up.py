"""Nothing that waits for a peer keeps back what this node owes it, nor what it writes down when it ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import trio

from market.account import PUT_OFF_SECONDS
from market.accounts_payee import MOST_UNSIGNED
from market.credit_line import Terms
from market.credits import MICRO
from market.ledger import Drawn, Entry, Granted, Record
from market.receipt import EPOCH_SECONDS, Kind
from node.market.settling import Settler
from routing.errors import LocalError
from tests.market_books import NOW, PRICE, Side, folder, greet, say, settle

HOURS = 3
PAIRS = 1_000


@pytest.fixture
def path() -> Iterator[Path]:
    with folder() as path:
        yield path


def in_debt(creditor: Side, debtor: Side) -> float:
    """The debtor owes for work of several hours, by receipts; when that is done."""
    for hour in range(HOURS):
        now = NOW + hour * EPOCH_SECONDS
        assert not creditor.serve(debtor, PAIRS, now)
        assert not settle(debtor, creditor, now)
    return now


def test_a_settlement_that_the_debtor_cannot_take_keeps_back_no_receipt(path: Path) -> None:
    """Its file was lost, and with it the earlier hours that are settled: it can never take this one."""
    creditor, debtor = Side("creditor", path), Side("debtor", path)
    now = in_debt(creditor, debtor)
    debtor.ledger.close()
    for each in path.glob("debtor.db*"):
        each.unlink()
    debtor = Side("debtor", path)
    greet(creditor, debtor, now)
    assert -debtor.owed_by(creditor) == PAIRS * PRICE, "it knows of the last hour"
    creditor.do(creditor.books.settle(debtor.peer, HOURS * PAIRS * PRICE, Kind.PAID, now))
    served = 0
    while served < 2 * MOST_UNSIGNED:
        assert not debtor.serve(creditor, PAIRS * 10, now)
        served += PAIRS * 10 * PRICE
        now += 10.0
        assert "no receipt is known here" in settle(creditor, debtor, now)
    assert creditor.pays(debtor).due_credits == 0
    account = creditor.account(debtor)
    assert "no receipt is known here" in account.refused, "its owner is told, though the receipts were taken"
    # Without a new connection it waits its time, and so does nothing else.
    assert creditor.books.offer(debtor.peer, now + PUT_OFF_SECONDS - 1) is None
    assert debtor.peer not in creditor.books.payer.due(now + PUT_OFF_SECONDS - 1)
    assert debtor.peer in creditor.books.payer.due(now + PUT_OFF_SECONDS)
    again = creditor.books.offer(debtor.peer, now + PUT_OFF_SECONDS)
    assert again is not None and again.kind is Kind.PAID
    creditor.ledger.close()
    debtor.ledger.close()


def test_what_was_refused_is_told_until_it_is_taken(path: Path) -> None:
    creditor, debtor = Side("creditor", path), Side("debtor", path)
    now = in_debt(creditor, debtor)
    creditor.do(creditor.books.settle(debtor.peer, MICRO, Kind.PAID, now))
    account = debtor.account(creditor)
    standing, account.fault = account.standing, "two receipts number 1 say different things"
    greet(creditor, debtor, now)
    assert settle(creditor, debtor, now)
    assert creditor.account(debtor).refused and creditor.account(debtor).put_off
    account.fault, account.standing = "", standing
    assert not settle(creditor, debtor, now), "on a new connection it is offered at once"
    assert not creditor.account(debtor).refused and not creditor.account(debtor).put_off
    assert creditor.owed_by(debtor) == HOURS * PAIRS * PRICE - MICRO == -debtor.owed_by(creditor)
    for side in (creditor, debtor):
        side.ledger.close()


class Counted:
    """A ledger's file, and how often it was written."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self.writes = 0

    def write(self, records: Sequence[Record]) -> None:
        self.writes += 1
        self._side.ledger.write(records)


def test_at_the_end_all_that_is_owed_is_written_at_once(path: Path) -> None:
    """To three peers, to one of which a settlement waits too, and none of them is there."""
    with ExitStack() as open_files:
        node = Side("node", path)
        others = [Side(f"other {number}", path) for number in range(3)]
        for side in (node, *others):
            open_files.enter_context(closing(side.ledger))
        first = others[0]
        assert not node.serve(first, PAIRS, NOW) and not settle(first, node, NOW)
        node.do(node.books.settle(first.peer, MICRO, Kind.PAID, NOW))
        for other in others:
            greet(node, other, NOW)
            assert not other.serve(node, PAIRS, NOW)

        async def end() -> int:
            ledger = Counted(node)
            settler = Settler(node.books, ledger, lambda peer: None, lambda: NOW)  # type: ignore[arg-type]
            for other in others:
                settler.answered(other.peer)
            with trio.fail_after(30):
                await settler.finish(seconds=30.0)
            return ledger.writes

        writes = trio.run(end)
        assert writes <= 2, "what is signed, and what was granted"
        node.restart()
        assert [node.pays(other).due_credits for other in others] == [PAIRS * PRICE] * 3
        assert node.account(first).waiting == MICRO
        for other in others:
            assert not settle(node, other, NOW)
            assert -node.owed_by(other) == other.owed_by(node)
            assert other.is_paid_by(node).total_credits == PAIRS * PRICE


def test_what_could_not_be_written_at_the_end_was_not_signed(path: Path) -> None:
    node, other = Side("node", path), Side("other", path)
    greet(node, other, NOW)
    assert not other.serve(node, PAIRS, NOW)
    step = node.books.sign_all(other.peer, NOW)
    assert step is not None and len(step.write) == 1
    node.books.abandoned(step)
    assert node.pays(other).pending is None and not node.account(other).writing
    again = node.books.sign_all(other.peer, NOW)
    assert again is not None
    node.do(again)
    assert node.books.sign_all(other.peer, NOW) is None, "it is signed already"
    offer = node.books.offer(other.peer, NOW)
    assert offer is not None and not offer.write
    assert not say(node, other, offer.message, NOW).refused
    node.ledger.close()
    other.ledger.close()


class Broken:
    """A disk that takes nothing for a while."""

    def __init__(self, side: Side, failures: int) -> None:
        self._side = side
        self.failures = failures

    def write(self, records: Sequence[Record]) -> None:
        if self.failures:
            self.failures -= 1
            raise LocalError("the disk is full")
        self._side.ledger.write(records)


def test_what_the_pool_granted_is_written_once_the_disk_takes_it(path: Path) -> None:
    """Else a start gives newcomers the day's credit once more."""
    server, caller = Side("server", path, Terms(100 * MICRO, 100 * MICRO)), Side("caller", path)
    greet(server, caller, NOW)
    assert not server.serve(caller, PAIRS, NOW) and not settle(caller, server, NOW)
    assert not server.serve(caller, PAIRS, NOW)
    written = server.books.flush().write
    assert [type(each) for each in written] == [Granted, Drawn]

    async def end() -> None:
        broken = Broken(server, failures=1)
        settler = Settler(server.books, broken, lambda peer: None, lambda: NOW)  # type: ignore[arg-type]
        with trio.fail_after(30):
            await settler.finish()
            assert broken.failures == 0 and server.books.flush().write == written, "nothing is lost"
            await settler.finish()
        assert server.books.flush().write == ()

    trio.run(end)
    server.restart()
    assert server.account(caller).granted == 2 * PAIRS * PRICE
    assert server.books.payee.pool.left("", NOW) == 100 * MICRO - 2 * PAIRS * PRICE
    for side in (server, caller):
        side.ledger.close()


def test_a_receipt_that_could_not_be_written_takes_its_grant_with_it(path: Path) -> None:
    server, caller = Side("server", path, Terms(100 * MICRO, 100 * MICRO)), Side("caller", path)
    greet(caller, server, NOW)
    assert not server.serve(caller, PAIRS, NOW)
    offer = caller.books.offer(server.peer, NOW)
    assert offer is not None
    message = caller.do(offer)
    step = server.books.received(caller.peer, message, NOW)
    assert [type(each) for each in step.write] == [Granted, Entry]
    server.books.abandoned(step)
    again = server.books.received(caller.peer, message, NOW)
    assert again.write == step.write
    server.do(again)
    assert server.account(caller).newly_granted() == ()
    for side in (server, caller):
        side.ledger.close()


def test_what_is_owed_is_signed_beside_a_settlement_that_waits(path: Path) -> None:
    """The settlement was signed for an hour ago, and is once more only when the two meet: see
    test_market_mishaps, test_an_orderly_end_signs_for_nothing_twice."""
    node, other = Side("node", path), Side("other", path)
    assert not node.serve(other, PAIRS, NOW) and not settle(other, node, NOW)
    node.do(node.books.settle(other.peer, MICRO, Kind.PAID, NOW))
    greet(node, other, NOW)
    assert not other.serve(node, PAIRS, NOW)
    step = node.books.sign_all(other.peer, NOW + EPOCH_SECONDS)
    assert step is not None and not step.message
    assert [each.signed.receipt.kind for each in step.write if isinstance(each, Entry)] == [Kind.WORK]
    node.do(step)
    node.restart()
    assert (node.account(other).waiting, node.pays(other).due_credits) == (MICRO, PAIRS * PRICE)
    assert not settle(node, other, NOW + EPOCH_SECONDS)
    assert node.owed_by(other) == -MICRO == -other.owed_by(node)
    for side in (node, other):
        side.ledger.close()
