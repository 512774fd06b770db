"""Attacks on a peer's name by what others sign for it: none gains, and the damage is stated (docs/market.md).

What a name is good for is two things: whose word is believed where answers differ (`Reputation.outweighed`),
and whether work earns credit (`Reputation.is_proved`).
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from market.hearsay import MAX_VOUCHED
from market.receipt import CREDIT, MAX_TOTAL, Kind, Receipt, SignedReceipt, epoch_of, sign
from market.reputation import HEARSAY, OWN_DECIDES, Reputation, standing
from market.vouch_wire import EPOCHS_TOLD, MAX_TOLD, decode_told, encode_told
from market.vouching import OLDEST_EPOCHS, Vouched
from tests.attackers import IDS, TERMS, take
from tests.market_books import MODEL, NOW, QUOTE, Side, folder, identity

WE = identity("we").peer_id
EPOCH = epoch_of(NOW)
CLOSE = 1 + 1e-9


class Listener:
    """An honest node that asks peers whom they have paid, as node.market.vouching does."""

    def __init__(self) -> None:
        self.reputation = Reputation()
        self.vouched = Vouched(WE)
        self.checked = 0

    def dealt_with(self, name: str, dealings: float) -> str:
        peer_id = identity(name).peer_id
        self.reputation.agreed(peer_id, dealings)
        return peer_id

    def ask(self, name: str, told: Sequence[SignedReceipt], now: float = NOW) -> None:
        """A peer's answer, if its word is asked for at all."""
        peer_id = identity(name).peer_id
        if peer_id not in self.reputation.vouchers(64):
            return
        news = self.vouched.news(peer_id, decode_told(encode_told(told), peer_id), now)
        for signed in news:
            self.checked += 1
            assert signed.fault() == ""
        self.vouched.take(peer_id, news)
        for payee, credits in self.vouched.totals(peer_id):
            self.reputation.heard(peer_id, payee, credits)


def washed(payer: str, payee: str, credits: int = MAX_TOTAL, hour: int = 0, n: int = 1) -> SignedReceipt:
    """What two who are in league have both signed, whatever was done."""
    told = Receipt(
        Kind.WORK, identity(payer).peer_id, identity(payee).peer_id, EPOCH + hour, n,
        (EPOCH + hour - 1, n - 1) if n > 1 else (0, 0), 1, credits, MODEL.hex(), QUOTE,
    )  # fmt: skip
    return sign(told, identity(payer).private_key).countersigned(identity(payee).private_key)


def names_of(many: int) -> list[str]:
    return [f"sybil {number}" for number in range(many)]


def test_wash_trading_gives_nobody_a_name() -> None:
    """Ten identities sign 2^53 for each other, day and night. Damage: none, not even a question to them."""
    node = Listener()
    names = names_of(IDS)
    for hour in range(24):
        for number, name in enumerate(names):
            others = [each for each in names if each != name]
            node.ask(name, [washed(name, each, hour=hour - 24) for each in others[: 1 + number]])
    assert node.reputation.together(identity(name).peer_id for name in names) == 0
    assert node.checked == 0


@given(earned=st.lists(st.floats(0, 1e6), min_size=IDS, max_size=IDS), speaking=st.integers(1, IDS))
def test_a_ring_that_has_worked_for_us_weighs_no_more_than_one_that_did_it_all(
    earned: list[float], speaking: int
) -> None:
    """Each vouches for all others. Damage: none; two of them weigh less than the one they could have been."""
    node, whole = Listener(), Listener()
    names = names_of(IDS)
    peers = [node.dealt_with(name, each) for name, each in zip(names, earned, strict=True)]
    one = whole.dealt_with("one", sum(earned))
    for name in names:
        for other in names:
            if name != other:
                node.reputation.heard(identity(name).peer_id, identity(other).peer_id, 1e9)
    assert node.reputation.together(peers[:speaking]) <= whole.reputation.of(one) * CLOSE
    assert max(map(node.reputation.of, peers)) <= whole.reputation.of(one) * CLOSE


