"""Whom this node keeps connected: configured peers, those of last time, of the LAN, of the adverts.

Rules
1. Configured peers always; a bootstrap list that is empty or answers nothing is said, and tried on.
2. Peers that hold experts this node asks for, all of them (up to MAX_HOLDERS).
3. A few neighbours besides, so that news comes from several sides and no bootstrap is needed twice.
4. Remembered peers only while nobody else has answered.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

import trio

from node.swarm.candidates import Candidates
from routing.advert_rows import Offer, Outcome
from routing.adverts import AdvertTable
from routing.identity import PeerId
from routing.lan_peers import LanPeer
from routing.links import PeerLinks

log = logging.getLogger("panal.finding")

NEIGHBOURS = 6
"""Connections a node keeps besides those it needs. With six random ones each, news reaches a thousand nodes
in four hops, and a node that loses half of them is still connected."""

MAX_HOLDERS = 256
"""Expert servers a backbone keeps warm; more replicas than that change nothing."""

PATIENCE = 2.0
"""Seconds for configured and LAN peers before remembered ones are tried."""

ALONE_SECONDS = 10.0
"""Without any peer for so long it is said, and again each minute."""

SAY_AGAIN = 60.0

QUIET_SECONDS = 5.0
"""From the first connection on, before neighbours are dialed: what shows that strangers get in must come from
addresses this node has never written to (relay.prober)."""

LOOK_SECONDS = 5.0
"""Between looks at whether there are neighbours enough."""

MAX_REMEMBERED_TRIED = 8


class Finder:
    """Decides whom to keep connected.

    Args:
        wanted_model: the model id whose holders are needed; None for a node that only serves.
    """

    def __init__(
        self,
        table: AdvertTable,
        candidates: Candidates,
        links: PeerLinks,
        own_id: PeerId,
        *,
        wanted_model: str | None,
        connected: Callable[[], int],
        rng: random.Random,
    ) -> None:
        self._table = table
        self._candidates = candidates
        self._links = links
        self._own_id = own_id
        self._model = wanted_model
        self._connected = connected
        self._rng = rng
        self._neighbours: set[str] = set()

    def start(self) -> None:
        """Want what the config names."""
        for peer_id in self._candidates.configured_for_quic - {self._own_id}:
            self._want(peer_id)

    def heard(self, offer: Offer) -> None:
        """An advert changed the table."""
        if not offer.changed or offer.peer_id == self._own_id:
            return
        self._links.news(offer.peer_id)
        if offer.outcome is Outcome.LEFT:
            self.gone(offer.peer_id)
        elif self._is_needed(offer.peer_id) and len(self._links.wanted) < MAX_HOLDERS:
            self._want(offer.peer_id)

    def gone(self, peer_id: str) -> None:
        """A peer's advert has ended: it is no longer looked for, unless the config names it."""
        if PeerId(peer_id) not in self._candidates.configured and self._links.link(peer_id) is None:
            self._links.unwant(peer_id)
            self._neighbours.discard(peer_id)

    def found_on_lan(self, peer: LanPeer) -> None:
        """mDNS has told of a peer."""
        self._candidates.found_on_lan(peer.peer_id, peer.addresses)
        if peer.peer_id != self._own_id:
            self._want(peer.peer_id)
            self._links.news(peer.peer_id)

    async def run(self) -> None:
        """Look for neighbours until cancelled."""
        with trio.move_on_after(PATIENCE):
            while self._connected() == 0:
                await trio.sleep(0.1)
        if self._connected() == 0:
            for peer_id in list(self._candidates.remembered)[:MAX_REMEMBERED_TRIED]:
                self._want(peer_id)
        self._choose_holders()
        await trio.sleep(QUIET_SECONDS)
        begun, said = trio.current_time(), 0.0
        while True:
            self._choose_holders()
            self._choose_neighbours()
            now = trio.current_time()
            if self._connected():
                begun = now
            elif now - begun >= ALONE_SECONDS and now - said >= SAY_AGAIN:
                said = now
                self._say_alone()
            await trio.sleep(LOOK_SECONDS)

    def _want(self, peer_id: str) -> None:
        if peer_id != self._own_id:
            self._links.want(peer_id)

    def _is_needed(self, peer_id: str) -> bool:
        row = self._table.get(peer_id)
        return self._model is not None and row is not None and row.advert.serves(self._model)

    def _choose_holders(self) -> None:
        if self._model is not None:
            for row in self._table.holders_of(self._model)[:MAX_HOLDERS]:
                self._want(row.advert.peer_id)

    def _choose_neighbours(self) -> None:
        lacking = NEIGHBOURS - len(self._links.wanted)
        if lacking <= 0:
            return
        known = [
            row.advert.peer_id
            for row in self._table.rows()
            if row.advert.reach == "public"
            and row.advert.peer_id != self._own_id
            and row.advert.peer_id not in self._links.wanted
        ]
        for peer_id in self._rng.sample(known, min(lacking, len(known))):
            self._neighbours.add(peer_id)
            self._want(peer_id)

    def _say_alone(self) -> None:
        configured = self._candidates.configured - {self._own_id}
        if configured:
            failures = self._links.failures()
            reasons = "; ".join(failures.values()) or "no answer yet"
            log.warning(
                "none of the %d peers in [swarm] peers answers (%s); still trying", len(configured), reasons
            )
        else:
            log.warning(
                "[swarm] peers is empty and nobody else was found: waiting for nodes on this network; "
                "to join others, put an address that `panal run` printed elsewhere into [swarm] peers"
            )
