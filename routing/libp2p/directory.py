"""Adverts in libp2p's Kademlia DHT: publish one's own, find those of a swarm or of one node.

1. A node lists itself as provider under the keys of its swarm and of its models, and puts its signed
   advert under its own key (advert_records.py). Who looks takes the list as a hint and the advert as word.
2. A lookup asks the network even if something is held here, and this node's own store as well.
3. Every call is bounded in time, peers asked and adverts returned. None is made for a token: the caller
   asks about once a minute.
4. Servers answer others; clients (nodes that can't be dialed) only ask. The mode can change at any time.
5. An address that a peer names is dialed only if it is as public as the peer itself: hearsay from the
   internet never leads into this network or this machine.

Works with other implementations' servers, where these have a validator for `/panal`.
"""

from __future__ import annotations

import contextlib
import enum
import ipaddress
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import trio

from routing.control_address import ControlAddress
from routing.dial_limits import DialLimits
from routing.errors import PeerError
from routing.identity import PeerId
from routing.libp2p.advert_records import check_record, provider_key, record_key
from routing.libp2p.delimited import DelimitedReader, MalformedMessage, write_delimited
from routing.libp2p.host import ControlHost
from routing.libp2p.identify import PeerInfo
from routing.libp2p.kad_lookup import Lookup
from routing.libp2p.kad_server import KadServer
from routing.libp2p.kad_store import KadStore
from routing.libp2p.kad_table import RoutingTable
from routing.libp2p.kad_wire import (
    KAD,
    MAX_REPLY_BYTES,
    KadPeer,
    Kind,
    Message,
    decode_message,
    encode_message,
    position_of,
)
from routing.libp2p.muxed_stream import StreamBroken
from routing.libp2p.secure_channel import ConnectionLost
from routing.peer_id_bytes import peer_id_to_bytes
from routing.wire.advert import SignedAdvert

_log = logging.getLogger("panal.directory")

# One request to one server, dialing it included: four round trips of the worst links.
QUERY_SECONDS = 5.0
# A lookup goes on without a server that takes longer than this; its answer still counts if it comes.
SLOW_SECONDS = 2.0
# A server that did not answer is left out of lookups for so long: where some cannot be dialed, as those
# behind a NAT that do not know it yet, each lookup would wait for the same ones.
SILENT_SECONDS = 60.0
MAX_SILENT = 1024
# A whole publication or search.
CALL_SECONDS = 20.0
# Adverts that one search returns; the rest comes by exchange between connected peers.
MAX_FOUND = 64
# Record lookups at the same time within one search.
FETCHES_AT_ONCE = 8
# The same for the keys of one publication.
LISTINGS_AT_ONCE = 4
# Valid answers for one record before the newest of them is taken, and how long the others are waited for
# after the first: connected servers answer within a round trip.
QUORUM = 3
QUORUM_SECONDS = 0.5
# Models under which a node lists itself; a server keeps MAX_KEYS_PER_PROVIDER (kad_store.py) keys of a peer.
MAX_MODELS = 24
# Connections to servers that lookups have opened and nobody else wants; the oldest idle one is closed.
MAX_IDLE_CONNECTIONS = 24
# Buckets and own neighbourhood looked over, and what has ended in the store dropped.
REFRESH_SECONDS = 300.0
EXPIRE_SECONDS = 60.0


class Mode(enum.Enum):
    """Whether a node answers the DHT's questions."""

    SERVER = "server"
    CLIENT = "client"


