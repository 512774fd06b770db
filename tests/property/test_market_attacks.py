"""Who lies to an honest node about credit gains nothing but what is stated here, whatever it sends."""

from __future__ import annotations

import random
from contextlib import suppress
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from market.account import Account
from market.accounts_payee import MOST_UNSIGNED, SLACK
from market.credit_line import (
    GIVEN_PER_LINE,
    SECONDS_A_DAY,
    SUBNET_SHARE,
    NewcomerPool,
    Terms,
    earned_line,
)
from market.market_wire import Countersigned, Hello, NotSigned, Offer, Reason, decode, encode
from market.receipt import (
    CREDIT,
    EPOCH_SECONDS,
    MAX_N,
    Kind,
    Receipt,
    SignedReceipt,
    contradiction,
    epoch_of,
    sign,
    signed_double,
)
from routing.errors import PeerError
from tests.market_books import MODEL, NOW, PRICE, QUOTE, Side, experts, folder, identity

MALLORY = identity("mallory")
TERMS = Terms(credit_line=10**5 * CREDIT, newcomers=5_000 * CREDIT)

MOST_GIFT = 0
"""µcr that two identities have earned together beyond what one with both histories has, below the cap."""


# --- identities ---

AMOUNT = st.integers(0, 10_000 * CREDIT)


@given(one=AMOUNT, other=AMOUNT, cap=st.integers(0, 5_000 * CREDIT))
def test_two_identities_earn_no_more_than_one_with_both_histories(one: int, other: int, cap: int) -> None:
    together = earned_line(one, cap) + earned_line(other, cap)
    whole = earned_line(one + other, cap)
    if one + other <= GIVEN_PER_LINE * cap:
        assert together - whole <= MOST_GIFT
    # Above it the one is at the cap. What the two have more, they have given twice over: whoever leaves with
    # all of it as debt has still given more than it took without paying.
    assert together <= (one + other) // GIVEN_PER_LINE
    assert together <= 2 * cap


Draws = list[tuple[int, int]]


@given(
    draws=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 90 * CREDIT)), max_size=40),
    ids=st.integers(1, 10),
)
def test_ten_strangers_are_granted_no_more_than_one(draws: Draws, ids: int) -> None:
    """What the pool grants depends on the day, the amount and the subnet, never on who asks."""
    per_day = 200 * CREDIT
    one, many = NewcomerPool(per_day), NewcomerPool(per_day)
    granted = [0] * ids
    alone = 0
    for number, (day, credits) in enumerate(sorted(draws)):
        now = NOW + day * SECONDS_A_DAY
        alone += credits * one.take(credits, "192.0.2.0/24", now)
        granted[number % ids] += credits * many.take(credits, "192.0.2.0/24", now)
    assert sum(granted) == alone <= 4 * per_day // SUBNET_SHARE


Shares = list[tuple[int, int, bool]]


