"""Ways to get work for nothing, each with what it gains: stated as a constant, and met exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from market.accounts_payee import MOST_UNSIGNED, SLACK
from market.credit_line import MOST_LINES, SECONDS_A_DAY, SUBNET_SHARE, Terms
from market.credits import credits_text
from market.market_wire import Countersigned, MarketMessage, NotSigned, Offer, Reason, decode, encode
from market.quotes import OwnQuotes, PriceBook
from market.receipt import (
    CREDIT,
    EPOCH_SECONDS,
    Kind,
    Receipt,
    SignedReceipt,
    contradiction,
    epoch_of,
    sign,
)
from market.stream import GRACE
from routing.errors import LocalError, PeerError
from routing.identity import Identity
from tests.market_books import (
    LAYER,
    MODEL,
    NOW,
    PRICE,
    QUOTE,
    Side,
    experts,
    folder,
    greet,
    identity,
    say,
    settle,
)

TERMS = Terms(credit_line=1_000 * CREDIT, newcomers=200 * CREDIT)
CALL = 3_840
"""Pairs: ten tokens of a model of 384 cells a token, some ten credits."""

COST = CALL * PRICE

GAIN_OF_STRANGERS = TERMS.newcomers
"""µcr a day for all identities together that never give anything."""

GAIN_OF_NOT_SIGNING = MOST_UNSIGNED
GAIN_OF_WASH_TRADING = 0
GAIN_OF_DOUBLE_SIGNING = 0
GAIN_OF_OLD_QUOTES = 0


@pytest.fixture
def path() -> Iterator[Path]:
    with folder() as path:
        yield path


def take(server: Side, peer: str, now: float, most: int = 10**6) -> int:
    """Take work until it is refused; µcr."""
    payee = server.books.payee
    taken = 0
    for _ in range(most):
        if payee.refusal(peer, now, COST):
            return taken
        payee.served(peer, MODEL, LAYER, experts(CALL), now)
        taken += COST
    return taken


def tell(server: Side, who: Identity, signed: SignedReceipt, now: float) -> MarketMessage:
    """Offer a receipt; what is said to it."""
    return decode(server.do(server.books.received(who.peer_id, encode(Offer(signed)), now)), "")


def work_receipt(payer: Identity, payee: Side, credits: int, n: int = 1, quote: int = QUOTE) -> SignedReceipt:
    receipt = Receipt(
        Kind.WORK,
        payer.peer_id,
        payee.peer,
        epoch_of(NOW),
        n,
        (0, 0),
        credits // PRICE,
        credits,
        MODEL.hex(),
        quote,
    )
    return sign(receipt, payer.private_key)


# --- free riding ---


def test_who_signs_nothing_gets_what_goes_unsigned(path: Path) -> None:
    server, rider = Side("bob", path), identity("rider")
    taken = take(server, rider.peer_id, NOW)
    assert GAIN_OF_NOT_SIGNING - COST < taken <= GAIN_OF_NOT_SIGNING
    why = server.books.payee.refusal(rider.peer_id, NOW + 10**6, COST)
    assert why == (
        "your receipts say 0 credits, this node counts 250 credits (+9.98 credits under way); "
        "at most 250 credits go unsigned: sign for what was served"
    )


def test_who_has_lost_its_count_is_let_in_again_at_the_cost_of_the_welcome(path: Path) -> None:
    server, rider = Side("bob", path, TERMS), identity("rider")
    server.books.payee.pool.take(TERMS.newcomers, "", NOW)
    account = server.books.account(rider.peer_id)
    account.standing.provided = 2_000 * CREDIT  # it has a right to be served, and has signed before
    account.standing.consumed = CREDIT
    assert take(server, rider.peer_id, NOW) > GAIN_OF_NOT_SIGNING - COST
    total = 0
    for day in range(1, 8):
        now = NOW + day * SECONDS_A_DAY
        total += take(server, rider.peer_id, now)
        assert total <= day * GAIN_OF_STRANGERS
    assert total > 3 * GAIN_OF_STRANGERS


@pytest.mark.parametrize("ids", [1, 10])
def test_strangers_share_one_welcome_however_many_they_are(path: Path, ids: int) -> None:
    server = Side("bob", path, TERMS)
    riders = [identity(f"rider {number}") for number in range(ids)]
    for day in range(3):
        now = NOW + day * SECONDS_A_DAY
        taken = sum(take(server, rider.peer_id, now) for rider in riders)
        assert GAIN_OF_STRANGERS - 2 * COST < taken <= GAIN_OF_STRANGERS + COST * (day > 0)
        if ids == 1:
            # signs for it all, and still gets no more than the welcome
            assert isinstance(tell_all(server, riders[0], now), Countersigned)
    # who comes now is told what it may owe, and who owes as much as it may what would settle that
    assert "may owe" in server.books.payee.refusal(identity("late").peer_id, now, COST)
    if ids == 1:
        why = server.books.payee.refusal(riders[0].peer_id, now, COST)
        assert "serve this node" in why and "panal market settle" in why


def tell_all(server: Side, payer: Identity, now: float) -> MarketMessage:
    """Sign for everything that was served."""
    account = server.books.account(payer.peer_id)
    full = account.accepting(False, Kind.WORK).full
    previous = (0, 0) if full is None else (full.receipt.epoch, full.receipt.n)
    receipt = Receipt(
        Kind.WORK,
        payer.peer_id,
        server.peer,
        epoch_of(now),
        1,
        previous,
        1,
        account.unsigned,
        MODEL.hex(),
        QUOTE,
    )
    return tell(server, payer, sign(receipt, payer.private_key), now)


def test_one_subnet_gets_a_share_of_the_welcome(path: Path) -> None:
    server = Side("bob", path, TERMS)
    riders = [identity(f"rider {number}") for number in range(10)]
    for rider in riders:
        server.books.payee.met(rider.peer_id, "192.0.2.0/24")
    assert sum(take(server, rider.peer_id, NOW) for rider in riders) <= GAIN_OF_STRANGERS // SUBNET_SHARE
    visitor = identity("visitor")
    server.books.payee.met(visitor.peer_id, "198.51.100.0/24")
    assert take(server, visitor.peer_id, NOW, most=1) == COST


def test_the_welcome_is_not_given_again_after_a_restart(path: Path) -> None:
    server = Side("bob", path, TERMS)
    assert take(server, identity("one").peer_id, NOW) > 0
    server.do(server.books.flush())
    assert server.books.flush().write == ()
    server.restart()
    assert take(server, identity("two").peer_id, NOW) < COST


def test_who_signs_for_less_than_it_got_pays_all_but_the_slack(path: Path) -> None:
    server, rider = Side("bob", path), identity("rider")
    taken = signed = n = 0
    while True:
        got = take(server, rider.peer_id, NOW, most=5)
        taken += got
        if not got:
            break
        n += 1
        signed += got // 2
        answer = tell(server, rider, work_receipt(rider, server, signed, n), NOW)
        assert isinstance(answer, Countersigned)  # more is better than nothing
    assert taken - signed <= GAIN_OF_NOT_SIGNING + signed // SLACK
    account = server.books.account(rider.peer_id)
    why = server.books.payee.refusal(rider.peer_id, NOW, COST)
    signed_text, counted_text = credits_text(signed), credits_text(signed + account.unsigned)
    assert f"your receipts say {signed_text}, this node counts {counted_text}" in why  # both are named
    # what is missing settles it
    tell(server, rider, work_receipt(rider, server, taken, n + 1), NOW)
    assert take(server, rider.peer_id, NOW, most=1) == COST


def test_an_honest_payer_whose_calls_are_doubled_or_lost_is_never_refused(path: Path) -> None:
    """Every 60th call was asked twice, and the second answer came to nothing."""
    ann, bob = Side("ann", path), Side("bob", path)
    for number in range(3_000):
        assert bob.serve(ann, CALL, NOW, arrives=number % 60 != 0) == ""
        if number % 10 == 9:
            assert settle(ann, bob, NOW) == ""
    assert bob.owed_by(ann) == 2_950 * COST
    assert bob.account(ann).unsigned <= COST


def test_all_debts_together_are_bounded(path: Path) -> None:
    terms = Terms(credit_line=20 * CREDIT, newcomers=10**6 * CREDIT)
    server = Side("bob", path, terms)
    taken = [take(server, identity(f"id {number}").peer_id, NOW) for number in range(2 * MOST_LINES)]
    assert max(taken) <= terms.credit_line
    assert MOST_LINES * terms.credit_line - COST < sum(taken) <= MOST_LINES * terms.credit_line
    assert "all callers together" in server.books.payee.refusal("12D3KooWx", NOW, COST)


# --- lines ---


def test_a_line_is_half_of_what_was_given_and_no_more_than_the_cap(path: Path) -> None:
    terms = Terms(credit_line=100 * CREDIT, newcomers=0)
    ann, bob = Side("ann", path, terms), Side("bob", path, terms)
    assert take(bob, ann.peer, NOW) == 0
    # Ann works for Bob, who pays with receipts; he is in her debt, so she is let in without his
    for _ in range(3):
        bob.books.payer.answered(ann.peer, MODEL, LAYER, experts(CALL), bob.prices, NOW)
    ann.books.payee.served(bob.peer, MODEL, LAYER, experts(3 * CALL), NOW)
    assert settle(bob, ann, NOW) == ""
    taken = take(bob, ann.peer, NOW)
    # what it has given, and half of it as credit
    assert 3 * COST + 3 * COST // 2 - COST < taken <= 3 * COST + 3 * COST // 2
    assert bob.account(ann).line == 3 * COST // 2 < terms.credit_line


def test_wash_trading_and_self_dealing_earn_no_line_here(path: Path) -> None:
    """Two identities sign a fortune to each other: none of it is anything to Bob."""
    bob = Side("bob", path, Terms(credit_line=1_000 * CREDIT, newcomers=0))
    one, other = Side("one", path), Side("other", path)
    for _ in range(5):
        assert one.serve(other, 50_000, NOW) == other.serve(one, 50_000, NOW) == ""
        assert settle(one, other, NOW) == settle(other, one, NOW) == ""
    assert one.account(other).standing.provided > 500 * CREDIT
    full = one.pays(other).full
    assert full is not None
    for each in (one, other):
        with pytest.raises(PeerError, match="somebody else's"):
            tell(bob, each.identity, replace(full, second=b""), NOW)
        assert take(bob, each.peer, NOW) == GAIN_OF_WASH_TRADING


def test_nobody_pays_itself() -> None:
    me = identity("me").peer_id
    receipt = Receipt(Kind.WORK, me, me, epoch_of(NOW), 1, (0, 0), 1, 1, MODEL.hex(), QUOTE)
    with pytest.raises(ValueError, match="payer and payee are the same"):
        Receipt.decode(receipt.encode())


def test_signing_for_work_that_was_not_done_makes_no_demand(path: Path) -> None:
    bob, rich = Side("bob", path), identity("rich")
    take(bob, rich.peer_id, NOW, most=1)
    assert isinstance(tell(bob, rich, work_receipt(rich, bob, 1_000 * COST), NOW), Countersigned)
    demand = bob.books.payee.demand()
    assert {key: int(pairs.sum()) for key, pairs in demand.items()} == {(MODEL, LAYER): CALL}
    assert bob.books.payee.demand() == {}
    assert bob.books.account(rich.peer_id).owes == 1_000 * COST  # it only owes more


def test_demand_is_what_receipts_have_covered(path: Path) -> None:
    bob, payer = Side("bob", path), identity("payer")
    take(bob, payer.peer_id, NOW, most=4)
    assert bob.books.payee.demand() == {}
    tell(bob, payer, work_receipt(payer, bob, COST), NOW)
    sums = {key: int(pairs.sum()) for key, pairs in bob.books.payee.demand().items()}
    assert sums[MODEL, LAYER] == pytest.approx(CALL, rel=0.02)


# --- double signing ---


@pytest.mark.parametrize("n", [1, 2])
def test_who_signs_double_is_named_and_gets_nothing_more(path: Path, n: int) -> None:
    bob, eve = Side("bob", path), identity("eve")
    take(bob, eve.peer_id, NOW, most=2)
    tell(bob, eve, work_receipt(eve, bob, 2 * COST), NOW)
    answer = tell(bob, eve, work_receipt(eve, bob, COST, n=n), NOW)  # n = 1: other content; 2: less
    assert isinstance(answer, NotSigned) and answer.reason is Reason.DOUBLE
    for _ in range(2):
        account = bob.books.account(eve.peer_id)
        assert account.standing.consumed - 2 * COST == GAIN_OF_DOUBLE_SIGNING
        assert "signs double" in bob.books.payee.refusal(eve.peer_id, NOW, COST)
        again = tell(bob, eve, work_receipt(eve, bob, 3 * COST, n=3), NOW)
        assert isinstance(again, NotSigned) and again.reason is Reason.DOUBLE
        (proof,) = bob.ledger.evidence()
        assert proof.peer == eve.peer_id and proof.one != proof.other
        bob.restart()


def test_a_payee_that_countersigns_two_epochs_is_paid_once(path: Path) -> None:
    """It keeps back that an hour's receipt came, gets the next one, which covers the same, and shows both."""
    ann, eve = Side("ann", path), identity("eve")
    ann.books.payer.answered(eve.peer_id, MODEL, LAYER, experts(CALL), ann.prices, NOW)
    ann.books.account(eve.peer_id).caught_up = True
    offers = []
    for now in (NOW, NOW + EPOCH_SECONDS):
        step = ann.books.offer(eve.peer_id, now)
        assert step is not None
        message = decode(ann.do(step), "")
        assert isinstance(message, Offer)
        offers.append(message.signed.countersigned(eve.private_key))
    for order in (offers, offers[::-1]):
        for signed in order:
            ann.do(ann.books.replied(eve.peer_id, encode(Countersigned(signed)), NOW + EPOCH_SECONDS))
        assert ann.books.account(eve.peer_id).standing.provided == COST
        ann.restart()


