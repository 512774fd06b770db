"""What the other side of an account says, and what follows from it: steps of the books. Pure."""

from __future__ import annotations

from collections.abc import Callable

from market.account import Account, we_issue
from market.accounts_payee import PayeeAccounts, rest_of
from market.accounts_payer import PayerAccounts
from market.ledger import Entry, Evidence
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
from market.receipt import Kind, SignedReceipt, sign
from market.registry import Registry
from market.step import Step
from market.stream import Accepting, Issuing, Judged
from routing.identity import Identity
from routing.wire.experts import ProtocolError


class Heard:
    """Answers a node's peers, of the market.

    Args:
        identity: ours.
        registry: the accounts.
        payee: what others owe, as it is counted.
        payer: what we owe.
    """

    def __init__(
        self, identity: Identity, registry: Registry, payee: PayeeAccounts, payer: PayerAccounts
    ) -> None:
        self._key = identity.private_key
        self._we = identity.peer_id
        self._registry = registry
        self._payee = payee
        self._payer = payer

    def received(self, peer: str, data: bytes, now: float) -> Step:
        """A request came: its reply is in the step.

        Raises:
            ProtocolError: it is no message, or not from who signed it.
        """
        match decode(data, peer):
            case Hello(shown, back=False):
                back = encode(Hello(shown_to(self._registry.account(peer)), back=True))
                return self._greeted(peer, shown, back, now)
            case Offer(signed):
                return self._offered(self._registry.account(peer), signed, now)
            case message:
                raise _unfitting(message, peer)

    def replied(self, peer: str, data: bytes, now: float) -> Step:
        """The reply to what we sent.

        Raises:
            ProtocolError: it is no message, or no fitting one.
        """
        account = self._registry.account(peer)
        match decode(data, peer):
            case Hello(shown, back=True):
                return self._greeted(peer, shown, b"", now)
            case Countersigned(signed, unsigned):
                we_pay, kind = self._side(account, signed)
                if not we_issue(we_pay, kind):
                    raise ProtocolError(f"{peer} countersigns a receipt that is not ours", peer=peer)

                def commit() -> None:
                    account.put_off.pop((we_pay, kind), None)
                    if not account.put_off:
                        account.refused = ""
                    if we_pay:
                        self._payer.claimed(account, unsigned, now)

                return self._adopting(account, (signed,), b"", commit, now)
            case NotSigned(reason, text, shown, unsigned):
                refused = text or reason.name.lower()

                def refuse() -> None:
                    account.refused, account.claimed = refused, unsigned
                    if not again and account.offered[1] is not Kind.WORK:
                        account.put_off[account.offered] = now

                step = self._adopting(account, () if shown is None else (shown,), b"", refuse, now)
                again = bool(step.write)
                return Step(step.write, b"", "" if again else refused, again, step.commit, step.abandon)
            case message:
                raise _unfitting(message, peer)

    def _greeted(self, peer: str, shown: tuple[SignedReceipt, ...], message: bytes, now: float) -> Step:
        account = self._registry.account(peer)

        def commit() -> None:
            account.caught_up = True
            account.put_off.clear()

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
        news: list[tuple[bool, Kind, Issuing | Accepting, SignedReceipt]] = []
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
                _check(account, signed)
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

        return Step(
            tuple(write),
            message,
            again=bool(news),
            commit=commit,
            abandon=lambda: self._registry.stays(account, room),
        )

    def _offered(self, account: Account, signed: SignedReceipt, now: float) -> Step:
        """A receipt that the peer has issued."""
        we_pay, kind = self._side(account, signed)
        if we_issue(we_pay, kind):
            raise ProtocolError(f"{account.peer} offers a receipt that is ours to issue", peer=account.peer)
        if account.fault:
            return _refusing(account, Reason.DOUBLE, account.fault)
        _check(account, signed)
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
                if account.leaving:
                    return _refusing(account, Reason.FULL, _LEAVING)
                return self._convicting(account, judgement.why, judgement.against, signed, now)
        if we_pay and judgement.credits > account.standing.unsettled:
            why = "no receipt is known here for what it settles: show the last one of that work"
            return _refusing(account, Reason.BEHIND, why, stream.full)
        if kind is Kind.WORK:
            fault = self._payee.fault_of_quote(account, signed.receipt, judgement.credits, now)
            if fault:
                return _refusing(account, Reason.QUOTE, fault, stream.full)
        room = self._registry.room(account, now)
        if room is None:
            why = _LEAVING if account.leaving else "this node has no room for another account"
            return _refusing(account, Reason.FULL, why)
        full = signed.countersigned(self._key)
        unsigned = account.unsigned
        if kind is Kind.WORK:
            unsigned = rest_of(unsigned, judgement.credits)

        account.writing = True
        granted = account.granted

        def commit() -> None:
            self._registry.keep(account, room)
            account.granted_written = granted
            self._take(account, we_pay, kind, stream, full, now)

        write = (*room, *account.newly_granted(), Entry(account.peer, we_pay, full))
        return Step(
            write,
            encode(Countersigned(full, unsigned)),
            commit=commit,
            abandon=lambda: self._registry.stays(account, room),
        )

    def _convicting(
        self, account: Account, why: str, one: SignedReceipt, other: SignedReceipt, now: float
    ) -> Step:
        def commit() -> None:
            account.fault = why

        write = (Evidence(account.peer, why, one, other, int(now)),)
        return Step(write, encode(NotSigned(Reason.DOUBLE, why, one)), commit=commit)

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
            self._payee.covered(account, credits, now)
        self._payee.changed(account)

    def _side(self, account: Account, signed: SignedReceipt) -> tuple[bool, Kind]:
        """Which of our streams with the peer a receipt is of."""
        receipt = signed.receipt
        sides = {(self._we, account.peer): True, (account.peer, self._we): False}
        we_pay = sides.get((receipt.payer, receipt.payee))
        if we_pay is None:
            raise ProtocolError(f"{account.peer} shows a receipt of somebody else's", peer=account.peer)
        return we_pay, receipt.kind


_LEAVING = "this account is being forgotten just now, to make room for another"


def shown_to(account: Account) -> tuple[SignedReceipt, ...]:
    """Our last full receipt of each stream with a peer."""
    return tuple(stream.full for _, stream in account.streams() if stream.full is not None)


def _check(account: Account, signed: SignedReceipt) -> None:
    fault = signed.fault()
    if fault:
        raise ProtocolError(f"{account.peer} shows a receipt that {fault}", peer=account.peer)


def _refusing(account: Account, reason: Reason, why: str, shown: SignedReceipt | None = None) -> Step:
    return Step((), encode(NotSigned(reason, why, shown, account.unsigned)))


def _unfitting(message: MarketMessage, peer: str) -> ProtocolError:
    return ProtocolError(f"{peer} sent a {type(message).__name__} out of turn", peer=peer)