@pytest.mark.parametrize("of_real_work", [30.0, 1e3, 1e6])
def test_what_a_bribed_peer_can_do_to_others(of_real_work: float) -> None:
    """Who has worked long for this node, bribed, vouches for ten identities that then say the same.

    Damage: together they weigh HEARSAY of its standing at most, where all in dispute are next to unknown;
    the bribed one alone would have weighed twenty times as much. Against whoever was found right five times
    they are nothing.
    """
    node = Listener()
    bribed = node.dealt_with("bribed", of_real_work)
    names = names_of(IDS)
    sybils = [identity(name).peer_id for name in names]
    for hour in range(3):
        receipts = [washed("bribed", name, hour=hour - 2, n=hour + 1) for name in names]
        node.ask("bribed", receipts)
    most = HEARSAY * standing(of_real_work)
    assert 0 < node.reputation.together(sybils) <= standing(most) * CLOSE
    assert node.reputation.of(bribed) == standing(of_real_work) >= most / HEARSAY
    newcomer, known = node.dealt_with("newcomer", 0.0), node.dealt_with("known", 5.0)
    assert node.reputation.outweighed(newcomer, sybils)  # as the bribed one's own word would
    assert node.reputation.outweighed(newcomer, [bribed])
    assert node.reputation.own(known) == OWN_DECIDES
    assert not node.reputation.outweighed(known, sybils)
    # And once it is found lying itself, nothing of that is left.
    node.reputation.struck(bribed, 1)
    assert node.reputation.together(sybils) == 0
    assert node.reputation.vouchers(64) == [known]


def test_bought_words_earn_no_credit() -> None:
    """Whoever is vouched for as far as can be is still a newcomer where it asks for work. Damage: none."""
    node = Listener()
    node.dealt_with("bribed", 1e6)
    sybil = identity("sybil 0").peer_id
    with folder() as path:
        ann = Side("ann", path, TERMS)
        ann.books.payee.honours = node.reputation.is_proved
        ann.books.account(sybil).standing.add(True, Kind.WORK, 400 * CREDIT)  # what it did, perhaps falsely
        ann.books.payee.changed(ann.books.account(sybil))
        before = ann.books.payee.limit(ann.books.account(sybil), NOW)
        node.ask("bribed", [washed("bribed", "sybil 0")])
        assert node.reputation.of(sybil) > 1_000 and not node.reputation.is_proved(sybil)
        ann.books.payee.changed(ann.books.account(sybil))
        assert ann.books.payee.limit(ann.books.account(sybil), NOW) == before
        assert take(ann, sybil) <= TERMS.newcomers
        ann.ledger.close()


def test_telling_more_often_or_of_more_hours_gives_nothing_beyond_the_budget() -> None:
    """The same work told in each hour of a month, told again, and split over many payees."""
    node = Listener()
    node.dealt_with("bribed", 100.0)
    for hour in range(-OLDEST_EPOCHS, 0, 8):
        node.ask("bribed", [washed("bribed", "sybil 0", CREDIT, hour)])
    sybil = identity("sybil 0").peer_id
    assert dict(node.vouched.totals(identity("bribed").peer_id)) == {sybil: 1.0}, "none rests on another"
    assert node.reputation.of(sybil) == standing(HEARSAY)
    checked = node.checked
    for _ in range(10):
        node.ask("bribed", [washed("bribed", "sybil 0", CREDIT, -8)])
    assert node.checked == checked == 1, "what says no more is not looked at"
    for hour in range(-1, 1):
        names = names_of(MAX_TOLD // EPOCHS_TOLD)
        node.ask("bribed", [washed("bribed", name, hour=hour, n=hour + 2) for name in names])
    sybils = [identity(name).peer_id for name in names_of(MAX_TOLD)]
    assert node.reputation.together(sybils) <= standing(HEARSAY * standing(100.0)) * CLOSE


def test_an_answer_costs_so_many_signatures_at_most() -> None:
    """A voucher whose answers are always of others. Damage: MAX_TOLD receipts with two signatures each, once
    in ten minutes; and no more memory than 64 payees take."""
    node = Listener()
    bribed = node.dealt_with("bribed", 1.0)
    for round in range(1, 4):
        node.ask("bribed", [washed("bribed", f"payee {round} {number}") for number in range(MAX_TOLD)])
        assert node.checked == round * MAX_TOLD
        assert len(dict(node.vouched.totals(bribed))) == MAX_VOUCHED
