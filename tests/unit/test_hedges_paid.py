"""Who hedges as routing lets it is refused by no honest server, and pays for nothing that was not computed.

A late server has often computed what nobody waits for any more, counts it, and cannot know better. With each
receipt it says how much it counts beyond it, and the payer owes that as far as it did ask in vain.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import trio.testing

from market.accounts_payee import MOST_UNSIGNED, SLACK
from market.accounts_payer import COUNTED_SECONDS, OFFER_SECONDS, URGENT
from routing.estimates import HEDGE_SHARE
from routing.wire.messages import ExpertsRequest
from tests.market_books import LAYER, MODEL, NOW, PRICE, Side, experts, folder, greet, settle
from tests.star_servers import Server, Swarm, on_a_mock_clock

CALL = 3_840
"""Pairs: ten tokens of a large model, ten credits."""

CALLS = 1_500


@pytest.fixture
def pair() -> Iterator[tuple[Side, Side]]:
    with folder() as path:
        sides = Side("payer", path), Side("server", path)
        greet(*sides, NOW)
        yield sides
        for side in sides:
            side.ledger.close()


@pytest.mark.parametrize("share", [HEDGE_SHARE, 0.2, 0.4])
def test_who_hedges_as_routing_lets_it_is_never_refused(pair: tuple[Side, Side], share: float) -> None:
    """A twentieth of all calls may be hedged: at the one slow server among them that may be most."""
    assert HEDGE_SHARE > 1 / SLACK, "by what receipts may leave out alone it would be"
    payer, server = pair
    rng = random.Random(1)
    for number in range(CALLS):
        now = NOW + number
        assert server.serve(payer, CALL, now, is_hedged=rng.random() < share) == ""
        if number % 5 == 4:
            assert settle(payer, server, now) == ""
    owed = server.owed_by(payer)
    assert owed == -payer.owed_by(server)
    assert owed + server.account(payer).unsigned <= CALLS * CALL * PRICE
    assert owed >= CALLS * CALL * PRICE * (1 - 1 / SLACK) - MOST_UNSIGNED


@pytest.mark.parametrize("share", [HEDGE_SHARE, 0.5])
def test_what_was_given_up_before_it_was_computed_costs_nothing(
    pair: tuple[Side, Side], share: float
) -> None:
    payer, server = pair
    rng = random.Random(2)
    owed = 0
    for number in range(200):
        now = NOW + number
        if rng.random() < share:
            payer.books.payer.given_up(server.peer, LAYER, experts(CALL), server.prices, now)
        else:
            assert server.serve(payer, CALL, now) == ""
            owed += CALL * PRICE
        if number % 5 == 4:
            assert settle(payer, server, now) == ""
    assert server.owed_by(payer) == owed == -payer.owed_by(server)


def test_a_server_can_claim_no_more_than_it_was_asked_for_in_vain(pair: tuple[Side, Side]) -> None:
    payer, server = pair
    paid: list[int] = []
    payer.books.payer.on_claimed = paid.append
    assert server.serve(payer, CALL, NOW) == ""
    lie = server.account(payer)
    lie.unsigned += 100 * CALL * PRICE
    assert settle(payer, server, NOW) == "" and not paid, "it was asked for nothing else"
    payer.books.payer.given_up(server.peer, LAYER, experts(CALL), server.prices, NOW)
    lie.unsigned = 100 * CALL * PRICE
    server.books.payee.served(payer.peer, MODEL, LAYER, experts(CALL), NOW)
    payer.books.payer.answered(server.peer, MODEL, LAYER, experts(CALL), server.prices, NOW)
    assert settle(payer, server, NOW) == ""
    assert paid == [CALL * PRICE]
    assert -payer.owed_by(server) == 3 * CALL * PRICE


def test_what_a_server_does_not_count_in_time_is_not_owed_later(pair: tuple[Side, Side]) -> None:
    payer, server = pair
    for _ in range(100):
        payer.books.payer.given_up(server.peer, LAYER, experts(CALL), server.prices, NOW)
    account = payer.account(server)
    assert account.given_up_on == MOST_UNSIGNED, "no server has more to ask for"
    assert server.serve(payer, CALL, NOW) == "" and settle(payer, server, NOW) == ""
    assert account.given_up_on == MOST_UNSIGNED, "it may be at it still"
    later = NOW + COUNTED_SECONDS + 1
    assert server.serve(payer, CALL, later) == "" and settle(payer, server, later) == ""
    assert account.given_up_on == 0


def test_a_server_that_lost_all_races_is_asked_what_it_counts(pair: tuple[Side, Side]) -> None:
    """Nothing arrives, so nothing is due: it would refuse this node, and never hear why."""
    payer, server = pair
    for _ in range(20):
        assert server.serve(payer, CALL, NOW) == "" and settle(payer, server, NOW) == ""
    for _ in range(14):
        assert server.serve(payer, CALL, NOW, is_hedged=True) == ""
    assert payer.books.payer.due(NOW + OFFER_SECONDS) == [server.peer]
    assert settle(payer, server, NOW + OFFER_SECONDS) == ""
    assert server.account(payer).unsigned == 0 and server.owed_by(payer) == 34 * CALL * PRICE
    assert payer.books.payer.due(NOW + 2 * OFFER_SECONDS) == payer.books.payer.open_accounts() == []
    # What it does not count is asked for every ten seconds, until it cannot come to be counted any more.
    for _ in range(14):
        payer.books.payer.given_up(server.peer, LAYER, experts(CALL), server.prices, NOW)
    for turn in range(3, 10):
        now = NOW + turn * OFFER_SECONDS
        if payer.books.payer.due(now):
            assert payer.books.payer.due(now + 1) and settle(payer, server, now) == ""
            assert not payer.books.payer.due(now + 1) and payer.books.offer(server.peer, now + 1) is None
    assert payer.books.payer.open_accounts() == [] and payer.account(server).given_up_on == 0
    assert server.owed_by(payer) == 34 * CALL * PRICE == -payer.owed_by(server)


def test_who_answers_nothing_is_owed_nothing(pair: tuple[Side, Side]) -> None:
    """A server that is late on purpose, and says it has computed what nobody waited for."""
    payer, server = pair
    lie = server.account(payer)
    for turn in range(40):
        now = NOW + turn * OFFER_SECONDS
        payer.books.payer.given_up(server.peer, LAYER, experts(CALL), server.prices, now)
        lie.unsigned = 20 * CALL * PRICE
        settle(payer, server, now)
    assert payer.owed_by(server) == 0
    assert server.serve(payer, CALL, NOW) == ""
    for turn in range(40, 80):
        now = NOW + turn * OFFER_SECONDS
        payer.books.payer.given_up(server.peer, LAYER, experts(CALL), server.prices, now)
        lie.unsigned = 20 * CALL * PRICE
        settle(payer, server, now)
    assert -payer.owed_by(server) <= 2 * CALL * PRICE, "as much again as has arrived"
    assert payer.account(server).given_up_on >= URGENT
    assert payer.books.payer.open_accounts() == [], "nor is it asked what it counts, for ever"


def test_half_of_what_goes_unsigned_is_left_for_what_is_claimed() -> None:
    assert 2 * URGENT <= MOST_UNSIGNED


def test_the_star_tells_whom_it_waits_for_no_longer() -> None:
    """The loser of a hedge, and nobody who has answered or refused."""
    both = {"a": range(16), "b": range(16)}

    async def test() -> None:
        a, b = Server("a", delay=0.02), Server("b", delay=0.02)
        swarm = Swarm(a, b)
        told: list[tuple[str, int]] = []

        def given_up(peer_id: str, request: ExpertsRequest) -> None:
            told.append((peer_id, request.pairs))

        swarm.star.on_given_up = given_up
        for seed in range(20):
            await swarm.ask(both, seed=seed)
        assert not told
        a.delay = 100.0
        _, stats = await swarm.ask(both)
        await trio.testing.wait_all_tasks_blocked()
        assert stats.hedges_won == 1 and a.cancelled == 1
        assert [peer for peer, _ in told] == ["a"] and told[0][1] == a.asked[-1].pairs

    on_a_mock_clock(test)
