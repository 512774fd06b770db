"""How accounts stand, for people: those with most at stake, and the sums of all. Pure.

A status page asks each second, of accounts by the thousand: only what is shown is put together.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from market.account import Account
from market.ledger import Balance
from market.receipt import Kind


@dataclass(frozen=True, slots=True)
class Shown:
    """The balances that are shown, most at stake first.

    Attributes:
        owed, owes: µcr of all accounts, by receipts: what others owe this node, and it them.
        left_out: accounts that are not shown.
    """

    balances: list[Balance]
    owed: int
    owes: int
    left_out: int


def shown(accounts: Iterable[Account], limit: Callable[[Account], int], most: int) -> Shown:
    """Of those with whom something was signed or is due.

    Args:
        limit: what a peer may owe, µcr.
        most: balances that are shown.
    """
    owed = owes = 0
    found: list[tuple[int, str, Account]] = []
    for account in accounts:
        balance = account.standing.owes
        if balance > 0:
            owed += balance
        else:
            owes -= balance
        stake = abs(balance) + account.unsigned + due_of(account)
        if stake or account.fault or account.is_open or account.is_signed:
            found.append((-stake, account.peer, account))
    first = heapq.nsmallest(most, found)
    return Shown([_balance(each, limit(each)) for _, _, each in first], owed, owes, len(found) - len(first))


def due_of(account: Account) -> int:
    """What we owe it for work, and it has not countersigned yet (µcr)."""
    stream = account.issues.get((True, Kind.WORK))
    return 0 if stream is None else stream.due_credits


def _balance(account: Account, limit: int) -> Balance:
    standing = account.standing
    return Balance(
        account.peer,
        *standing.sums(),
        account.unsigned,
        due_of(account),
        account.claimed,
        limit,
        account.granted,
        account.last_epoch,
        account.fault,
        account.refused,
        account.waiting,
    )
