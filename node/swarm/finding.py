"""Whom this node keeps connected: configured peers, those of last time, of the LAN, of the adverts.

Rules
1. Configured peers always; a bootstrap list that is empty or answers nothing is said, and tried on.
2. Peers that hold experts this node asks for, all of them (up to MAX_HOLDERS).
3. A few neighbours besides, so that news comes from several sides and no bootstrap is needed twice.
4. Remembered peers, a few at a time: while nobody else has answered, and now and then those that no advert
   tells of any more. The latter is how two halves of a swarm meet again when their bootstrap is gone.
5. Who does not answer and is not named by the config gives its place to another.
"""

from __future__ import annotations

import logging
import math
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

ENOUGH = 3
"""With fewer connections than that, nodes of unknown reach are tried as neighbours too. They may be unknown
because nobody dials them: around a single bootstrap no peer knows a stranger who could."""

NEIGHBOUR_PATIENCE = 9.0
"""Seconds for a neighbour to answer: two looks, so that each of its addresses has been dialed."""

SET_ASIDE = 60.0
"""Seconds before a neighbour that did not answer is tried again."""

MAX_HOLDERS = 256
"""Expert servers a backbone keeps warm; more replicas than that change nothing."""

MAX_TRIED = 128
"""Peers without a connection that are dialed at once. Adverts cost nothing: there may be thousands of servers
that do not exist."""

HOLDER_PATIENCE = 6.0
"""Seconds in which a holder must answer if others wait for its place: a dial takes five at most."""

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
"""Remembered peers dialed at once."""

