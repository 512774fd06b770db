"""What others owe this node for work: counted as it is done, covered by receipts, bounded. Pure.

1. A peer is served while what it owes, signed or not, is within its line and what the newcomers' pool grants
   (credit_line), and what is not signed within MOST_UNSIGNED. Calls under way count as served. One call is
   served whatever it costs, if all before it is signed for: a large model's may cost more than that.
2. Any receipt that says more than the last is countersigned: more is better than nothing. If it says less
   than we count by our cheapest quotes, the rest stays unsigned, but for SLACK of what was signed. So who
   pays less than it got is served until MOST_UNSIGNED has come together, and then refused with both counts.
   Who has lost its count in a crash is let in again: after GIVE_UP_SECONDS the rest is given up, as far as
   the newcomers' pool goes, so that nobody can live on it.
3. A debt counts among all debts as far as it can have been taken on credit: whoever signs for more than it
   got keeps nobody else out.
4. Demand, by which prices are made, is what was counted *and* covered by receipts: signing for work that was
   never done raises a debt and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from market.account import Account
from market.credit_line import MOST_LINES, SECONDS_A_DAY, NewcomerPool, Terms, earned_line
from market.credits import credits_text
from market.ledger import FORGET_EPOCHS
from market.receipt import CREDIT, Receipt, epoch_of
from market.uncovered import Uncovered

MOST_UNSIGNED = 250 * CREDIT
"""µcr computed for a peer without a receipt: a few seconds of a long prompt at its quickest, half of which is
there for the exchange. It is what a peer can take at most by not signing, and a crash can cost."""

SLACK = 50
"""What a receipt may leave out is one in so many of its credits: answers to calls that were asked twice
because they were late, or cancelled, and did not arrive."""

GIVE_UP_SECONDS = 600.0
"""Since the last receipt, after which a rest that keeps a peer out is given up: honest payers offer again
every ten seconds."""


class QuotesPort(Protocol):
    """What this node asks (market.quotes.OwnQuotes)."""

    def total_lowest(self, model_id: bytes, layer: int, experts: npt.NDArray[np.uint16], now: float) -> int:
        """The least µcr that these pairs may be paid with; 0 for what was never quoted."""

    def valid(self, number: int, now: float) -> bool:
        """Whether work done at `now` may be paid by this quote."""


class PayeeAccounts:
    """The payee's half of a node's books.

    Args:
        account: of a peer, made if need be.
        quotes: this node's.
        terms: how much credit it gives.
        pool: for those who have earned too little.

    Attributes:
        drawn: what the last call that was not refused has drawn on the pool (µcr): to be given back if it
            gets no answer.
        honours: whether what a peer has done for this node counts in its favour already: who answers falsely
            is to be found out before it has bought real work with it.
    """

    def __init__(
        self, account: Callable[[str], Account], quotes: QuotesPort, terms: Terms, pool: NewcomerPool
    ) -> None:
        self._account = account
        self._quotes = quotes
        self._terms = terms
        self.pool = pool
        self.drawn = 0
        self.honours: Callable[[str], bool] = lambda peer: True
        self._now = 0.0
        self._debts = 0
        self._counted: dict[str, Account] = {}  # whose debts are in it
        self._looked = 0.0
        self._uncovered = Uncovered()
        self._demand: dict[tuple[bytes, int], npt.NDArray[np.int64]] = {}

    # --- hot ---

    def refusal(self, peer: str, now: float, pending: int = 0, *, is_alone: bool = False) -> str:
        """Why a peer's call is not computed: one line that says what would settle it; "" to serve.

        Args:
            pending: µcr of its calls under way, the one in question included, by the cheapest quotes.
            now: unix seconds.
            is_alone: nothing of it is under way but the one in question.
        """
        self._now, self.drawn = now, 0
        account = self._account(peer)
        if account.fault:
            return f"no work for who signs double: {account.fault}"
        unsigned = account.unsigned + pending
        if unsigned > MOST_UNSIGNED and not (is_alone and not account.unsigned):
            if not self._given_up(account, now) or account.unsigned + pending > MOST_UNSIGNED:
                return _unsigned_text(account, pending)
            unsigned = account.unsigned + pending
        doubted = self._doubted(account)
        owes = account.standing.owes + unsigned + doubted
        if owes <= 0:
            return ""
        most = self._terms.credit_line
        lines = MOST_LINES * most
        if self._others_debts(account) + min(owes, most) > lines and (
            not self._leave_out_silent(now) or self._others_debts(account) + min(owes, most) > lines
        ):
            return (
                f"all callers together may owe {credits_text(lines)}, and do: serve this node, "
                "or its owner settles (panal market settle)"
            )
        line = account.line if not doubted else earned_line(account.standing.paid_to_us, most)
        need = owes - line - account.granted
        if need > 0:
            if line + account.granted + need > most or not self.pool.take(need, account.subnet, now):
                return self._owed_text(account, pending, doubted)
            account.granted += need
            self.drawn = need
        return ""

    def give_back(self, peer: str, credits: int, subnet: str, since: float) -> None:
        """A call that drew on the pool got no answer.

        Args:
            credits: `drawn` when it was not refused; `subnet` the peer's then, and `since` the time of that.
        """
        account = self._account(peer)
        account.granted = max(0, account.granted - credits)
        self.pool.give_back(credits, subnet, since)
        self.changed(account)

    def _others_debts(self, account: Account) -> int:
        return self._debts - account.counted

    def _leave_out_silent(self, now: float) -> bool:
        """Take debts of who has not been heard of for FORGET_EPOCHS out of the sum, where it is at its most;
        whether there were any. Nobody could clear them: a settlement takes the debtor's signature."""
        if abs(now - self._looked) < SECONDS_A_DAY:
            return False
        self._looked = now
        before = epoch_of(now) - FORGET_EPOCHS
        silent = [each for each in self._counted.values() if each.last_epoch < before and not each.unsigned]
        for account in silent:
            self.forgotten(account)
        return bool(silent)

    def _doubted(self, account: Account) -> int:
        """What a peer has done for this node and was not paid for, if that does not count yet."""
        standing = account.standing
        credit = standing.provided - standing.paid_by_us - standing.forgiven_to_us
        return credit if credit > 0 and not self.honours(account.peer) else 0

    def served(
        self, peer: str, model_id: bytes, layer: int, experts: npt.NDArray[np.uint16], now: float
    ) -> None:
        """A call was computed; call it before the answer leaves. A few µs; no I/O.

        Args:
            model_id: 32 bytes.
            experts: u16 [pairs] of the layer's first call.
        """
        cost = self._quotes.total_lowest(model_id, layer, experts, now)
        if cost > 0:
            self._uncovered.add(peer, (model_id, layer), experts)
            self.lent(peer, cost, now)

    def lent(self, peer: str, credits: int, now: float) -> None:
        """Work was done that is owed for, at least 1 µcr. Without pairs it is no demand: a layer's further
        calls."""
        account = self._account(peer)
        if not account.unsigned:
            account.since = now
        account.unsigned += credits
        self.changed(account)

    # --- receipts ---

    def fault_of_quote(self, account: Account, receipt: Receipt, credits: int, now: float) -> str:
        """Why the quote that a receipt names cannot have priced the work it covers; "" if it can.

        What was computed was counted by the quotes of its time: so the one it was paid by had to be valid
        when the first of it was done, or has to be now. A receipt that covers all that is counted is taken
        whatever it names: its payer may have been away for so long that the quote is forgotten.

        Args:
            credits: by which the receipt raises the total.
        """
        if rest_of(account.unsigned, credits) == 0:
            return ""
        if self._quotes.valid(receipt.quote, account.since or now) or self._quotes.valid(receipt.quote, now):
            return ""
        return f"quote {receipt.quote} is over, or was never this server's: sign by one of its present advert"

    def covered(self, account: Account, credits: int, now: float) -> None:
        """A receipt that says so much more counts from now on."""
        before = account.unsigned
        rest = rest_of(before, credits)
        share, of = (credits, before) if rest else (1, 1)
        for key, done in self._uncovered.take(account.peer, share, of):
            _add(self._demand, key, done)
        account.unsigned = rest
        account.since = now if rest else 0.0

    def changed(self, account: Account) -> None:
        """What a peer owes, or has given, is another amount now."""
        account.line = earned_line(account.standing.received, self._terms.credit_line)
        debt = min(max(0, account.owes), account.line + account.granted)
        self._debts += debt - account.counted
        account.counted = debt
        if debt:
            self._counted[account.peer] = account
        else:
            self._counted.pop(account.peer, None)

    def forgotten(self, account: Account) -> None:
        """An account is no longer kept."""
        self._debts -= account.counted
        account.counted = 0
        self._counted.pop(account.peer, None)
        self._uncovered.forget(account.peer)

    def write_off(self, account: Account, credits: int) -> None:
        """Give up so much of what a peer has not signed for (µcr), or all that is left of it by now."""
        credits = min(credits, account.unsigned)
        if credits:
            self._uncovered.take(account.peer, credits, account.unsigned)  # no demand: nobody signs for it
            account.unsigned -= credits
            if not account.unsigned:
                account.since = 0.0
            self.changed(account)

    # --- for others ---

    def met(self, peer: str, subnet: str) -> None:
        """Where a peer is: an address block as text, "" if that is not known."""
        self._account(peer).subnet = subnet

    def demand(self) -> dict[tuple[bytes, int], npt.NDArray[np.int64]]:
        """Pairs by expert of each model id and layer that receipts have covered since the last call."""
        taken, self._demand = self._demand, {}
        return taken

    def limit(self, account: Account, now: float) -> int:
        """µcr that a peer may owe, with what the pool would still grant it."""
        rest = max(0, self._terms.credit_line - account.line - account.granted)
        return account.line + account.granted + min(rest, self.pool.left(account.subnet, now))

    def _given_up(self, account: Account, now: float) -> bool:
        """Give up what a peer that has signed before does not sign for, as far as the pool goes; whether that
        was anything."""
        credits = min(account.unsigned, self.pool.left(account.subnet, now))
        is_old = now - account.since > GIVE_UP_SECONDS and account.standing.consumed > 0
        if not is_old or credits <= 0 or not self.pool.take(credits, account.subnet, now):
            return False
        self._uncovered.take(account.peer, credits, account.unsigned)  # no demand: nobody signs for it
        account.unsigned -= credits
        account.given_up += credits
        account.since = now
        self.changed(account)
        return True

    def _owed_text(self, account: Account, pending: int, doubted: int) -> str:
        if doubted:
            return (
                f"you have had {credits_text(max(0, account.owes + doubted))}{_with(pending)}; what you did "
                "for this node counts once enough of your answers were run again and found right"
            )
        limit = self.limit(account, self._now)
        owes = (
            f"you owe {credits_text(max(0, account.owes))}{_with(pending)} and may owe {credits_text(limit)}"
        )
        if not account.is_signed and account.unsigned:
            helps = '[market] mode = "fixed" does, each ten seconds'
            forgiven = "its owner may panal market settle --forgive"
            return f"{owes}, and have signed nothing yet: {helps}; {forgiven}"
        if account.owes <= 0 and self.pool.left(account.subnet, self._now) < pending:
            return f"{owes}: today's credit for newcomers is used up; it begins anew at midnight UTC"
        return f"{owes}: serve this node as much, or its owner settles (panal market settle)"


def rest_of(unsigned: int, credits: int) -> int:
    """What stays unsigned when a receipt has covered so much (µcr)."""
    rest = max(0, unsigned - credits)
    return rest - min(rest, credits // SLACK)


def _unsigned_text(account: Account, pending: int) -> str:
    signed = account.standing.consumed
    counted = credits_text(signed + account.unsigned)
    return (
        f"your receipts say {credits_text(signed)}, this node counts {counted}"
        f"{_with(pending)}; at most {credits_text(MOST_UNSIGNED)} go unsigned: sign for what was served"
    )


def _with(pending: int) -> str:
    return f" (+{credits_text(pending)} under way)" if pending else ""


def _add(
    sums: dict[tuple[bytes, int], npt.NDArray[np.int64]],
    key: tuple[bytes, int],
    pairs: npt.NDArray[np.int64],
) -> None:
    """Add to a count by expert, which grows to the longer of the two."""
    known = sums.get(key)
    if known is None:
        sums[key] = pairs.copy()
    elif known.size >= pairs.size:
        known[: pairs.size] += pairs
    else:
        longer = pairs.copy()
        longer[: known.size] += known
        sums[key] = longer
