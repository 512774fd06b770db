"""A node for reachability and punching on a host of the lab, driven by JSON lines on stdin; a process.

Every node can also be the rendezvous of two others: it passes messages on between them (`SWITCH`), as a relay
would, so that these tests need no relay.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import trio

from relay.contacts import Contacts
from relay.dialback import DialBackService
from relay.prober import ReachProber
from relay.probes import Probes
from relay.punch import Puncher
from relay.reach_wire import PROTOCOL_ID
from routing.errors import PanalError
from routing.identity import Identity
from routing.multiaddr import PeerAddress
from routing.quic.endpoint import Endpoint
from routing.quic.stream import Stream

PORT = 4190
SWITCH = "/test/switch/1"
SWITCHED = "/test/switched/1"
ECHO = "/test/echo/1"
MAX_BYTES = 4096


async def main() -> None:
    node = Node()
    async with trio.open_nursery() as nursery:
        await nursery.start(node.endpoint.run)
        say({"peer_id": node.endpoint.peer_id})
        async for line in trio.wrap_file(sys.stdin):
            command = json.loads(line)
            try:
                say(await getattr(node, command.pop("do"))(**command))
            except PanalError as error:
                say({"error": str(error)})
        nursery.cancel_scope.cancel()


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


class Node:
    def __init__(self) -> None:
        handlers = {
            PROTOCOL_ID: lambda stream: self.service.serve(stream),
            SWITCH: self._switch,
            SWITCHED: self._be_punched,
            ECHO: self._echo,
        }
        self.endpoint = Endpoint(Identity.generate(), listen=("0.0.0.0", PORT), handlers=handlers)
        self.probes = Probes(self.endpoint, Contacts())
        self.service = DialBackService(self.probes)
        self.prober = ReachProber(self.probes)
        self.puncher = Puncher(self.probes, self.prober.candidates)

    async def connect(self, address: str, timeout: float = 3.0) -> dict[str, Any]:
        peer = PeerAddress.parse(address)
        self.probes.contacts.note(peer.host, self.endpoint.now())
        try:
            connection = await self.endpoint.connect(peer, timeout=timeout)
        except PanalError:
            self.prober.note_dial(str(peer.peer_id), answered=False)
            raise
        self.prober.note_dial(connection.peer_id, answered=True)
        return {"connected": connection.peer_id}

    async def round(self) -> dict[str, Any]:
        await self.prober.round()
        return await self.reachability()

    async def reachability(self) -> dict[str, Any]:
        verdict = self.prober.reachability
        return {name: getattr(verdict, name) for name in verdict.__dataclass_fields__}

    async def punch(self, via: str, to: str) -> dict[str, Any]:
        return await self._meet(via, to, "punch")

    async def call_back(self, via: str, to: str) -> dict[str, Any]:
        return await self._meet(via, to, "call_back")

    async def _meet(self, via: str, to: str, how: str) -> dict[str, Any]:
        rendezvous = self.endpoint.connection_to(via)
        assert rendezvous is not None
        stream = rendezvous.open_stream(SWITCH)
        await stream.send_message(to.encode())
        begun = trio.current_time()
        if how == "punch":
            connection = await self.puncher.punch(stream, to)
        else:
            connection = await self.puncher.ask_to_call_back(stream, to)
        took = trio.current_time() - begun
        echo = connection.open_stream(ECHO)
        await echo.send_message(b"direct")
        assert await echo.receive_message(MAX_BYTES) == b"direct"
        return {
            "remote": connection.remote_address,
            "peer_id": connection.peer_id,
            "dialed": connection.dialed,
            "milliseconds": round(took * 1000),
        }

    async def _switch(self, stream: Stream) -> None:
        to = (await stream.receive_message(MAX_BYTES)).decode()
        connection = self.endpoint.connection_to(to)
        assert connection is not None
        other = connection.open_stream(SWITCHED)
        await other.send_message(stream.peer_id.encode())
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pass_on, stream, other)
                nursery.start_soon(pass_on, other, stream)
        except* PanalError:  # one end has finished
            pass

    async def _be_punched(self, stream: Stream) -> None:
        peer_id = (await stream.receive_message(MAX_BYTES)).decode()
        await self.puncher.serve_channel(stream, peer_id)
        await stream.aclose()

    async def _echo(self, stream: Stream) -> None:
        await stream.send_message(await stream.receive_message(MAX_BYTES))


async def pass_on(source: Stream, target: Stream) -> None:
    while True:
        await target.send_message(await source.receive_message(MAX_BYTES))


if __name__ == "__main__":
    trio.run(main)
