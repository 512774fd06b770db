"""A DHT server's answers: one reply for each message on a stream, within each peer's share.

Source: libp2p specs, `kad-dht/README.md`. A request that may not be is answered by resetting its stream.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from routing.errors import PeerError
from routing.identity import PeerId
from routing.libp2p.delimited import DelimitedReader, MalformedMessage, write_delimited
from routing.libp2p.inbound_limits import origin
from routing.libp2p.kad_store import KadStore
from routing.libp2p.kad_table import K, RoutingTable
from routing.libp2p.kad_wire import (
    MAX_REQUEST_BYTES,
    KadPeer,
    Kind,
    Message,
    decode_message,
    encode_message,
    position_of,
)
from routing.libp2p.muxed_stream import MuxedStream
from routing.peer_id_bytes import peer_id_to_bytes

# Providers in a reply. With two addresses each they fill 6 KB.
MAX_PROVIDERS_IN_REPLY = 64
# A stream on which no request comes is closed.
IDLE_SECONDS = 30.0
# Requests of one origin: a burst as a household's publications make (two for each of 25 keys of a node), and
# then so many a second. One costs a third of a millisecond.
REQUEST_BURST = 1000
REQUESTS_PER_SECOND = 50.0
# Origins counted at the same time; when there are more, the count begins anew.
MAX_ORIGINS = 4096


class TooManyRequests(PeerError):
    """A peer asks more than its share."""


class RequestRates:
    """A token bucket for each origin. Pure: `now` in seconds of any clock."""

    def __init__(self) -> None:
        self._buckets: dict[str, tuple[float, float]] = {}

    def admit(self, key: str, now: float) -> bool:
        """Whether another request of this origin may be answered."""
        tokens, since = self._buckets.get(key, (float(REQUEST_BURST), now))
        tokens = min(REQUEST_BURST, tokens + (now - since) * REQUESTS_PER_SECOND)
        if key not in self._buckets and len(self._buckets) >= MAX_ORIGINS:
            self._buckets.clear()
        self._buckets[key] = (tokens - 1 if tokens >= 1 else tokens, now)
        return tokens >= 1


class KadServer:
    """Answers from a table and a store."""

    def __init__(
        self, own_id: PeerId, table: RoutingTable, store: KadStore, clock: Callable[[], float]
    ) -> None:
        self._own_id = own_id
        self._table = table
        self._store = store
        self._clock = clock
        self._rates = RequestRates()

    async def serve(self, stream: MuxedStream) -> None:
        """Answer one stream until the peer ends it; PeerError resets it."""
        reader = DelimitedReader(stream)
        while True:
            with trio.fail_after(IDLE_SECONDS):
                data = await reader.read(MAX_REQUEST_BYTES)
            if data is None:
                return
            if not self._rates.admit(origin(stream.remote), trio.current_time()):
                raise TooManyRequests(f"{stream.peer_id} asks the DHT too often", peer=stream.peer_id)
            try:
                request = decode_message(data)
            except ValueError as error:
                raise MalformedMessage(f"{stream.peer_id}: DHT: {error}", peer=stream.peer_id) from None
            reply = self.answer(request, PeerId(stream.peer_id), stream.remote)
            if reply is not None:
                with trio.fail_after(IDLE_SECONDS):
                    await write_delimited(stream, encode_message(reply))

    def answer(self, request: Message, peer_id: PeerId, remote: str) -> Message | None:
        """The reply to a request; None where the protocol has none.

        Raises:
            PeerError: it may not be: a record that is no valid advert.
        """
        now, key = self._clock(), request.key
        if request.kind is Kind.PING:
            return Message(Kind.PING)
        if not key:
            raise MalformedMessage(f"{peer_id}: DHT: a request without a key", peer=peer_id)
        if request.kind is Kind.PUT_VALUE:
            self._store.put_record(key, request.value or b"", origin=origin(remote), now=now)
            return Message(Kind.PUT_VALUE, key, request.value)
        if request.kind is Kind.ADD_PROVIDER:
            for provider in request.providers:
                if provider.peer_id == peer_id:
                    self._store.add_provider(key, provider, origin=origin(remote), now=now)
            return None
        closer = tuple(peer for peer in self._closer(key) if peer.peer_id != peer_id)
        if request.kind is Kind.GET_VALUE:
            return Message(Kind.GET_VALUE, key, self._store.record(key, now=now), closer)
        if request.kind is Kind.GET_PROVIDERS:
            providers = tuple(self._store.providers(key, MAX_PROVIDERS_IN_REPLY, now=now))
            return Message(Kind.GET_PROVIDERS, key, closer=closer, providers=providers)
        return Message(Kind.FIND_NODE, closer=closer)

    def _closer(self, key: bytes) -> list[KadPeer]:
        """The K servers nearest to a key; only those with an address help anybody."""
        nearest = self._table.closest(position_of(key), 2 * K)
        useful = [peer for peer in nearest if peer.addresses]
        wanted = [peer for peer in useful if peer_id_to_bytes(peer.peer_id) == key]
        return (wanted + [peer for peer in useful if peer not in wanted])[:K]
