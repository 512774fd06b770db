"""What peers make a node remember is bounded, and what they take without using it comes back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from market import registry
from market.account import Account
from market.accounts_payee import GIVE_UP_SECONDS, MOST_UNSIGNED
from market.credit_line import SECONDS_A_DAY, SUBNET_SHARE, NewcomerPool, Terms
from market.forgetting import forgettable
from market.market_wire import Offer, encode
from market.receipt import CREDIT
from market.registry import MAX_STRANGERS, MOST_SPARED
from node.market.priced import PricedCalls
from routing.wire.codecs import Codec
from routing.wire.experts import Combine, ExpertsRequest
from tests.attackers import fake
from tests.market_books import LAYER, MODEL, NOW, PRICE, RICH, Side, experts, folder, greet, identity, settle

POOL = 100 * PRICE
TERMS = Terms(credit_line=1_000 * CREDIT, newcomers=SUBNET_SHARE * POOL)


def call(pairs: int) -> ExpertsRequest:
    return ExpertsRequest(
        MODEL, LAYER, 0, 1, np.zeros((1, 4), np.float32), np.array([pairs], np.uint16), experts(pairs), None,
        4, Codec.F32, Codec.F32, Combine.ROWS, 1_000,
    )  # fmt: skip


class Shop:
    """A server of one caller."""

    def __init__(self, side: Side, subnet: str = "net") -> None:
        self.side, self.now = side, NOW
        self.calls = PricedCalls(side.books.payee, side.prices, lambda: self.now, lambda peer: subnet)

    def ask(self, pairs: int, peer: str = "caller") -> ExpertsRequest | None:
        request = call(pairs)
        return None if self.calls.refusal(peer, request) else request

    @property
    def left(self) -> int:
        """Pairs that newcomers of the subnet may have today."""
        return self.side.books.payee.pool.left("net", self.now) // PRICE

    @property
    def granted(self) -> int:
        return self.side.books.account("caller").granted // PRICE


@pytest.fixture
def shop() -> Iterator[Shop]:
    with folder() as path:
        side = Side("ann", path, TERMS)
        yield Shop(side)
        side.ledger.close()


# --- newcomers' credit of calls that get no answer ---


def test_what_a_dropped_call_drew_is_there_for_others(shop: Shop) -> None:
    """Who asks and goes away used up the day's credit of all newcomers in its network, for nothing."""
    for _ in range(10):
        asked = [shop.ask(40), shop.ask(60)]
        assert shop.left == 0 and shop.ask(1) is None
        for request in asked:
            assert request is not None
            shop.calls.dropped("caller", request)
        assert (shop.left, shop.granted) == (100, 0)
    assert shop.side.books.payee.pool.drawn() == {(int(NOW) // SECONDS_A_DAY, "net"): 0}
    assert shop.ask(100, "another") is not None


def test_what_was_served_stays_drawn(shop: Shop) -> None:
    kept, lost = shop.ask(40), shop.ask(60)
    assert kept is not None and lost is not None
    shop.calls.served("caller", kept)
    assert shop.left == 0
    shop.calls.dropped("caller", lost)
    assert (shop.left, shop.granted) == (60, 40)
    again = shop.ask(60)
    assert again is not None
    shop.calls.served("caller", again)
    assert (shop.left, shop.granted) == (0, 100) and shop.ask(1) is None
    assert not shop.calls._drawn and not shop.calls._costs


def test_what_was_drawn_yesterday_does_not_make_todays_credit_more(shop: Shop) -> None:
    shop.now = NOW - NOW % SECONDS_A_DAY + SECONDS_A_DAY - 1
    late = shop.ask(100)
    shop.now += 2
    today = shop.ask(30, "another")
    assert late is not None and today is not None and shop.left == 70
    shop.calls.dropped("caller", late)
    assert shop.left == 70


def test_the_pool_gives_back_no_more_than_was_drawn() -> None:
    pool = NewcomerPool(400)
    assert pool.take(100, "a", NOW) and pool.take(50, "b", NOW)
    pool.give_back(80, "b", NOW)
    assert (pool.left("a", NOW), pool.left("b", NOW), pool.left("", NOW)) == (0, 100, 300)
    pool.give_back(10**9, "never drew", NOW)
    assert pool.left("", NOW) == 300


def test_what_was_given_back_is_not_in_the_file(shop: Shop) -> None:
    one = shop.ask(40)
    assert one is not None
    shop.side.do(shop.side.books.flush())
    shop.calls.dropped("caller", one)
    shop.side.do(shop.side.books.flush())
    shop.side.restart()
    assert shop.side.books.payee.pool.left("net", NOW) == POOL


# --- demand ---


def test_what_is_given_up_is_no_demand() -> None:
    """Nobody signs for it: neither now nor with the next receipt."""
    with folder() as path:
        payer, payee = Side("payer", path), Side("payee", path, replace(RICH, newcomers=450 * CREDIT))
        greet(payer, payee, NOW)
        assert payee.serve(payer, 10, NOW) == "" and settle(payer, payee, NOW) == ""
        assert sum(pairs.sum() for pairs in payee.books.payee.demand().values()) == 10
        lost = MOST_UNSIGNED // PRICE
        assert payee.serve(payer, lost, NOW, arrives=False) == ""
        later = NOW + GIVE_UP_SECONDS + 1
        assert payee.serve(payer, 1_000, later) == ""  # 200 credits are given up for it: what the pool has
        assert settle(payer, payee, later) == ""
        demand = sum(int(pairs.sum()) for pairs in payee.books.payee.demand().values())
        for side in (payer, payee):
            side.ledger.close()
    # Of what is left, a fifth of the lost pairs and the new ones, the receipt covers as many as it says.
    assert 1_000 - 60 <= demand <= 1_000


# --- strangers ---


def test_strangers_whom_this_node_owes_something_are_not_kept_for_ever() -> None:
    """A server that answers once and never signs costs a key pair."""
    with folder() as path:
        ann = Side("ann", path)
        books = ann.books
        for number in range(MAX_STRANGERS + 500):
            books.payer.answered(f"server {number}", MODEL, LAYER, experts(1), ann.prices, NOW)
        kept = {account.peer for account in books._registry.everybody()}
        ann.ledger.close()
    assert len(kept) == MAX_STRANGERS
    assert f"server {MAX_STRANGERS + 499}" in kept


def test_who_is_owed_something_is_kept_longer_than_who_is_not() -> None:
    with folder() as path:
        ann = Side("ann", path)
        books = ann.books
        for number in range(MOST_SPARED):
            books.payer.answered(f"server {number}", MODEL, LAYER, experts(1), ann.prices, NOW)
        for number in range(MAX_STRANGERS):
            books.account(f"passer-by {number}")
        kept = {account.peer for account in books._registry.everybody()}
        ann.ledger.close()
    assert len(kept) == MAX_STRANGERS and {f"server {number}" for number in range(MOST_SPARED)} <= kept


# --- full books ---


def signed_for(side: Side, name: str, credits: int) -> None:
    """A peer signs for work that it was lent or not."""
    step = side.books.received(identity(name).peer_id, encode(Offer(fake(name, "ann", credits))), NOW)
    side.do(step)


def test_to_make_room_accounts_are_looked_at_until_one_is_found_that_costs_nothing() -> None:
    """Anybody with a new key can have a node of full books look for room: it took 35 ms each time."""
    with folder() as path:
        ann = Side("ann", path)
        for number in range(20):
            signed_for(ann, f"washer {number}", 1_000)
        accounts = list(ann.books._registry.kept())
        ann.ledger.close()
    seen = 0

    def looked_at() -> Iterator[Account]:
        nonlocal seen
        for account in accounts:
            seen += 1
            yield account

    assert forgettable(looked_at(), NOW) == accounts[0].peer and seen == 1
    for account, lent in zip(accounts, [5, *range(3, 22)], strict=True):
        account.counted = lent
    assert forgettable(looked_at(), NOW) == accounts[1].peer, "the smallest loan"


def test_who_may_not_be_forgotten_is_not_looked_for_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with folder() as path:
        ann, bob = Side("ann", path), Side("bob", path)
        books = ann.books
        books._registry._max_peers = 1
        greet(ann, bob, NOW)
        books.payer.answered(bob.peer, MODEL, LAYER, experts(100), ann.prices, NOW)
        assert settle(ann, bob, NOW) == ""
        looks = 0

        def counted(accounts: Iterable[Account], now: float) -> str | None:
            nonlocal looks
            looks += 1
            return forgettable(accounts, now)

        monkeypatch.setattr(registry, "forgettable", counted)
        for number in range(20):
            signed_for(ann, f"washer {number}", 1_000)
        assert looks == 1 and [account.peer for account in books._registry.kept()] == [bob.peer]
        books.payer.answered(bob.peer, MODEL, LAYER, experts(100), ann.prices, NOW)
        assert settle(ann, bob, NOW) == ""  # something was written: it may be otherwise now
        signed_for(ann, "washer", 1_000)
        assert looks == 2
        for side in (ann, bob):
            side.ledger.close()
