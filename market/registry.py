"""All accounts of a node: those that are on the disk, and those of peers with whom nothing was signed. Pure.

Both are bounded. Identities cost nothing, so who was never signed with is forgotten as others come; and where
as many accounts are kept as may be, one that matters least makes room (market.forgetting).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator

from market.account import Account
from market.forgetting import forgettable
from market.ledger import MAX_PEERS, AccountState, Forgotten, Record
from market.stream import Issuing
from routing.identity import PeerId

MAX_STRANGERS = 4_096
"""Peers with whom nothing was signed yet, the one not heard of for longest forgotten first. What the
newcomers' pool granted one stays drawn."""

MOST_SPARED = 64
"""Of these, so many are passed over in a row because this node owes them something: if all were kept that
were ever owed, servers that answer once and never sign would fill the memory."""


LOOK_AGAIN_SECONDS = 10.0
"""After nobody was found who could be forgotten, unless a step was written meanwhile: to look at all accounts
takes up to 40 ms, and whoever makes a new key can ask for it."""


class Registry:
    """Accounts by peer.

    Args:
        we: our peer id.
        gone: told of an account that is no longer kept.
        max_peers: accounts kept on the disk.
    """

    def __init__(self, we: PeerId, gone: Callable[[Account], None], max_peers: int = MAX_PEERS) -> None:
        self._we = we
        self._gone = gone
        self._max_peers = max_peers
        self._kept: dict[str, Account] = {}
        self._looked_in_vain = -math.inf
        self._coming: set[str] = set()  # whom a place is kept for until their step is written
        self._strangers: OrderedDict[str, Account] = OrderedDict()

    def account(self, peer: str) -> Account:
        """A peer's account, made if need be."""
        account = self._kept.get(peer)
        if account is not None:
            return account
        account = self._strangers.get(peer)
        if account is None:
            account = self._strangers[peer] = Account(self._we, PeerId(peer))
            if len(self._strangers) > MAX_STRANGERS:
                self._drop_stranger()
        else:
            self._strangers.move_to_end(peer)
        return account

    def find(self, peer: str) -> Account | None:
        """A peer's account, if it is on the disk."""
        return self._kept.get(peer)

    def look(self, peer: str) -> Account | None:
        """A peer's account, kept or not; to look makes none."""
        return self._kept.get(peer) or self._strangers.get(peer)

    def kept(self) -> Iterator[Account]:
        """Those on the disk."""
        yield from self._kept.values()

    def everybody(self) -> Iterator[Account]:
        """All of them."""
        yield from self._kept.values()
        yield from self._strangers.values()

    def room(self, account: Account, now: float) -> tuple[Record, ...] | None:
        """What has to be forgotten so that an account can be kept; None: nothing can be, or this one is being
        forgotten itself. Who is chosen does nothing until that is written (`keep`), or is not (`stays`): a
        step of its would be written after it, and so be all that the file knows of it."""
        if account.leaving:
            return None
        if account.peer in self._kept:
            return ()
        if len(self._kept) + len(self._coming - {account.peer}) < self._max_peers:
            self._coming.add(account.peer)
            return ()
        if abs(now - self._looked_in_vain) < LOOK_AGAIN_SECONDS:
            return None
        peer = forgettable(self._kept.values(), now)
        if peer is None:
            self._looked_in_vain = now
            return None
        self._kept[peer].leaving = True
        return (Forgotten(peer),)

    def stays(self, account: Account, room: tuple[Record, ...]) -> None:
        """A step of an account, for which `room` gave this, was not written."""
        account.writing = False
        self._looked_in_vain = -math.inf
        self._coming.discard(account.peer)
        for record in room:
            if isinstance(record, Forgotten) and record.peer in self._kept:
                self._kept[record.peer].leaving = False

    def keep(self, account: Account, room: tuple[Record, ...]) -> None:
        """An account is on the disk from now on, and what had to go for it is not."""
        for record in room:
            if isinstance(record, Forgotten) and record.peer in self._kept:
                self._gone(self._kept.pop(record.peer))
        account.writing = False
        self._looked_in_vain = -math.inf
        self._coming.discard(account.peer)
        self._strangers.pop(account.peer, None)
        self._kept[account.peer] = account

    def restore(self, state: AccountState) -> Account:
        """An account as it was written down."""
        account = self._kept[state.peer] = Account(self._we, PeerId(state.peer))
        account.granted = account.granted_written = state.granted
        account.fault = state.fault
        for kept in state.streams:
            stream = account.stream(kept.we_pay, kept.kind)
            if kept.full is not None:
                stream.restore(kept.full, kept.earlier, kept.total_pairs, kept.total_credits)
                account.standing.add(kept.we_pay, kept.kind, kept.total_credits)
            if kept.pending is not None and isinstance(stream, Issuing):
                stream.restore_pending(kept.pending)
        return account

    def _drop_stranger(self) -> None:
        for _ in range(MOST_SPARED):
            peer, account = self._strangers.popitem(last=False)
            if not account.is_open:
                break
            self._strangers[peer] = account  # to the end: this node owes it something still
        else:
            peer, account = self._strangers.popitem(last=False)
        self._gone(account)
