"""QUIC datagrams in a stream of bytes: each as its length, 16 bits big-endian, then its bytes.

This is how two nodes speak where UDP does not get through (docs/protocol.md, "Carried QUIC"). The stream is
reliable and in order, so QUIC's own repair of losses stays idle; what it adds is what it adds on UDP: the
peer's identity is proven end to end, and whoever carries the stream sees encrypted packets only.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from routing.byte_stream import ByteStream
from routing.errors import PeerError
from routing.quic.endpoint import Endpoint
from routing.quic.paths import Path

PROTOCOL_ID = "/panal/datagrams/1"

READ_BYTES = 64 << 10
"""Of one read: few and large, since each costs a window update on the carrying connection."""

MAX_WAITING_BYTES = 4 << 20
"""Datagrams that wait for a slow stream, a second at 32 Mbit/s; what comes then is lost: QUIC slows down."""

_LENGTH = struct.Struct(">H")


class Unframer:
    """Cuts a stream of bytes into datagrams. Sans-IO; holds less than one datagram between calls."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Bytes in, whole datagrams out."""
        data = self._rest + data if self._rest else data
        datagrams, start, end = [], 0, len(data)
        while end - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(data, start)
            if end - start - _LENGTH.size < size:
                break
            start += _LENGTH.size
            datagrams.append(data[start : start + size])
            start += size
        self._rest = data[start:]
        return datagrams


@dataclass
class _Outbox:
    """Framed datagrams that wait for the stream."""

    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    filled: trio.Event = field(default_factory=trio.Event)
    dropped: int = 0

    def put(self, datagrams: Sequence[bytes]) -> None:
        for data in datagrams:
            if self.size > MAX_WAITING_BYTES:
                self.dropped += 1
                continue
            self.parts.append(_LENGTH.pack(len(data)))
            self.parts.append(data)
            self.size += _LENGTH.size + len(data)
        self.filled.set()

    async def take(self) -> bytes:
        await self.filled.wait()
        batch, self.parts, self.size, self.filled = b"".join(self.parts), [], 0, trio.Event()
        return batch


async def carry(
    endpoint: Endpoint,
    stream: ByteStream,
    *,
    metered: bool = False,
    task_status: trio.TaskStatus[Path] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Carry an endpoint's datagrams in a stream until it ends; `nursery.start` of it gives the path.

    The connections over the path end with the stream. The stream is aborted when this returns.
    """
    outbox = _Outbox()
    path = endpoint.open_path(outbox.put, stream.remote, metered=metered)
    reason = "the stream that carried it ended"
    try:
        async with trio.open_nursery() as nursery:
            task_status.started(path)

            async def send() -> None:
                nonlocal reason
                try:
                    while True:
                        await stream.write(await outbox.take())
                except PeerError as error:
                    reason = str(error)
                    nursery.cancel_scope.cancel()

            nursery.start_soon(send)
            unframer = Unframer()
            try:
                while data := await stream.read(READ_BYTES):
                    endpoint.take_carried(path, unframer.feed(data))
            except PeerError as error:
                reason = str(error)
            nursery.cancel_scope.cancel()
    finally:
        endpoint.close_path(path, reason)
        stream.abort()
