"""A node's end of the data plane: one UDP socket that listens and dials, and the tasks that drive it.

One task drains the socket at each wake-up and flushes every touched connection once; one task waits
for the earliest timer of all connections (a cancel scope per wait would double the round-trip time);
one PINGs each second. Handlers of inbound streams run in tasks of their own.
"""

from __future__ import annotations

import datetime
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

import trio

from routing.errors import LocalError, PeerError
from routing.identity import Identity, PeerId
from routing.membership import Membership
from routing.multiaddr import PeerAddress
from routing.quic.admission import Admission
from routing.quic.certificate import make_certificate
from routing.quic.connection import CLOSE_NORMAL, Connection
from routing.quic.core import CONNECTION_ID_BYTES, Address, CoreSettings, Datagram, load_backend
from routing.quic.errors import ConnectFailed, NoAnswer, WrongPeer
from routing.quic.headers import all_short_headers_to, destination_of, may_open_connection
from routing.quic.limits import CONNECTION_WINDOW, IDLE_TIMEOUT, PING_SECONDS, STREAM_WINDOW, Limits
from routing.quic.paths import Path, Paths, SendCarried, is_carried
from routing.quic.stream import CODE_HANDLER_FAILED, CODE_REFUSED, Stream
from routing.quic.udp import UdpSocket
from routing.quic.unfinished import Budget
from routing.quic.warmup import fill_window

log = logging.getLogger("panal.quic")

Handler = Callable[[Stream], Awaitable[None]]
"""Serves one inbound stream of a protocol; when it returns, the stream is finished."""

PROBE_START = b"\x01"
"""First byte of datagrams that are no QUIC (its fixed bit is clear): hole punching and dial-back probes."""


