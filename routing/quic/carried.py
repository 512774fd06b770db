"""QUIC datagrams in a stream of bytes: each as its length, 16 bits big-endian, then its bytes.

This is how two nodes speak where UDP does not get through (docs/protocol.md, "Carried QUIC"). The stream is
reliable and in order, so QUIC's own repair of losses stays idle; what it adds is what it adds on UDP: the
peer's identity is proven end to end, and whoever carries the stream sees encrypted packets only.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence

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

STREAM_ENDED = "the stream that carried it ended"

_LENGTH = struct.Struct(">H")


MIN_DATAGRAM_BYTES = 20
"""QUIC's shortest have 21 (RFC 9000, section 10.3): who sends shorter ones only makes us count."""

DATAGRAMS_A_TURN = 128
"""Taken before other tasks go on: a read of short ones holds three thousand."""


class Unframer:
    """Cuts a stream of bytes into datagrams. Sans-IO; holds less than one datagram between calls."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Bytes in, whole datagrams out.

        Raises:
            PeerError: what comes is no QUIC.
        """
        data = self._rest + data if self._rest else data
        datagrams, start, end = [], 0, len(data)
        while end - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(data, start)
            if size < MIN_DATAGRAM_BYTES:
                raise PeerError(f"a carried datagram of {size} bytes, which is no QUIC")
            if end - start - _LENGTH.size < size:
                break
            start += _LENGTH.size
            datagrams.append(data[start : start + size])
            start += size
        self._rest = data[start:]
        return datagrams


class Outbox:
    """Framed datagrams that wait for a stream."""

    def __init__(self) -> None:
        self._framed: deque[bytes] = deque()
        self._size = 0
        self._filled = trio.Event()

    def put(self, datagrams: Sequence[bytes]) -> None:
        """Add datagrams; those that find too many before them are lost."""
        for data in datagrams:
            if self._size <= MAX_WAITING_BYTES:
                self._framed.append(frame(data))
                self._size += _LENGTH.size + len(data)
        self._filled.set()

    async def wait(self) -> None:
        """Return when there is something to take."""
        await self._filled.wait()

    def take(self, at_most: int | None = None) -> bytes:
        """All that waits, or of that so many bytes, but at least one datagram."""
        if at_most is None or self._size <= at_most:
            batch = b"".join(self._framed)
            self._framed.clear()
        else:
            parts, room = [self._framed.popleft()], at_most
            room -= len(parts[0])
            while len(self._framed[0]) <= room:
                parts.append(self._framed.popleft())
                room -= len(parts[-1])
            batch = b"".join(parts)
        self._size -= len(batch)
        if not self._framed:
            self._filled = trio.Event()
        return batch


def frame(data: bytes) -> bytes:
    """A datagram as it stands in a stream."""
    return _LENGTH.pack(len(data)) + data


async def carry(
    endpoint: Endpoint,
    stream: ByteStream,
    *,
    task_status: trio.TaskStatus[Path] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Carry an endpoint's datagrams in a stream until it or its path ends; `nursery.start` gives the path.

    The connections over the path end with the stream. The stream is aborted when this returns.
    """
    outbox = Outbox()
    path = endpoint.open_path(outbox.put, stream.remote)
    reason = STREAM_ENDED
    try:
        async with trio.open_nursery() as nursery:
            task_status.started(path)

            async def send() -> None:
                nonlocal reason
                try:
                    while True:
                        await outbox.wait()
                        await stream.write(outbox.take())
                except PeerError as error:
                    reason = str(error)
                    nursery.cancel_scope.cancel()

            async def end() -> None:
                await path.ended.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(send)
            nursery.start_soon(end)
            unframer = Unframer()
            try:
                while data := await stream.read(READ_BYTES):
                    datagrams = unframer.feed(data)
                    for start in range(0, len(datagrams), DATAGRAMS_A_TURN):
                        if start:
                            await trio.lowlevel.checkpoint()
                        endpoint.take_carried(path, datagrams[start : start + DATAGRAMS_A_TURN])
            except PeerError as error:
                reason = str(error)
            nursery.cancel_scope.cancel()
    finally:
        endpoint.close_path(path, reason)
        stream.abort()
