"""One stream of receipts, (payer, payee, kind), as one of its two signers knows it. Pure state machines.

Issuing (who signs first)                      Accepting (who countersigns)
1. `next` makes a receipt for all that is      1. `judge` says what an offered receipt is: to be
   due: always the whole epoch's total, with      countersigned, one that was (the answer is the same
   a higher n when it says something new.         again), behind what we have, or a contradiction.
2. It is written down (`proposed`), then       2. It is countersigned and written down, then counts
   sent. What was sent is never unsaid.           (`take`), then the answer is sent.
3. Countersigned, it counts (`take`).

An epoch is over for a stream when a later one has a full receipt, and for new receipts GRACE seconds after
its end. What was due and not covered then is due in the next. `take` also adopts full receipts that the other
side shows and this one has lost: our own signature is on them.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from enum import Enum

from market.receipt import (
    EPOCH_SECONDS,
    MAX_N,
    MAX_TOTAL,
    NO_MODEL,
    Kind,
    Receipt,
    SignedReceipt,
    contradiction,
    epoch_of,
)
from routing.identity import PeerId
from routing.membership import CLOCK_SKEW

GRACE = 2 * CLOCK_SKEW
"""Seconds after its end in which an epoch's receipts are still taken: the payer's clock may be slow, and a
receipt may have to be sent again."""

ADOPT_EPOCHS = 31 * 24
"""Epochs back from which a full receipt is believed that we know nothing of. Who is forgotten here
(`ledger.FORGET_EPOCHS`) was silent for longer: nobody can show us an old half of an account that came out at
zero, and keep the other half."""


MAX_SUM = 2**62
"""Pairs, or µcr, of all epochs together: a file's integers have 63 bits. Who signs each hour for as much as a
receipt can say gets there in three weeks."""


class _Stream:
    """What both sides keep.

    Attributes:
        payer, payee, kind: which stream.
        total_pairs, total_credits: of all epochs, by full receipts.
        full: the last full receipt; None: there was none.
        earlier: the last full one of the epoch before its epoch.
    """

    def __init__(self, payer: PeerId, payee: PeerId, kind: Kind) -> None:
        self.payer, self.payee, self.kind = payer, payee, kind
        self.total_pairs = 0
        self.total_credits = 0
        self.full: SignedReceipt | None = None
        self.earlier: SignedReceipt | None = None

    def restore(
        self, full: SignedReceipt, earlier: SignedReceipt | None, total_pairs: int, total_credits: int
    ) -> None:
        """Go on from what was written down."""
        self.full, self.earlier = full, earlier
        self.total_pairs, self.total_credits = total_pairs, total_credits

    def adoptable(self, signed: SignedReceipt, now: float) -> bool:
        """Whether a full receipt with good signatures says more than this side knows.

        One of a later epoch that does not rest on what counts here covers the same work once more: its issuer
        signed it before it knew that the earlier one is full, and the other side must not have taken it.
        """
        receipt = signed.receipt
        if self.full is None:
            return receipt.epoch >= epoch_of(now) - ADOPT_EPOCHS
        known = self.full.receipt
        if receipt.epoch != known.epoch:
            return receipt.epoch > known.epoch and receipt.previous >= (known.epoch, known.n)
        return receipt.n > known.n and receipt.credits >= known.credits and receipt.pairs >= known.pairs

    def take(self, signed: SignedReceipt) -> tuple[int, int]:
        """A full receipt counts from now on. One that is behind, or is taken twice, changes nothing.

        Returns:
            Pairs and credits by which the totals have grown.
        """
        receipt = signed.receipt
        pairs, credits = receipt.pairs, receipt.credits
        if self.full is not None:
            known = self.full.receipt
            if (receipt.epoch, receipt.n) <= (known.epoch, known.n):
                return 0, 0
            if receipt.epoch == known.epoch:
                pairs, credits = pairs - known.pairs, credits - known.credits
                if pairs < 0 or credits < 0:
                    return 0, 0
            else:
                self.earlier = self.full
        self.full = signed
        self.total_pairs += pairs
        self.total_credits += credits
        return pairs, credits


class Issuing(_Stream):
    """The side that signs first.

    Attributes:
        pending: the last receipt signed and not countersigned yet; None: there is none.
        due_pairs, due_credits: to be signed for beyond `full`.
        signed_pairs, signed_credits: of these what we have signed for: a full receipt covers nothing else.
    """

    def __init__(self, payer: PeerId, payee: PeerId, kind: Kind) -> None:
        super().__init__(payer, payee, kind)
        self.pending: SignedReceipt | None = None
        self.due_pairs = 0
        self.due_credits = 0
        self.signed_pairs = 0
        self.signed_credits = 0
        self._model_id, self._quote = NO_MODEL, 0

    def add(self, pairs: int, credits: int, model_id: str = NO_MODEL, quote: int = 0) -> None:
        """More is due."""
        self.due_pairs += pairs
        self.due_credits += credits
        self._model_id, self._quote = model_id, quote

    def next(self, now: float) -> Receipt | None:
        """What to sign for all that is due, or the pending receipt if it says that; None: nothing is due."""
        if self.due_credits <= 0:
            return None
        epoch = self._epoch(now)
        known = self.full.receipt if self.full is not None else None
        # Numbers grow over epochs: a clock that jumps to and fro must not make us use one twice in an hour.
        n = max(each.receipt.n if each is not None else 0 for each in (self.full, self.pending))
        pairs = credits = 0
        previous = (0, 0)
        if known is not None and known.epoch == epoch:
            pairs, credits, previous = known.pairs, known.credits, known.previous
        elif known is not None:
            previous = (known.epoch, known.n)
        pairs = min(pairs + self.due_pairs, MAX_TOTAL)
        credits = min(credits + self.due_credits, MAX_TOTAL)
        pending = self.pending.receipt if self.pending is not None else None
        if pending is not None and pending.epoch == epoch:
            said = (pending.previous, pending.pairs, pending.credits, pending.quote)
            if said == (previous, pairs, credits, self._quote):
                return pending
        if n >= MAX_N or (known is not None and credits <= known.credits and known.epoch == epoch):
            return None  # this epoch is full: the rest goes into the next
        return Receipt(
            self.kind, self.payer, self.payee, epoch, n + 1, previous, pairs, credits,
            self._model_id, self._quote,
        )  # fmt: skip

    def proposed(self, signed: SignedReceipt) -> None:
        """A receipt from `next` is signed and written down: it may be sent."""
        self.pending = signed
        known = self.full.receipt if self.full is not None else None
        self.signed_pairs, self.signed_credits = beyond(signed.receipt, known)

    def once_more(self, signed: SignedReceipt, now: float) -> Receipt | None:
        """What to sign, and write down together with a full receipt that is about to be taken, so that a
        restart finds what is due then; None: the pending receipt says it, or nothing is due.

        It is needed where the pending one was signed in a later epoch, before it was known that this one is
        full: its credits are partly those of this one.
        """
        receipt = signed.receipt
        if self.pending is None or not rests_on_less(self.pending.receipt, receipt):
            return None
        after = copy(self)
        after.take(signed)
        return after.next(now)

    def adoptable(self, signed: SignedReceipt, now: float) -> bool:
        """As `_Stream.adoptable`. What waited for the other's signature is no old half of anything, however
        long ago that was: its answer was lost, and it would be signed for once more."""
        if self.full is None and self.pending is not None:
            pending, receipt = self.pending.receipt, signed.receipt
            if receipt.epoch == pending.epoch and receipt.n <= pending.n:
                return True
        return super().adoptable(signed, now)

    def restore_pending(self, pending: SignedReceipt) -> None:
        """What was signed before a restart and is not covered by `full` is still due (`beyond`)."""
        self.proposed(pending)
        receipt = pending.receipt
        self.add(self.signed_pairs, self.signed_credits, receipt.model_id, receipt.quote)

    def take(self, signed: SignedReceipt) -> tuple[int, int]:
        """As `_Stream.take`; what it covers is no longer due."""
        pairs, credits = super().take(signed)
        # Our own signature may cover what a lost file has forgotten: that was not in what is due now.
        covered_pairs, covered_credits = min(pairs, self.signed_pairs), min(credits, self.signed_credits)
        self.due_pairs -= covered_pairs
        self.signed_pairs -= covered_pairs
        self.due_credits -= covered_credits
        self.signed_credits -= covered_credits
        if self.pending is not None and self.full is not None:
            pending, known = self.pending.receipt, self.full.receipt
            if (pending.epoch, pending.n) <= (known.epoch, known.n):
                self.pending = None
        return pairs, credits

    def _epoch(self, now: float) -> int:
        """Not before an epoch that was signed for, if the clock is put back a little. A receipt from a clock
        that was further ahead nobody has taken, unless its own was (`Accepting.judge`), and who has shows it:
        it does not bind."""
        epoch = epoch_of(now)
        if self.pending is not None and self.pending.receipt.epoch <= epoch_of(now + GRACE):
            epoch = max(epoch, self.pending.receipt.epoch)
        return epoch if self.full is None else max(epoch, self.full.receipt.epoch)


def beyond(pending: Receipt, full: Receipt | None) -> tuple[int, int]:
    """Pairs and credits that are due by a receipt of ours that is not countersigned, beyond the last full
    one. None are by one that rests on less: its number is used up, and no more (`Issuing.once_more`)."""
    if full is not None and rests_on_less(pending, full):
        return 0, 0
    if full is None or full.epoch != pending.epoch:
        return pending.pairs, pending.credits
    return max(0, pending.pairs - full.pairs), max(0, pending.credits - full.credits)


def rests_on_less(pending: Receipt, full: Receipt) -> bool:
    """Whether a receipt was signed in a later epoch without knowing that this one is full."""
    return pending.epoch > full.epoch and pending.previous < (full.epoch, full.n)


class Judged(Enum):
    """What an offered receipt is."""

    NEW = "new"
    AGAIN = "again"
    """The one we have countersigned last."""
    BEHIND = "behind"
    """We know more, or it rests on another receipt than our last one: the issuer has to see ours."""
    CLOSED = "closed"
    """Its epoch is over, or has not begun."""
    DOUBLE = "double"
    """It contradicts one that we have."""


@dataclass(frozen=True)
class Judgement:
    """What an offered receipt is, and why.

    Attributes:
        pairs, credits: by which it raises the totals, if NEW.
        against: what it contradicts, if DOUBLE.
    """

    judged: Judged
    why: str = ""
    pairs: int = 0
    credits: int = 0
    against: SignedReceipt | None = None


class Accepting(_Stream):
    """The side that countersigns."""

    def judge(self, signed: SignedReceipt, now: float) -> Judgement:
        """Look at an offered receipt of this stream; the issuer's signature is good. Nothing is changed."""
        offered = signed.receipt
        for known in (self.full, self.earlier):
            why = contradiction(known.receipt, offered) if known is not None else ""
            if why:
                return Judgement(Judged.DOUBLE, why, against=known)
        full = self.full.receipt if self.full is not None else None
        if full == offered:
            return Judgement(Judged.AGAIN)
        if full is not None and (offered.epoch, offered.n) < (full.epoch, full.n):
            return Judgement(Judged.BEHIND, f"number {full.n} of epoch {full.epoch} is signed already")
        is_known = (
            full is not None and offered.epoch == full.epoch
        )  # also if clocks were ahead, and are not now
        if offered.epoch > epoch_of(now + CLOCK_SKEW) and not is_known:
            return Judgement(Judged.CLOSED, f"epoch {offered.epoch} has not begun here: check the clocks")
        if now > (offered.epoch + 1) * EPOCH_SECONDS + GRACE:
            return Judgement(Judged.CLOSED, f"epoch {offered.epoch} is over here: sign for the present one")
        pairs, credits = offered.pairs, offered.credits
        if max(self.total_pairs + pairs, self.total_credits + credits) > MAX_SUM:
            return Judgement(
                Judged.CLOSED, "this account is full: no two nodes have done so much for each other"
            )
        if full is None:
            return Judgement(Judged.NEW, "", pairs, credits)
        if full.epoch == offered.epoch:
            if offered.previous != full.previous:
                return Judgement(Judged.BEHIND, "it follows another receipt than number 1 of its epoch did")
            pairs, credits = pairs - full.pairs, credits - full.credits
            if not credits:
                return Judgement(Judged.BEHIND, f"it says no more than number {full.n}, which is signed")
        elif offered.previous != (full.epoch, full.n) and not self._forgotten(full, offered):
            return Judgement(
                Judged.BEHIND,
                f"it does not follow number {full.n} of epoch {full.epoch}, the last one signed",
            )
        return Judgement(Judged.NEW, "", pairs, credits)

    @staticmethod
    def _forgotten(full: Receipt, offered: Receipt) -> bool:
        """The issuer knows nothing of us any more, and could not adopt what we would show."""
        return offered.previous == (0, 0) and full.epoch < offered.epoch - ADOPT_EPOCHS + 24
