"""Dials peers in streams of bytes, and sees to it that a stream ends with the connection in it."""

from __future__ import annotations

import trio

from routing.byte_stream import ByteStream, Meter
from routing.errors import LocalError
from routing.identity import PeerId
from routing.links import DIAL_TIMEOUT
from routing.multiaddr import PeerAddress
from routing.quic.carried import carry
from routing.quic.connection import Connection
from routing.quic.endpoint import Endpoint
from routing.quic.paths import Path
from routing.quic.renewed import Renew, RenewedPath

CLOSING_SECONDS = 0.5
"""From a carried connection's end to that of its stream: its last word is under way."""


class Carrying:
    """The carried connections that this node has dialed."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def connect(
        self, peer_id: PeerId, stream: ByteStream, left: Meter | None = None, renew: Renew | None = None
    ) -> Connection:
        """A connection to a peer, in a stream that leads there.

        Args:
            left: what a relay lets through the stream; None if nothing limits it.
            renew: opens another then.

        Raises:
            PeerError, LocalError: as `Endpoint.connect`. The stream is closed then.
        """
        if self._nursery is None:
            stream.abort()
            raise LocalError("the node is shutting down")
        path: Path
        if left is None or renew is None:
            path = await self._nursery.start(_carry, self._endpoint, stream)
        else:
            renewed = RenewedPath(self._endpoint, stream.remote, left)
            path = await self._nursery.start(_dial, renewed, stream, left, renew)
        try:
            host, port = path.address
            connection = await self._endpoint.connect(
                PeerAddress(host, port, peer_id), timeout=DIAL_TIMEOUT, fresh=True
            )
        except BaseException:
            self._endpoint.close_path(path, "dial given up")
            raise
        self._nursery.start_soon(self._end_with, connection, path)
        return connection

    async def _end_with(self, connection: Connection, path: Path) -> None:
        await connection.closed.wait()
        await trio.sleep(CLOSING_SECONDS)
        self._endpoint.close_path(path, "no connection runs over it")


async def _carry(
    endpoint: Endpoint,
    stream: ByteStream,
    task_status: trio.TaskStatus[Path] = trio.TASK_STATUS_IGNORED,
) -> None:
    await carry(endpoint, stream, task_status=task_status)


async def _dial(
    renewed: RenewedPath,
    stream: ByteStream,
    left: Meter,
    renew: Renew,
    task_status: trio.TaskStatus[Path] = trio.TASK_STATUS_IGNORED,
) -> None:
    await renewed.dial(stream, left, renew, task_status=task_status)
