"""The control plane of a node: libp2p connections over TCP with Noise and Yamux, one identity.

1. A connection counts from the end of both handshakes; its peer id is proven by then.
2. Nobody is dialed unless the caller asks; `open_stream` uses a connection that is there.
3. A handler of an inbound stream may fail as it likes: its stream is reset, nothing else happens.
4. What others open is bounded (inbound_limits.py, yamux.py); what cannot be served is refused at once.
5. Cancelling `run` ends everything at once, without waiting for any peer.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import trio

from routing.control_address import ControlAddress
from routing.errors import LocalError, PeerError
from routing.identity import Identity, PeerId, encode_public_key
from routing.libp2p.identify import IDENTIFY, IDENTIFY_PUSH, PeerInfo
from routing.libp2p.inbound_limits import InboundLimits
from routing.libp2p.introductions import Introductions, Observer
from routing.libp2p.muxed_stream import Carrier, MuxedStream
from routing.libp2p.secure_channel import ConnectionLost, SecureChannel, secure
from routing.libp2p.tcp import far_end, open_listeners, remote_ip, system_words
from routing.libp2p.yamux import YAMUX, YamuxConnection
from routing.wire.multistream import Dialer, Listener, NegotiationError

_log = logging.getLogger("panal.libp2p")

Handler = Callable[[MuxedStream], Awaitable[None]]
PeerCallback = Callable[[PeerId], None]

PING = "/ipfs/ping/1.0.0"
_PING_BYTES = 32

# From the accepted socket to an established connection: four round trips, on the worst of links.
INBOUND_HANDSHAKE_SECONDS = 10.0
# An inbound stream must name its protocol by then.
STREAM_NEGOTIATION_SECONDS = 10.0
# Connections one peer may have with us: two when both dial at once, one more while an old one dies.
MAX_CONNECTIONS_PER_PEER = 3
# What identify calls us.
AGENT = "panal"


log = logging.getLogger("panal.control")


class ControlHost:
    """All control connections of a node.

    Attributes:
        identity: whose node it is.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        listen: tuple[str, int] | None,
        announce: tuple[ControlAddress, ...] = (),
        share_port: bool = False,
        any_port: bool = False,
    ) -> None:
        """
        Args:
            listen: (IP address, port) for TCP, port 0 for any; None dials only.
            announce: addresses told to peers in place of those it listens on.
            share_port: see `open_listeners`.
            any_port: where the port is taken, another one will do.
        """
        self.identity = identity
        self._listen = listen
        self._share_port = share_port
        self._any_port = any_port
        self._announce = announce
        self._listeners: list[trio.SocketListener] = []
        self._introductions = Introductions(self, encode_public_key(identity.public_key))
        self._handlers: dict[str, Handler] = {
            PING: _answer_pings,
            IDENTIFY: self._introductions.answer,
            IDENTIFY_PUSH: self._introductions.take_push,
        }
        self._connections: dict[PeerId, list[YamuxConnection]] = {}
        self._limits = InboundLimits()
        self._on_connected: list[PeerCallback] = []
        self._on_disconnected: list[PeerCallback] = []
        self._kept: set[PeerId] = set()
        self._dials: dict[ControlAddress, trio.Lock] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Listen and serve until cancelled. Use `await nursery.start(host.run)`.

        Raises:
            LocalError: the address can't be listened on.
        """
        if self._listen is not None:
            self._listeners = await self._open_listeners(*self._listen)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for listener in self._listeners:
                    nursery.start_soon(self._accept_all, listener)
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None
            for listener in self._listeners:
                listener.socket.close()

    @property
    def peer_id(self) -> PeerId:
        """Who we are."""
        return self.identity.peer_id

    @property
    def local_addresses(self) -> list[str]:
        """Multiaddrs we listen on, without `/p2p`; 0.0.0.0 stands as it was given."""
        return [
            f"/ip{6 if ':' in host else 4}/{host}/tcp/{port}"
            for host, port in (listener.socket.getsockname()[:2] for listener in self._listeners)
        ]

    def announce(self, addresses: tuple[ControlAddress, ...]) -> None:
        """Tell these addresses to peers from now on (and push them to those connected)."""
        if addresses != self._announce:
            self._announce = addresses
            self.push_identify()

    def set_handler(self, protocol: str, handler: Handler | None) -> None:
        """Serve a protocol on inbound streams; None ends that. Connected peers are told."""
        if handler is None:
            self._handlers.pop(protocol, None)
        else:
            self._handlers[protocol] = handler
        self.push_identify()

    def watch(
        self,
        *,
        connected: PeerCallback | None = None,
        disconnected: PeerCallback | None = None,
        identified: Observer | None = None,
    ) -> None:
        """Be told of peers. Callbacks must not wait.

        Args:
            connected: at a peer's first connection.
            disconnected: at the end of its last.
            identified: when it has told about itself, or tells anew.
        """
        if identified is not None:
            self._introductions.watch(identified)
        if connected is not None:
            self._on_connected.append(connected)
        if disconnected is not None:
            self._on_disconnected.append(disconnected)

    # peers

    def is_connected(self, peer_id: str) -> bool:
        """Whether a connection is there on which streams can be opened."""
        return self._connection(peer_id) is not None

    @property
    def connected_peers(self) -> list[PeerId]:
        """All peers with a connection."""
        return [peer for peer in self._connections if self.is_connected(peer)]

    def remote_ip(self, peer_id: str) -> str:
        """The IP address of a peer's connection, or "relay PEER-ID"; "" if there is none."""
        connection = self._connection(peer_id)
        return "" if connection is None else connection.remote

    def dialed(self, peer_id: str) -> bool:
        """Whether we opened the connection that is used for a peer."""
        connection = self._connection(peer_id)
        return connection is not None and connection.dialed

    def streams_open(self, peer_id: str) -> int:
        """How many streams there are with a peer."""
        return sum(connection.stream_count for connection in self._connections.get(PeerId(peer_id), ()))

    def rtt(self, peer_id: str) -> float:
        """Seconds of the last measured round trip; NaN if none was measured."""
        connection = self._connection(peer_id)
        return float("nan") if connection is None else connection.rtt

    def info(self, peer_id: str) -> PeerInfo | None:
        """What a connected peer said of itself; None while it has not."""
        return self._introductions.info(peer_id)

    async def wait_identified(self, peer_id: str) -> PeerInfo | None:
        """Wait until a connected peer's identify exchange is over; None if it failed."""
        return await self._introductions.wait(peer_id)

    def is_kept(self, peer_id: str) -> bool:
        """Whether somebody wants this connection: we dialed it to keep it, or the peer dialed us."""
        return peer_id in self._kept or not self.dialed(peer_id)

    # connecting

    async def connect(self, address: ControlAddress, *, timeout: float, keep: bool = True) -> None:
        """Dial a peer over TCP; returns at once if it is connected.

        Args:
            keep: the connection is wanted for longer than a lookup (see `is_kept`).

        Raises:
            LocalError: the address names no peer id, or is not a TCP address.
            PeerError: nobody answers in `timeout` seconds, or not the peer that was asked for.
        """
        if address.peer_id is None:
            raise LocalError(f"{address} names no peer: write it with /p2p/PEER-ID at the end")
        if address.transport != "tcp":
            raise LocalError(f"{address} is no TCP address")
        if address.peer_id == self.peer_id:
            raise LocalError(f"{address} is this node itself")
        if not self.is_connected(address.peer_id):
            with _deadline(timeout, f"{address} did not answer within {timeout:g} s", address.peer_id):
                await self._dial(address, address.peer_id, timeout, keep)
        if keep:
            self._kept.add(address.peer_id)

    async def _dial(self, address: ControlAddress, peer_id: PeerId, timeout: float, keep: bool) -> None:
        # Two callers at once share one connection. But no address waits for another of the same peer: where
        # one swallows packets, all that are tried beside it would come to nothing.
        lock = self._dials.setdefault(address, trio.Lock())
        try:
            async with lock:
                if self.is_connected(peer_id):
                    return
                try:
                    stream = await trio.open_tcp_stream(address.host, address.port)
                except OSError as error:
                    raise ConnectionLost(f"{address}: {system_words(error)}", peer=peer_id) from None
                remote = remote_ip(stream)
                await self.connect_over(stream, peer_id, remote=remote, timeout=timeout, keep=keep)
        finally:
            if not lock.locked() and not lock.statistics().tasks_waiting:
                self._dials.pop(address, None)

    async def connect_over(
        self,
        stream: trio.abc.Stream,
        peer_id: PeerId | None,
        *,
        remote: str,
        timeout: float,
        keep: bool = True,
    ) -> PeerId:
        """Make a connection of a stream that was dialed in another way: a WebSocket, a circuit.

        Args:
            peer_id: who must answer; None accepts anybody.
            remote: the IP address it goes to, or "relay PEER-ID".

        Raises:
            PeerError: as `connect`. The stream is closed then.
        """
        named = peer_id or remote
        try:
            with _deadline(timeout, f"{named} did not finish its handshake within {timeout:g} s", named):
                channel, early = await self._upgrade(stream, peer_id, initiator=True)
                self._add(channel, remote, far_end(stream), dialed=True, early=early)
                if keep:
                    self._kept.add(channel.peer_id)
                return channel.peer_id
        except PeerError as error:
            await trio.aclose_forcefully(stream)
            raise ConnectionLost(f"{named}: {error}", peer=named) if not error.peer else error from None
        except BaseException:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)
            raise

    async def serve_stream(self, stream: trio.abc.Stream, *, remote: str) -> None:
        """Make a connection of a stream that came in (TCP, a WebSocket, a circuit); returns at its end.

        Too many, and whoever fails the handshake, are closed without a word.
        """
        key = self._limits.admit(remote, trio.current_time())
        established = False
        try:
            if key is None:
                return
            with trio.fail_after(INBOUND_HANDSHAKE_SECONDS):
                channel, early = await self._upgrade(stream, None, initiator=False)
            if channel.peer_id == self.peer_id:
                return
            established = True
            self._limits.established(key)
            connection = self._add(channel, remote, far_end(stream), dialed=False, early=early)
            await connection.closed.wait()
        except (PeerError, trio.TooSlowError) as error:
            _log.debug("inbound connection from %s: %s", remote, error)
        except Exception:  # noqa: BLE001 - a bug in the handshake must not end the node
            _log.exception("inbound connection from %s", remote)
        finally:
            if key is not None:
                self._limits.gone(key, was_established=established)
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)

    async def disconnect(self, peer_id: str) -> None:
        """End all connections with a peer, in good order."""
        self.drop(peer_id)
        await trio.lowlevel.checkpoint()

    def drop(self, peer_id: str) -> None:
        """The same without waiting."""
        for connection in list(self._connections.get(PeerId(peer_id), ())):
            connection.close()

    async def open_stream(
        self, peer_id: str, protocol: str, *, timeout: float, on: Carrier | None = None
    ) -> MuxedStream:
        """A stream on a live connection, agreed on `protocol`.

        Args:
            on: which of the peer's connections; any if that is closed. Two processes may share an identity,
                and only one of them has asked for something.

        Raises:
            ProtocolRefused: the peer does not speak it.
            PeerError: there is no connection, it broke, or `timeout` seconds passed.
        """
        connection = on if on is not None and on.is_open else self._connection(peer_id)
        if connection is None:
            raise ConnectionLost(f"{peer_id} is not connected", peer=peer_id)
        stream = connection.open_stream()
        try:
            with _deadline(timeout, f"{peer_id} did not answer to {protocol} within {timeout:g} s", peer_id):
                dialer = Dialer(protocol)
                await stream.write(dialer.opening())
                while dialer.agreed is None:
                    dialer.receive_data(await _read_some(stream))
                stream.put_back(dialer.trailing_data)
        except NegotiationError as error:
            stream.abort()
            raise type(error)(f"{peer_id}: {error}", peer=peer_id) from None
        except BaseException:
            stream.abort()
            raise
        stream.protocol = protocol
        return stream

    async def ping(self, peer_id: str, *, timeout: float) -> float:
        """Seconds of one round trip through the peer's libp2p.

        Raises:
            PeerError: no connection, no answer in time, or a wrong one.
        """
        stream = await self.open_stream(peer_id, PING, timeout=timeout)
        payload = bytes(_PING_BYTES)
        try:
            with _deadline(timeout, f"{peer_id} did not answer a ping within {timeout:g} s", peer_id):
                began = trio.current_time()
                await stream.write(payload)
                answer = b""
                while len(answer) < _PING_BYTES:
                    answer += await _read_some(stream)
                if answer != payload:
                    raise ConnectionLost(f"{peer_id} answered a ping with other bytes", peer=peer_id)
                return trio.current_time() - began
        finally:
            stream.abort()

    def push_identify(self) -> None:
        """Tell connected peers that understand it what we listen on and speak now."""
        if self._nursery is None:
            return
        for peer_id in self._introductions.willing():
            self._nursery.start_soon(self._introductions.push, peer_id)

    # inside

    def _connection(self, peer_id: str) -> YamuxConnection | None:
        for connection in reversed(self._connections.get(PeerId(peer_id), [])):
            if connection.is_open:
                return connection
        return None

    async def _open_listeners(self, host: str, port: int) -> list[trio.SocketListener]:
        try:
            return await open_listeners(host, port, share=self._share_port)
        except LocalError:
            if not self._any_port:
                raise
            listeners = await open_listeners(host, 0)
            own = listeners[0].socket.getsockname()[1]
            log.info("TCP %s port %d cannot be had: listening on port %d instead", host, port, own)
            return listeners

    async def _accept_all(self, listener: trio.SocketListener) -> None:
        async def serve(stream: trio.SocketStream) -> None:
            await self.serve_stream(stream, remote=remote_ip(stream))

        await trio.serve_listeners(serve, [listener])

    async def _upgrade(
        self, stream: trio.abc.Stream, expected: PeerId | None, *, initiator: bool
    ) -> tuple[SecureChannel, bytes]:
        channel = await secure(stream, self.identity, expected=expected, initiator=initiator)
        return channel, await channel.negotiate(YAMUX, initiator=initiator)

    def _add(
        self,
        channel: SecureChannel,
        remote: str,
        far_end: ControlAddress | None,
        *,
        dialed: bool,
        early: bytes,
    ) -> YamuxConnection:
        if self._nursery is None:
            raise LocalError("the control host is not running")
        connection = YamuxConnection(
            channel, remote=remote, dialed=dialed, early=early, on_stream=self._start_handler
        )
        connection.far_end = far_end
        peer_id = channel.peer_id
        known = self._connections.setdefault(peer_id, [])
        known.append(connection)
        if len(known) > MAX_CONNECTIONS_PER_PEER:
            known[0].close("replaced by a newer connection")
        self._nursery.start_soon(self._drive, connection)
        if len(known) == 1:
            self._introductions.expect(peer_id)
            self._nursery.start_soon(self._introductions.meet, peer_id)
            for callback in self._on_connected:
                callback(peer_id)
        return connection

    async def _drive(self, connection: YamuxConnection) -> None:
        peer_id = connection.channel.peer_id
        try:
            await connection.run()
        except Exception:  # noqa: BLE001 - a bug in the connection must not end the node
            _log.exception("connection with %s", peer_id)
        finally:
            known = self._connections[peer_id]
            known.remove(connection)
            if not known:
                del self._connections[peer_id]
                self._introductions.forget(peer_id)
                self._kept.discard(peer_id)
                for callback in self._on_disconnected:
                    callback(peer_id)

    def _start_handler(self, connection: YamuxConnection, stream: MuxedStream) -> None:
        assert self._nursery is not None
        connection.handlers += 1
        self._nursery.start_soon(self._handle, connection, stream)

    async def _handle(self, connection: YamuxConnection, stream: MuxedStream) -> None:
        try:
            with trio.fail_after(STREAM_NEGOTIATION_SECONDS):
                listener = Listener(self._handlers)
                while listener.agreed is None:
                    try:
                        listener.receive_data(await _read_some(stream))
                    finally:
                        if answer := listener.data_to_send():
                            await stream.write(answer)
            stream.protocol = listener.agreed
            stream.put_back(listener.trailing_data)
            handler = self._handlers.get(stream.protocol)
            if handler is not None:
                await handler(stream)
                await stream.aclose()
        except Exception as error:  # noqa: BLE001 - a handler's bug must not end the node
            if _is_peers_fault(error):
                _log.debug("%r: %s", stream, error)
            else:
                _log.exception("handler of %s failed", stream.protocol or "a stream")
        finally:
            connection.handlers -= 1
            if stream.closed_at is None:
                stream.abort()

    def own_addresses(self) -> tuple[ControlAddress, ...]:
        """What peers are told: the announced addresses, else those listened on; the last resort is where
        peers see us come from, so that other implementations, which drop peers without any, list us."""
        listening = tuple(
            ControlAddress.parse(text)
            for text in self.local_addresses
            if not text.startswith(("/ip4/0.0.0.0/", "/ip6/::/"))
        )
        seen = (info.observed for info in self._introductions.all())
        return self._announce or listening or tuple(address for address in seen if address is not None)[:1]

    def own_info(self, peer_id: str) -> PeerInfo:
        """What identify tells a peer."""
        connection = self._connection(peer_id)
        addresses = self._announce or (self.own_addresses() if self._listeners else ())
        observed = None if connection is None else connection.far_end
        return PeerInfo(addresses, frozenset(self._handlers), observed, AGENT)


def _is_peers_fault(error: Exception) -> bool:
    """Also of the groups that a handler's own nursery makes."""
    if isinstance(error, ExceptionGroup):
        return error.split((PeerError, trio.TooSlowError))[1] is None
    return isinstance(error, PeerError | trio.TooSlowError)


async def _answer_pings(stream: MuxedStream) -> None:
    while data := await stream.read(_PING_BYTES):
        await stream.write(data)


async def _read_some(stream: MuxedStream) -> bytes:
    data = await stream.read(4096)
    if not data:
        raise ConnectionLost(f"{stream.peer_id} ended the stream", peer=stream.peer_id)
    return data


@contextlib.contextmanager
def _deadline(seconds: float, text: str, peer: str) -> Iterator[None]:
    """A ConnectionLost with that text when the time is over."""
    with trio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise ConnectionLost(text, peer=peer)
