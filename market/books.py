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

from collections.abc import Callable, Iterator

from market.account import Account, we_issue
from market.accounts_payee import PayeeAccounts, QuotesPort, rest_of
from market.accounts_payer import PayerAccounts
from market.credit_line import NewcomerPool, Terms
from market.credits import credits_text
from market.ledger import Balance, Drawn, Entry, Evidence, Granted, LedgerState, Record
from market.market_wire import (
    Countersigned,
    Hello,
    MarketMessage,
    NotSigned,
    Offer,
    Reason,
    decode,
    encode,
)
from market.receipt import Kind, Receipt, SignedReceipt, sign
from market.registry import Registry
from market.step import Step
from market.stream import Accepting, Issuing, Judged
from routing.errors import LocalError
from routing.identity import Identity
from routing.wire.experts import ProtocolError


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
        self._we = identity.peer_id
        self._registry = Registry(self._we, self._gone)
        self._drawn = dict(state.drawn)
        self.payer = PayerAccounts(self.account)
        self.payee = PayeeAccounts(self.account, quotes, terms, NewcomerPool(terms.newcomers, state.drawn))
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
        return encode(Hello(self._shown(self.account(peer))))

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
        stands; `offer` shows it the receipt.

        Raises:
            LocalError: it does not owe as much.
        """
        account = self.account(peer)
        stream = account.issuing(False, kind)
        waiting = sum(each.due_credits for (we_pay, _), each in account.issues.items() if not we_pay)
        owed = account.standing.owes - waiting
        if not 0 < credits <= owed:
            raise LocalError(
                f"{credits_text(credits)} cannot be settled: {peer} owes {credits_text(max(0, owed))} "
                "by receipts that are not settled yet"
            )
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
        match decode(data, peer):
            case Hello(shown, back=False):
                back = encode(Hello(self._shown(self.account(peer)), back=True))
                return self._greeted(peer, shown, back, now)
            case Offer(signed):
                return self._offered(self.account(peer), signed, now)
            case message:
                raise _unfitting(message, peer)

    def replied(self, peer: str, data: bytes, now: float) -> Step:
        """The reply to what we sent.

        Raises:
            ProtocolError: it is no message, or no fitting one.
        """
        account = self.account(peer)
        match decode(data, peer):
            case Hello(shown, back=True):
                return self._greeted(peer, shown, b"", now)
            case Countersigned(signed, unsigned):
                we_pay, kind = self._side(account, signed)
                if not we_issue(we_pay, kind):
                    raise ProtocolError(f"{peer} countersigns a receipt that is not ours", peer=peer)

                def commit() -> None:
                    account.refused = ""
                    if we_pay:
                        account.claimed = unsigned

                return self._adopting(account, (signed,), b"", commit, now)
            case NotSigned(reason, text, shown, unsigned):
                refused = text or reason.name.lower()

                def refuse() -> None:
                    account.refused, account.claimed = refused, unsigned

                step = self._adopting(account, () if shown is None else (shown,), b"", refuse, now)
                again = bool(step.write)
                return Step(step.write, b"", "" if again else refused, again, step.commit)
            case message:
                raise _unfitting(message, peer)

    def _greeted(self, peer: str, shown: tuple[SignedReceipt, ...], message: bytes, now: float) -> Step:
        account = self.account(peer)

        def commit() -> None:
            account.caught_up = True

        return self._adopting(account, shown, message, commit, now)

    def _adopting(
        self,
        account: Account,
        shown: tuple[SignedReceipt, ...],
        message: bytes,
        also: Callable[[], None],
        now: float,
    ) -> Step:
        """Take what is news to us of full receipts."""
        news = []
        for signed in shown:
            we_pay, kind = self._side(account, signed)
            if not signed.full:
                raise ProtocolError(
                    f"{account.peer} shows a receipt that is not countersigned", peer=account.peer
                )
            stream = account.stream(we_pay, kind)
            if stream in (each for _, _, each, _ in news):  # each is news by what we know now
                raise ProtocolError(f"{account.peer} shows two receipts of one kind", peer=account.peer)
            if not account.fault and stream.adoptable(signed, now):
                self._check(account, signed)
                news.append((we_pay, kind, stream, signed))
        room = self._registry.room(account, now) if news else ()
        if room is None:
            news, room = [], ()
        write = list(room)
        again: list[tuple[Issuing, SignedReceipt]] = []
        for we_pay, _, stream, signed in news:
            write.append(Entry(account.peer, we_pay, signed))
            more = stream.once_more(signed, now) if isinstance(stream, Issuing) else None
            if isinstance(stream, Issuing) and more is not None:
                again.append((stream, sign(more, self._key)))
                write.append(Entry(account.peer, we_pay, again[-1][1]))
        account.writing = account.writing or bool(news)

        def commit() -> None:
            if news:
                self._registry.keep(account, room)
            for we_pay, kind, stream, signed in news:
                self._take(account, we_pay, kind, stream, signed, now)
            for issuing, signed in again:
                issuing.proposed(signed)
            also()

        return Step(tuple(write), message, again=bool(news), commit=commit)

    def _offered(self, account: Account, signed: SignedReceipt, now: float) -> Step:
        """A receipt that the peer has issued."""
        we_pay, kind = self._side(account, signed)
        if we_issue(we_pay, kind):
            raise ProtocolError(f"{account.peer} offers a receipt that is ours to issue", peer=account.peer)
        if account.fault:
            return _refusing(account, Reason.DOUBLE, account.fault)
        self._check(account, signed)
        stream = account.accepting(we_pay, kind)
        judgement = stream.judge(signed, now)
        match judgement.judged:
            case Judged.AGAIN:
                assert stream.full is not None
                return Step((), encode(Countersigned(stream.full, account.unsigned)))
            case Judged.BEHIND:
                return _refusing(account, Reason.BEHIND, judgement.why, stream.full)
            case Judged.CLOSED:
                return _refusing(account, Reason.CLOSED, judgement.why, stream.full)
            case Judged.DOUBLE:
                assert judgement.against is not None
                return self._convicting(account, judgement.why, judgement.against, signed, now)
        if kind is Kind.WORK:
            fault = self.payee.fault_of_quote(account, signed.receipt, now)
            if fault:
                return _refusing(account, Reason.QUOTE, fault, stream.full)
        room = self._registry.room(account, now)
        if room is None:
            return _refusing(account, Reason.FULL, "this node has no room for another account")
        full = signed.countersigned(self._key)
        unsigned = account.unsigned
        if kind is Kind.WORK:
            unsigned = rest_of(unsigned, judgement.credits)

        account.writing = True

        def commit() -> None:
            self._registry.keep(account, room)
            self._take(account, we_pay, kind, stream, full, now)

        write = (*room, *self._granted(account), Entry(account.peer, we_pay, full))
        return Step(write, encode(Countersigned(full, unsigned)), commit=commit)

    def _convicting(
        self, account: Account, why: str, one: SignedReceipt, other: SignedReceipt, now: float
    ) -> Step:
        def commit() -> None:
            account.fault = why

        write = (Evidence(account.peer, why, one, other, int(now)),)
        return Step(write, encode(NotSigned(Reason.DOUBLE, why, one)), commit=commit)

    # --- what is so ---

    def _take(
        self,
        account: Account,
        we_pay: bool,
        kind: Kind,
        stream: Issuing | Accepting,
        signed: SignedReceipt,
        now: float,
    ) -> None:
        """A full receipt is on the disk: it counts."""
        _, credits = stream.take(signed)
        account.standing.add(we_pay, kind, credits)
        if (we_pay, kind) == (False, Kind.WORK):
            self.payee.covered(account, credits, now)
        self.payee.changed(account)

    def flush(self) -> tuple[Record, ...]:
        """What the pool has granted since the last time, to be written now and then: what a crash loses of
        it, newcomers get once more."""
        records: list[Record] = [each for account in self._registry.kept() for each in self._granted(account)]
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

    # --- inside ---

    def _granted(self, account: Account) -> Iterator[Record]:
        if account.granted != account.granted_written:
            account.granted_written = account.granted
            yield Granted(account.peer, account.granted)

    def _gone(self, account: Account) -> None:
        self.payee.forgotten(account)

    def _shown(self, account: Account) -> tuple[SignedReceipt, ...]:
        return tuple(stream.full for _, stream in account.streams() if stream.full is not None)

    def _side(self, account: Account, signed: SignedReceipt) -> tuple[bool, Kind]:
        """Which of our streams with the peer a receipt is of."""
        receipt = signed.receipt
        sides = {(self._we, account.peer): True, (account.peer, self._we): False}
        we_pay = sides.get((receipt.payer, receipt.payee))
        if we_pay is None:
            raise ProtocolError(f"{account.peer} shows a receipt of somebody else's", peer=account.peer)
        return we_pay, receipt.kind

    def _check(self, account: Account, signed: SignedReceipt) -> None:
        fault = signed.fault()
        if fault:
            raise ProtocolError(f"{account.peer} shows a receipt that {fault}", peer=account.peer)


def _refusing(account: Account, reason: Reason, why: str, shown: SignedReceipt | None = None) -> Step:
    return Step((), encode(NotSigned(reason, why, shown, account.unsigned)))


def _unfitting(message: MarketMessage, peer: str) -> ProtocolError:
    return ProtocolError(f"{peer} sent a {type(message).__name__} out of turn", peer=peer)