class _Dial:
    """A dial under way, shared by all who want the same peer."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.timed_out = False
        self.connection: Connection | None = None
        self.error: PeerError | LocalError | None = None

    def result(self) -> Connection:
        """The connection, or a fresh copy of the error for each caller that shares it."""
        if self.connection is not None:
            return self.connection
        if isinstance(self.error, PeerError):
            raise type(self.error)(str(self.error), peer=self.error.peer)
        raise LocalError(str(self.error) if self.error else "the QUIC endpoint was stopped while dialing")


class Endpoint:
    """Listens and dials on one UDP socket.

    Attributes:
        identity: this node's.
        limits: what peers may use of it.
        connections: the live connections, inbound and dialed.
        next_timer: when the earliest timer of all connections is due, on `now()`'s clock.
        arriving, sending: what unfinished messages of all peers hold of our memory.
        on_connection: told of each connection once its peer is authenticated, dialed or accepted.
        on_probe: told of each datagram that begins with PROBE_START, and its sender.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        listen: tuple[str, int] = ("0.0.0.0", 0),
        backend: str = "qh3",
        handlers: Mapping[str, Handler] = {},
        limits: Limits = Limits(),  # noqa: B008  (frozen)
        accept: bool = True,
        membership: Membership | None = None,
    ) -> None:
        """Bind the socket; `run` does the rest.

        Args:
            listen: address and port; port 0 lets the system choose.
            backend: "qh3" or "aioquic".
            handlers: protocol name to handler, for streams that peers open (on dialed connections too).
            accept: False makes a node that only dials.
            membership: our swarm, whose members alone are let in, and our place in it; None: the open swarm.

        Raises:
            LocalError: the port is in use, the address is not ours, the backend is unknown.
        """
        self.identity = identity
        self.limits = limits
        self.connections: set[Connection] = set()
        self.next_timer = math.inf
        self.arriving = Budget(limits.arriving)
        self.sending = Budget(limits.sending)
        self.on_connection: Callable[[Connection], None] | None = None
        self.on_probe: Callable[[bytes, Address], None] | None = None
        self._paths = Paths()
        self._make_core = load_backend(backend)
        self._handlers = dict(handlers)
        self._accept = accept
        membership = membership or Membership()
        self._settings = CoreSettings(
            certificate=make_certificate(identity, datetime.datetime.now(datetime.UTC), membership),
            stream_window=STREAM_WINDOW,
            connection_window=CONNECTION_WINDOW,
            idle_timeout=IDLE_TIMEOUT,
            swarm=membership.swarm,
        )
        self._udp = UdpSocket(*listen)
        self._routes: dict[bytes, Connection] = {}
        self._known: set[Connection] = set()  # live ones, handshakes and those in their closing period
        self._sent_before = self._received_before = 0  # over connections that are forgotten
        self._forgotten: list[Connection] = []  # to be released when no engine is at work
        self._by_peer: dict[str, list[Connection]] = {}
        self._admission = Admission(limits)
        self._dials: dict[object, _Dial] = {}
        self._timer_scope: trio.CancelScope | None = None
        self._nursery: trio.Nursery | None = None
        self._closing = False

    # --- for users ---

    @property
    def local_address(self) -> Address:
        """(host, port) the socket is bound to."""
        return self._udp.local_address

    @property
    def bytes_sent(self) -> int:
        """UDP payload and what stands for it on carried paths, over all connections there ever were."""
        return self._sent_before + sum(each.bytes_sent for each in self._known)

    @property
    def bytes_received(self) -> int:
        """The same of what came."""
        return self._received_before + sum(each.bytes_received for each in self._known)

    @property
    def peer_id(self) -> PeerId:
        return self.identity.peer_id

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled, then close every connection politely. Use `await nursery.start(e.run)`."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    nursery.start_soon(self._drive_timers)
                    nursery.start_soon(self._keep_warm)
                    nursery.start_soon(self._udp.send_waiting)
                    task_status.started(self)
                    await self._drive_socket()
                finally:
                    self._close_all("the node is shutting down")
        finally:
            self._nursery = None
            self._udp.close()
            for connection in list(self._known):  # nobody waits for the ends of their closing periods
                self.forget(connection)
            self._release_forgotten()

    async def connect(
        self, address: PeerAddress, *, timeout: float = 10.0, fresh: bool = False
    ) -> Connection:
        """A live connection to a peer: the one there is, or a new one.

        Callers that want the same peer at once share one dial (to the first one's address).

        Args:
            address: where, and who must answer; without a peer id whoever answers is accepted. May be the
                address of a carried path.
            timeout: seconds.
            fresh: dial although there is a live connection, for a better way to the same peer; cancelled, the
                dial is given up.

        Raises:
            WrongPeer: another identity answered, or none that is valid.
            ConnectFailed: nobody answered in time, or the peer refused.
            LocalError: the address is of a family this socket can't reach.
        """
        if self._nursery is None or self._closing:
            raise LocalError("the QUIC endpoint is not running: start it before dialing")
        if address.peer_id is not None and not fresh:
            live = self.connection_to(address.peer_id)
            if live is not None:
                await trio.lowlevel.checkpoint()
                return live
        if fresh:
            return await self._dial_once(address, timeout)
        key: object = address.peer_id or (address.host, address.port)
        deadline = trio.current_time() + timeout
        while (dial := self._dials.get(key)) is not None:
            with trio.move_on_at(deadline) as patience:
                await dial.done.wait()
            if patience.cancelled_caught:
                raise _no_answer(self._named(address), address, timeout)
            if not dial.timed_out:  # else its patience was shorter than ours: dial again
                return dial.result()
        dial = self._dials[key] = _Dial()
        self._nursery.start_soon(self._dial, address, deadline - trio.current_time(), dial, key)
        await dial.done.wait()
        return dial.result()

    def connection_to(self, peer_id: str) -> Connection | None:
        """A live connection to a peer, dialed or accepted, if there is one; over UDP rather than carried."""
        carried = None
        for connection in self._by_peer.get(peer_id, ()):
            if connection.is_open:
                if not is_carried(connection.first_address[0]):
                    return connection
                carried = carried or connection
        return carried

    def connections_to(self, peer_id: str) -> list[Connection]:
        """All live connections to a peer."""
        return [each for each in self._by_peer.get(peer_id, ()) if each.is_open]

    def open_path(self, send: SendCarried, origin: str, *, metered: bool = False) -> Path:
        """A path for datagrams besides the UDP socket (routing.quic.carried); dial its address to use it."""
        return self._paths.open(send, origin, metered=metered)

    def take_carried(self, path: Path, datagrams: Sequence[bytes]) -> None:
        """Datagrams that came by a path."""
        touched: set[Connection] = set()
        now, start, end = trio.current_time(), 0, len(datagrams)
        while start < end:
            # a run of equal ones, the last may be shorter: taken in one call, as the kernel's GRO gives them
            size, stop = len(datagrams[start]), start + 1
            while stop < end and len(datagrams[stop]) == size:
                stop += 1
            if stop < end and 0 < len(datagrams[stop]) < size:
                stop += 1
            if stop - start > 1 and size:
                run = b"".join(datagrams[start:stop])
                self._take_segments(run, size, path.address, now, touched)
            elif size:
                self._take_datagram(datagrams[start], path.address, now, touched)
            start = stop
        for connection in touched:
            connection.after_batch()
        if not self._paths.is_of_use(path, len(datagrams), used=bool(touched)):
            self.close_path(path, "it carried nothing but datagrams of no connection")

    def close_path(self, path: Path, reason: str) -> None:
        """A path has ended, and with it the connections over it."""
        self._paths.close(path)
        for connection in list(self._known):
            if connection.first_address == path.address:
                connection.shut(CLOSE_NORMAL, reason)

    def is_used(self, path: Path) -> bool:
        """Whether a connection runs over a path, or is being set up."""
        return any(each.first_address == path.address and each.close_reason is None for each in self._known)

    def path_of(self, connection: Connection) -> Path | None:
        """The path a connection is carried by; None if it runs over UDP."""
        return self._paths.find(connection.first_address[0])

    def send_probe(self, data: bytes, address: Address) -> None:
        """Send a datagram that is no QUIC (it begins with PROBE_START) out of this endpoint's socket."""
        self._udp.send([(data, (self._udp.reachable(address[0]), address[1]))])

    def close(self) -> None:
        """Release the socket of an endpoint that was never run."""
        self._close_all("closed")
        self._udp.close()

    # --- tasks ---

    # What a loop below remembered while it sleeps would keep a connection that is over, with all that
    # its peer left unread; so the work of each round is a function of its own.

    async def _drive_socket(self) -> None:
        while True:
            await self._udp.wait_readable()
            self._take_received()

    def _take_received(self) -> None:
        touched: set[Connection] = set()
        received = self._udp.receive()
        now = trio.current_time()
        for data, segment_bytes, sender in received:
            if is_carried(sender[0]):
                continue  # no such network: forged
            if segment_bytes:
                self._take_segments(data, segment_bytes, sender, now, touched)
            else:
                self._take_datagram(data, sender, now, touched)
        for connection in touched:
            connection.after_batch()
        if self._forgotten:
            self._release_forgotten()

    async def _drive_timers(self) -> None:
        while True:
            with trio.CancelScope(deadline=self.next_timer) as scope:
                self._timer_scope = scope
                await trio.sleep_forever()
            self._timer_scope = None
            self._run_timers()

    def _run_timers(self) -> None:
        now = trio.current_time()
        # infinity while we work: every flush below finds itself earlier, which costs nothing
        self.next_timer = math.inf
        for connection in list(self._known):
            if connection.timer is not None and connection.timer <= now:
                connection.handle_timer(now)
                connection.after_batch()
        due = (connection.timer for connection in self._known if connection.timer is not None)
        self.next_timer = min(due, default=math.inf)
        if self._forgotten:
            self._release_forgotten()

    async def _keep_warm(self) -> None:
        while True:
            await trio.sleep(PING_SECONDS)
            self._keep_all_warm()

    def _keep_all_warm(self) -> None:
        for connection in list(self.connections):
            connection.keep_warm()
        for connection in self._admission.overdue(self.now()):
            connection.shut(CLOSE_NORMAL, "handshake timed out")
        self._release_forgotten()

    def _release_forgotten(self) -> None:
        forgotten, self._forgotten = self._forgotten, []
        for connection in forgotten:
            connection.release()

    async def _dial(self, address: PeerAddress, timeout: float, dial: _Dial, key: object) -> None:
        try:
            dial.connection = await self._dial_once(address, timeout)
        except NoAnswer as error:
            dial.timed_out = True
            dial.error = error
        except (PeerError, LocalError) as error:
            dial.error = error
        finally:
            self._dials.pop(key, None)
            dial.done.set()

    async def _dial_once(self, address: PeerAddress, timeout: float) -> Connection:
        host = address.host if is_carried(address.host) else self._udp.reachable(address.host)
        remote = (host, address.port)
        connection = self._new_connection(remote, expected_peer_id=address.peer_id)
        wanted = False
        try:
            connection.core.connect(remote, self.now())
            connection.flush()
            with trio.move_on_after(timeout):
                await connection.handshake_over.wait()
            if connection.is_open:
                wanted = True
                return connection
            if connection.close_reason is None:
                raise _no_answer(self._named(address), address, timeout)
            if connection.core.refusal is not None:
                raise WrongPeer(
                    f"dialing {self._named(address)}: {connection.core.refusal}", peer=address.peer_id or ""
                )
            raise ConnectFailed(
                f"dialing {self._named(address)}: {connection.close_reason}", peer=address.peer_id or ""
            )
        finally:
            if not wanted:
                connection.shut(CLOSE_NORMAL, "dial given up")

    async def _handle(self, stream: Stream, handler: Handler) -> None:
        try:
            await handler(stream)
            stream.finish()
        except PeerError as error:
            log.debug("%s with %s ended: %s", stream.protocol, stream.peer_id, error)
            stream.reset(CODE_HANDLER_FAILED)
        except Exception:  # a task boundary: one stream's failure must not end the node
            log.exception("handler of %s failed for %s", stream.protocol, stream.peer_id)
            stream.reset(CODE_HANDLER_FAILED)

    # --- Plane: what connections ask ---

    def now(self) -> float:
        return trio.current_time()

    def transmit(self, datagrams: Sequence[Datagram]) -> int:
        if datagrams and is_carried(datagrams[0][1][0]):
            return self._paths.send(datagrams)
        return self._udp.send(datagrams)

    def arm_timer(self, when: float) -> None:
        self.next_timer = when
        if self._timer_scope is not None:
            self._timer_scope.deadline = when

    def protocols(self) -> Collection[str]:
        return self._handlers

    def start_handler(self, stream: Stream) -> None:
        if self._nursery is None or self._closing:
            stream.reset(CODE_REFUSED)
            return
        self._nursery.start_soon(self._handle, stream, self._handlers[stream.protocol])

    def route(self, connection_id: bytes, connection: Connection) -> None:
        self._routes[connection_id] = connection
        connection.connection_ids.add(connection_id)

    def unroute(self, connection_id: bytes) -> None:
        connection = self._routes.pop(connection_id, None)
        if connection is not None:
            connection.connection_ids.discard(connection_id)

    def established(self, connection: Connection) -> None:
        self._admission.established(connection)
        self.connections.add(connection)
        self._by_peer.setdefault(connection.peer_id, []).append(connection)
        path = self.path_of(connection)
        if self._nursery is not None and not (path is not None and path.metered):
            self._nursery.start_soon(fill_window, connection)
        if self.on_connection is not None:
            self.on_connection(connection)

    def lost(self, connection: Connection) -> None:
        self._admission.ended(connection)
        if connection in self.connections:
            self.connections.discard(connection)
            others = [each for each in self._by_peer[connection.peer_id] if each is not connection]
            if others:
                self._by_peer[connection.peer_id] = others
            else:
                del self._by_peer[connection.peer_id]

    def forget(self, connection: Connection) -> None:
        for connection_id in connection.connection_ids:
            self._routes.pop(connection_id, None)
        if connection in self._known:
            self._known.discard(connection)
            self._sent_before += connection.bytes_sent
            self._received_before += connection.bytes_received
            self._forgotten.append(connection)

    # --- datagrams ---

    def _take_datagram(self, data: bytes, sender: Address, now: float, touched: set[Connection]) -> None:
        connection_id = destination_of(data)
        if connection_id is None:
            if self.on_probe is not None and data[:1] == PROBE_START:
                self.on_probe(data, sender)
            return
        connection = self._routes.get(connection_id)
        if connection is None:
            connection = self._accept_connection(data, connection_id, sender)
            if connection is None:
                return
        connection.receive_datagram(data, sender, now)
        if connection.dialed or connection.core.heard:
            touched.add(connection)
        else:
            # Junk that only looked like a first datagram: forgotten at once, it would hold a place.
            connection.on_closed("the first datagram was not valid")
            self.forget(connection)

    def _take_segments(
        self, data: bytes, segment_bytes: int, sender: Address, now: float, touched: set[Connection]
    ) -> None:
        """Several datagrams of one sender, usually all of one connection."""
        connection_id = data[1 : 1 + CONNECTION_ID_BYTES]
        connection = self._routes.get(connection_id)
        if connection is not None and all_short_headers_to(connection_id, data, segment_bytes):
            connection.receive_segments(data, segment_bytes, sender, now)
            touched.add(connection)
            return
        for start in range(0, len(data), segment_bytes):
            self._take_datagram(data[start : start + segment_bytes], sender, now, touched)

    def _accept_connection(self, data: bytes, original: bytes, sender: Address) -> Connection | None:
        """A stranger's datagram: a new connection if it is a proper first one and there is room."""
        if not self._accept or self._closing or not may_open_connection(data, original):
            return None
        path = self._paths.find(sender[0])
        if not self._admission.admits(path.origin if path is not None else sender[0], self.now()):
            return None  # silence costs less than a refusal, and the dialer's timeout says the rest
        connection = self._new_connection(sender, original=original)
        self._admission.began(connection, path.origin if path is not None else sender[0])
        return connection

    def _new_connection(
        self, remote: Address, *, original: bytes | None = None, expected_peer_id: PeerId | None = None
    ) -> Connection:
        connection = Connection(self, remote, dialed=original is None)
        connection.core = self._make_core(self._settings, connection, original, expected_peer_id)
        self._known.add(connection)
        self.route(connection.core.connection_id, connection)
        if original is not None:
            self.route(original, connection)
        return connection

    def _named(self, address: PeerAddress) -> str:
        """An address in words: that of a carried path means nothing to anybody."""
        path = self._paths.find(address.host)
        if path is None:
            return str(address)
        origin = path.origin
        how = f"through {origin}" if origin.startswith("relay ") else f"over TCP to {origin}"
        return f"{address.peer_id or 'a peer'} {how}"

    def _close_all(self, reason: str) -> None:
        self._closing = True
        for connection in list(self._known):
            connection.shut(CLOSE_NORMAL, reason)


def _no_answer(named: str, address: PeerAddress, timeout: float) -> NoAnswer:
    return NoAnswer(f"dialing {named}: no answer within {timeout:.3g} s", peer=address.peer_id or "")