# --- quotes ---


class Quoting:
    """Bob asks by quotes that end."""

    def __init__(self) -> None:
        self.own = OwnQuotes()

    def total_lowest(self, model_id: bytes, layer: int, cells: npt.NDArray[np.uint16], now: float) -> int:
        return self.own.total_lowest(model_id.hex(), layer, cells, now)

    def valid(self, number: int, now: float) -> bool:
        return self.own.valid(number, now)

    def issue(self, price: int, now: float) -> PriceBook:
        cells = {LAYER: (np.arange(60), np.full(60, price, np.int64))}
        self.own.issue(MODEL.hex(), cells, now, 4_000)
        return PriceBook.of(self.own.current[0])


def test_an_old_cheap_quote_pays_for_nothing(path: Path) -> None:
    bob, rider = Side("bob", path), identity("rider")
    quotes = Quoting()
    bob.prices = quotes  # type: ignore[assignment]
    bob.restart()
    old = quotes.issue(100, NOW)
    later = old.until + 301.0  # past what clocks may differ by
    new = quotes.issue(1_000, later)
    bob.books.payee.served(rider.peer_id, MODEL, LAYER, experts(CALL), later)
    cheap, fair = CALL * 100, CALL * 1_000
    epoch = epoch_of(later)
    for quote, credits, reason in ((old.number, cheap, Reason.QUOTE), (new.number + 5, cheap, Reason.QUOTE)):
        receipt = Receipt(
            Kind.WORK, rider.peer_id, bob.peer, epoch, 1, (0, 0), CALL, credits, MODEL.hex(), quote
        )
        answer = tell(bob, rider, sign(receipt, rider.private_key), later)
        assert isinstance(answer, NotSigned) and answer.reason is reason
        assert "present advert" in answer.text
    assert bob.books.account(rider.peer_id).unsigned == fair  # counted by what was asked then
    # the old amount under the new number leaves the rest open
    receipt = Receipt(
        Kind.WORK, rider.peer_id, bob.peer, epoch, 2, (0, 0), CALL, cheap, MODEL.hex(), new.number
    )
    assert isinstance(tell(bob, rider, sign(receipt, rider.private_key), later), Countersigned)
    left = bob.books.account(rider.peer_id).unsigned
    assert fair - cheap - left <= cheap // SLACK + GAIN_OF_OLD_QUOTES


