"""Attacks on the market by who asks for work (issue 6, "Must hold" 3): the gain is never above 0.

Each test says what the *damage* is, the most that an honest node loses, and why it is no more. How the books
hold under any sequence of lies: test_market_attacks. Attacks in a whole swarm: scripts/simulate_market.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from market.accounts_payee import MOST_UNSIGNED, SLACK
from market.books import Books
from market.credit_line import MOST_LINES, SECONDS_A_DAY, SUBNET_SHARE, Terms
from market.forgetting import forgettable
from market.ledger import FORGET_EPOCHS
from market.market_wire import Countersigned, Hello, NotSigned, Offer, Reason, encode
from market.price_book import PriceBook
from market.quotes import OwnQuotes
from market.receipt import CREDIT, MAX_TOTAL, Kind, Receipt, SignedReceipt, epoch_of, sign
from market.reputation import Reputation
from market.stream import MAX_SUM, Accepting, Judged
from node.market.quotes_port import OwnPrices
from routing.errors import PeerError
from routing.wire.advert import CLOCK_SKEW
from tests.attackers import CALL, IDS, SUBNET, TERMS, WORK, fake, newcomers_gift, take, tell
from tests.market_books import MODEL, NOW, PRICE, Side, experts, folder, greet, identity, settle

# --- sybil capacity ---


def test_ten_identities_are_given_no_more_than_one() -> None:
    """Damage: a subnet's part of the pool a day, however many identities. It is what one would get."""
    with folder() as path:
        ann = Side("ann", path, TERMS)
        got = sum(take(ann, identity(f"sybil {number}").peer_id) for number in range(IDS))
        ann.ledger.close()
    assert got - newcomers_gift() <= 0
    assert got <= TERMS.newcomers // SUBNET_SHARE


# --- self-dealing, wash trading ---


def test_what_ones_own_identities_owe_each_other_is_worth_nothing() -> None:
    """Damage: none. Credit is what *this* node was given; receipts of two others are none of its business."""
    with folder() as path:
        ann, fresh = Side("ann", path, TERMS), newcomers_gift()
        signed = fake("left", "right", 10**6 * CREDIT).countersigned(identity("right").private_key)
        for peer in ("left", "right"):
            for message in (Hello((signed,)), Offer(replace(signed, second=b""))):
                with pytest.raises(PeerError, match="somebody else's"):
                    ann.books.received(identity(peer).peer_id, encode(message), NOW)
        got = take(ann, identity("right").peer_id) + take(ann, identity("left").peer_id)
        ann.ledger.close()
    reputation = Reputation()
    reputation.heard("left", "right", 10**6)
    assert reputation.of("right") == 0
    assert got - fresh <= 0


def test_ten_who_wash_are_as_poor_as_before_and_keep_nobody_out() -> None:
    """Each of ten signs to Ann for the most a receipt can say, for work she never did.

    Damage: none. A debt counts among all debts (MOST_LINES) as far as it can have been taken on credit; what
    was not computed is no demand; and there is no price that it moves.
    """
    with folder() as path:
        ann, bob = Side("ann", path, TERMS), Side("bob", path, TERMS)
        got = 0
        for number in range(IDS):
            peer = identity(f"washer {number}").peer_id
            signed = fake(f"washer {number}", "ann", MAX_TOTAL, MAX_TOTAL)
            assert isinstance(tell(ann, peer, signed), Countersigned)
            got += take(ann, peer)
        assert MOST_LINES * TERMS.credit_line < IDS * MAX_TOTAL
        assert got == 0, "who owes all the money in the world is lent nothing"
        assert not ann.books.payee.demand()
        assert ann.serve(bob, CALL, NOW) == ""
        for side in (ann, bob):
            side.ledger.close()


def test_debts_that_cost_nothing_push_none_out_of_the_books() -> None:
    """Where as many accounts are kept as may be, the smallest loan makes room, not the smallest claim.

    Damage: none to who has had something. A claim is only ever lost where more was lent to all others.
    """
    with folder() as path:
        ann, bob = Side("ann", path, TERMS), identity("bob").peer_id
        lent = take(ann, bob, most=2 * WORK)
        assert isinstance(tell(ann, bob, fake("bob", "ann", lent)), Countersigned)
        washers = [identity(f"washer {number}").peer_id for number in range(3)]
        for number, peer in enumerate(washers):
            assert isinstance(tell(ann, peer, fake(f"washer {number}", "ann", MAX_TOTAL)), Countersigned)
        accounts = [ann.books.account(peer) for peer in (bob, *washers)]
        ann.restart()
        again = [ann.books.account(peer) for peer in (bob, *washers)]
        ann.ledger.close()
    assert forgettable(accounts, NOW) in washers
    assert forgettable(accounts[:1], NOW) == bob, "it is the last to go, and does"
    assert forgettable(again, NOW) in washers, "also after a restart"


