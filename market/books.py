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

from dataclasses import replace

from market.account import Account
from market.accounts_payee import PayeeAccounts, QuotesPort
from market.accounts_payer import OFFER_SECONDS, PayerAccounts, asks
from market.credit_line import NewcomerPool, Terms
from market.credits import credits_text
from market.heard import Heard, shown_to
from market.ledger import MAX_PEERS, Balance, Drawn, Entry, LedgerState, Pardoned, Record
from market.market_wire import Hello, Offer, encode
from market.receipt import Kind, Receipt, SignedReceipt, sign
from market.registry import MAX_STRANGERS, Registry
from market.shown import Shown, shown
from market.step import Step, together
from market.vouching import told_to
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
        self.payer = PayerAccounts(self.account, self._registry.look)
        self.payee = PayeeAccounts(self.account, quotes, terms, NewcomerPool(terms.newcomers, state.drawn))
        self._heard = Heard(identity, self._registry, self.payee, self.payer)
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

    def abandoned(self, step: Step) -> None:
        """A step was not written, and is not tried again."""
        step.abandon()

    # --- what we say ---

    def hello(self, peer: str) -> bytes:
        """The first message of a connection."""
        return encode(Hello(shown_to(self.account(peer))))

    def offer(self, peer: str, now: float) -> Step | None:
        """The next receipt to be countersigned; None: none, or the peer has not been greeted yet. Settlements
        come first, but for those that it has just refused."""
        account = self.account(peer)
        if account.fault or not account.caught_up:
            return None
        for (we_pay, kind), stream in sorted(account.issues.items()):  # settlements first
            receipt = None if account.is_put_off((we_pay, kind), now) else stream.next(now)
            if receipt is None:
                continue
            room = self._registry.room(account, now)
            if room is None:
                return None
            return self._proposing(account, we_pay, kind, receipt, room, now)
        return self._asking(account, now)

    def _asking(self, account: Account, now: float) -> Step | None:
        """The last receipt once more: with its answer the peer says what it counts beyond it."""
        stream = account.issues.get((True, Kind.WORK))
        if stream is None or stream.full is None or not asks(account):
            return None
        if abs(now - account.offered_at) < OFFER_SECONDS:
            return None

        def commit() -> None:
            account.offered_at = now

        return Step((), encode(Offer(replace(stream.full, second=b""))), commit=commit)

    def sign_all(self, peer: str, now: float) -> Step | None:
        """Sign for all that is due, of each kind, without telling the peer; None: that is done already, or it
        has not been greeted yet."""
        account = self.account(peer)
        if account.fault or not account.caught_up:
            return None
        steps: list[Step] = []
        for (we_pay, kind), stream in account.issues.items():
            if stream.due_credits <= stream.signed_credits:
                continue  # signed for, if in an earlier hour: the peer may have that one, and lost its answer
            receipt = stream.next(now)
            if receipt is None:
                continue
            room = () if steps else self._registry.room(account, now)
            if room is None:
                return None
            steps.append(self._proposing(account, we_pay, kind, receipt, room, now))
        return together(steps) if steps else None

    def settle(self, peer: str, credits: int, kind: Kind, now: float) -> Step:
        """Sign off a peer's debt, as paid in some other way or given up. Until it has countersigned, the debt
        stands; `offer` shows it the receipt. What it has not signed for can be given up, too: it is no longer
        counted, and nobody is told.

        Raises:
            LocalError: it does not owe as much.
        """
        account = self.account(peer)
        stream = account.issuing(False, kind)
        waiting = account.waiting
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
        if account.leaving:
            raise LocalError(f"{peer} is being forgotten just now, to make room for another account")
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

        return Step(step.write, step.message, commit=commit, abandon=step.abandon)

    def pardon(self, peer: str, now: float) -> Step:
        """Forgive a peer that it has signed double. What the two know of each other is to be compared anew
        (`hello`): while it was refused, nothing that it showed was taken.

        Raises:
            LocalError: it has not.
        """
        account = self._registry.find(peer)
        if account is None or not account.fault:
            raise LocalError(f"{peer} has not signed double: there is nothing to be pardoned")
        if account.leaving:
            raise LocalError(f"{peer} is being forgotten just now, to make room for another account")
        account.writing = True

        def commit() -> None:
            account.fault, account.caught_up, account.writing = "", False, False
            if account.is_open:
                self.payer.opened(account.peer)

        write = (Pardoned(account.peer, int(now)),)
        return Step(write, commit=commit, abandon=lambda: self._registry.stays(account, ()))

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
            account.offered = we_pay, kind
            if we_pay:
                account.offered_at, account.due_at = now, 0.0

        return Step(
            write,
            encode(Offer(signed)),
            commit=commit,
            abandon=lambda: self._registry.stays(account, room),
            kind=kind,
        )

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

    def has_receipts(self, peer: str) -> bool:
        """Whether both sides have ever signed anything, and it has not signed double."""
        account = self._registry.find(peer)
        return account is not None and not account.fault and account.last_epoch > 0

    def vouches(self, asker: str, now: float) -> list[SignedReceipt]:
        """The newest receipts of what we paid others, for a peer that asks: nothing if there are none with
        it. Who has signed double is not vouched for."""
        if not self.has_receipts(asker):
            return []
        paid = (each.issues.get((True, Kind.WORK)) for each in self._registry.kept() if not each.fault)
        return told_to(asker, (stream for stream in paid if stream is not None), now)

    # --- what is kept, and shown ---

    def flush(self) -> Step:
        """What the pool has granted since the last time, to be written now and then: what a crash loses of
        it, newcomers get once more."""
        granted = [
            (account, each)
            for account in self._registry.kept()
            if not account.leaving
            for each in account.newly_granted()
        ]
        drawn = self.payee.pool.drawn()
        rows = tuple((day, subnet, credits) for (day, subnet), credits in drawn.items())
        write: tuple[Record, ...] = () if drawn == self._drawn else (Drawn(rows),)

        def commit() -> None:
            self._drawn = drawn
            for account, record in granted:
                account.granted_written = record.credits

        return Step((*(record for _, record in granted), *write), commit=commit)

    def shown(self, now: float, most: int) -> Shown:
        """How we stand with those with whom most is at stake, so many of them."""
        return shown(self._registry.everybody(), lambda each: self.payee.limit(each, now), most)

    def balances(self, now: float) -> list[Balance]:
        """How we stand with everybody, those with whom something was signed or is due."""
        return self.shown(now, MAX_PEERS + MAX_STRANGERS).balances

    def given(self) -> dict[str, int]:
        """What each peer whose account is kept has given us, work and payments (µcr)."""
        return {account.peer: account.standing.received for account in self._registry.kept()}

    def fault_of(self, peer: str) -> str:
        """Why nothing is done with a peer any more; "" if all is well."""
        account = self._registry.find(peer)
        return "" if account is None else account.fault

    def _gone(self, account: Account) -> None:
        self.payee.forgotten(account)
