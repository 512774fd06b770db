"""What probes go out of: a UDP socket of its own, which serves nothing, and the ways out of it.

Nobody takes such a connection for a neighbour's, and no NAT or firewall lets anybody in to this node's port
because of it (`relay.contacts`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from node.swarm.ways import Ways
from routing.dial_limits import DialLimits
from routing.errors import PeerError
from routing.links import STAGGER, needs_connection
from routing.quic.connection import CLOSE_NORMAL, Connection
from routing.quic.endpoint import Endpoint
from routing.race import first
from routing.routes import Attempt, Route

if TYPE_CHECKING:
    from node.swarm.node import SwarmNode

STRANGERS_BURST, STRANGERS_PER_SECOND = 12, 1 / 30
"""Unanswered dials of one network, for peers that have never answered: a swarm asks together. A thousand
nodes that hear of phantoms in one network send it 33 dials a second in the long run, 400 KB/s."""


@dataclass(frozen=True)
class ProbePlane:
    """Made by `open_plane`.

    Attributes:
        endpoint: of the socket.
        to_known: ways to peers that have answered before; to_strangers: to those that never have.
    """

    endpoint: Endpoint
    to_known: Ways
    to_strangers: Ways

    async def reach(self, peer_id: str, *, is_known: bool) -> Connection:
        """A connection for one question, by the ways that need none before (`routing.links`).

        Raises:
            PeerError: it cannot be reached. HeldBack: it may not be dialed now. LocalError: not from here.
        """
        ways = self.to_known if is_known else self.to_strangers
        attempts = [each for each in ways.attempts(peer_id) if not needs_connection(each.way)]
        if not attempts:
            raise PeerError(f"{peer_id}: no way to it is known", peer=peer_id)

        def go(attempt: Attempt) -> Callable[[], Awaitable[tuple[Connection, Route]]]:
            return lambda: ways.carry_out(peer_id, attempt, None)

        def discard(late: tuple[Connection, Route]) -> None:
            late[0].shut(CLOSE_NORMAL, "another way was there at the same time")

        connection, _ = await first(peer_id, [go(each) for each in attempts], discard, stagger=STAGGER)
        return connection


@asynccontextmanager
async def open_plane(node: SwarmNode) -> AsyncIterator[ProbePlane]:
    """With a node's identity and knowledge of others.

    Raises:
        LocalError: there is no socket to be had.
    """
    place = node.place
    endpoint = Endpoint(
        node.identity,
        listen=(place.swarm.listen.host, 0),
        backend=place.swarm.backend,
        accept=False,
        membership=node.membership,
    )

    def ways(limits: DialLimits) -> Ways:
        return Ways(
            endpoint,
            node.candidates,
            lambda: node.standing,
            control=node.control,
            meeting=None,
            use_relays=place.relay.table.use,
            limits=limits,
        )

    strict = DialLimits(STRANGERS_BURST, STRANGERS_PER_SECOND, by_network=True)
    plane = ProbePlane(endpoint, ways(DialLimits()), ways(strict))
    async with trio.open_nursery() as nursery:
        await nursery.start(endpoint.run)
        await nursery.start(plane.to_known.run)
        await nursery.start(plane.to_strangers.run)
        yield plane
        nursery.cancel_scope.cancel()
