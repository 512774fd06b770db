"""One circuit through a relay, at either of its ends: a stream of bytes that may be limited."""

from __future__ import annotations

import trio

from relay.hop_wire import Limit
from routing.byte_stream import Left
from routing.errors import PeerError
from routing.identity import PeerId
from routing.libp2p.muxed_stream import MuxedStream
from routing.wire.multistream import Dialer

_READ_BYTES = 4096


# js-libp2p's relay (circuit-relay-v2 4.2) names milliseconds where the spec says seconds. No relay grants a
# circuit of over a day, so a larger number is taken for milliseconds; if that is wrong, a circuit is
# replaced early, which costs three round trips.
_LONGEST_SECONDS = 24 * 3600


def understood(limit: Limit | None) -> Limit | None:
    """A limit as the relay must have meant it; None if it limits nothing."""
    if limit is None or not (limit.duration or limit.data):
        return None
    duration = limit.duration if limit.duration <= _LONGEST_SECONDS else limit.duration // 1000
    return Limit(duration, limit.data)


class CircuitStream:
    """A circuit's bytes: a ByteStream (routing/byte_stream.py).

    Attributes:
        peer_id: who is at the far end, AS THE RELAY CLAIMS. Trust it only once QUIC inside has proven it.
        remote: "relay PEER-ID", the relay it goes through.
        relay: the relay's peer id.
        limit: what the relay allows this circuit; None if it names no limit.
        sent: bytes written so far.
        received: bytes read so far.

    Args:
        negotiation: a question that has been sent and not been answered yet; the first read takes the answer.
    """

    def __init__(
        self, stream: MuxedStream, peer_id: PeerId, limit: Limit | None, negotiation: Dialer | None = None
    ) -> None:
        self._stream = stream
        self.peer_id: str = peer_id
        self.relay = PeerId(stream.peer_id)
        self.remote = f"relay {stream.peer_id}"
        self.limit = understood(limit)
        self.sent = 0
        self.received = 0
        self._negotiation = negotiation
        self._opened_at = trio.current_time()

    async def read(self, max_bytes: int) -> bytes:
        """As ByteStream.read.

        Raises:
            PeerError: the circuit broke, or the far end does not speak what was asked for.
        """
        if self._negotiation is not None:
            await self._finish_negotiation(self._negotiation)
        data = await self._stream.read(max_bytes)
        self.received += len(data)
        return data

    async def write(self, data: bytes) -> None:
        """As ByteStream.write."""
        await self._stream.write(data)
        self.sent += len(data)

    async def aclose(self) -> None:
        await self._stream.aclose()

    def abort(self) -> None:
        self._stream.abort()

    def left(self) -> Left:
        """How long this circuit still lasts. Dial a fresh one before either is used up.

        The spec counts bytes each way, js-libp2p both ways together: this is the smaller of the two.
        """
        if self.limit is None:
            return Left(None, None)
        age = trio.current_time() - self._opened_at
        return Left(
            max(0.0, self.limit.duration - age) if self.limit.duration else None,
            max(0, self.limit.data - self.sent - self.received) if self.limit.data else None,
        )

    def put_back(self, data: bytes) -> None:
        """Give back what was read too far; the next read begins with it."""
        self._stream.put_back(data)
        self.received -= len(data)

    async def _finish_negotiation(self, dialer: Dialer) -> None:
        while dialer.agreed is None:
            data = await self._stream.read(_READ_BYTES)
            if not data:
                raise PeerError(f"{self.peer_id} ended the circuit before it agreed", peer=self.peer_id)
            self.received += len(data)
            dialer.receive_data(data)
        self.put_back(dialer.trailing_data)
        self._negotiation = None