def test_totals_never_outgrow_the_file() -> None:
    """A payer that signs for the most a receipt can say, hour by hour, would reach 2^63 in six weeks, and no
    ledger that holds such a sum can be opened. Damage: none."""
    receipt = fake("washer", "ann", MAX_TOTAL, MAX_TOTAL).receipt
    stream = Accepting(receipt.payer, receipt.payee, Kind.WORK)
    for hours in range(10_000):
        epoch, before = receipt.epoch + hours, stream.full
        previous = (0, 0) if before is None else (before.receipt.epoch, before.receipt.n)
        signed = SignedReceipt(
            replace(receipt, epoch=epoch, n=hours + 1, previous=previous), b"first", b"second"
        )
        if stream.judge(signed, epoch * 3_600.0).judged is not Judged.NEW:
            break
        stream.take(signed)
    assert hours == 512 and stream.total_credits == MAX_SUM == 2**62


def test_who_settles_what_nobody_owes_takes_no_room() -> None:
    """An account is kept only where something was owed: else ten thousand identities would fill the books."""
    with folder() as path:
        ann = Side("ann", path, TERMS)
        for kind in (Kind.PAID, Kind.FORGIVEN):
            peer = identity("generous")
            receipt = Receipt(kind, ann.peer, peer.peer_id, epoch_of(NOW), 1, (0, 0), 0, 1)
            reply = tell(ann, peer.peer_id, sign(receipt, peer.private_key))
            assert isinstance(reply, NotSigned) and reply.reason is Reason.BEHIND
        assert ann.books.balances(NOW) == [] and ann.ledger.balances() == []
        ann.ledger.close()


# --- free riding ---


def test_who_never_signs_gets_what_a_newcomer_is_given() -> None:
    """Damage: a subnet's part of the newcomers' pool a day."""
    with folder() as path:
        ann = Side("ann", path, TERMS)
        midnight = NOW - NOW % SECONDS_A_DAY
        got = sum(take(ann, identity("rider").peer_id, now=midnight + hour * 3_600) for hour in range(24))
        ann.ledger.close()
    assert got - newcomers_gift() <= 0
    assert got <= TERMS.newcomers // SUBNET_SHARE


def test_riders_who_never_come_back_keep_nobody_out_for_ever() -> None:
    """Each day others take what newcomers are given, and sign for it, until all debts together are at
    their most. Nobody can clear them: that would take their signatures.

    Damage: the pool of each day, as ever; and for FORGET_EPOCHS (33 days) after a year of it none has credit.
    """
    terms = Terms(credit_line=25 * CREDIT, newcomers=100 * CREDIT)
    with folder() as path:
        ann, bob, lent = Side("ann", path, terms), identity("bob").peer_id, 0
        for number in range(2 * MOST_LINES):
            rider, now = f"rider {number}", NOW + number // 4 * SECONDS_A_DAY
            got = take(ann, identity(rider).peer_id, now=now, subnet=f"net {number}")
            if got:
                receipt = replace(fake(rider, "ann", got).receipt, epoch=epoch_of(now))
                signed = sign(receipt, identity(rider).private_key)
                assert isinstance(tell(ann, signed.receipt.payer, signed, now), Countersigned)
            lent += got
        assert MOST_LINES * (terms.credit_line - WORK) < lent <= MOST_LINES * terms.credit_line
        assert "all callers together" in ann.books.payee.refusal(bob, now, WORK)
        later = now + (FORGET_EPOCHS + 1) * 3_600
        assert ann.books.payee.refusal(bob, later, WORK) == ""
        assert ann.books.account(identity("rider 0").peer_id).standing.owes > 0, "it still owes"
        ann.ledger.close()