def test_work_may_be_paid_by_the_quote_it_was_done_under_after_that_has_ended(path: Path) -> None:
    bob, payer = Side("bob", path), identity("payer")
    quotes = Quoting()
    bob.prices = quotes  # type: ignore[assignment]
    bob.restart()
    book = quotes.issue(100, NOW)
    done = book.until + 200.0
    bob.books.payee.served(payer.peer_id, MODEL, LAYER, experts(CALL), done)
    later = done + 200
    assert not quotes.valid(book.number, later)
    receipt = Receipt(
        Kind.WORK,
        payer.peer_id,
        bob.peer,
        epoch_of(later),
        1,
        (0, 0),
        CALL,
        CALL * 100,
        MODEL.hex(),
        book.number,
    )
    assert isinstance(tell(bob, payer, sign(receipt, payer.private_key), later), Countersigned)


# --- hours ---


def test_an_hour_that_is_over_takes_no_receipts(path: Path) -> None:
    bob, payer = Side("bob", path), identity("payer")
    take(bob, payer.peer_id, NOW, most=1)
    late = NOW + EPOCH_SECONDS + GRACE + 1
    answer = tell(bob, payer, work_receipt(payer, bob, COST), late)
    assert isinstance(answer, NotSigned) and answer.reason is Reason.CLOSED
    assert isinstance(tell(bob, payer, work_receipt(payer, bob, COST), late - 2), Countersigned)


