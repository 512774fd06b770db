"""Two nodes that talk through a relay agree on a better way (`/panal/punch/1`, `/panal/dial-me/1`)."""

from __future__ import annotations

import trio

from node.swarm import dial_me
from relay.punch import Puncher
from relay.punch_plan import PROTOCOL_ID
from routing.errors import PeerError
from routing.quic.connection import Connection
from routing.quic.endpoint import Endpoint

ARRIVAL_SECONDS, LOOK_PAUSE = 2.0, 0.02
"""Between the peer's word that it has dialed and this end of the connection being up."""


class Meetings:
    """A `node.swarm.ways.Meeting`: each attempt has a stream of its own on the connection there is."""

    def __init__(self, endpoint: Endpoint, puncher: Puncher) -> None:
        self._endpoint = endpoint
        self._puncher = puncher

    async def punch(self, over: Connection) -> Connection:
        """Probe from both sides at once.

        Raises:
            PeerError: nothing came through.
        """
        stream = over.open_stream(PROTOCOL_ID)
        try:
            return await self._puncher.punch(stream, over.peer_id)
        finally:
            stream.reset()

    async def call_back(self, over: Connection) -> Connection:
        """Have the peer dial this node.

        Raises:
            PeerError: it did not arrive.
        """
        stream = over.open_stream(PROTOCOL_ID)
        try:
            return await self._puncher.ask_to_call_back(stream, over.peer_id)
        finally:
            stream.reset()

    async def call_back_over_tcp(self, over: Connection) -> Connection:
        """Have the peer dial this node over TCP.

        Raises:
            PeerError: it did not arrive.
        """
        before = set(self._endpoint.connections_to(over.peer_id))
        await dial_me.ask(over)
        with trio.move_on_after(ARRIVAL_SECONDS):
            while True:
                for connection in self._endpoint.connections_to(over.peer_id):
                    if connection not in before:
                        return connection
                await trio.sleep(LOOK_PAUSE)
        raise PeerError(f"{over.peer_id} says it has dialed, but no connection has come", peer=over.peer_id)