REMEMBERED_ALONE, REMEMBERED_AGAIN = 15.0, 30.0
"""Seconds before the next few are dialed: by a node without any peer, long enough for a circuit through a
relay; by one that has some."""


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
        failures: Callable[[], dict[str, str]],
        rng: random.Random,
    ) -> None:
        self._table = table
        self._candidates = candidates
        self._links = links
        self._own_id = own_id
        self._model = wanted_model
        self._connected = connected
        self._failures = failures
        self._rng = rng
        self._neighbours: dict[str, float] = {}  # by when they must have answered
        self._set_aside: dict[str, float] = {}  # until when
        self._recalled_at = -math.inf
        self._recalled = 0

    def start(self) -> None:
        """Want what the config names."""
        for peer_id in self._candidates.configured_for_quic - {self._own_id}:
            self._want(peer_id)

    def want_model(self, model_id: str) -> None:
        """Holders of this model are needed from now on."""
        self._model = model_id
        self._choose_holders()

    def heard(self, offer: Offer) -> None:
        """An advert changed the table."""
        if not offer.changed or offer.peer_id == self._own_id:
            return
        self._links.news(offer.peer_id)
        if offer.outcome is Outcome.LEFT:
            self.gone(offer.peer_id)
        elif self._is_needed(offer.peer_id) and self._room() > 0 and offer.peer_id not in self._set_aside:
            self._want(offer.peer_id)

    def gone(self, peer_id: str) -> None:
        """A peer's advert has ended: it is no longer looked for, unless the config names it."""
        if self._is_over(peer_id):
            self._let_go(peer_id)

    def found_on_lan(self, peer: LanPeer) -> None:
        """mDNS has told of a peer."""
        self._candidates.found_on_lan(peer.peer_id, peer.addresses)
        if peer.peer_id != self._own_id:
            self._want(peer.peer_id)
            self._links.news(peer.peer_id)

    async def run(self) -> None:
        """Look for neighbours until cancelled."""
        begun, said = trio.current_time(), -math.inf
        with trio.move_on_after(PATIENCE):
            while self._connected() == 0:
                await trio.sleep(0.1)
        if self._connected() == 0:
            self._recall()
        else:
            self._recalled_at = trio.current_time()
        self._choose_holders()
        await trio.sleep(QUIET_SECONDS)
        while True:
            self._drop_absent()
            self._choose_holders()
            self._choose_neighbours()
            self._recall()
            now = trio.current_time()
            if self._connected():
                begun = now
            elif now - begun >= ALONE_SECONDS and now - said >= SAY_AGAIN:
                said = now
                self._say_alone()
            await trio.sleep(LOOK_SECONDS)

    def _want(self, peer_id: str) -> None:
        """For good, as long as it lives."""
        if peer_id != self._own_id:
            self._neighbours.pop(peer_id, None)
            self._links.want(peer_id)

    def _try(self, peer_id: str, patience: float) -> None:
        """As a neighbour, if it answers in time."""
        self._neighbours[peer_id] = trio.current_time() + patience
        self._links.want(peer_id, surely=False)

    def _let_go(self, peer_id: str) -> None:
        self._neighbours.pop(peer_id, None)
        self._links.unwant(peer_id)

    def _is_over(self, peer_id: str) -> bool:
        """Whether there is no reason left to look for a peer."""
        key = PeerId(peer_id)
        return (
            key not in self._candidates.configured
            and key not in self._candidates.on_lan
            and self._table.get(peer_id) is None
            and self._links.link(peer_id) is None
        )

    def _drop_absent(self) -> None:
        """Neighbours that do not answer, and whoever has left and is no longer connected."""
        now = trio.current_time()
        self._set_aside = {peer_id: until for peer_id, until in self._set_aside.items() if until > now}
        for peer_id in self._links.wanted:
            if self._links.link(peer_id) is None and now >= self._neighbours.get(peer_id, math.inf):
                self._set_aside[peer_id] = now + SET_ASIDE
                self._let_go(peer_id)
            elif peer_id not in self._neighbours and self._is_over(peer_id):
                self._let_go(peer_id)

    def _recall(self) -> None:
        """Dial the next few remembered peers, if it is time."""
        alone = self._connected() == 0
        now = trio.current_time()
        if now - self._recalled_at < (REMEMBERED_ALONE if alone else REMEMBERED_AGAIN):
            return
        wanted = self._links.wanted
        absent = [
            peer_id
            for peer_id in self._candidates.remembered
            if self._table.get(peer_id) is None and peer_id not in wanted
        ]
        if not absent:
            return
        self._recalled_at = now
        first = self._recalled % len(absent)
        for peer_id in (absent[first:] + absent[:first])[:MAX_REMEMBERED_TRIED]:
            self._try(peer_id, REMEMBERED_ALONE)
        self._recalled += MAX_REMEMBERED_TRIED

    def _is_needed(self, peer_id: str) -> bool:
        row = self._table.get(peer_id)
        return self._model is not None and row is not None and row.advert.serves(self._model)

    def _choose_holders(self) -> None:
        """All who hold the model; of more than can be tried at once some, connected ones first."""
        if self._model is None:
            return
        passed_over = {self._own_id, *self._set_aside, *self._links.wanted}
        others = [row.advert.peer_id for row in self._table.holders_of(self._model)]
        others = [peer_id for peer_id in others if peer_id not in passed_over]
        self._rng.shuffle(others)
        others.sort(key=lambda peer_id: not self._links.has_connection(peer_id))
        room = self._room()
        for peer_id in others[: max(0, room)]:
            self._want(peer_id)
        if len(others) > room:
            self._make_room(len(others) - room)

    def _room(self) -> int:
        """How many more holders may be wanted now."""
        wanted = self._links.wanted
        trying = sum(self._links.find(peer_id) is None for peer_id in wanted)
        return min(MAX_HOLDERS - len(wanted), MAX_TRIED - trying)

    def _make_room(self, count: int) -> None:
        """Holders that have had their time and do not answer give their places to others."""
        now = trio.current_time()
        for peer_id in self._links.wanted - self._candidates.configured - self._candidates.on_lan:
            since = self._links.missing_since(peer_id)
            if count > 0 and since is not None and now - since > HOLDER_PATIENCE:
                self._set_aside[peer_id] = now + SET_ASIDE
                self._let_go(peer_id)
                count -= 1

    def _choose_neighbours(self) -> None:
        passed_over = {self._own_id, *self._set_aside, *self._links.wanted}
        had = sum(
            peer_id in self._neighbours or self._links.link(peer_id) is not None
            for peer_id in self._links.wanted
        )
        for reach, enough in (("public", NEIGHBOURS), ("unknown", ENOUGH)):
            known = [
                row.advert.peer_id
                for row in self._table.rows()
                if row.advert.reach == reach and row.advert.peer_id not in passed_over
            ]
            chosen = self._rng.sample(known, max(0, min(enough - had, len(known))))
            for peer_id in chosen:
                self._try(peer_id, NEIGHBOUR_PATIENCE)
            had += len(chosen)

    def _say_alone(self) -> None:
        configured = self._candidates.configured - {self._own_id}
        if configured:
            if self._failures():  # each was said when it failed
                log.warning("[swarm] peers: nobody answers; still trying")
            else:  # a relay or DHT server of others answers, and knows nobody
                log.warning("[swarm] peers answer, but no node of this swarm was found through them yet")
        else:
            log.warning(
                "[swarm] peers is empty and nobody else was found: waiting for nodes on this network; "
                "to join others, put an address that `panal run` printed elsewhere into [swarm] peers"
            )