@given(
    history=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 50 * CREDIT), st.booleans()), min_size=1, max_size=12
    )
)
@settings(max_examples=60)
def test_a_history_split_over_two_identities_gets_no_more_work(history: Shares) -> None:
    """What was given, by day, and whether by the second; after each gift as much is taken as can be."""
    terms = Terms(credit_line=1_000 * CREDIT, newcomers=30 * CREDIT)
    given = sum(credits for _, credits, _ in history)
    days = len({day for day, _, _ in history})
    with folder() as path:
        taken = []
        for names in (("one", "one"), ("one", "other")):
            node = Side("bob", path / names[1], terms, price=CREDIT // 10)
            total = 0
            for day, credits, second in sorted(history):
                peer = identity(names[second]).peer_id
                account = node.books.account(peer)
                account.standing.add(True, Kind.WORK, credits)
                node.books.payee.changed(account)
                total += _take_all(node, peer, NOW + day * SECONDS_A_DAY)
            taken.append(total)
            node.ledger.close()
    alone, split = taken
    # Half of the gifts and the welcome stay below the cap, so that nothing but the bounds themselves counts.
    assert given // GIVEN_PER_LINE + days * terms.newcomers <= terms.credit_line
    assert split <= alone + MOST_GIFT + 2 * CREDIT // 10  # as far as whole pairs go
    assert alone <= given + given // GIVEN_PER_LINE + days * terms.newcomers


def _take_all(node: Side, peer: str, now: float) -> int:
    """Sign at once for whatever is given, until it is refused."""
    payee = node.books.payee
    account = node.books.account(peer)
    taken, pairs = 0, 1_000
    while pairs:
        cost = pairs * node.prices.price
        if payee.refusal(peer, now, cost):
            pairs //= 2
            continue
        payee.served(peer, MODEL, 0, experts(pairs), now)
        account.standing.add(False, Kind.WORK, cost)
        payee.covered(account, cost, now)
        payee.changed(account)
        taken += cost
    return taken


# --- a liar ---


class Liar:
    """Mallory has a key and sends whatever it likes, at any time; Ann is an honest node.

    Attributes:
        served: µcr of work that Ann did for Mallory.
        answered: µcr of work that Mallory did for Ann.
        forgotten: µcr that Ann had not got a receipt for when she was killed.
    """

    def __init__(self, ann: Side, rng: random.Random) -> None:
        self.ann = ann
        self.rng = rng
        self.now = NOW
        self.served = 0
        self.answered = 0
        self.forgotten = 0
        self.anns: list[SignedReceipt] = []  # all that Ann has ever signed
        self.mine: list[SignedReceipt] = []  # offered by Mallory
        self.peer = MALLORY.peer_id

    @property
    def account(self) -> Account:
        return self.ann.books.account(self.peer)

    def step(self) -> None:
        """Something happens."""
        match self.rng.randrange(8):
            case 0 | 1:
                self._take_work()
            case 2:
                self._give_work()
            case 3 | 4:
                self._offer()
            case 5:
                self._ask_for_receipts()
            case 6:
                self._show()
            case 7:
                self.now += self.rng.choice([5, 400, EPOCH_SECONDS])
        if self.rng.random() < 0.05:
            self.forgotten += self.account.unsigned + self.account.given_up
            self.ann.restart()

    def _take_work(self) -> None:
        pairs = self.rng.randrange(1, 20_000)
        payee = self.ann.books.payee
        if not payee.refusal(self.peer, self.now, pairs * PRICE):
            payee.served(self.peer, MODEL, 0, experts(pairs), self.now)
            self.served += pairs * PRICE

    def _give_work(self) -> None:
        pairs = self.rng.randrange(1, 5_000)
        self.answered += self.ann.books.payer.answered(
            self.peer, MODEL, 0, experts(pairs), self.ann.prices, self.now
        )

    def _offer(self) -> None:
        """A receipt of any content, or one from before."""
        rng = self.rng
        if self.mine and rng.random() < 0.3:
            signed = rng.choice(self.mine)
        else:
            last = self.mine[-1].receipt if self.mine else None
            epoch = epoch_of(self.now) - rng.choice([0, 0, 0, 0, 1, -1, 5])
            n = rng.randrange(1, 4) + (last.n if last else 0) if rng.random() < 0.8 else rng.randrange(1, 9)
            kind = rng.choice([Kind.WORK, Kind.WORK, Kind.WORK, Kind.PAID])
            payer, payee = (self.peer, self.ann.peer) if kind is Kind.WORK else (self.ann.peer, self.peer)
            credits = max(1, int(self.served * rng.choice([1, 1, 0.98, 0.5, 0.01])))
            previous = rng.choice([(0, 0), (epoch - 1, n), (last.epoch, last.n) if last else (0, 0)])
            receipt = Receipt(
                kind, payer, payee, epoch, min(n, MAX_N), previous if previous[0] < epoch else (0, 0),
                credits // PRICE if kind is Kind.WORK else 0, credits,
                *((MODEL.hex(), rng.choice([QUOTE, QUOTE, 3])) if kind is Kind.WORK else ()),
            )  # fmt: skip
            signed = sign(receipt, MALLORY.private_key)
            self.mine.append(signed)
        self._tell(encode(Offer(signed)))

    def _ask_for_receipts(self) -> None:
        """Greet, and answer what Ann offers with whatever may confuse her."""
        self._hear(encode(Hello((), back=True)))
        step = self.ann.books.offer(self.peer, self.now)
        if step is None:
            return
        message = decode(self.ann.do(step), self.ann.peer)
        assert isinstance(message, Offer)
        self.anns.append(message.signed)
        signed = self._countersigned(self.rng.choice([message.signed, self.rng.choice(self.anns)]))
        if self.rng.random() < 0.6:
            self._hear(encode(Countersigned(signed, self.rng.randrange(CREDIT))))
        else:
            self._hear(encode(NotSigned(self.rng.choice(list(Reason)), "no", signed)))

    def _show(self) -> None:
        """A hello with old receipts."""
        shown = [self._countersigned(each) for each in self.anns]
        self.rng.shuffle(shown)
        self._tell(encode(Hello(tuple(shown[:3]))))

    def _countersigned(self, signed: SignedReceipt) -> SignedReceipt:
        if signed.receipt.second != self.peer or signed.full:
            return signed
        return signed.countersigned(MALLORY.private_key)

    def _tell(self, message: bytes) -> None:
        try:
            reply = self.ann.do(self.ann.books.received(self.peer, message, self.now))
        except PeerError:
            return
        match decode(reply, self.ann.peer):
            case Countersigned(signed, _):
                self.anns.append(signed)

    def _hear(self, message: bytes) -> None:
        with suppress(PeerError):
            self.ann.do(self.ann.books.replied(self.peer, message, self.now))

    def check(self) -> None:
        """What holds for Ann at every moment."""
        account = self.account
        # She owes for nothing that was not done, and for no work twice.
        assert account.standing.provided <= self.answered
        # What Mallory has taken is on its account, but for what is said to be allowed.
        assert account.unsigned <= MOST_UNSIGNED
        signed = account.standing.consumed
        unpaid = signed // SLACK + account.unsigned + account.given_up
        assert self.served <= signed + unpaid + self.forgotten
        days = self.now // SECONDS_A_DAY - NOW // SECONDS_A_DAY + 1
        assert account.given_up + account.granted <= TERMS.newcomers * days
        # Nobody else can say that a debt to Ann is settled.
        assert account.standing.paid_to_us == account.standing.forgiven_by_us == 0

    def check_signatures(self) -> None:
        """Ann has signed nothing that speaks against her; what she says of Mallory convinces others."""
        issued = {each.receipt for each in self.anns if each.receipt.issuer == self.ann.peer}
        assert not [why for one, other in combinations(issued, 2) if (why := contradiction(one, other))]
        for proof in self.ann.ledger.evidence():
            assert proof.one.receipt.issuer == self.peer
            assert signed_double(proof.one, proof.other)
        assert bool(self.account.fault) == bool(self.ann.ledger.evidence())


def test_a_liar_gets_no_credit_it_has_not_earned_and_harms_nobodys_name() -> None:
    convicted = took = 0
    for seed in range(30):
        with folder() as path:
            ann = Side("ann", path, TERMS)
            liar = Liar(ann, random.Random(seed))
            for _ in range(120):
                liar.step()
                liar.check()
            liar.check_signatures()
            before = liar.account.standing
            ann.restart()
            assert liar.account.standing == before
            ann.ledger.close()
            convicted += bool(liar.account.fault)
            took += liar.served
    # It has tested what it says: some were found out, and work was taken and given.
    assert convicted > 5
    assert took > 30 * MOST_UNSIGNED
