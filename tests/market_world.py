"""Two honest nodes that compute for each other over a bad network, and what must hold at every moment."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from market.market_wire import decode
from market.receipt import EPOCH_SECONDS, Kind
from market.step import Step
from tests.market_books import LAYER, NOW, Side, experts, greet, settle

CRASHES = ("before the write", "after the write", "before it is sent")
"""Where a process may die in a step; "" where it lives."""

STAGES = ("it is offered", "it is answered", "the end")
"""How far an exchange comes before the connection breaks."""


class World:
    """Messages in flight are (to whom, whether it is a reply, bytes): any may be delivered at any time, or
    twice, or never.

    Attributes:
        answered: µcr of answers to each side, less what its crashes made it forget.
        settled: µcr that each has signed off.
        given_up: µcr of calls that each side has asked for and not waited for; of these it owes `claimed`.
        seen: messages by kind, so that a test can say that it tested something.
    """

    def __init__(self, folder: Path) -> None:
        self.sides = [Side("ann", folder), Side("bob", folder)]
        self.now = NOW
        self.wire: list[tuple[int, bool, bytes]] = []
        self.answered = [0, 0]
        self.settled = [0, 0]
        self.given_up = [0, 0]
        self.claimed = [0, 0]
        self.seen: Counter[str] = Counter()
        for side in (0, 1):
            self._count_claims(side)
        self.greet(0)

    def _count_claims(self, side: int) -> None:
        def count(credits: int) -> None:
            self.claimed[side] += credits
            self.answered[side] += credits
            self.seen["claimed"] += 1

        self.sides[side].books.payer.on_claimed = count

    def close(self) -> None:
        for side in self.sides:
            side.ledger.close()

    # --- what happens ---

    def work(self, server: int, pairs: int) -> None:
        payee, payer = self.sides[server], self.sides[1 - server]
        if payee.serve(payer, pairs, self.now):
            self.seen["unserved"] += 1
        else:
            self.answered[1 - server] += pairs * payee.prices.price

    def hedge(self, server: int, pairs: int, *, is_computed: bool) -> None:
        """A call that is given up as another's answer is there: it was computed, or was dropped in time."""
        payee, payer = self.sides[server], self.sides[1 - server]
        if is_computed:
            if payee.serve(payer, pairs, self.now, is_hedged=True):
                return
        else:
            payer.books.payer.given_up(payee.peer, LAYER, experts(pairs), payee.prices, self.now)
        self.given_up[1 - server] += pairs * payee.prices.price

    def greet(self, side: int) -> None:
        greet(self.sides[side], self.sides[1 - side], self.now)

    def hello(self, side: int, crash: str) -> None:
        message = self.sides[side].books.hello(self.sides[1 - side].peer)
        self._finish(side, Step(message=message), crash, reply=False)

    def waits(self, side: int) -> bool:
        """Whether a side has something to offer."""
        return self.sides[side].account(self.sides[1 - side]).is_open

    def offer(self, side: int, crash: str, until: str) -> None:
        """Offer what is due, and let it come as far as `until`; the rest stays in flight."""
        one, other = self.sides[side], self.sides[1 - side]
        if not one.account(other).caught_up:
            self.greet(side)
        step = one.books.offer(other.peer, self.now)
        if step is None or not self._finish(side, step, crash, reply=False) or until == "it is offered":
            return
        reply = other.books.received(one.peer, self.wire.pop()[2], self.now)
        if self._finish(1 - side, reply, crash, reply=True) and until == "the end":
            self._finish(
                side, one.books.replied(other.peer, self.wire.pop()[2], self.now), crash, reply=False
            )

    def sign_off(self, side: int, share: float, kind: Kind) -> None:
        """Sign a share of what the other side owes off."""
        creditor, debtor = self.sides[side], self.sides[1 - side]
        account = creditor.account(debtor)
        waiting = sum(account.issuing(False, each).due_credits for each in (Kind.PAID, Kind.FORGIVEN))
        credits = int((account.standing.owes - waiting) * share)
        if credits > 0:
            creditor.do(creditor.books.settle(debtor.peer, credits, kind, self.now))
            self.settled[side] += credits

    def deliver(self, place: int, crash: str, *, again: bool) -> None:
        """A message that is in flight arrives; `again`: and will once more."""
        to, is_reply, message = self.wire[place] if again else self.wire.pop(place)
        receiver, sender = self.sides[to], self.sides[1 - to]
        heard = receiver.books.replied if is_reply else receiver.books.received
        self._finish(to, heard(sender.peer, message, self.now), crash, reply=not is_reply)

    def crash(self, side: int) -> None:
        """What was answered and not signed yet is forgotten; what was signed is not."""
        node, other = self.sides[side], self.sides[1 - side]
        before = node.pays(other)
        node.restart()
        self._count_claims(side)
        after = node.pays(other)
        lost = before.total_credits + before.due_credits - after.total_credits - after.due_credits
        assert lost >= 0, "a crash makes nobody owe more"
        self.answered[side] -= lost
        self.seen["crash"] += 1

    def _finish(self, side: int, step: Step, crash: str, *, reply: bool) -> bool:
        """Carry a step out as far as the crash lets it; whether its message is on the wire."""
        node = self.sides[side]
        if crash == "before the write":
            self.crash(side)
            return False
        if step.write:
            node.ledger.write(step.write)
        if crash == "after the write":
            self.crash(side)
            return False
        node.books.written(step)
        if crash == "before it is sent":
            self.crash(side)
            return False
        if step.message:
            self.wire.append((1 - side, reply, step.message))
            message = decode(step.message, node.peer)
            self.seen[message.reason.name if hasattr(message, "reason") else type(message).__name__] += 1
        return bool(step.message)

    # --- what holds ---

    def check(self) -> None:
        """At every moment."""
        for side in (0, 1):
            payer, payee = self.sides[side], self.sides[1 - side]
            assert not payee.account(payer).fault, "honest, and taken for a double signer"
            signed, counted = payer.pays(payee), payee.is_paid_by(payer)
            # The payee countersigns first: the payer may not know yet. More than was answered never counts.
            assert signed.total_credits <= counted.total_credits <= self.answered[side]
            assert signed.total_credits + signed.due_credits == self.answered[side]
            assert self.claimed[side] <= self.given_up[side], "nobody pays for what he did not ask for"
            assert payer.account(payee).standing.provided == signed.total_credits
            assert payee.account(payer).standing.consumed == counted.total_credits

    def agree(self) -> None:
        """The network is whole again: both sides come to say the same."""
        self.now += EPOCH_SECONDS
        one, other = self.sides
        for payer, payee in ((one, other), (other, one), (one, other)):
            assert settle(payer, payee, self.now) == ""
        self.check()
        work = self.answered[1] - self.answered[0]
        assert one.owed_by(other) == work - self.settled[0] + self.settled[1]
        assert other.owed_by(one) == -one.owed_by(other)
        before = one.owed_by(other)
        for side in self.sides:
            side.restart()  # looks whether the file adds up
        assert (one.owed_by(other), other.owed_by(one)) == (before, -before)
