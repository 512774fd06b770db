"""h11 on a TCP stream: events in and out, with bounds on size and time.

A client is bounded in all it may do: the size of a head, the time for it, how long it may take nothing. Who
writes and is cancelled in the middle leaves half a message behind, so such a wire carries nothing more.
"""

from __future__ import annotations

import re

import h11
import trio

MAX_HEAD_BYTES = 32 << 10
"""Of a request's line and headers: a browser with many cookies sends 8 KB."""

SEND_SECONDS = 20.0
"""A client that takes no PIECE_BYTES in so long is gone, or means no good."""

PIECE_BYTES = 64 << 10
READ_BYTES = 64 << 10

MAX_PIPELINED_BYTES = 256 << 10
"""What a client may send of its next requests before it has this one's answer."""

LINGER_SECONDS = 3.0
LINGER_BYTES = 64 << 20
"""For who is still sending when it has its answer. Closed at once, its system would throw the answer away
(RFC 9112, 9.6)."""

Sendable = h11.Response | h11.InformationalResponse | h11.Data | h11.EndOfMessage


_BYTES = re.compile(r"""bytearray\(b(?P<text>(?P<quote>['"]).*?(?P=quote))\)""")


def in_words(error: h11.RemoteProtocolError) -> str:
    """What h11 says was wrong, without Python's name for bytes."""
    return _BYTES.sub(lambda found: found["text"], str(error))


class ClientGone(OSError):
    """Nobody is there to take the answer."""


class Wire:
    """One connection. One task reads; any may write.

    Attributes:
        http: the protocol's state.
        is_broken: nothing more can be sent.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._lock = trio.Lock()
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self.is_broken = False

    async def read(self) -> int:
        """Give h11 what comes next; how many bytes that was, 0 at the end.

        Raises:
            ClientGone: the connection broke.
        """
        try:
            data = await self._stream.receive_some(READ_BYTES)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ClientGone from error
        self.http.receive_data(data)
        return len(data)

    async def watch(self) -> None:
        """Return when the client has gone, which may be never. What it sends meanwhile is kept."""
        kept = 0
        while kept <= MAX_PIPELINED_BYTES:
            try:
                count = await self.read()
            except ClientGone:
                return
            if not count:
                return
            kept += count

    async def send(self, *events: Sendable) -> None:
        """Send events together.

        Raises:
            ClientGone: the connection broke, or the client takes nothing.
            h11.LocalProtocolError: they may not come now.
        """
        async with self._lock:
            if self.is_broken:
                raise ClientGone
            data = memoryview(b"".join(self.http.send(event) or b"" for event in events))
            self.is_broken = True
            try:
                for start in range(0, len(data), PIECE_BYTES):
                    with trio.fail_after(SEND_SECONDS):
                        await self._stream.send_all(data[start : start + PIECE_BYTES])
            except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError) as error:
                raise ClientGone from error
            self.is_broken = False

    async def linger(self) -> None:
        """Say that there is no more, and let the client finish what it is sending."""
        try:
            await self._stream.send_eof()
            left = LINGER_BYTES
            with trio.move_on_after(LINGER_SECONDS):
                while left > 0:
                    data = await self._stream.receive_some(READ_BYTES)
                    if not data:
                        return
                    left -= len(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def close(self) -> None:
        """Close at once."""
        await trio.aclose_forcefully(self._stream)
