"""Through which relays this node lets itself be reached, while it needs any."""

from __future__ import annotations

from collections.abc import Callable

import trio

from node.swarm.candidates import Candidates
from node.swarm.control import Control
from node.swarm.whereabouts import Whereabouts
from routing.adverts import AdvertTable
from routing.control_address import ControlAddress
from routing.dial_limits import networks_of, reachable_from
from routing.routes import Standing

LOOK_SECONDS = 2.0
"""Between looks at whether relays are needed, and which there are."""

UNDECIDED_SECONDS = 8.0
"""A node that does not know by then whether it can be reached asks for relays as if it could not."""


class RelayKeeper:
    """Chooses relays and says so to the control plane."""

    def __init__(
        self,
        control: Control,
        whereabouts: Whereabouts,
        standing: Callable[[], Standing],
        table: AdvertTable,
        candidates: Candidates,
    ) -> None:
        self._control = control
        self._whereabouts = whereabouts
        self._standing = standing
        self._table = table
        self._candidates = candidates

    async def run(self) -> None:
        """Until cancelled."""
        begun = trio.current_time()
        while True:
            waited = trio.current_time() - begun > UNDECIDED_SECONDS
            self._control.use_relays(self._known() if self._is_needed(waited) else [])
            await trio.sleep(LOOK_SECONDS)

    def _is_needed(self, waited: bool) -> bool:
        standing = self._standing()
        if standing.udp is False:
            return True
        if standing.reach == "public":
            # a NAT that lets everybody in over UDP still lets nobody in over TCP
            return self._whereabouts.is_translated
        return standing.reach == "private" or waited

    def _known(self) -> list[ControlAddress]:
        """Relays of the swarm, then connected ones of any implementation."""
        found = []
        for row in self._table.relays():
            candidate = self._candidates.find(row.advert.peer_id)
            if candidate is not None:
                found += [each.with_peer(candidate.peer_id) for each in candidate.control]
        networks = networks_of(self._whereabouts.hosts())
        return found + [each for each in self._control.relay_peers() if reachable_from(networks, each.host)]
