"""Asks holders of cells, slowly and a few at a time, whether they are there and hold what they claim.

A probe is a connection of the kind that a caller would make (`node.market.probe_plane`), one question ("what
do you serve?"), and the end.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import trio

from market.answering import Answering, Answers
from node.market.neighbourhood import neighbourhood_of
from node.market.probe_plane import ProbePlane, open_plane
from node.swarm.watching import Watching
from routing.errors import HeldBack, LocalError, PeerError
from routing.links import ask_holdings
from routing.quic.connection import CLOSE_NORMAL

if TYPE_CHECKING:
    from node.swarm.node import SwarmNode

log = logging.getLogger("panal.probing")

FIRST_SECONDS = 5.0
"""After the start, before the first probe: the neighbours are connected by then, who need none."""

PATIENCE = 20.0
"""Seconds for a probe: a circuit through a relay, the handshake in it, and an answer take that at worst."""

ABREAST = 8
"""Probes under way together at most: who answers nothing holds one for PATIENCE, and must not hold up the
next, which begins QUICK_SECONDS later at the earliest (market.answering)."""

AT_ONCE = 16
"""Probes under way together, of one who has a few seconds only (`hurry`)."""

LOOK_SECONDS = 0.5
"""Between looks at who is connected, and who was heard of: of 4,000 adverts each takes some milliseconds."""


class Probing:
    """What a node finds out about others' answering.

    Args:
        node: whose adverts, identity and ways these are. It may run later.
        models: ids of the models whose holders matter.
        rng: for tests.
    """

    def __init__(
        self, node: SwarmNode, models: Callable[[], Collection[str]], *, rng: random.Random | None = None
    ) -> None:
        self._node = node
        self._models = models
        self._rng = rng or random.Random()
        self._known = Answering()
        self._looked = -math.inf

    def answers(self) -> Answers:
        """Who has answered, and who does not: by probes, and by who is connected now."""
        now = trio.current_time()
        if now - self._looked >= LOOK_SECONDS:
            self._look()
        return self._known.answers(now)

    def holders(self) -> list[str]:
        """Other nodes that say they hold anything of these models."""
        models, own = self._models(), self._node.identity.peer_id
        return [
            row.advert.peer_id
            for row in self._node.table.rows()
            if row.advert.peer_id != own and any(held.model_id in models for held in row.advert.slices)
        ]

    async def run(self) -> None:
        """Probe whose turn it is, until cancelled."""
        watching = Watching(lost=self._lost)
        self._node.watch(watching)
        try:
            await self._run()
        finally:
            self._node.unwatch(watching)

    async def _run(self) -> None:
        await trio.sleep(FIRST_SECONDS)
        try:
            async with open_plane(self._node) as plane, trio.open_nursery() as nursery:
                await self._probe_by_turns(nursery, plane)
        except LocalError as error:  # there is no socket: who is connected counts all the same
            log.warning("other servers cannot be asked whether they are there: %s", error)

    async def _probe_by_turns(self, nursery: trio.Nursery, plane: ProbePlane) -> None:
        asking = set[str]()

        async def probe(peer_id: str) -> None:
            await self._probe(plane, peer_id)
            asking.remove(peer_id)

        while True:
            self._look()
            holders, now = self.holders(), trio.current_time()
            if len(asking) < ABREAST:
                free = [each for each in holders if each not in asking]
                peer_id = self._known.next(free, now, self._rng)
                if peer_id is not None:
                    asking.add(peer_id)
                    nursery.start_soon(probe, peer_id)
            await trio.sleep(self._known.pause(holders, now, self._rng))

    async def hurry(self) -> None:
        """Probe everybody once as soon as it is heard of, AT_ONCE together, until cancelled."""
        limit, asked = trio.CapacityLimiter(AT_ONCE), set[str]()
        async with open_plane(self._node) as plane, trio.open_nursery() as nursery:

            async def probe(peer_id: str) -> None:
                async with limit:
                    await self._probe(plane, peer_id)

            while True:
                new = [each for each in self.holders() if each not in asked | self.answers().answered.keys()]
                self._rng.shuffle(new)
                asked.update(new)
                for peer_id in new:
                    nursery.start_soon(probe, peer_id)
                await trio.sleep(LOOK_SECONDS)

    # --- inside ---

    def _look(self) -> None:
        """Who is connected has proven its key by a handshake, and answers a PING each second."""
        endpoint, now = self._node.endpoint, trio.current_time()
        self._looked = now
        connected = {each.peer_id: each for each in endpoint.connections if each.is_open}
        rows = self._node.table.rows()
        instances: dict[str, int | None] = dict.fromkeys(connected)
        self._known.keep(instances | {row.advert.peer_id: row.advert.instance for row in rows})
        for peer_id, connection in connected.items():
            self._known.answered(peer_id, neighbourhood_of(endpoint, connection, self._relay_ip), now)

    def _lost(self, peer_id: str, _: str) -> None:
        """A neighbour's connection has ended, however: who was killed says no farewell."""
        if not any(each.is_open for each in self._node.endpoint.connections_to(peer_id)):
            self._known.lost(peer_id, trio.current_time())

    async def _probe(self, plane: ProbePlane, peer_id: str) -> None:
        network = fault = None
        with trio.move_on_after(PATIENCE):
            try:
                network = await self._ask(plane, peer_id)
            except (LocalError, HeldBack) as error:  # of this side: it says nothing about the peer
                log.debug("%s cannot be probed: %s", peer_id, error)
                self._known.untold(peer_id, trio.current_time())
                return
            except PeerError as error:
                fault = str(error)
        now = trio.current_time()
        if network is not None:
            self._known.answered(peer_id, network, now)
        elif self._node.endpoint.connections:
            log.debug("%s does not answer a probe: %s", peer_id, fault or f"nothing in {PATIENCE:g} s")
            self._known.failed(peer_id, now)
        else:  # nobody is connected: this node's own network may be down
            self._known.untold(peer_id, now)

    async def _ask(self, plane: ProbePlane, peer_id: str) -> str:
        """The network in which a peer answers for what it claims.

        Raises:
            PeerError: it does not, or claims more than it tells. LocalError: it cannot be asked from here.
        """
        connection = await plane.reach(peer_id, is_known=self._known.has_ever_answered(peer_id))
        # Before it is asked: what carries the connection may end with the answer.
        network = neighbourhood_of(plane.endpoint, connection, self._relay_ip)
        try:
            told = await ask_holdings(connection)
        finally:
            connection.shut(CLOSE_NORMAL, "that was all")
        row, models = self._node.table.get(peer_id), self._models()
        claimed = [] if row is None else [held for held in row.advert.slices if held.model_id in models]
        if not all(any(mine.covers(held) for mine in told.slices) for held in claimed):
            raise PeerError(f"{peer_id} does not tell of the cells that its advert claims", peer=peer_id)
        return network

    def _relay_ip(self, relay: str) -> str:
        control = self._node.control
        return "" if control is None else control.host.remote_ip(relay)
