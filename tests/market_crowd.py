"""Books that are full: many peers with whom something was signed, room for few, and steps that overlap."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from market.account import Account
from market.ledger import AccountState
from market.market_wire import NotSigned, Offer, decode, encode
from market.receipt import EPOCH_SECONDS, Kind, Receipt, epoch_of, sign
from market.standing import Standing
from market.step import Step
from routing.errors import LocalError
from tests.market_books import NOW, PRICE, Side, identity, receipt_of

ROOM, PEERS = 3, 6
"""Accounts that are kept, and peers that want one."""


class Crowd:
    """Ann's books. A step is made at any time, unless one of the same peer is under way; they are written in
    the order in which they were made, as in a node (node.market.settling).

    Attributes:
        under_way: steps that are not written yet, with their peers; "" of nobody's.
        seen: what has happened, so that a test can say that it tested something.
    """

    def __init__(self, folder: Path) -> None:
        self.ann = Side("ann", folder)
        self.payers = [identity(f"payer {number}") for number in range(PEERS)]
        self._last: dict[int, Receipt] = {}
        self.under_way: list[tuple[str, Step]] = []
        self.seen: Counter[str] = Counter()
        self.now = NOW
        self._open()

    def _open(self) -> None:
        self.ann.books._registry._max_peers = ROOM

    def close(self) -> None:
        self.ann.ledger.close()

    def is_busy(self, peer: str) -> bool:
        return any(peer == each for each, _ in self.under_way)

    # --- what happens ---

    def offer(self, number: int, credits: int, *, double: bool = False) -> None:
        """A peer signs for work; `double`: it says something else under the number of its last."""
        payer = self.payers[number]
        if self.is_busy(payer.peer_id):
            return
        known = self._last.get(number)
        receipt = receipt_of(
            self.ann, self.ann, lambda each: replace(each, payer=payer.peer_id, credits=credits)
        )
        if known is not None:
            receipt = replace(known, credits=known.credits + credits, n=known.n + (not double))
            if not double and known.epoch < epoch_of(self.now):
                receipt = replace(
                    receipt, epoch=epoch_of(self.now), previous=(known.epoch, known.n), credits=credits
                )
        signed = sign(receipt, payer.private_key)
        step = self.ann.books.received(payer.peer_id, encode(Offer(signed)), self.now)
        message = decode(step.message, self.ann.peer)
        if isinstance(message, NotSigned):
            self.seen[message.reason.name] += 1
        elif not double:
            self._last[number] = receipt
        self._begun(payer.peer_id, step)

    def forgive(self, number: int) -> None:
        peer = self.payers[number].peer_id
        if not self.is_busy(peer):
            try:
                self._begun(peer, self.ann.books.settle(peer, 1, Kind.FORGIVEN, self.now))
            except LocalError:
                self.seen["not forgiven"] += 1

    def flush(self) -> None:
        self._begun("", self.ann.books.flush())

    def serve(self, number: int, pairs: int) -> None:
        """Draws on the newcomers' pool, which is written down later."""
        peer = self.payers[number].peer_id
        if not self.ann.books.payee.refusal(peer, self.now, pairs * PRICE):
            self.seen["served"] += 1

    def _begun(self, peer: str, step: Step) -> None:
        if step.write:
            self.under_way.append((peer, step))
        else:
            self.ann.books.written(step)

    def write(self) -> None:
        """The next one is on the disk."""
        if self.under_way:
            _, step = self.under_way.pop(0)
            self.ann.ledger.write(step.write)
            self.ann.books.written(step)
            self.seen["written"] += 1
            self.seen["forgotten"] += any(type(record).__name__ == "Forgotten" for record in step.write)

    def fail(self) -> None:
        """The next one cannot be written, or who asked for it gave up waiting."""
        if self.under_way:
            self.ann.books.abandoned(self.under_way.pop(0)[1])
            self.seen["failed"] += 1

    def crash(self) -> None:
        """The process is killed; what waits is not written."""
        self.under_way = []
        self.ann.restart()
        self._open()

    def wait(self, hours: int) -> None:
        self.now += hours * EPOCH_SECONDS

    # --- what holds ---

    def check(self) -> None:
        """When nothing is under way the file says what the memory does, and neither has more than it may."""
        kept = {str(account.peer): account for account in self.ann.books._registry.kept()}
        assert len(kept) <= ROOM
        if not self.under_way:
            filed = {state.peer: state for state in self.ann.ledger.load(self.now).accounts}
            assert filed.keys() == kept.keys()
            for peer, state in filed.items():
                assert _of_file(state) == _of_memory(kept[peer]), peer
                assert not kept[peer].leaving


def _of_file(state: AccountState) -> tuple[Standing, str, list[object]]:
    standing = Standing()
    for stream in state.streams:
        standing.add(stream.we_pay, stream.kind, stream.total_credits)
    return standing, state.fault, [stream.full for stream in state.streams if stream.full is not None]


def _of_memory(account: Account) -> tuple[Standing, str, list[object]]:
    streams = sorted((side, stream.full) for side, stream in account.streams() if stream.full is not None)
    return account.standing, account.fault, [full for _, full in streams]