def test_a_receipt_from_the_future_is_not_taken(path: Path) -> None:
    bob, payer = Side("bob", path), identity("payer")
    early = epoch_of(NOW) * EPOCH_SECONDS - 301.0
    answer = tell(bob, payer, work_receipt(payer, bob, COST), early)
    assert isinstance(answer, NotSigned) and "check the clocks" in answer.text


def test_a_clock_that_goes_back_makes_nobody_sign_double(path: Path) -> None:
    ann, bob = Side("ann", path), Side("bob", path)
    assert bob.serve(ann, CALL, NOW) == ""
    signed = []
    for now in (NOW, NOW + EPOCH_SECONDS, NOW, NOW - 5 * EPOCH_SECONDS, NOW + EPOCH_SECONDS):
        bob.serve(ann, 10, NOW)
        ann.account(bob).caught_up = True
        step = ann.books.offer(bob.peer, now)
        assert step is not None
        offer = decode(ann.do(step), "")
        assert isinstance(offer, Offer)
        signed.append(offer.signed)
        ann.restart()
    assert [each.receipt.epoch - epoch_of(NOW) for each in signed] == [0, 1, 0, -5, 1]
    assert [each.receipt.n for each in signed] == [1, 2, 3, 4, 5]
    for one, other in combinations(signed, 2):
        assert contradiction(one.receipt, other.receipt) == ""
    for each in (signed[1], signed[4]):
        assert isinstance(tell(bob, ann.identity, each, NOW + EPOCH_SECONDS), Countersigned)
    assert bob.owed_by(ann) == COST + 50 * PRICE


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_clock_that_was_ahead_and_is_put_right_holds_nobody_up(path: Path, is_taken: bool) -> None:
    """Ann's clock was 50 minutes ahead when she signed; Bob's may have been, too, and his answer was lost."""
    ann, bob = Side("ann", path), Side("bob", path)
    right = NOW + 600
    ahead = right + 3_000
    bob.serve(ann, CALL, right)
    ann.account(bob).caught_up = True
    step = ann.books.offer(bob.peer, ahead)
    assert step is not None
    answer = bob.do(bob.books.received(ann.peer, ann.do(step), ahead if is_taken else right))
    assert isinstance(decode(answer, ""), Countersigned if is_taken else NotSigned)
    bob.serve(ann, CALL, right)
    for _ in range(2):  # the second says what the first has learnt
        step = ann.books.offer(bob.peer, right)
        if step is not None:
            said = say(ann, bob, ann.do(step), right)
            assert not said.refused
    assert bob.owed_by(ann) == -ann.owed_by(bob) == 2 * COST
    assert ann.pays(bob).due_credits == 0