def test_who_has_earned_a_line_and_leaves_with_it_has_given_more() -> None:
    """Damage: none; the line is half of what was given, and what goes unsigned MOST_UNSIGNED at most."""
    with folder() as path:
        ann, leaver = Side("ann", path, TERMS), Side("leaver", path)
        greet(ann, leaver, NOW)
        given = 400 * CREDIT
        ann.books.payer.answered(leaver.peer, MODEL, 0, experts(given // PRICE), ann.prices, NOW)
        assert settle(ann, leaver, NOW) == ""
        given = ann.account(leaver).standing.provided
        got = take(ann, leaver.peer, now=NOW)
        for side in (ann, leaver):
            side.ledger.close()
    assert 0 < got <= MOST_UNSIGNED
    assert got - given - newcomers_gift() <= 0


def test_who_signs_for_less_than_it_got_is_refused_before_it_gains() -> None:
    """Two per cent may be left out (SLACK: answers that did not arrive); half may not.

    Damage: a fiftieth of what is paid, and MOST_UNSIGNED once, that being within the peer's line.
    """
    for share in (0.5, 0.9, 0.981):
        with folder() as path:
            ann = Side("ann", path, Terms(10**5 * CREDIT, 10**5 * CREDIT))
            peer, got, signed = identity("shaver"), 0, 0
            for n in count(1):
                before = got
                got += take(ann, peer.peer_id, most=100 * CREDIT, subnet="")
                signed += max(1, int((got - before) * share))
                if got == before or got > 20_000 * CREDIT:
                    break
                tell(ann, peer.peer_id, fake("shaver", "ann", signed, n=n))
            ann.ledger.close()
        left_out = got - signed
        assert left_out <= signed // SLACK + MOST_UNSIGNED
        # What honest callers may leave out is no gain of a shaver's. The rest was lent: a newcomer's.
        assert left_out - signed // SLACK - min(left_out, MOST_UNSIGNED) <= 0
        assert (got > 20_000 * CREDIT) == (share > 1 - 1 / SLACK)


# --- double signing ---


def test_two_receipts_with_one_number_get_nothing_and_end_the_credit() -> None:
    """Damage: what was lent without a receipt before, at most MOST_UNSIGNED and a newcomer's part."""
    with folder() as path:
        ann, peer = Side("ann", path, TERMS), identity("double").peer_id
        got = take(ann, peer)
        assert isinstance(tell(ann, peer, fake("double", "ann", got)), Countersigned)
        reply = tell(ann, peer, fake("double", "ann", 1))
        assert isinstance(reply, NotSigned) and reply.reason is Reason.DOUBLE
        after = take(ann, peer, now=NOW + 10 * 86_400)
        owes = ann.books.account(peer).standing.owes
        ann.ledger.close()
    assert after == 0 and owes == got
    assert got - newcomers_gift() <= 0


# --- replayed quotes ---


def own_prices(own: OwnQuotes) -> OwnPrices:
    prices = OwnPrices()
    prices.quotes = own
    return prices


def ask(own: OwnQuotes, price: int, now: float) -> PriceBook:
    """Quote a price for all cells; the quote as a caller has it."""
    own.issue(MODEL.hex(), {0: (np.arange(60), np.full(60, price))}, now, 4_000)
    return PriceBook.of(own.current[0])


def test_an_old_cheap_quote_pays_for_nothing_once_it_is_over() -> None:
    """A caller keeps the quote of a cheap hour, and signs by it when work costs sixteen times as much.

    Damage: the newcomer's part of a day, as if it signed nothing: its receipts leave nearly all unsigned.
    """
    own, later = OwnQuotes(), NOW + 7_200
    cheap = ask(own, PRICE, NOW)
    dear = ask(own, 16 * PRICE, later)
    ask(own, 16 * PRICE, later + CLOCK_SKEW)
    assert own.refusal(cheap.number, later) and not own.refusal(dear.number, later)
    with folder() as path:
        ann = Side("ann", path, TERMS)
        ann.books = Books(ann.identity, TERMS, own_prices(own), ann.ledger.load(NOW))
        peer, got, signed = identity("replayer").peer_id, 0, 0
        ann.books.payee.met(peer, SUBNET)
        for n in range(1, 20):
            if ann.books.payee.refusal(peer, later, 16 * WORK):
                break
            ann.books.payee.served(peer, MODEL, 0, experts(CALL), later)
            got += dear.total(0, experts(CALL))
            signed += cheap.total(0, experts(CALL))
            receipt = replace(
                fake("replayer", "ann", signed, n=n).receipt, quote=cheap.number, epoch=epoch_of(later)
            )
            reply = tell(ann, peer, sign(receipt, identity("replayer").private_key), later)
            assert isinstance(reply, NotSigned) and reply.reason is Reason.QUOTE
        ann.ledger.close()
    assert got - newcomers_gift() <= 0


def test_a_receipt_that_is_shown_again_changes_nothing() -> None:
    """Damage: none."""
    with folder() as path:
        ann, peer = Side("ann", path, TERMS), identity("again").peer_id
        got = take(ann, peer)
        signed = fake("again", "ann", got)
        for _ in range(5):
            assert isinstance(tell(ann, peer, signed), Countersigned)
        assert ann.books.account(peer).standing.consumed == got
        assert take(ann, peer) == 0
        ann.ledger.close()
