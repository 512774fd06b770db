"""Nodes that owe each other: real books on real ledger files, and messages carried by hand."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from market.account import Account
from market.books import Books
from market.credit_line import Terms
from market.ledger_sqlite import SqliteLedger
from market.market_wire import decode, encode
from market.receipt import CREDIT, EPOCH_SECONDS, Kind, Receipt
from market.step import Step
from market.stream import Accepting, Issuing
from routing.identity import Identity

MODEL = bytes(range(32))
LAYER = 3
NOW = float(500_000 * EPOCH_SECONDS)
PRICE = 2_600
QUOTE = 7
RICH = Terms(credit_line=10**6 * CREDIT, newcomers=10**6 * CREDIT)
"""Credit that no test uses up."""


MEMORY = Path("/dev/shm")
"""Where writing to the disk costs nothing: what is tried here are killed processes, not power cuts."""


@contextmanager
def folder() -> Iterator[Path]:
    """An empty folder for ledgers, in memory where there is such a place."""
    path = Path(tempfile.mkdtemp(prefix="panal-ledger-", dir=MEMORY if MEMORY.is_dir() else None))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@cache
def identity(name: str) -> Identity:
    """The same key for the same name."""
    return Identity.from_private_key(Ed25519PrivateKey.from_private_bytes(name.encode().ljust(32, b".")))


def experts(pairs: int) -> npt.NDArray[np.uint16]:
    """So many pairs of some cells."""
    return (np.arange(pairs) % 60).astype(np.uint16)


class FlatPrices:
    """One price for every pair, quoted for ever: what is asked, and what is paid by."""

    number = QUOTE

    def __init__(self, price: int = PRICE) -> None:
        self.price = price

    def total(self, layer: int, experts: npt.NDArray[np.uint16]) -> int:
        return self.price * experts.size

    def total_lowest(self, model_id: bytes, layer: int, experts: npt.NDArray[np.uint16], now: float) -> int:
        return self.price * experts.size

    def valid(self, number: int, now: float) -> bool:
        return number == QUOTE


class Side:
    """One node: its books, and the file they are in."""

    def __init__(self, name: str, folder: Path, terms: Terms = RICH, price: int = PRICE) -> None:
        self.identity = identity(name)
        self.peer = self.identity.peer_id
        self.path = folder / f"{name}.db"
        self.prices = FlatPrices(price)
        self._terms = terms
        self.ledger = SqliteLedger(self.path)
        self.books = self._opened()

    def _opened(self) -> Books:
        return Books(self.identity, self._terms, self.prices, self.ledger.load(NOW))

    def restart(self) -> None:
        """The process is killed, and another begins: what is not in the file is gone."""
        self.ledger.close()
        self.ledger = SqliteLedger(self.path)
        self.books = self._opened()

    def do(self, step: Step) -> bytes:
        """Write a step down, make it so; the message that may be sent now."""
        if step.write:
            self.ledger.write(step.write)
        self.books.written(step)
        return step.message

    def account(self, other: Side) -> Account:
        return self.books.account(other.peer)

    def owed_by(self, other: Side) -> int:
        return self.account(other).standing.owes

    def pays(self, other: Side, kind: Kind = Kind.WORK) -> Issuing:
        """The stream of what this side owes the other for work."""
        return self.account(other).issuing(True, kind)

    def is_paid_by(self, other: Side) -> Accepting:
        return self.account(other).accepting(False, Kind.WORK)

    def serve(
        self, payer: Side, pairs: int, now: float, *, arrives: bool = True, is_hedged: bool = False
    ) -> str:
        """Compute for the other side, whose answer is lost, or was not waited for; the refusal, or ""."""
        cost = self.prices.price * pairs
        why = self.books.payee.refusal(payer.peer, now, cost)
        if not why:
            self.books.payee.served(payer.peer, MODEL, LAYER, experts(pairs), now)
            if is_hedged:
                payer.books.payer.given_up(self.peer, LAYER, experts(pairs), self.prices, now)
            elif arrives:
                payer.books.payer.answered(self.peer, MODEL, LAYER, experts(pairs), self.prices, now)
        return why


def say(one: Side, other: Side, message: bytes, now: float) -> Step:
    """One exchange that nothing goes wrong with; what the reply made of it."""
    reply = other.do(other.books.received(one.peer, message, now))
    assert encode(decode(reply, other.peer)) == reply
    step = one.books.replied(other.peer, reply, now)
    one.do(step)
    return step


def greet(one: Side, other: Side, now: float) -> None:
    """What a new connection begins with."""
    say(one, other, one.books.hello(other.peer), now)


def settle(one: Side, other: Side, now: float, most: int = 8) -> str:
    """Greet, then offer all that is due; why the other side refused, or "". After a settlement that was
    refused comes what else is due."""
    greet(one, other, now)
    refused = ""
    for _ in range(most):
        step = one.books.offer(other.peer, now)
        if step is None:
            return refused
        why = say(one, other, one.do(step), now).refused
        if why and step.kind is Kind.WORK:
            return why
        refused = why or refused
    raise AssertionError(f"{most} offers, and still there is something due: {refused}")


def receipt_of(payer: Side, payee: Side, change: Callable[[Receipt], Receipt] | None = None) -> Receipt:
    """A receipt for work as an honest payer would sign it first."""
    receipt = Receipt(
        Kind.WORK, payer.peer, payee.peer, int(NOW) // EPOCH_SECONDS, 1, (0, 0), 10, 10 * PRICE,
        MODEL.hex(), QUOTE,
    )  # fmt: skip
    return receipt if change is None else change(receipt)
