"""All accounts of a node: those that are on the disk, and those of peers with whom nothing was signed. Pure.

Both are bounded. Identities cost nothing, so who was never signed with is forgotten as others come; and where
as many accounts are kept as may be, one that matters least makes room (market.forgetting).
"""

from __future__ import annotations

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

    def kept(self) -> Iterator[Account]:
        """Those on the disk."""
        yield from self._kept.values()

    def everybody(self) -> Iterator[Account]:
        """All of them."""
        yield from self._kept.values()
        yield from self._strangers.values()

    def room(self, account: Account, now: float) -> tuple[Record, ...] | None:
        """What has to be forgotten so that an account can be kept; None: nothing can be."""
        if account.peer in self._kept or len(self._kept) < self._max_peers:
            return ()
        peer = forgettable(self._kept.values(), now)
        return None if peer is None else (Forgotten(peer),)

    def keep(self, account: Account, room: tuple[Record, ...]) -> None:
        """An account is on the disk from now on, and what had to go for it is not."""
        for record in room:
            if isinstance(record, Forgotten) and record.peer in self._kept:
                self._gone(self._kept.pop(record.peer))
        account.writing = False
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
        for peer, account in self._strangers.items():
            if not account.is_open:
                self._gone(self._strangers.pop(peer))
                return
