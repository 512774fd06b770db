"""A node's books: all accounts, and each step that changes what was signed. Pure; the adapter does the I/O.

A *step* is made, written down, made true, and sent, in this order, one at a time for each peer:

    step = books.offer(peer, now)            # or received, replied, settle
    ledger.write(step.write)                 # in a thread, if there is anything
    books.written(step)
    send step.message                        # if there is one

So nothing that another node has seen is ever unsaid: a process that is killed before the write has not
promised anything, and one killed after it finds the promise in the file and says the same again.

On a new connection `hello` comes before any offer: what a lost or old file no longer knows, the other side
shows, and our own signature on it is proof enough (but see stream.ADOPT_EPOCHS).
"""

from __future__ import annotations

from market.account import Account
from market.accounts_payee import PayeeAccounts, QuotesPort
from market.accounts_payer import PayerAccounts
from market.credit_line import NewcomerPool, Terms
from market.credits import credits_text
from market.heard import Heard, shown_to
from market.ledger import Balance, Drawn, Entry, LedgerState, Record
from market.market_wire import Hello, Offer, encode
from market.receipt import Kind, Receipt, sign
from market.registry import Registry
from market.step import Step
from routing.errors import LocalError
from routing.identity import Identity


class Books:
    """All of a node's accounts. From one thread.

    Args:
        identity: ours.
        terms: how much credit this node gives.
        quotes: what it asks.
        state: what an earlier process wrote down.
    """

    def __init__(self, identity: Identity, terms: Terms, quotes: QuotesPort, state: LedgerState) -> None:
        self._key = identity.private_key
        self._registry = Registry(identity.peer_id, self._gone)
        self._drawn = dict(state.drawn)
        self.payer = PayerAccounts(self.account)
        self.payee = PayeeAccounts(self.account, quotes, terms, NewcomerPool(terms.newcomers, state.drawn))
        self._heard = Heard(identity, self._registry, self.payee)
        for each in state.accounts:
            account = self._registry.restore(each)
            self.payee.changed(account)
            if account.is_open:
                self.payer.opened(account.peer)

    def account(self, peer: str) -> Account:
        """A peer's account, made if need be."""
        return self._registry.account(peer)

    def written(self, step: Step) -> None:
        """What a step says is on the disk: it is so."""
        step.commit()

    # --- what we say ---

    def hello(self, peer: str) -> bytes:
        """The first message of a connection."""
        return encode(Hello(shown_to(self.account(peer))))

    def offer(self, peer: str, now: float) -> Step | None:
        """The next receipt to be countersigned; None: none, or the peer has not been greeted yet."""
        account = self.account(peer)
        if account.fault or not account.caught_up:
            return None
        for (we_pay, kind), stream in sorted(account.issues.items()):  # settlements first
            receipt = stream.next(now)
            if receipt is None:
                continue
            room = self._registry.room(account, now)
            if room is None:
                return None
            return self._proposing(account, we_pay, kind, receipt, room, now)
        return None

    def settle(self, peer: str, credits: int, kind: Kind, now: float) -> Step:
        """Sign off a peer's debt, as paid in some other way or given up. Until it has countersigned, the debt
        stands; `offer` shows it the receipt. What it has not signed for can be given up, too: it is no longer
        counted, and nobody is told.

        Raises:
            LocalError: it does not owe as much.
        """
        account = self.account(peer)
        stream = account.issuing(False, kind)
        waiting = sum(each.due_credits for (we_pay, _), each in account.issues.items() if not we_pay)
        owed = max(0, account.standing.owes - waiting)
        unsigned = min(max(0, credits - owed), account.unsigned) if kind is Kind.FORGIVEN else 0
        credits -= unsigned
        if not credits + unsigned > 0 or credits > owed:
            more = f"; {credits_text(waiting)} wait for its signature" if waiting else ""
            more += (
                f"; it has not signed for {credits_text(account.unsigned)} yet" if account.unsigned else ""
            )
            raise LocalError(
                f"{credits_text(credits + unsigned)} cannot be settled: {peer} owes {credits_text(owed)} "
                f"by receipts that are not settled yet{more}"
            )
        if not credits:
            return Step(commit=lambda: self.payee.write_off(account, unsigned))
        stream.due_credits += credits  # `next` signs for all that is due
        receipt = stream.next(now)
        stream.due_credits -= credits
        if receipt is None:
            raise LocalError("this hour's settlements with this peer are at their most: settle in the next")
        step = self._proposing(account, False, kind, receipt, (), now)

        def commit() -> None:
            stream.add(0, credits)
            step.commit()
            self.payer.opened(peer)
            self.payee.write_off(account, unsigned)

        return Step(step.write, step.message, commit=commit)

    def _proposing(
        self,
        account: Account,
        we_pay: bool,
        kind: Kind,
        receipt: Receipt,
        room: tuple[Record, ...],
        now: float,
    ) -> Step:
        stream = account.issuing(we_pay, kind)
        if stream.pending is not None and receipt == stream.pending.receipt:
            signed = stream.pending
            write: tuple[Record, ...] = ()
        else:
            signed = sign(receipt, self._key)
            write = (*room, Entry(account.peer, we_pay, signed))

        account.writing = account.writing or bool(write)

        def commit() -> None:
            self._registry.keep(account, room)
            stream.proposed(signed)
            if we_pay:
                account.offered_at, account.due_at = now, 0.0

        return Step(write, encode(Offer(signed)), commit=commit)

    # --- what we are told ---

    def received(self, peer: str, data: bytes, now: float) -> Step:
        """A request came: its reply is in the step.

        Raises:
            ProtocolError: it is no message, or not from who signed it.
        """
        return self._heard.received(peer, data, now)

    def replied(self, peer: str, data: bytes, now: float) -> Step:
        """The reply to what we sent.

        Raises:
            ProtocolError: it is no message, or no fitting one.
        """
        return self._heard.replied(peer, data, now)

    # --- what is kept, and shown ---

    def flush(self) -> tuple[Record, ...]:
        """What the pool has granted since the last time, to be written now and then: what a crash loses of
        it, newcomers get once more."""
        records: list[Record] = [
            each for account in self._registry.kept() for each in account.newly_granted()
        ]
        drawn = self.payee.pool.drawn()
        if drawn != self._drawn:
            self._drawn = drawn
            records.append(Drawn(tuple((day, subnet, credits) for (day, subnet), credits in drawn.items())))
        return tuple(records)

    def balances(self) -> list[Balance]:
        """How we stand with everybody, those with whom something was signed or is due."""
        return [
            Balance(
                account.peer,
                account.standing.owes,
                account.standing.consumed,
                account.standing.provided,
                account.standing.paid_to_us,
                account.standing.forgiven_by_us,
                account.standing.paid_by_us,
                account.standing.forgiven_to_us,
                account.unsigned,
                account.issuing(True, Kind.WORK).due_credits,
                account.claimed,
                self.payee.limit(account),
                account.granted,
                account.last_epoch,
                account.fault,
                account.refused,
            )
            for account in self._registry.everybody()
            if account.is_signed or account.unsigned or account.is_open or account.fault
        ]

    def _gone(self, account: Account) -> None:
        self.payee.forgotten(account)
