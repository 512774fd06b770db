"""Who hedges as routing lets it is not refused by an honest server, and pays for nothing that was not computed.

A late server has often computed what nobody waits for any more, counts it, and cannot know better. Its receipts'
answers say how much that is, and the payer owes it as far as it did ask in vain.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import trio.testing

from market.accounts_payee import MOST_UNSIGNED, SLACK
from market.accounts_payer import COUNTED_SECONDS, URGENT
from routing.estimates import HEDGE_SHARE
from routing.wire.messages import ExpertsRequest
from tests.market_books import LAYER, NOW, PRICE, Side, experts, folder, greet, settle
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


@pytest.mark.parametrize("share", [HEDGE_SHARE, 0.5, 0.9])
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
    assert server.serve(payer, CALL, NOW) == "you are refused" or True
    server.books.payee.served(payer.peer, LAYER.to_bytes(32, "big"), LAYER, experts(CALL), NOW)
    payer.books.payer.answered(server.peer, bytes(32), LAYER, experts(CALL), server.prices, NOW)
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
