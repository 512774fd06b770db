"""Carried paths that others have opened to this node: over a stream of its own, or over limited circuits.

Whatever a peer opens and does not use is closed: a stranger whose handshake was refused would keep its place
for ever, and there are only so many.
"""

from __future__ import annotations

import logging

import trio

from routing.byte_stream import ByteStream, Meter
from routing.errors import PeerError
from routing.quic.carried import READ_BYTES, carry
from routing.quic.endpoint import Endpoint
from routing.quic.paths import Path
from routing.quic.renewed import Circuit, RenewedPath

log = logging.getLogger("panal.quic")

MAX_PATHS = 256
"""Over limited circuits at once: as many as an endpoint accepts connections."""

FIRST_SECONDS = 10.0
"""For an accepted circuit to say anything."""

UNUSED_SECONDS = 10.0
"""Between looks whether a connection runs over a path: twice what a handshake may take."""


class AcceptedPaths:
    """What peers have opened to one endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._paths: dict[tuple[str, bytes], RenewedPath] = {}

    async def accept(self, stream: ByteStream, left: Meter | None) -> None:
        """Carry what a peer sends; returns when its stream ends, or the path that it began.

        Args:
            left: what its relay lets through; None if nothing limits it.
        """
        if left is not None:
            await self._accept_limited(stream, left)
            return
        async with trio.open_nursery() as nursery:

            async def serve(task_status: trio.TaskStatus[Path]) -> None:
                await carry(self._endpoint, stream, task_status=task_status)
                nursery.cancel_scope.cancel()

            path: Path = await nursery.start(serve)
            await self._close_unused(path)

    async def _accept_limited(self, stream: ByteStream, left: Meter) -> None:
        circuit = Circuit(stream, left)
        datagrams: list[bytes] = []
        try:
            with trio.move_on_after(FIRST_SECONDS):
                while not datagrams and (data := await stream.read(READ_BYTES)):
                    datagrams = circuit.unframer.feed(data)
        except PeerError as error:
            log.debug("a circuit to this node: %s", error)
        # that it is the same peer is only the relay's word; the announcement is what counts
        key = (stream.peer_id, datagrams[0] if datagrams else b"")
        known = self._paths.get(key)
        if known is not None:
            await known.join(circuit, datagrams[1:])
            return
        if not datagrams or len(self._paths) >= MAX_PATHS:
            stream.abort()
            return
        renewed = self._paths[key] = RenewedPath(self._endpoint, stream.remote, left)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._close_unused, renewed.path)
                await renewed.accept(circuit, datagrams)
                nursery.cancel_scope.cancel()
        finally:
            del self._paths[key]

    async def _close_unused(self, path: Path) -> None:
        while not path.ended.is_set():
            with trio.move_on_after(UNUSED_SECONDS):
                await path.ended.wait()
            if not self._endpoint.is_used(path):
                self._endpoint.close_path(path, "no connection ran over it")
