"""Attacks on the market by who sells (issue 6, "Must hold" 3): the gain is never above 0.

Each test says what the *damage* is, the most that an honest node loses, and why it is no more. Attacks in a
whole swarm: scripts/simulate_market; how soon liars are found: tests/unit/test_audits.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count

import numpy as np
import pytest

from market.advice import Means, advise
from market.audit import Audits, Word
from market.ground import Ground
from market.market_wire import Countersigned, Hello, Offer, decode, encode
from market.own_order import Patience, own_draws
from market.price import percent_of
from market.price_book import PriceBook
from market.quote_runs import quote_of
from market.reputation import ANSWERS_A_DEALING, Reputation
from market.scarcity import REPLICA_FLOOR, Levels, Need, Scarcity
from market.supply import Supply
from market.view import LONE_CLAIM, STRANGER, View, believed_prices
from routing.dispatch.holders import HOME
from routing.wire.holdings import Slice
from routing.wire.quote import MAX_PRICE
from tests.attackers import A_NEWCOMER, CALL, IDS, TERMS, WORK, newcomers_gift, take
from tests.market_books import MODEL, NOW, PRICE, Side, experts, folder, greet, identity, settle
from tests.unit.test_audits import LIES, OTHER, OURS, Lie, right, sample_of

# --- sybil capacity ---


def settled_price(heard: int, answering: int, demand: int) -> int:
    """What a server asks for a cell after twenty periods, alone but for those who are said to hold it."""
    held = Slice("experts", MODEL.hex(), "qwen3moe", experts=[(0, 0, [(0, 0)])])
    supply = Supply(MODEL.hex(), {0: 1})
    for number in range(heard + answering):
        supply.add([held], answered=number < answering)
    rule, levels, base = Scarcity(), Levels.at_base(1), np.array([PRICE])
    replicas = supply.replicas(0) + 1
    for _ in range(20):
        levels = rule.next(levels, Need(demand, demand, 2 * demand, 1, replicas))
    return int(rule.price(base, levels)[0])


@pytest.mark.parametrize("answering", [0, IDS])
def test_claimed_capacity_makes_no_cell_dearer(answering: int) -> None:
    """Ten identities that claim a server's cells, to have others stay away: its own price falls with theirs.

    Damage: an honest server of these cells asks what demand says, without the octaves for lacking replicas:
    REPLICA_FLOOR - 1 at most, since it is one itself. So its income is a 2^(REPLICA_FLOOR - 1)-th at worst.
    """
    demand = 1_000
    before, after = settled_price(0, 0, demand), settled_price(IDS - answering, answering, demand)
    gain = demand * (after - before)
    assert gain <= 0
    assert -gain <= demand * before * (1 - 2.0 ** -(REPLICA_FLOOR - 1)) * 1.1  # prices are on a grid of 9 %


def test_a_device_with_room_takes_cells_that_only_strangers_claim() -> None:
    """Damage: none to coverage. Ten identities that were never heard answering are no replica floor, not even
    with the one server that they belong to: it does not keep the cell for itself."""
    cells = 8
    ground = Ground.of(np.zeros(cells, np.int32), np.full(cells, 1_000))
    claims = np.where(np.arange(cells) < 3, 1 + IDS * STRANGER, 4.0)
    view = View(claims, np.full(cells, 100.0), np.full(cells, 10.0), 4.0)
    nothing = np.zeros(cells, np.bool_)
    for number in range(20):
        draws = own_draws(f"device {number}", NOW, ground)
        advice = advise(ground, view, Means(3_000, 1e9), nothing, draws)
        assert advice.cells[:3].all(), "what is only claimed comes first"


# --- fake scarcity ---


def hiding(hidden: int) -> tuple[float, float]:
    """What an owner of three servers earns, and what callers pay, in twenty minutes.

    The three hold all replicas of a cell, and `hidden` of them tell of it no more. Five devices have room.
    """
    demand, taken = 900, 0
    rule, base, levels = Scarcity(), np.array([PRICE]), Levels.at_base(1)
    devices = [Patience(f"device {number}") for number in range(5)]
    earned = paid = 0.0
    for minute in range(20):
        for second in range(0, 60, 5):
            lacks = 3 - hidden + taken < REPLICA_FLOOR
            ripe = [each for each in devices if each.ripe(minute * 60.0 + second, True if lacks else None)]
            if ripe and lacks:
                devices.remove(ripe[0])
                taken += 1
        replicas = 3 - hidden + taken
        each = demand // replicas
        levels = rule.next(levels, Need(each, each, 2 * each, 1, replicas))
        price = float(rule.price(base, levels)[0])
        earned += price * each * (3 - hidden)
        paid += price * each * replicas
    return earned, paid


@pytest.mark.parametrize("hidden", [1, 2])
def test_who_hides_replicas_earns_less_than_who_sells_them(hidden: int) -> None:
    """A price rises by an octave for each replica that lacks, but a fourth of the way a minute; devices with
    room take the cell within `Patience`'s wait for what is urgent, and keep it.

    Damage: what callers pay more until then: less than one minute at twice the price.
    """
    (fair, fair_paid), (foul, foul_paid) = hiding(0), hiding(hidden)
    assert foul - fair <= 0
    assert foul_paid - fair_paid <= 900 * PRICE


def test_a_price_that_is_only_asked_moves_what_is_believed_a_quarter_of_the_way() -> None:
    """Damage: a device that follows one liar's price believes LONE_CLAIM of it, within the cap; the liar
    earns nothing by it, as nobody buys at the belief."""
    base = np.array([1_000.0])
    lone = believed_prices(np.array([0]), np.array([1e9]), np.array([1.0]), base, floor=25, cap=1_600)
    assert lone[0] <= 1_000 + LONE_CLAIM * 15_000
    crowd = believed_prices(
        np.zeros(IDS + 3, np.int64),
        np.array([1e9] * IDS + [1_000.0] * 3),
        np.array([STRANGER] * IDS + [1.0] * 3),
        base,
        floor=25,
        cap=1_600,
    )
    assert crowd[0] == 1_000, "ten strangers are outweighed by three who answer"


# --- false answers ---

DEALS = 8
"""Calls between receipts."""


def work_until_found(ann: Side, liar: Side, lie: Lie, rng: random.Random) -> tuple[int, int]:
    """A liar answers Ann's calls of eight pairs, and has her compute all that she does meanwhile.

    Returns:
        What it got of her, and after how many calls it was found out.
    """
    reputation = Reputation()
    audits = Audits(0.05, reputation)
    ann.books.payee.honours = reputation.is_proved
    greet(ann, liar, NOW)
    got = take(ann, liar.peer)
    for calls in count(1):
        reputation.answered(liar.peer)
        ann.books.payer.answered(liar.peer, MODEL, 0, experts(8), ann.prices, NOW)
        if calls % DEALS == 0:
            assert settle(ann, liar, NOW) == ""
            got += take(ann, liar.peer)
        if rng.random() < audits.share_of(liar.peer):
            y = right(8, calls)
            said = sample_of(lie(y, rng), liar.peer, OTHER, calls)
            if audits.check(said, Word(HOME, OURS, y)).guilty:
                break
    reputation.struck(liar.peer, 1)
    assert settle(ann, liar, NOW) == ""
    return got + take(ann, liar.peer, now=NOW + 60), calls


@pytest.mark.parametrize("kind", LIES)
def test_who_always_answers_falsely_is_found_before_its_answers_count(kind: str) -> None:
    """What a peer answers counts in its favour once some of it was found right, or after ANSWERS_A_DEALING of
    them; who always lies is found by then (market.audit: in 99.96 % of cases), and nothing counts any more.

    Damage: what a newcomer is given, and at most 200 answers that have to be asked again.
    """
    rng, gift = random.Random(kind), newcomers_gift()
    for number in range(5):
        with folder() as path:
            ann, liar = Side("ann", path, TERMS), Side(f"liar {number}", path)
            got, calls = work_until_found(ann, liar, LIES[kind], rng)
            assert ann.account(liar).standing.provided > 0
            for side in (ann, liar):
                side.ledger.close()
        assert got - gift <= 0
        assert calls <= ANSWERS_A_DEALING


def test_an_honest_server_is_credited_all_it_did_once_it_is_proved() -> None:
    """The other side of that: nobody honest loses by it."""
    reputation = Reputation()
    with folder() as path:
        ann, bob = Side("ann", path, TERMS), Side("bob", path)
        ann.books.payee.honours = reputation.is_proved
        greet(ann, bob, NOW)
        ann.books.payer.answered(bob.peer, MODEL, 0, experts(60_000), ann.prices, NOW)
        assert settle(ann, bob, NOW) == ""
        at_first = take(ann, bob.peer)
        reputation.answered(bob.peer, int(ANSWERS_A_DEALING))
        then = take(ann, bob.peer)
        for side in (ann, bob):
            side.ledger.close()
    assert at_first <= A_NEWCOMER < at_first + then
    assert at_first + then + WORK > 60_000 * PRICE


# --- double signing: what a payee holds back ---


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (0, 3, 1, 2)])
def test_receipts_held_back_over_hours_count_once(order: Sequence[int]) -> None:
    """A payee answers no offer, and each hour's next receipt is for all that is due: it shows them later, in
    any order. Damage: none; it is owed what it did, or less."""
    with folder() as path:
        ann, eve = Side("ann", path), identity("eve")
        done, offers = 0, []
        now = NOW
        ann.do(ann.books.replied(eve.peer_id, encode(Hello((), back=True)), now))
        for _ in order:
            done += ann.books.payer.answered(eve.peer_id, MODEL, 0, experts(CALL), ann.prices, now)
            step = ann.books.offer(eve.peer_id, now)
            assert step is not None
            message = decode(ann.do(step), ann.peer)
            assert isinstance(message, Offer)
            offers.append(message.signed.countersigned(eve.private_key))
            now += 3_600
        for place in order:
            ann.do(ann.books.received(eve.peer_id, encode(Hello((offers[place],))), now))
        gain = ann.books.account(eve.peer_id).standing.provided - done
        ann.ledger.close()
    assert gain <= 0


def test_a_receipt_of_a_clock_that_was_ahead_counts_once() -> None:
    """Ann's clock was a hundred hours ahead; Eve countersigns what others refuse, and shows it when the
    same work is signed for at the right time. Damage: none."""
    with folder() as path:
        ann, eve, ahead = Side("ann", path), identity("eve"), NOW + 100 * 3_600
        ann.do(ann.books.replied(eve.peer_id, encode(Hello((), back=True)), NOW))
        done = ann.books.payer.answered(eve.peer_id, MODEL, 0, experts(CALL), ann.prices, ahead)
        signed = []
        for now in (ahead, NOW):
            step = ann.books.offer(eve.peer_id, now)
            assert step is not None
            message = decode(ann.do(step), ann.peer)
            assert isinstance(message, Offer)
            signed.append(message.signed.countersigned(eve.private_key))
        ann.do(ann.books.replied(eve.peer_id, encode(Countersigned(signed[1], 0)), NOW))
        ann.do(ann.books.received(eve.peer_id, encode(Hello((signed[0],))), NOW))
        gain = ann.books.account(eve.peer_id).standing.provided - done
        ann.ledger.close()
    assert gain <= 0


# --- any price ---


def test_who_asks_any_price_is_paid_what_the_caller_had_in_mind() -> None:
    """A server is asked for at its base price, and quotes a thousand credits a pair before it answers.

    Damage: what market.cap says: so many per cent of the base price, 16 times it by default. The gain against
    a server that always asked that is nothing.
    """
    cap = percent_of(PRICE, 1_600)
    cells = (np.arange(60), np.full(60, MAX_PRICE))
    book = PriceBook.of(quote_of(MODEL.hex(), 1, int(NOW) + 1_320, {0: cells}, 4_000), {0: cap})
    honest = PriceBook.of(
        quote_of(MODEL.hex(), 1, int(NOW) + 1_320, {0: (np.arange(60), np.full(60, cap))}, 4_000)
    )
    asked = experts(CALL)
    assert book.total(0, asked) - honest.total(0, asked) <= 0
    assert book.total(0, asked) <= 16 * WORK and book.mean(0) <= cap
