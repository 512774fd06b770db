"""What whoever attacks a node's market does by hand: takes work, signs what it likes, shows what it likes.

Gains are in micro-credits: value got, less value given, less what an honest newcomer would be given for
nothing in the same place.
"""

from __future__ import annotations

from market.credit_line import SUBNET_SHARE, Terms
from market.market_wire import MarketMessage, Offer, decode, encode
from market.receipt import CREDIT, Kind, Receipt, SignedReceipt, epoch_of, sign
from tests.market_books import MODEL, NOW, PRICE, QUOTE, Side, experts, folder, identity

IDS = 10
"""Identities of an attacker."""

TERMS = Terms(credit_line=1_000 * CREDIT, newcomers=200 * CREDIT)
"""The defaults of [market]."""

SUBNET = "203.0.113.0/24"

CALL = 500
"""Pairs of a call: a prompt's."""

WORK = CALL * PRICE

A_NEWCOMER = TERMS.newcomers // SUBNET_SHARE
"""What one who has given nothing is given a day: a subnet's part of the pool."""


def take(ann: Side, peer: str, *, most: int = 10**15, now: float = NOW, subnet: str = SUBNET) -> int:
    """A peer has Ann compute for it for as long as she does, and signs nothing; the worth of it."""
    ann.books.payee.met(peer, subnet)
    got = 0
    while got + WORK <= most and not ann.books.payee.refusal(peer, now, WORK):
        ann.books.payee.served(peer, MODEL, 0, experts(CALL), now)
        got += WORK
    return got


def tell(ann: Side, peer: str, signed: SignedReceipt, now: float = NOW) -> MarketMessage:
    """Offer Ann a receipt; her reply."""
    return decode(ann.do(ann.books.received(peer, encode(Offer(signed)), now)), ann.peer)


def newcomers_gift() -> int:
    """What an honest newcomer gets before it has given anything: measured, not assumed."""
    with folder() as path:
        ann = Side("ann", path, TERMS)
        gift = take(ann, identity("newcomer").peer_id)
        ann.ledger.close()
    assert A_NEWCOMER - WORK < gift <= A_NEWCOMER
    return gift


def fake(payer: str, payee: str, credits: int, pairs: int = 1, n: int = 1) -> SignedReceipt:
    """A receipt for work, signed by who pays, whether it was done or not."""
    receipt = Receipt(
        Kind.WORK, identity(payer).peer_id, identity(payee).peer_id, epoch_of(NOW), n, (0, 0), pairs, credits,
        MODEL.hex(), QUOTE,
    )  # fmt: skip
    return sign(receipt, identity(payer).private_key)
