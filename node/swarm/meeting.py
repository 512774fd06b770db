"""Two nodes that talk through a relay agree there on a better way (`/panal/punch/1`)."""

from __future__ import annotations

from relay.punch import Puncher
from relay.punch_plan import PROTOCOL_ID
from routing.quic.connection import Connection


class Meetings:
    """A `node.swarm.ways.Meeting`: each attempt has a stream of its own on the connection there is."""

    def __init__(self, puncher: Puncher) -> None:
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
