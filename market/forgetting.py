"""Which account makes room for another, where there are as many as are kept. Pure.

One with which nothing is lost, if there is any: it came out at zero and has been silent for so long that none
of its receipts could be shown to us as news (ledger.FORGET_EPOCHS), or it owes us and was lent nothing. Else
who owes us and has never given anything, the smallest debt first, as far as it was lent: what is lost is our
claim. To sign for more costs nothing, and must not push out who has had something. Never anybody whom we owe,
or who has earned something.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from market.account import Account
from market.ledger import FORGET_EPOCHS
from market.receipt import Kind, epoch_of


def forgettable(accounts: Iterable[Account], now: float) -> str | None:
    """The peer to be forgotten; None: nobody may be. Most accounts of full books are passed over by a look at
    one number: a millisecond for all."""
    before = epoch_of(now) - FORGET_EPOCHS
    found: str | None = None
    least: float = math.inf
    for account in accounts:
        if account.counted >= least or account.unsigned or account.writing or account.leaving:
            continue
        if account.is_open:
            continue
        is_silent = account.owes == 0 and not account.fault and account.last_epoch < before
        if not is_silent and not _only_consumed(account):
            continue
        if not account.counted:
            return account.peer
        found, least = account.peer, account.counted
    return found


def _only_consumed(account: Account) -> bool:
    """Whether nothing was ever signed but its debts: when we know no more of it, no signature of ours is out
    that could be shown to us as a claim."""
    used = {side for side, stream in account.streams() if stream.full is not None}
    return used == {(False, Kind.WORK)} and account.owes >= 0
