"""What has changed from one status to the next, for those who follow it. Pure.

1. Sections are compared as the bytes they are told in. The peers are compared one by one: of a thousand, a
   few change in a second.
2. Whoever follows says which edition it has, and gets all that is newer in one go; nothing is queued for it.
   So who reads slowly misses what was in between and never holds memory.
3. Whose edition is so old that peers that went since have been forgotten gets everything anew.
"""

from __future__ import annotations

from collections import deque

import msgspec

from node.status.facts import Peer, Status

REMEMBERED_GONE = 1_024
"""Peers that were told and are not any more, remembered for those who have an older edition."""

SECTIONS = ("node", "models", "answers", "gateway", "warnings", "market")
"""Told as a whole when anything in them changes."""

Event = tuple[str, bytes]
"""A name, and JSON."""

_encoder = msgspec.json.Encoder()


class _PeersChanged(msgspec.Struct, frozen=True):
    changed: list[msgspec.Raw]
    gone: list[str]
    left_out: int


class _Whole(msgspec.Struct, frozen=True):
    """A `Status` whose sections are bytes already; the order is the same."""

    version: int
    at: float
    node: msgspec.Raw
    peers: list[msgspec.Raw]
    peers_left_out: int
    models: msgspec.Raw
    answers: msgspec.Raw
    gateway: msgspec.Raw
    warnings: msgspec.Raw
    market: msgspec.Raw


class Editions:
    """The newest status, and in which edition each part of it was new.

    Attributes:
        number: of the newest; 0 before the first.
    """

    def __init__(self) -> None:
        self.number = 0
        self._version = 0
        self._at = 0.0
        self._sections: dict[str, bytes] = {}
        self._changed: dict[str, int] = {"peers": 0}  # section -> edition
        self._facts: dict[str, Peer] = {}
        self._peers: dict[str, bytes] = {}  # in the order they are told
        self._peer_changed: dict[str, int] = {}
        self._gone: deque[tuple[int, str]] = deque()
        self._forgotten = 0  # the newest edition in which somebody went who is forgotten now
        self._left_out = 0
        self._body: bytes | None = None

    def take(self, status: Status) -> bool:
        """The newest status. Whether anything but its date is new."""
        number = self.number + 1
        self._version, self._at, self._body = status.version, status.at, None
        is_new = self._take_peers(status, number)
        for name in SECTIONS:
            encoded = _encoder.encode(getattr(status, name))
            if encoded != self._sections.get(name):
                self._sections[name] = encoded
                self._changed[name] = number
                is_new = True
        if is_new:
            self.number = number
        return is_new

    def _take_peers(self, status: Status, number: int) -> bool:
        is_new = self._left_out != status.peers_left_out
        self._left_out = status.peers_left_out
        facts, peers = {}, {}
        for peer in status.peers:
            facts[peer.id] = peer
            before = self._facts.get(peer.id)
            if before is peer or before == peer:
                peers[peer.id] = self._peers[peer.id]
            else:
                peers[peer.id] = _encoder.encode(peer)
                self._peer_changed[peer.id] = number
                is_new = True
        for peer_id in self._peers.keys() - peers.keys():
            del self._peer_changed[peer_id]
            self._gone.append((number, peer_id))
            is_new = True
        while len(self._gone) > REMEMBERED_GONE:
            self._forgotten, _ = self._gone.popleft()
        self._facts, self._peers = facts, peers
        if is_new:
            self._changed["peers"] = number
        return is_new

    def whole(self) -> bytes:
        """The newest status as JSON."""
        if self._body is None:
            raw = {name: msgspec.Raw(self._sections[name]) for name in SECTIONS}
            peers = [msgspec.Raw(each) for each in self._peers.values()]
            self._body = _encoder.encode(
                _Whole(version=self._version, at=self._at, peers=peers, peers_left_out=self._left_out, **raw)
            )
        return self._body

    def since(self, number: int) -> list[Event]:
        """What tells a follower who has edition `number` all that is newer; 0 has none."""
        if number == self.number:
            return []
        if number <= 0 or number < self._forgotten or number > self.number:
            return [("snapshot", self.whole())]
        events = [(name, self._sections[name]) for name in SECTIONS if self._changed[name] > number]
        if self._changed["peers"] > number:
            changed = [
                msgspec.Raw(self._peers[peer_id])
                for peer_id, edition in self._peer_changed.items()
                if edition > number
            ]
            gone = {peer_id for edition, peer_id in self._gone if edition > number} - self._peers.keys()
            told = _PeersChanged(changed, sorted(gone), self._left_out)
            events.append(("peers", _encoder.encode(told)))
        return events