def test_a_receipt_that_is_behind_is_answered_with_the_one_that_is_signed(path: Path) -> None:
    """Bob has countersigned, and the answer was lost: Ann learns of it when she offers the next hour's."""
    ann, bob = Side("ann", path), Side("bob", path)
    bob.serve(ann, CALL, NOW)
    ann.account(bob).caught_up = True
    step = ann.books.offer(bob.peer, NOW)
    assert step is not None
    bob.do(bob.books.received(ann.peer, ann.do(step), NOW))
    bob.serve(ann, CALL, NOW)
    later = NOW + EPOCH_SECONDS
    step = ann.books.offer(bob.peer, later)
    assert step is not None
    said = say(ann, bob, ann.do(step), later)
    assert said.again and not said.refused
    step = ann.books.offer(bob.peer, later)
    assert step is not None
    assert say(ann, bob, ann.do(step), later).refused == ""
    assert ann.books.offer(bob.peer, later) is None
    assert bob.owed_by(ann) == -ann.owed_by(bob) == 2 * COST


# --- lost files, settlements ---


@pytest.mark.parametrize("loser", [0, 1])
def test_a_lost_ledger_is_found_again_at_the_other_side(path: Path, loser: int) -> None:
    sides = [Side("ann", path), Side("bob", path)]
    ann, bob = sides
    for _ in range(2):
        assert bob.serve(ann, CALL, NOW) == ""
        assert settle(ann, bob, NOW) == ""
    lost = sides[loser]
    lost.ledger.close()
    for part in path.glob(f"{lost.path.stem}.db*"):
        part.unlink()
    sides[loser] = Side(lost.path.stem, path)
    ann, bob = sides
    assert ann.books.offer(bob.peer, NOW) is None  # nothing is signed before the two have compared
    bob.serve(ann, CALL, NOW)
    assert settle(ann, bob, NOW) == ""
    assert bob.owed_by(ann) == -ann.owed_by(bob) == 3 * COST
    assert not bob.account(ann).fault


