"""The order of a Kademlia lookup: whom to ask next, and when to stop. Pure; the caller asks.

1. Of the peers heard of, the nearest to the target that nobody has asked yet come next, ALPHA at a time.
2. It ends when the K nearest that have not failed have all answered, or MAX_ASKED were asked.
3. Hearsay is bounded: a reply adds at most K peers, and only the CANDIDATES nearest are remembered, so a
   liar can lead a lookup astray, but not make it grow.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from routing.identity import PeerId
from routing.libp2p.kad_table import K
from routing.libp2p.kad_wire import KadPeer, position_of_peer

# Peers asked at the same time.
ALPHA = 4
# A network of a million servers needs about 20 answers beyond the last K.
MAX_ASKED = 80
# Peers remembered: those that count at the end, and as many to fall back on.
CANDIDATES = 3 * K


class _State(enum.Enum):
    HEARD_OF = 0
    ASKED = 1
    ANSWERED = 2
    FAILED = 3


class Lookup:
    """One lookup for the servers nearest to a position."""

    def __init__(self, target: int, own_id: PeerId, seeds: Iterable[KadPeer]) -> None:
        self._target = target
        self._own_id = own_id
        self._peers: dict[PeerId, tuple[int, KadPeer]] = {}  # distance and peer
        self._states: dict[PeerId, _State] = {}
        self._asked = 0
        self.heard(seeds)

    def next_peers(self) -> list[KadPeer]:
        """Whom to ask now; empty while enough are being asked, or when it is over. They count as asked."""
        waiting = sum(state is _State.ASKED for state in self._states.values())
        chosen: list[KadPeer] = []
        for peer_id in self._nearest():
            if waiting + len(chosen) >= ALPHA or self._asked >= MAX_ASKED:
                break
            if self._states[peer_id] is _State.HEARD_OF:
                chosen.append(self._peers[peer_id][1])
                self._states[peer_id] = _State.ASKED
                self._asked += 1
        return chosen

    @property
    def over(self) -> bool:
        """Whether nobody is left to ask or to wait for."""
        nearest = [self._states[peer_id] for peer_id in self._nearest()]
        if self._asked >= MAX_ASKED:
            return _State.ASKED not in nearest
        return all(state is _State.ANSWERED for state in nearest)

    def heard(self, peers: Iterable[KadPeer]) -> None:
        """Peers that somebody named."""
        for peer in list(peers)[:K]:
            if peer.peer_id != self._own_id and peer.peer_id not in self._states:
                self._peers[peer.peer_id] = (position_of_peer(peer.peer_id) ^ self._target, peer)
                self._states[peer.peer_id] = _State.HEARD_OF
        self._trim()

    def answered(self, peer_id: PeerId, closer: Iterable[KadPeer]) -> None:
        """A peer that was asked has answered."""
        self._states[peer_id] = _State.ANSWERED
        self.heard(closer)

    def failed(self, peer_id: PeerId) -> None:
        """A peer that was asked did not answer."""
        self._states[peer_id] = _State.FAILED

    def result(self) -> list[KadPeer]:
        """The nearest that have answered, nearest first, at most K."""
        answered = [peer for peer in self._by_distance() if self._states[peer] is _State.ANSWERED]
        return [self._peers[peer_id][1] for peer_id in answered[:K]]

    def _nearest(self) -> list[PeerId]:
        return [peer for peer in self._by_distance() if self._states[peer] is not _State.FAILED][:K]

    def _by_distance(self) -> list[PeerId]:
        return sorted(self._peers, key=lambda peer: self._peers[peer][0])

    def _trim(self) -> None:
        for peer_id in self._by_distance()[CANDIDATES:]:
            if self._states[peer_id] is _State.HEARD_OF:
                del self._peers[peer_id], self._states[peer_id]
