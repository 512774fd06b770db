"""Whole messages on a stream of bytes: an unsigned varint length, then the message.

libp2p's identify, Kademlia and circuit relay all frame their protobufs so.
"""

from __future__ import annotations

from routing.byte_stream import ByteStream
from routing.errors import PeerError
from routing.libp2p.protobuf import decode_varint, encode_varint

# One read of the stream: most messages are smaller.
_READ_BYTES = 16 << 10
# Lengths below 2 MiB take three bytes; no message here is longer.
_MAX_LENGTH_BYTES = 3


class MalformedMessage(PeerError):
    """The peer sent what is no message, or one that is too long."""


async def write_delimited(stream: ByteStream, message: bytes) -> None:
    """Send one message."""
    await stream.write(encode_varint(len(message)) + message)


class DelimitedReader:
    """Reads messages from a stream.

    Attributes:
        rest: what was read beyond the last message; whoever goes on with the bare stream begins with it.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.rest = bytearray()

    async def read(self, max_bytes: int) -> bytes | None:
        """The next message; None if the peer ended the stream before one began.

        Raises:
            MalformedMessage: it is longer than `max_bytes`, or cut off.
            PeerError: the stream broke.
        """
        while True:
            message = self._take(max_bytes)
            if message is not None:
                return message
            data = await self._stream.read(_READ_BYTES)
            if not data:
                if self.rest:
                    raise self._malformed("ended its stream within a message")
                return None
            self.rest += data

    def _take(self, max_bytes: int) -> bytes | None:
        head = bytes(self.rest[:_MAX_LENGTH_BYTES])
        if not any(byte < 0x80 for byte in head):
            if len(head) == _MAX_LENGTH_BYTES:
                raise self._malformed("sent a message of more than 2 MiB")
            return None
        size, start = decode_varint(head, 0)
        if size > max_bytes:
            raise self._malformed(f"sent a message of {size} bytes, at most {max_bytes} are allowed")
        if len(self.rest) < start + size:
            return None
        message = bytes(self.rest[start : start + size])
        del self.rest[: start + size]
        return message

    def _malformed(self, what: str) -> MalformedMessage:
        return MalformedMessage(f"{self._stream.peer_id} {what}", peer=self._stream.peer_id)
