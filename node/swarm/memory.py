"""Who was there: connected peers are written down, so that the next start needs no bootstrap."""

from __future__ import annotations

import time

from node.swarm.candidates import Candidates
from routing.adverts import AdvertTable
from routing.identity import PeerId
from routing.quic.endpoint import Endpoint
from routing.remembered import RememberedPeers
from routing.wire.advert import SignedAdvert


class Memory:
    """Between the table of adverts and the file of remembered peers.

    Args:
        remembered: the file; None keeps no memory beyond this run.
    """

    def __init__(
        self,
        remembered: RememberedPeers | None,
        table: AdvertTable,
        candidates: Candidates,
        endpoint: Endpoint,
        own_id: PeerId,
    ) -> None:
        self._remembered = remembered
        self._table = table
        self._candidates = candidates
        self._endpoint = endpoint
        self._own_id = own_id

    def recall(self, swarm_id: bytes) -> None:
        """Make last time's peers of a swarm candidates."""
        if self._remembered is not None:
            self._candidates.remember([peer.advert for peer in self._remembered.peers(swarm_id)])

    def note_connected(self, known: set[str]) -> set[str]:
        """Write down connected peers, but for those known already; returns whom it has written down."""
        now = time.time()
        noted = set()
        for peer_id in {connection.peer_id for connection in self._endpoint.connections} - known:
            row = self._table.get(peer_id)
            if row is not None and peer_id != self._own_id:
                noted.add(peer_id)
                self._candidates.remember([row.advert])
                if self._remembered is not None:
                    self._remembered.remember(SignedAdvert(row.advert, row.data), now)
        return noted

    def close(self) -> None:
        """Close the file; what was written stays."""
        if self._remembered is not None:
            self._remembered.close()
