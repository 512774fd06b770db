"""How many calls were made to each peer and for it: for people to look at. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from routing.dispatch.call import CallStats

MAX_PEERS = 1_024
"""Peers that are counted; the one not heard of for longest is forgotten first. Identities cost nothing."""


@dataclass(slots=True)
class Calls:
    """Of one peer.

    Attributes:
        made: to it, and answered; failed: not, or not well.
        late: answers that were not there when they should have been.
        served: by it, that this node has answered.
    """

    made: int = 0
    failed: int = 0
    late: int = 0
    served: int = 0


NONE = Calls()


class PeerCalls:
    """Counts by peer id."""

    def __init__(self) -> None:
        self._calls: OrderedDict[str, Calls] = OrderedDict()

    def of(self, peer_id: str) -> Calls:
        """Not to be written into."""
        return self._calls.get(peer_id, NONE)

    def dispatched(self, stats: CallStats) -> None:
        """A call of ours is over, well or not."""
        for server in stats.servers:
            self._entry(server.peer_id).made += 1
        for failure in stats.failures:
            self._entry(failure.peer_id).failed += 1
        for peer_id in stats.late:
            self._entry(peer_id).late += 1

    def served(self, peer_id: str) -> None:
        """A call of a peer was answered."""
        self._entry(peer_id).served += 1

    def _entry(self, peer_id: str) -> Calls:
        entry = self._calls.get(peer_id)
        if entry is None:
            entry = self._calls[peer_id] = Calls()
            if len(self._calls) > MAX_PEERS:
                self._calls.popitem(last=False)
        else:
            self._calls.move_to_end(peer_id)
        return entry
