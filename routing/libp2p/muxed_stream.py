"""One stream of a Yamux connection: its two windows and what waits on either side.

1. A peer may have sent at most the window we granted; what it sends beyond ends the whole connection.
2. Credit goes back when half a window has been read, so a reader of small pieces costs no frame each.
3. `write` hands over to the connection's queue and waits while that or the peer's window is full: who is
   cancelled in it leaves whole frames behind.
"""

from __future__ import annotations

from typing import Protocol

import trio

from routing.libp2p.secure_channel import ConnectionLost
from routing.libp2p.yamux_frames import FIN, INITIAL_WINDOW, MAX_U32, RST, Kind

# A frame of data. It is given to its reader when all of it has come, so each relay on the way adds the time
# of one: 1.3 ms at 50 Mbit/s. Headers and tags are 0.4 % of it.
MAX_FRAME_DATA = 8 << 10


class StreamBroken(ConnectionLost):
    """The stream was reset by the peer or given up by us, or its connection ended."""


class Carrier(Protocol):
    """What a stream needs of its connection."""

    @property
    def peer_id(self) -> str: ...
    @property
    def remote(self) -> str: ...
    @property
    def is_open(self) -> bool: ...
    def open_stream(self) -> MuxedStream: ...
    def enqueue(self, kind: Kind, flags: int, stream_id: int, length: int, data: bytes = b"") -> None: ...
    async def wait_for_room(self) -> None: ...
    def has_room(self) -> bool: ...
    def note_unread(self, change: int) -> None: ...
    def forget(self, stream: MuxedStream) -> None: ...


class MuxedStream:
    """A ByteStream (routing/byte_stream.py) that can also be closed for writing alone.

    Attributes:
        stream_id: Yamux's number.
        protocol: what both sides agreed to speak; "" while they have not.
        closed_at: when `aclose` was called, on trio's clock; None before.
    """

    def __init__(self, carrier: Carrier, stream_id: int, *, opened_by_us: bool) -> None:
        self._carrier = carrier
        self.stream_id = stream_id
        self.opened_by_us = opened_by_us
        self.protocol = ""
        self.closed_at: float | None = None
        self._arrived = bytearray()
        self._uncounted = 0  # bytes at the front of _arrived that were read once and put back
        self._consumed = 0
        self._receive_window = INITIAL_WINDOW
        self._send_window = INITIAL_WINDOW
        self._peer_ended = False
        self._we_ended = False
        self._broken: str | None = None
        self._reader = trio.lowlevel.ParkingLot()
        self._writer = trio.lowlevel.ParkingLot()

    @property
    def peer_id(self) -> str:
        """Who is at the other end."""
        return self._carrier.peer_id

    @property
    def carrier(self) -> Carrier:
        """The connection it is on."""
        return self._carrier

    @property
    def remote(self) -> str:
        """The IP address the connection goes to, or "relay PEER-ID"."""
        return self._carrier.remote

    def __repr__(self) -> str:
        return f"<stream {self.stream_id} {self.protocol or '?'} {self.peer_id}>"

    async def read(self, max_bytes: int) -> bytes:
        """At least one byte and at most `max_bytes`; b"" once the peer has ended it.

        Raises:
            StreamBroken: the stream or its connection broke; what had arrived before is given first.
        """
        if self._arrived:
            await trio.lowlevel.checkpoint()  # who sends a thousand requests at once has them taken in turn
        while not self._arrived:
            if self._broken is not None:
                raise self._error()
            if self._peer_ended:
                return b""
            await self._reader.park()
        data = bytes(self._arrived[:max_bytes])
        del self._arrived[:max_bytes]
        put_back = min(self._uncounted, len(data))
        self._uncounted -= put_back
        self._note_read(len(data) - put_back)
        return data

    def put_back(self, data: bytes) -> None:
        """Give back what was read too far; the next read begins with it."""
        self._arrived[:0] = data
        self._uncounted += len(data)

    async def write(self, data: bytes) -> None:
        """Hand over all of `data`; waits while the way is full.

        Raises:
            StreamBroken: the stream or its connection broke, or was closed by us.
        """
        position = 0
        while position < len(data):
            await self._wait_writable()
            size = min(self._send_window, MAX_FRAME_DATA, len(data) - position)
            self._send_window -= size
            self._carrier.enqueue(Kind.DATA, 0, self.stream_id, size, data[position : position + size])
            position += size

    async def _wait_writable(self) -> None:
        while True:
            if self._broken is not None or self._we_ended:
                raise self._error()
            if not self._send_window:
                await self._writer.park()
            elif not self._carrier.has_room():
                await self._carrier.wait_for_room()
            else:
                return

    def close_write(self) -> None:
        """Say that nothing more will be written; reading goes on."""
        if self._we_ended or self._broken is not None:
            return
        self._we_ended = True
        self._carrier.enqueue(Kind.WINDOW_UPDATE, FIN, self.stream_id, 0)
        self._writer.unpark_all()
        self._forget_if_over()

    async def aclose(self) -> None:
        """End it in good order: the peer reads what was written, then the end; we read no more."""
        self.close_write()
        if self.closed_at is None:
            self.closed_at = trio.current_time()
            self._drop_arrived()
        await trio.lowlevel.checkpoint()

    def abort(self) -> None:
        """End it at once, without waiting; safe to call at any time, also twice."""
        if self._broken is not None or (self._we_ended and self._peer_ended):
            self._drop_arrived()
            return
        self._carrier.enqueue(Kind.WINDOW_UPDATE, RST, self.stream_id, 0)
        self._drop_arrived()
        self.on_broken("the stream was given up")

    # what the connection calls

    def on_data(self, data: bytes) -> None:
        """Bytes within the window; the connection has checked that."""
        self._receive_window -= len(data)
        if self.closed_at is not None:  # nobody will read it: the credit is not renewed
            return
        self._carrier.note_unread(len(data))
        self._arrived += data
        self._reader.unpark_all()

    @property
    def receive_window(self) -> int:
        """How many bytes the peer may still send."""
        return self._receive_window

    def on_credit(self, count: int) -> None:
        """The peer lets us send more; ValueError beyond what 32 bits hold."""
        if self._send_window + count > MAX_U32:
            raise ValueError("a window of more than 32 bits")
        self._send_window += count
        self._writer.unpark_all()

    def on_end(self) -> None:
        """The peer will write no more."""
        self._peer_ended = True
        self._reader.unpark_all()
        self._forget_if_over()

    def on_broken(self, reason: str) -> None:
        """The stream or its connection is over."""
        if self._broken is None:
            self._broken = reason
        self._reader.unpark_all()
        self._writer.unpark_all()
        self._carrier.forget(self)

    def _note_read(self, count: int) -> None:
        self._carrier.note_unread(-count)
        self._consumed += count
        if self._consumed * 2 >= INITIAL_WINDOW and not self._peer_ended and self._broken is None:
            self._carrier.enqueue(Kind.WINDOW_UPDATE, 0, self.stream_id, self._consumed)
            self._receive_window += self._consumed
            self._consumed = 0

    def _drop_arrived(self) -> None:
        self._carrier.note_unread(self._uncounted - len(self._arrived))
        self._arrived.clear()
        self._uncounted = 0

    def _forget_if_over(self) -> None:
        if self._we_ended and self._peer_ended:
            self._carrier.forget(self)

    def _error(self) -> StreamBroken:
        reason = self._broken or "the stream was closed by this side"
        return StreamBroken(f"{self.protocol or 'stream'} with {self.peer_id}: {reason}", peer=self.peer_id)
