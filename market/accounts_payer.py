"""What this node owes for work done for it: counted as answers come, offered as receipts. Pure.

1. Answers that arrived are paid for, at the quote that the book says. So is what was asked for and not waited
   for, where another was quicker: if the peer says, with a receipt, that it counts more than what arrived. It
   cannot know that nobody waited, and what it counts in vain would come to more than it lets go unsigned.
2. A receipt is offered OFFER_SECONDS after the first thing that none covers, or when URGENT is due: what a
   peer computes without a receipt is bounded (accounts_payee.MOST_UNSIGNED), and nobody should have to wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from market.account import Account
from market.accounts_payee import MOST_UNSIGNED
from market.receipt import Kind
from market.shown import due_of

OFFER_SECONDS = 10.0
"""Between receipts to one peer while there is work: six signatures a minute."""

URGENT = MOST_UNSIGNED // 2
"""µcr. Half of what a peer computes unsigned is left for the time that the exchange takes."""

COUNTED_SECONDS = 30.0
"""After an answer was given up: what its peer does not count by then it never computed. Calls have a third of
it (routing.dispatch.call.DEFAULT_TIMEOUT)."""


class Book(Protocol):
    """What a peer asks for a model's cells (market.price_book.PriceBook)."""

    @property
    def number(self) -> int:
        """The quote's."""

    def total(self, layer: int, experts: npt.NDArray[np.uint16]) -> int:
        """µcr that these pairs cost."""


class PayerAccounts:
    """The payer's half of a node's books.

    Args:
        account: of a peer, made if need be.
        look: the same, None if there is none.

    Attributes:
        on_claimed: told what is owed for answers that never arrived (µcr).
    """

    def __init__(self, account: Callable[[str], Account], look: Callable[[str], Account | None]) -> None:
        self._account = account
        self._look = look
        self._open: dict[str, None] = {}
        self.on_claimed: Callable[[int], None] = lambda credits: None

    def answered(
        self,
        peer: str,
        model_id: bytes,
        layer: int,
        experts: npt.NDArray[np.uint16],
        book: Book,
        now: float,
    ) -> int:
        """An answer has arrived and is owed for. A few µs; no I/O.

        Args:
            model_id: 32 bytes.
            experts: u16 [pairs] of the layer's first call.
            book: the quote by which it is paid.
            now: unix seconds.

        Returns:
            What it costs, µcr.
        """
        cost = book.total(layer, experts)
        if cost > 0:
            account = self._account(peer)
            account.issuing(True, Kind.WORK).add(experts.size, cost, model_id.hex(), book.number)
            if not account.due_at:
                account.due_at = now
                self._open[peer] = None
        return cost

    def given_up(
        self, peer: str, layer: int, experts: npt.NDArray[np.uint16], book: Book, now: float
    ) -> None:
        """An answer is waited for no longer: it is owed for if it was computed, as the peer will say."""
        account = self._account(peer)
        most = account.given_up_on + max(0, book.total(layer, experts))
        account.given_up_on, account.given_up_at = min(most, MOST_UNSIGNED), now
        self._open[peer] = None

    def claimed(self, account: Account, unsigned: int, now: float) -> None:
        """With a countersigned receipt a peer says what it counts beyond it (µcr). As far as that is more
        than what has arrived since, it is for what was not waited for; never more than was asked for so, nor
        in all than has arrived: who answers nothing is owed nothing."""
        account.claimed = unsigned
        stream = account.issuing(True, Kind.WORK)
        more = min(max(0, unsigned - stream.due_credits), account.given_up_on, _left_to_claim(account))
        account.given_up_on -= more
        account.in_vain += more
        if abs(now - account.given_up_at) > COUNTED_SECONDS:
            account.given_up_on = min(account.given_up_on, unsigned - more)
        if more:
            stream.due_credits += more
            self._open[account.peer] = None
            self.on_claimed(more)

    def urgent(self, peer: str) -> bool:
        """Whether a receipt should be offered now."""
        return self.due_to(peer) >= URGENT

    def due_to(self, peer: str) -> int:
        """µcr for which a peer has no full receipt yet."""
        account = self._look(peer)
        return 0 if account is None else due_of(account)

    def opened(self, peer: str) -> None:
        """Something waits for a receipt of ours: from an earlier process, or a settlement."""
        self._open[peer] = None

    def open_accounts(self) -> list[str]:
        """Peers for whom something waits to be signed: work, or a settlement."""
        return [account.peer for account in self._opened()]

    def due(self, now: float) -> list[str]:
        """Peers that should be offered something now."""
        return [account.peer for account in self._opened() if _is_due(account, now)]

    def _opened(self) -> list[Account]:
        looked = [self._look(peer) for peer in self._open]
        found = [each for each in looked if each is not None and (each.is_open or asks(each))]
        self._open = {account.peer: None for account in found}
        return found


def asks(account: Account) -> bool:
    """Whether so much was given up that a peer is to be asked what it counts of it, though nothing is due."""
    return account.given_up_on >= URGENT and not account.fault and _left_to_claim(account) > 0


def _left_to_claim(account: Account) -> int:
    """What a peer can be owed still for answers that never arrived: in all as much as for those that did."""
    stream = account.issuing(True, Kind.WORK)
    arrived = stream.total_credits + stream.due_credits - account.in_vain
    return max(0, arrived - account.in_vain)


def _is_due(account: Account, now: float) -> bool:
    for side, stream in account.issues.items():
        if not side[0] and stream.due_credits and not account.is_put_off(side, now):
            return True  # a settlement
    due = due_of(account)
    if due <= 0:
        return asks(account) and abs(now - account.offered_at) >= OFFER_SECONDS
    waited = now - (account.due_at or account.offered_at)
    return due >= URGENT or waited >= OFFER_SECONDS or waited < 0  # a clock that was put back
