"""A byte stream of the network made secret and authentic: multistream-select, then Noise.

Works over anything with trio's stream interface: a TCP socket, a WebSocket, a circuit through a relay.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import trio
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from routing.errors import PeerError
from routing.identity import Identity, PeerId
from routing.libp2p.noise import (
    MAX_HANDSHAKE_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_PLAINTEXT_BYTES,
    TAG_BYTES,
    Cipher,
    Handshake,
    NoiseError,
)
from routing.wire.multistream import Dialer, Listener

_NOISE = "/noise"
# One read of the socket: the largest Noise message and its length. Few and large reads cost least.
_READ_BYTES = MAX_MESSAGE_BYTES + 2


class ConnectionLost(PeerError):
    """The connection ended: by the peer, by us, by the network, or by silence."""


class SecureChannel:
    """Whole plaintexts over an encrypted stream. One task reads, one task writes.

    Attributes:
        peer_id: who is at the other end, proven by the handshake.
    """

    def __init__(
        self, stream: trio.abc.Stream, peer_id: PeerId, sending: Cipher, receiving: Cipher, rest: bytearray
    ) -> None:
        self._stream = stream
        self.peer_id = peer_id
        self._sending, self._receiving = sending, receiving
        self._arrived = rest

    async def read(self) -> bytes:
        """All plaintext that has arrived, at least a byte; b"" at a clean end.

        Raises:
            ConnectionLost: the connection broke.
            NoiseError: a message is not authentic.
        """
        while True:
            plaintext = self._take_messages()
            if plaintext:
                return plaintext
            data = await receive(self._stream)
            if not data:
                if self._arrived:
                    raise ConnectionLost("the connection ended within a message", peer=self.peer_id)
                return b""
            self._arrived += data

    def _take_messages(self) -> bytes:
        parts, position, arrived = [], 0, self._arrived
        while len(arrived) - position >= 2:
            end = position + 2 + int.from_bytes(arrived[position : position + 2], "big")
            if end > len(arrived):
                break
            if end - position - 2 < TAG_BYTES:
                raise NoiseError("the peer sent a message shorter than its tag", peer=self.peer_id)
            parts.append(self._receiving.decrypt(bytes(arrived[position + 2 : end])))
            position = end
        del arrived[:position]
        return b"".join(parts)

    async def write(self, *plaintexts: bytes) -> None:
        """Send all of them, each in a message of its own (in several if it is too long for one).

        A cancelled write leaves half a message behind: the channel is then of no use.

        Raises:
            ConnectionLost: the connection broke.
        """
        out = bytearray()
        for plaintext in plaintexts:
            for start in range(0, len(plaintext), MAX_PLAINTEXT_BYTES):
                message = self._sending.encrypt(plaintext[start : start + MAX_PLAINTEXT_BYTES])
                out += len(message).to_bytes(2, "big") + message
        await send(self._stream, bytes(out))

    async def negotiate(self, protocol: str, *, initiator: bool) -> bytes:
        """Agree on the one protocol that runs on the channel; what arrived after the agreement.

        Raises:
            PeerError: the peer speaks another one, or left.
        """
        return await _agree(self._read_some, self.write, protocol, initiator=initiator)

    async def _read_some(self) -> bytes:
        data = await self.read()
        if not data:
            raise ConnectionLost("the peer hung up during the handshake", peer=self.peer_id)
        return data

    async def abort(self) -> None:
        """Close the stream below at once."""
        await trio.aclose_forcefully(self._stream)


async def secure(
    stream: trio.abc.Stream, identity: Identity, *, expected: PeerId | None, initiator: bool
) -> SecureChannel:
    """Agree on Noise and shake hands. The caller sets the deadline and closes the stream on an error.

    Args:
        expected: who must answer; None accepts anybody.
        initiator: whether this side dialed.

    Raises:
        PeerError: the peer speaks another protocol, is another peer, or left.
    """
    read, write = partial(_receive_some, stream), partial(send, stream)
    arrived = bytearray(await _agree(read, write, _NOISE, initiator=initiator))
    handshake = Handshake(
        identity,
        expected=expected,
        initiator=initiator,
        static=X25519PrivateKey.generate(),
        ephemeral=X25519PrivateKey.generate(),
    )
    writes = initiator
    while not handshake.finished:
        if writes:
            message = handshake.write()
            await send(stream, len(message).to_bytes(2, "big") + message)
        else:
            handshake.read(await _read_message(stream, arrived))
        writes = not writes
    assert handshake.peer_id is not None
    sending, receiving = handshake.ciphers()
    return SecureChannel(stream, handshake.peer_id, sending, receiving, arrived)


async def _agree(
    read: Callable[[], Awaitable[bytes]],
    write: Callable[[bytes], Awaitable[None]],
    protocol: str,
    *,
    initiator: bool,
) -> bytes:
    """Agree on the one protocol offered; what arrived after the agreement is returned."""
    if initiator:
        dialer = Dialer(protocol)
        await write(dialer.opening())
        while dialer.agreed is None:
            dialer.receive_data(await read())
        return dialer.trailing_data
    listener = Listener((protocol,))
    while listener.agreed is None:
        try:
            listener.receive_data(await read())
        finally:
            if answer := listener.data_to_send():
                await write(answer)
    return listener.trailing_data


async def _read_message(stream: trio.abc.Stream, arrived: bytearray) -> bytes:
    while True:
        if len(arrived) >= 2:
            size = int.from_bytes(arrived[:2], "big")
            if size > MAX_HANDSHAKE_BYTES:
                raise NoiseError(f"a handshake message of {size} bytes, at most {MAX_HANDSHAKE_BYTES} fit")
            if len(arrived) >= 2 + size:
                message = bytes(arrived[2 : 2 + size])
                del arrived[: 2 + size]
                return message
        arrived += await _receive_some(stream)


async def _receive_some(stream: trio.abc.Stream) -> bytes:
    data = await receive(stream)
    if not data:
        raise ConnectionLost("the peer hung up during the handshake")
    return data


async def receive(stream: trio.abc.Stream) -> bytes:
    """A read whose failure is a ConnectionLost."""
    try:
        return bytes(await stream.receive_some(_READ_BYTES))
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise ConnectionLost(f"the connection broke: {_why(error)}") from None


async def send(stream: trio.abc.Stream, data: bytes) -> None:
    """A write whose failure is a ConnectionLost."""
    try:
        await stream.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
        raise ConnectionLost(f"the connection broke: {_why(error)}") from None


def _why(error: Exception) -> str:
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    return "closed" if isinstance(error, trio.ClosedResourceError) else "reset"