@pytest.mark.parametrize("kind", [Kind.PAID, Kind.FORGIVEN])
def test_a_settlement_lowers_a_debt_on_both_sides(path: Path, kind: Kind) -> None:
    ann, bob = Side("ann", path), Side("bob", path)
    bob.serve(ann, CALL, NOW)
    settle(ann, bob, NOW)
    with pytest.raises(LocalError, match=r"owes 9\.98 credits"):
        bob.books.settle(ann.peer, COST + 1, kind, NOW)
    bob.do(bob.books.settle(ann.peer, COST - 5, kind, NOW))
    with pytest.raises(LocalError, match="not settled yet"):
        bob.books.settle(ann.peer, 6, kind, NOW)
    assert bob.books.payer.due(NOW) == [ann.peer]
    bob.restart()  # before it was sent
    assert bob.books.payer.due(NOW) == [ann.peer]
    assert settle(bob, ann, NOW) == ""
    assert bob.owed_by(ann) == -ann.owed_by(bob) == 5
    # what was paid earns a line, what was forgiven does not
    assert bob.account(ann).line == ((COST - 5) // 2 if kind is Kind.PAID else 0)


def test_a_debtor_cannot_settle_its_debt_alone(path: Path) -> None:
    bob, rider = Side("bob", path), identity("rider")
    receipt = Receipt(Kind.PAID, rider.peer_id, bob.peer, epoch_of(NOW), 1, (0, 0), 0, COST)
    with pytest.raises(PeerError, match="ours to issue"):
        tell(bob, rider, sign(receipt, rider.private_key), NOW)


def test_greeting_costs_nothing_when_there_is_no_news(path: Path) -> None:
    ann, bob = Side("ann", path), Side("bob", path)
    bob.serve(ann, CALL, NOW)
    settle(ann, bob, NOW)
    step = bob.books.received(ann.peer, ann.books.hello(bob.peer), NOW)
    assert step.write == ()
    greet(ann, bob, NOW)
    (balance,) = bob.books.balances(NOW)
    assert (balance.peer, balance.owes_us, balance.unsigned) == (ann.peer, COST, 0)
    assert bob.ledger.balances()[0].owes_us == COST
