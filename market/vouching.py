"""What a node tells of whom it paid, and what of a peer's telling counts. Pure.

Receipts are totals of an hour, so the hours of one payee have to be added up, and nothing twice:

1. A receipt counts in place of an earlier one of its hour, and only if it says more.
2. One of a later hour adds to what is known if it rests on it (`Receipt.previous`): then it covers none of
   the same work. One that does not stands for itself, and counts instead if it says more than all before.
3. What is told again, or is behind, changes nothing, and its signatures are not looked at.

Two who sign for each other can still say what they like, hours of it: what that gives is bounded by the
voucher's budget (market.hearsay), not by what it signs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from market.hearsay import MAX_VOUCHED, MAX_VOUCHERS
from market.receipt import CREDIT, Receipt, SignedReceipt, epoch_of
from market.stream import Issuing
from market.vouch_wire import EPOCHS_TOLD, MAX_TOLD
from routing.membership import CLOCK_SKEW

OLDEST_EPOCHS = 31 * 24
"""Hours back from which a receipt still vouches: a month. Whoever did no work since is as good as unknown."""


def told_to(asker: str, paid: Iterable[Issuing], now: float) -> list[SignedReceipt]:
    """The receipts that a node tells: of the payees with the latest ones, and of these of the most credits.

    Args:
        asker: who is not told of itself.
        paid: the node's streams as a payer of work.
    """
    streams = [each for each in paid if each.full is not None and each.payee != asker]
    streams.sort(key=_latest_and_largest)
    told: list[SignedReceipt] = []
    for stream in streams[: MAX_TOLD // EPOCHS_TOLD]:
        told += [each for each in (stream.earlier, stream.full) if each is not None and _is_of_use(each, now)]
    return told


@dataclass(frozen=True)
class _Chain:
    """What one has signed for another.

    Attributes:
        before: µcr of the hours before the last one.
        last: the newest receipt.
    """

    before: int
    last: Receipt

    @property
    def credits(self) -> int:
        return self.before + self.last.credits

    def with_later(self, receipt: Receipt) -> _Chain:
        """With one more; itself if that changes nothing."""
        last = self.last
        known = (last.epoch, last.n)
        if receipt.epoch == last.epoch:
            is_more = receipt.n > last.n and receipt.credits > last.credits
            return _Chain(self.before, receipt) if is_more and receipt.previous >= last.previous else self
        if receipt.epoch > last.epoch and receipt.previous >= known:
            return _Chain(self.credits, receipt)
        if receipt.epoch > last.epoch and receipt.credits > self.credits:
            return _Chain(0, receipt)
        return self


class Vouched:
    """What peers have told. Bounded: of vouchers and payees those heard last.

    Args:
        we: our peer id; nobody vouches for us to ourselves.
    """

    def __init__(self, we: str) -> None:
        self._we = we
        self._chains: OrderedDict[str, OrderedDict[str, _Chain]] = OrderedDict()

    def news(self, voucher: str, told: Iterable[SignedReceipt], now: float) -> list[SignedReceipt]:
        """Those of an answer that would change something: theirs are the signatures to be checked."""
        after = dict(self._chains.get(voucher, {}))
        found = []
        for signed in told:
            payee = signed.receipt.payee
            if payee == self._we or not _is_of_use(signed, now):
                continue
            chain = _joined(after.get(payee), signed.receipt)
            if chain is not after.get(payee):
                after[payee] = chain
                found.append(signed)
        return found

    def take(self, voucher: str, news: Iterable[SignedReceipt]) -> None:
        """Receipts of this voucher count, whose signatures are good."""
        for signed in news:
            chains = self._chains.setdefault(voucher, OrderedDict())
            self._chains.move_to_end(voucher)
            payee = signed.receipt.payee
            chains[payee] = _joined(chains.get(payee), signed.receipt)
            chains.move_to_end(payee)
            if len(chains) > MAX_VOUCHED:
                chains.popitem(last=False)
        if len(self._chains) > MAX_VOUCHERS:
            self._chains.popitem(last=False)

    def totals(self, voucher: str) -> Iterator[tuple[str, float]]:
        """Credits that a voucher has signed for, by payee."""
        for payee, chain in self._chains.get(voucher, {}).items():
            yield payee, chain.credits / CREDIT


def _joined(known: _Chain | None, receipt: Receipt) -> _Chain:
    return _Chain(0, receipt) if known is None else known.with_later(receipt)


def _is_of_use(signed: SignedReceipt, now: float) -> bool:
    """Not of an hour that is long over, or that has not begun."""
    epoch = signed.receipt.epoch
    return epoch_of(now) - OLDEST_EPOCHS <= epoch <= epoch_of(now + CLOCK_SKEW)


def _latest_and_largest(stream: Issuing) -> tuple[int, int, str]:
    assert stream.full is not None
    receipt = stream.full.receipt
    return -receipt.epoch, -receipt.credits, receipt.payee
