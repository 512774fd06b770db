"""Which account makes room for another, where there are as many as are kept. Pure.

First those that came out at zero and have been silent for so long that none of their receipts could be shown
to us as news (ledger.FORGET_EPOCHS). Then those who owe us and have never given anything, the smallest debt
first, as far as it was lent: what is lost is our claim. To sign for more costs nothing, and must not push out
who has had something. Never anybody whom we owe, or who has earned something.
"""

from __future__ import annotations

from collections.abc import Iterable

from market.account import Account
from market.ledger import FORGET_EPOCHS
from market.receipt import Kind, epoch_of


def forgettable(accounts: Iterable[Account], now: float) -> str | None:
    """The peer to be forgotten; None: nobody may be."""
    best: tuple[int, int, int, str] | None = None
    for account in accounts:
        if account.is_open or account.unsigned or account.writing:
            continue
        if account.owes == 0 and not account.fault and account.last_epoch < epoch_of(now) - FORGET_EPOCHS:
            rank = (0, account.last_epoch, 0, account.peer)
        elif _only_consumed(account):
            rank = (1, account.counted, account.last_epoch, account.peer)
        else:
            continue
        if best is None or rank < best:
            best = rank
    return None if best is None else best[3]


def _only_consumed(account: Account) -> bool:
    """Whether nothing was ever signed but its debts: when we know no more of it, no signature of ours is out
    that could be shown to us as a claim."""
    used = {side for side, stream in account.streams() if stream.full is not None}
    return used == {(False, Kind.WORK)} and account.owes >= 0