class Directory:
    """The DHT as one node of one swarm uses it.

    Attributes:
        table: the servers known.
        store: what is kept for others.
    """

    def __init__(
        self, host: ControlHost, swarm_id: bytes, *, clock: Callable[[], float], mode: Mode = Mode.CLIENT
    ) -> None:
        """
        Args:
            clock: unix time in seconds.
        """
        self._host = host
        self._swarm_id = swarm_id
        self._clock = clock
        self._mode = Mode.CLIENT
        self.table = RoutingTable(host.peer_id)
        self.store = KadStore()
        self._server = KadServer(host.peer_id, self.table, self.store, clock)
        self._dialed: OrderedDict[PeerId, None] = OrderedDict()
        self._limits = DialLimits()
        self._silent: dict[PeerId, float] = {}  # until when each is left out
        host.watch(identified=self._note_identified)
        self.set_mode(mode)

    @property
    def mode(self) -> Mode:
        """Whether others are answered."""
        return self._mode

    def set_mode(self, mode: Mode) -> None:
        """Begin or cease to answer others; connected peers are told."""
        if mode is not self._mode:
            self._mode = mode
            self._host.set_handler(KAD, self._server.serve if mode is Mode.SERVER else None)

    def servers(self) -> list[ControlAddress]:
        """Servers known, one address each: worth remembering for the next start."""
        return [peer.addresses[0].with_peer(peer.peer_id) for peer in self.table.all() if peer.addresses]

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Keep table and store in order until cancelled."""
        task_status.started()
        since_refresh = 0.0
        while True:
            await trio.sleep(EXPIRE_SECONDS)
            self.store.expire(self._clock())
            since_refresh += EXPIRE_SECONDS
            if since_refresh >= REFRESH_SECONDS:
                since_refresh = 0.0
                await self._find_self()

    async def join(self, peers: Iterable[str]) -> int:
        """Enter the DHT through peers that are connected already; how many servers are known then.

        Peers that do not answer are passed over; 0 means that none serves the DHT.
        """
        own_key = peer_id_to_bytes(self._host.peer_id)

        async def ask(peer_id: PeerId) -> None:
            try:
                await self._ask(
                    KadPeer(peer_id, self._addresses_of(peer_id)), Message(Kind.FIND_NODE, own_key)
                )
            except PeerError as error:
                _log.debug("joining the DHT: %s", error)

        async with trio.open_nursery() as nursery:
            for peer in peers:
                if self._host.is_connected(peer):
                    nursery.start_soon(ask, PeerId(peer))
        if len(self.table):
            await self._find_self()
        return len(self.table)

    async def publish(self, advert: bytes, model_ids: Sequence[str]) -> int:
        """Put this node's advert where others will look; how many servers have taken it.

        Args:
            advert: the signed advert, as it is sent to peers.
            model_ids: models it serves; MAX_MODELS of them are listed.
        """
        key = record_key(self._swarm_id, self._host.peer_id)
        stored = 0
        if self._mode is Mode.SERVER:
            self.store.put_record(key, advert, origin="self", now=self._clock())

        async def put(peer: KadPeer) -> None:
            nonlocal stored
            reply = await self._try(peer, Message(Kind.PUT_VALUE, key, advert))
            stored += reply is not None and reply.value == advert

        async def put_all() -> None:
            nearest = await self._lookup(key, Message(Kind.FIND_NODE, key))
            async with trio.open_nursery() as nursery:
                for peer in nearest:
                    nursery.start_soon(put, peer)

        limiter = trio.CapacityLimiter(LISTINGS_AT_ONCE)

        async def list_under(model_id: str | None) -> None:
            async with limiter:
                await self._provide(provider_key(self._swarm_id, model_id))

        with trio.move_on_after(CALL_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(put_all)
                for model_id in (None, *dict.fromkeys(model_ids[:MAX_MODELS])):
                    nursery.start_soon(list_under, model_id)
        self._close_idle()
        return stored

    async def find(self, model_id: str | None = None) -> list[bytes]:
        """Adverts of this swarm's nodes, or of those that serve a model; at most MAX_FOUND, none twice.

        They are valid and of this swarm, but say what their nodes said up to ten minutes ago.
        """
        key = provider_key(self._swarm_id, model_id)
        hints: dict[PeerId, KadPeer] = {
            peer.peer_id: peer for peer in self.store.providers(key, MAX_FOUND, now=self._clock())
        }
        found: dict[PeerId, SignedAdvert] = {}
        limiter = trio.CapacityLimiter(FETCHES_AT_ONCE)

        async def fetch(hint: KadPeer) -> None:
            async with limiter:
                record = await self._find_record(hint.peer_id)
                if record is not None:
                    found[hint.peer_id] = record

        with trio.move_on_after(CALL_SECONDS):
            await self._lookup(
                key, Message(Kind.GET_PROVIDERS, key), lambda reply: _add(hints, reply.providers)
            )
            async with trio.open_nursery() as nursery:
                for hint in list(hints.values())[:MAX_FOUND]:
                    if hint.peer_id != self._host.peer_id:
                        nursery.start_soon(fetch, hint)
        self._close_idle()
        if model_id is not None:
            return [record.data for record in found.values() if record.advert.serves(model_id)]
        return [record.data for record in found.values()]

    async def find_peer(self, peer_id: PeerId) -> bytes | None:
        """The newest advert of one node of this swarm that can be found."""
        record = None
        with trio.move_on_after(CALL_SECONDS):
            record = await self._find_record(peer_id)
        self._close_idle()
        return None if record is None else record.data

    # lookups

    async def _find_self(self) -> None:
        key = peer_id_to_bytes(self._host.peer_id)
        with trio.move_on_after(CALL_SECONDS):
            await self._lookup(key, Message(Kind.FIND_NODE, key))
        self._close_idle()

    async def _find_record(self, peer_id: PeerId) -> SignedAdvert | None:
        key = record_key(self._swarm_id, peer_id)
        valid: list[SignedAdvert] = []
        patience = trio.CancelScope()

        def take(value: bytes | None) -> bool:
            if value is not None:
                try:
                    valid.append(check_record(key, value, now=self._clock()))
                    patience.deadline = min(patience.deadline, trio.current_time() + QUORUM_SECONDS)
                except PeerError as error:
                    _log.debug("a record from the DHT: %s", error)
            return len(valid) >= QUORUM

        with patience:
            await self._lookup(key, Message(Kind.GET_VALUE, key), lambda reply: take(reply.value))
        take(self.store.record(key, now=self._clock()))
        return max(valid, key=lambda record: record.advert.seq, default=None)

    async def _provide(self, key: bytes) -> None:
        own = KadPeer(self._host.peer_id, self._host.own_addresses())
        if self._mode is Mode.SERVER:
            self.store.add_provider(key, own, origin="self", now=self._clock())
        nearest = await self._lookup(key, Message(Kind.FIND_NODE, key))
        async with trio.open_nursery() as nursery:
            for peer in nearest:
                nursery.start_soon(self._try, peer, Message(Kind.ADD_PROVIDER, key, providers=(own,)))

    async def _lookup(
        self, key: bytes, request: Message, enough: Callable[[Message], bool] = lambda reply: False
    ) -> list[KadPeer]:
        """Ask nearer and nearer servers; the nearest K that answered.

        Args:
            enough: looks at each reply; True ends the lookup early.
        """
        position = position_of(key)
        lookup = Lookup(position, self._host.peer_id, self.table.closest(position))
        news = trio.Event()
        done = False
        waiting: dict[PeerId, float] = {}  # until when each is waited for

        async def ask(peer: KadPeer) -> None:
            nonlocal done
            try:
                reply = await self._ask(peer, request)
                heard = self._usable(reply.closer, self._host.remote_ip(peer.peer_id))
                lookup.answered(peer.peer_id, heard)
                done = done or enough(reply)
            except PeerError as error:
                lookup.failed(peer.peer_id)
                self._note_silent(peer.peer_id)
                _log.debug("a DHT lookup: %s", error)
            waiting.pop(peer.peer_id, None)
            news.set()

        async with trio.open_nursery() as nursery:
            while not done and not lookup.over:
                news = trio.Event()
                for peer in lookup.next_peers():
                    if self._is_silent(peer.peer_id):
                        lookup.failed(peer.peer_id)
                        self.table.failed(peer.peer_id)
                        news.set()
                        continue
                    waiting[peer.peer_id] = trio.current_time() + SLOW_SECONDS
                    nursery.start_soon(ask, peer)
                with trio.move_on_at(min(waiting.values(), default=math.inf)):
                    await news.wait()
                for peer_id in [each for each, until in waiting.items() if until <= trio.current_time()]:
                    del waiting[peer_id]
                    lookup.failed(peer_id)
                    self._note_silent(peer_id)
            nursery.cancel_scope.cancel()
        return lookup.result()

    def _note_silent(self, peer_id: PeerId) -> None:
        if len(self._silent) >= MAX_SILENT:
            del self._silent[next(iter(self._silent))]
        self._silent.pop(peer_id, None)
        self._silent[peer_id] = trio.current_time() + SILENT_SECONDS

    def _is_silent(self, peer_id: PeerId) -> bool:
        return self._silent.get(peer_id, 0.0) > trio.current_time() and not self._host.is_connected(peer_id)

    async def _try(self, peer: KadPeer, request: Message) -> Message | None:
        try:
            return await self._ask(peer, request)
        except PeerError as error:
            _log.debug("the DHT: %s", error)
            return None

    async def _ask(self, peer: KadPeer, request: Message) -> Message:
        """One request and its reply, dialing the server if need be. Whoever answers is in the table.

        Raises:
            PeerError: no answer within QUERY_SECONDS, or none that could be read.
        """
        try:
            with trio.fail_after(QUERY_SECONDS):
                await self._connect(peer)
                reply = await self._exchange(peer.peer_id, request)
        except trio.TooSlowError:
            self.table.failed(peer.peer_id)
            raise ConnectionLost(
                f"{peer.peer_id} did not answer within {QUERY_SECONDS:g} s", peer=peer.peer_id
            ) from None
        except PeerError:
            self.table.failed(peer.peer_id)
            raise
        self.table.add(peer.peer_id, self._addresses_of(peer.peer_id) or peer.addresses)
        self._silent.pop(peer.peer_id, None)
        return reply

    async def _exchange(self, peer_id: PeerId, request: Message) -> Message:
        stream = await self._host.open_stream(peer_id, KAD, timeout=QUERY_SECONDS)
        try:
            await write_delimited(stream, encode_message(request))
            if request.kind is Kind.ADD_PROVIDER:  # is not answered: its stream ends when it is done
                stream.close_write()
                with contextlib.suppress(StreamBroken):  # js-libp2p ends it by a reset
                    await stream.read(1)
                return Message(Kind.ADD_PROVIDER)
            data = await DelimitedReader(stream).read(MAX_REPLY_BYTES)
            if data is None:
                raise ConnectionLost(f"{peer_id} gave no answer from its DHT", peer=peer_id)
            try:
                return decode_message(data)
            except ValueError as error:
                raise MalformedMessage(f"{peer_id}: DHT: {error}", peer=peer_id) from None
        finally:
            with trio.CancelScope(shield=True):
                await stream.aclose()

    # connections and addresses

    async def _connect(self, peer: KadPeer) -> None:
        if self._host.is_connected(peer.peer_id):
            return
        error: PeerError = ConnectionLost(
            f"{peer.peer_id} names no TCP address that may be dialed", peer=peer.peer_id
        )
        for address in peer.addresses:
            if address.transport == "tcp" and self._limits.may(address.host, trio.current_time()):
                try:
                    named = address.with_peer(peer.peer_id)
                    await self._host.connect(named, timeout=QUERY_SECONDS, keep=False)
                    self._limits.answered(address.host)
                    self._dialed[peer.peer_id] = None
                    return
                except PeerError as failure:
                    error = failure
        raise error

    def _close_idle(self) -> None:
        idle = [
            peer_id
            for peer_id in self._dialed
            if not self._host.is_kept(peer_id) and not self._host.streams_open(peer_id)
        ]
        for peer_id in list(self._dialed):
            if not self._host.is_connected(peer_id) or self._host.is_kept(peer_id):
                del self._dialed[peer_id]
        for peer_id in idle[: max(0, len(self._dialed) - MAX_IDLE_CONNECTIONS)]:
            self._dialed.pop(peer_id, None)
            self._host.drop(peer_id)

    def _note_identified(self, peer_id: PeerId, info: PeerInfo) -> None:
        if KAD in info.protocols:
            self.table.add(peer_id, self._addresses_of(peer_id))
        else:
            self.table.remove(peer_id)  # it has become a client

    def _addresses_of(self, peer_id: PeerId) -> tuple[ControlAddress, ...]:
        """Where a connected peer says it listens, as far as that may be passed on."""
        info = self._host.info(peer_id)
        if info is None:
            return ()
        peers = self._usable([KadPeer(peer_id, info.addresses)], self._host.remote_ip(peer_id))
        return peers[0].addresses

    def _usable(self, peers: Iterable[KadPeer], informer: str) -> list[KadPeer]:
        limit = _privacy(informer)
        return [
            KadPeer(
                peer.peer_id,
                tuple(
                    address.with_peer(None)
                    for address in peer.addresses
                    if not address.family.startswith("ip") or _privacy(address.host) <= limit
                ),
            )
            for peer in peers
        ]


def _add(hints: dict[PeerId, KadPeer], peers: Iterable[KadPeer]) -> bool:
    """Note hints, each peer once; True when there are enough."""
    for peer in peers:
        hints.setdefault(peer.peer_id, peer)
    return len(hints) >= MAX_FOUND


def _privacy(host: str) -> int:
    """0 for public addresses, 1 for those of a local network, 2 for this machine's own."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a relay
        return 0
    if address.is_loopback:
        return 2
    return 0 if address.is_global else 1
