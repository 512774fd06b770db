"""One authenticated connection to a peer: its streams, its liveness, its share of our memory."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

import trio

from routing.quic.core import Address, Datagram, QuicCore
from routing.quic.errors import Stalled, StreamClosed, TooMuchUnderWay
from routing.quic.limits import (
    CLOSE_REASON_BYTES,
    CONNECTION_WINDOW,
    CROWDED_PAUSE,
    MISSED_PINGS,
    REQUESTS_AT_ONCE,
    SEND_BACKLOG_LOW,
    Limits,
)
from routing.quic.paths import is_carried
from routing.quic.starved import Starved
from routing.quic.stream import CODE_REFUSED, CODE_STALLED, CODE_TOO_MUCH_UNDER_WAY, Stream
from routing.quic.unfinished import Budget, Share
from routing.wire.multistream import Dialer, Listener
from routing.wire.text import sanitise

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

log = logging.getLogger("panal.quic")

# QUIC stream ids (RFC 9000, section 2.1): bit 0 set = opened by the server, bit 1 set = one-way
_SERVER_BIT = 1
_ONE_WAY_BIT = 2
_ID_STEP = 4

# Application error codes of CONNECTION_CLOSE.
CLOSE_NORMAL = 0
CLOSE_UNRESPONSIVE = 1
CLOSE_ENGINE_FAILED = 2
CLOSE_FLOOD = 3
CLOSE_STARVED = 4


class Plane(Protocol):
    """What a connection needs of its endpoint."""

    limits: Limits
    next_timer: float
    arriving: Budget
    sending: Budget

    def now(self) -> float: ...
    def transmit(self, datagrams: Sequence[Datagram]) -> int: ...
    def arm_timer(self, when: float) -> None: ...
    def protocols(self) -> Collection[str]: ...
    def start_handler(self, stream: Stream) -> None: ...
    def route(self, connection_id: bytes, connection: Connection) -> None: ...
    def unroute(self, connection_id: bytes) -> None: ...
    def established(self, connection: Connection) -> None: ...
    def lost(self, connection: Connection) -> None: ...
    def forget(self, connection: Connection) -> None: ...


class Connection:
    """A connection to one peer, dialed or accepted; both sides may open streams.

    Attributes:
        peer_id: who the peer has proven to be; "" while the handshake runs.
        closed: set once the connection is over, whoever ended it and why.
        close_reason: why, None while open.
        dialed: whether this side opened it.
        bytes_sent, bytes_received: UDP payload, everything included.
        datagrams_sent: how many those were.
    """

    def __init__(self, plane: Plane, remote: Address, *, dialed: bool) -> None:
        self.core: QuicCore  # set by the endpoint right after: engine and listener need each other
        self.peer_id = ""
        self.dialed = dialed
        self.first_address = remote
        self.opened_at = plane.now()
        self.closed = trio.Event()
        self.close_reason: str | None = None
        self.bytes_sent = 0
        self.bytes_received = 0
        self.datagrams_sent = 0
        self.connection_ids: set[bytes] = set()
        self.timer: float | None = None
        self.handshake_over = trio.Event()
        self._plane = plane
        self._streams: dict[int, Stream] = {}
        self._backlogged: set[Stream] = set()
        self._arriving = Share(
            plane.arriving,
            plane.limits.arriving_per_connection,
            held=lambda stream: stream.unread,
            missing=lambda stream: stream.missing,
            refuse=_refuse_arriving,
        )
        self._sending = Share(
            plane.sending,
            plane.limits.sending_per_connection,
            held=_unsent,
            missing=_unsent,
            refuse=_refuse_sending,
        )
        self._unread = 0
        self._held = False
        self._held_since = (0, 0)
        self._taken = 0  # requests since the socket last brought something
        self._turns: trio.Lock | None = None
        self._starved = Starved()
        self._missed_pings = 0
        self._received_at_ping = 0
        self._peer_bit = _SERVER_BIT if dialed else 0
        self._next_peer_stream = self._peer_bit
        # ids the peer has opened by using a higher one, of which nothing has arrived yet
        self._announced: set[int] = set()

    def __repr__(self) -> str:
        state = "open" if self.is_open else self.close_reason or "handshake"
        host, port = self.remote_address
        return f"<Connection {self.peer_id or '?'} at {host}:{port}, {state}>"

    # --- for users ---

    @property
    def is_open(self) -> bool:
        """The peer is authenticated and the connection not closed."""
        return self.close_reason is None and self.peer_id != ""

    @property
    def is_carried(self) -> bool:
        """Whether it runs in a stream of bytes instead of over UDP (routing.quic.carried)."""
        return is_carried(self.first_address[0])

    @property
    def remote_address(self) -> Address:
        """Where the peer is now; its port may change."""
        return self.core.peer_address

    @property
    def rtt(self) -> float:
        """Smoothed round-trip time in seconds."""
        return self.core.rtt

    @property
    def latest_rtt(self) -> float:
        """The round trip that was measured last, in seconds: for who looks for the shortest of several."""
        return self.core.latest_rtt

    @property
    def datagrams_lost(self) -> int:
        """Of those sent, how many the engine has taken for lost."""
        return self.core.lost

    @property
    def congestion_window(self) -> int:
        """Bytes that may be in flight now: what a burst can carry in one round trip."""
        return self.core.congestion_window

    @property
    def unread_answers(self) -> int:
        """Bytes of messages that wait for the peer to read, on streams it opened; at most a second old."""
        return self._sending.counted

    def open_stream(self, protocol: str) -> Stream:
        """A new stream that will speak `protocol`. No I/O: the peer hears of it with the first message.

        Whether the peer speaks the protocol shows on the first `receive_message`.

        Raises:
            StreamClosed: the connection is closed, or the peer allows no further stream.
        """
        if not self.is_open:
            raise StreamClosed(
                f"connection to {self.peer_id} is closed: {self.close_reason}", peer=self.peer_id
            )
        stream_id = self.core.open_stream()
        if stream_id is None:
            ours = sum(not each.inbound for each in self._streams.values())
            text = f"{self.peer_id} allows no further stream now, {ours} are open: close some"
            if self._starved.refused(ours, self._plane.now()):
                text = f"{self.peer_id} has long allowed no further stream, {ours} are open: dial anew"
                self.shut(CLOSE_STARVED, f"no further stream was allowed, {ours} were open")
            raise StreamClosed(text, peer=self.peer_id)
        self._starved.opened()
        dialer = Dialer(protocol)
        stream = self._streams[stream_id] = Stream(self, stream_id, dialer)
        stream.begin_dialed(protocol, dialer.opening())
        return stream

    async def aclose(self, reason: str = "") -> None:
        """Close at once and tell the peer. Bytes still unsent are dropped, so finish streams before."""
        self.shut(CLOSE_NORMAL, reason or "closed")
        await trio.lowlevel.checkpoint()

    # --- for the endpoint ---

    def shut(self, code: int, reason: str) -> None:
        """Close without waiting, whatever the state."""
        if self.close_reason is not None:
            return
        self.core.shut(code, reason)
        self.flush()
        self.on_closed(reason)
        if self.timer is None:  # an engine that never got going has no closing period either
            self._plane.forget(self)

    def flush(self) -> None:
        """Send what the engine wants sent, and note when it wants to be woken."""
        plane, core = self._plane, self.core
        try:
            datagrams = core.datagrams_to_send(plane.now())
        except Exception as error:  # noqa: BLE001  (boundary to the engine: see _engine_failed)
            if self.close_reason is None:
                self._engine_failed(error)
            else:  # it can't even say goodbye
                plane.forget(self)
            return
        if datagrams:
            self.bytes_sent += plane.transmit(datagrams)
            self.datagrams_sent += len(datagrams)
        self.timer = timer = core.next_timer()
        if timer is not None and timer < plane.next_timer:
            plane.arm_timer(timer)
        if self._backlogged:
            self._release_writers()

    def receive_datagram(self, data: bytes, sender: Address, now: float) -> None:
        self.bytes_received += len(data)
        if self._held and self._overruns_hold():
            return
        try:
            self.core.receive_datagram(data, sender, now)
        except Exception as error:  # noqa: BLE001  (boundary to the engine: see _engine_failed)
            self._engine_failed(error)

    def receive_segments(self, data: bytes, segment_bytes: int, sender: Address, now: float) -> None:
        self.bytes_received += len(data)
        if self._held and self._overruns_hold():
            return
        try:
            self.core.receive_segments(data, segment_bytes, sender, now)
        except Exception as error:  # noqa: BLE001  (boundary to the engine: see _engine_failed)
            self._engine_failed(error)

    def handle_timer(self, now: float) -> None:
        try:
            self.core.handle_timer(now)
        except Exception as error:  # noqa: BLE001  (boundary to the engine: see _engine_failed)
            self._engine_failed(error)

    def after_batch(self) -> None:
        """A batch of datagrams has been taken in: bound what is unread, and answer."""
        plane = self._plane
        if self._turns is None or not self._turns.locked():
            self._taken = 0
        if self._arriving.streams:
            self._arriving.bound()
        if self._unread > plane.limits.unread_bytes and not self._held:
            self._set_held(self._unread_unwanted() > plane.limits.unread_bytes)
        self.flush()

    def keep_warm(self) -> None:
        """Once each PING_SECONDS: send a PING, and give up on a peer that has gone silent."""
        if self.bytes_received != self._received_at_ping:
            self._missed_pings = 0
        else:
            self._missed_pings += 1
        self._received_at_ping = self.bytes_received
        if self._missed_pings >= MISSED_PINGS:
            self.shut(CLOSE_UNRESPONSIVE, f"no sign of life for {self._missed_pings} PINGs")
            return
        self._give_up_stalled()
        self.core.ping()
        self.flush()

    def release(self) -> None:
        """The closing period has passed: free what the engine holds now, not at a garbage collection."""
        self._sending.clear()
        self._arriving.clear()
        self.core.release()

    def send_filler(self, count: int) -> None:
        """Send about `count` meaningless bytes, to grow the congestion window (see warmup)."""
        self.core.send_filler(count)
        self.flush()

    # --- for its streams ---

    def note_backlog(self, stream: Stream) -> None:
        self._backlogged.add(stream)

    def note_sending(self, stream: Stream) -> None:
        """A message waits to be sent; the stream has failed afterwards if that is too much."""
        if self.close_reason is None:
            self._sending.begin(stream, self._plane.now())

    def note_arriving(self, stream: Stream) -> None:
        """A task waits for a message; the stream has failed afterwards if that is too much."""
        if self.close_reason is None:
            self._arriving.begin(stream, self._plane.now())

    def note_arrived(self, stream: Stream) -> None:
        self._arriving.end(stream)

    def is_crowded(self) -> bool:
        """Whether a request that is about to be taken must wait for its `turn`."""
        self._taken += 1
        return self._taken > REQUESTS_AT_ONCE

    async def turn(self) -> None:
        """Wait while others go on: the requests of a peer that floods us pass one by one."""
        if self._turns is None:
            self._turns = trio.Lock()
        async with self._turns:
            await trio.sleep(CROWDED_PAUSE)

    def note_read(self, stream: Stream, count: int) -> None:
        """A message has left a stream's buffer."""
        if stream.stream_id not in self._streams:
            return
        self._unread -= count
        if self._held:
            self._reconsider_hold()

    def reader_waits(self) -> bool:
        """A task is about to wait for bytes; True if some that a hold kept back have just come instead."""
        return self._held and self._reconsider_hold()

    def forget(self, stream: Stream) -> None:
        """A stream is over in both directions."""
        if self._streams.pop(stream.stream_id, None) is not None:
            self._unread -= stream.unread
            self._backlogged.discard(stream)

    def start_handler(self, stream: Stream) -> None:
        self._plane.start_handler(stream)

    # --- CoreListener ---

    def on_handshake_complete(self) -> None:
        peer_id = self.core.peer_id
        assert peer_id is not None, "TLS completed without an identity"
        self.peer_id = peer_id
        self.handshake_over.set()
        self._plane.established(self)

    def on_stream_data(self, stream_id: int, data: bytes, end: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = self._accept_stream(stream_id)
            if stream is None:
                return
        self._unread += stream.on_data(data, end)

    def on_stream_reset(self, stream_id: int, code: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.on_reset(code)
        else:
            self._is_new(stream_id)

    def on_stop_sending(self, stream_id: int, code: int) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.on_stop(code)

    def on_connection_id(self, connection_id: bytes) -> None:
        self._plane.route(connection_id, self)

    def on_connection_id_retired(self, connection_id: bytes) -> None:
        self._plane.unroute(connection_id)

    def on_closed(self, reason: str) -> None:
        if self.close_reason is not None:
            return
        # some reasons are the peer's own words
        reason = sanitise(reason, CLOSE_REASON_BYTES) or "closed without a word that can be printed"
        self.close_reason = reason
        self.closed.set()
        self.handshake_over.set()
        for stream in list(self._streams.values()):
            stream.on_connection_closed(f"connection closed: {reason}")
        self._streams.clear()
        self._backlogged.clear()
        self._sending.clear()
        self._arriving.clear()
        self._plane.lost(self)

    def on_terminated(self) -> None:
        self._plane.forget(self)

    # --- inside ---

    def _accept_stream(self, stream_id: int) -> Stream | None:
        if self.close_reason is not None or not self._is_new(stream_id):
            return None  # late bytes of a stream that is over
        if stream_id & _ONE_WAY_BIT:
            self.core.stop_stream(stream_id, CODE_REFUSED)  # libp2p has no one-way streams
            return None
        if self._peer_streams() >= self._plane.limits.streams_per_connection:
            self.core.stop_stream(stream_id, CODE_REFUSED)
            self.core.reset_stream(stream_id, CODE_REFUSED)
            return None
        stream = self._streams[stream_id] = Stream(self, stream_id, Listener(self._plane.protocols()))
        return stream

    def _is_new(self, stream_id: int) -> bool:
        """Whether the peer begins this stream now. Ids may arrive out of order, and each is new once."""
        if stream_id & _SERVER_BIT != self._peer_bit:
            return False
        if stream_id & _ONE_WAY_BIT:
            return True
        if stream_id >= self._next_peer_stream:
            # the engine has held the peer to its stream limit, so these are MAX_STREAMS at most
            self._announced.update(range(self._next_peer_stream, stream_id, _ID_STEP))
            self._next_peer_stream = stream_id + _ID_STEP
            return True
        if stream_id in self._announced:
            self._announced.discard(stream_id)
            return True
        return False

    def _peer_streams(self) -> int:
        if len(self._streams) < self._plane.limits.streams_per_connection:
            return 0  # no need to count
        return sum(1 for stream_id in self._streams if stream_id & _SERVER_BIT == self._peer_bit)

    def _unread_unwanted(self) -> int:
        return sum(stream.unread_unwanted() for stream in self._streams.values())

    def _set_held(self, held: bool) -> None:
        if held != self._held:
            self._held = held
            self._held_since = (self.bytes_received, self.bytes_sent)
            self.core.set_held(held)

    def _overruns_hold(self) -> bool:
        """Whether a held peer goes on sending what flow control does not bound, and was closed for it.

        What the engine keeps for us while held is bounded for streams only. All that an honest peer has
        to send then is what it had credit for, perhaps twice, and acknowledgements.
        """
        received, sent = self._held_since
        allowed = 2 * CONNECTION_WINDOW + (self.bytes_sent - sent) // 4
        if self.bytes_received - received <= allowed:
            return False
        self.shut(CLOSE_FLOOD, "kept sending without credit")
        return True

    def _reconsider_hold(self) -> bool:
        """Let go if no longer too much is unread; whether it did."""
        if self._unread_unwanted() > self._plane.limits.unread_bytes:
            return False
        self._set_held(False)
        # what the engine had kept has just been reported, perhaps too much of it again
        self.after_batch()
        return True

    def _give_up_stalled(self) -> None:
        now, patience = self._plane.now(), self._plane.limits.stall_seconds
        if self._held:
            self._arriving.restart(now)  # this side keeps it from going on
        for stream in self._arriving.stalled(now, patience):
            if stream.unread:
                stream.give_up(CODE_STALLED, Stalled, f"the message stopped for {patience:g} s")
            else:
                self._arriving.begin(stream, now)  # none has begun
        for stream in self._sending.stalled(now, patience):
            # what the peer opened is there to be read; of our own, one only if a task waits for it
            if stream.inbound or stream.has_writers:
                self._sending.end(stream)
                _drop_sending(stream, CODE_STALLED, Stalled, f"the peer read nothing for {patience:g} s")

    def _release_writers(self) -> None:
        for stream in list(self._backlogged):
            if self.core.unsent(stream.stream_id) <= SEND_BACKLOG_LOW:
                self._backlogged.discard(stream)
                stream.on_backlog_drained()

    def _engine_failed(self, error: Exception) -> None:
        """The engine could not digest something. Its state is in doubt: this connection ends, no other."""
        log.warning("QUIC engine failed with %s at %s: %r", self.peer_id, self.first_address, error)
        reason = f"engine failure: {type(error).__name__}"
        try:
            self.shut(CLOSE_ENGINE_FAILED, reason)
        except Exception:  # noqa: BLE001  (it can't even say goodbye)
            self.on_closed(reason)
            self._plane.forget(self)


def _unsent(stream: Stream) -> int:
    return stream.unfed + stream.connection.core.unsent(stream.stream_id)


def _refuse_arriving(stream: Stream) -> None:
    stream.give_up(CODE_TOO_MUCH_UNDER_WAY, TooMuchUnderWay, "its unfinished messages hold too much memory")


def _refuse_sending(stream: Stream) -> None:
    reason = "what waits to be sent holds too much memory"
    _drop_sending(stream, CODE_TOO_MUCH_UNDER_WAY, TooMuchUnderWay, reason)


def _drop_sending(stream: Stream, code: int, kind: type[StreamClosed], reason: str) -> None:
    # a stream that this side has finished has no more say, but its last bytes may be waiting still
    stream.connection.core.reset_stream(stream.stream_id, code)
    stream.give_up(code, kind, reason)
    stream.connection.flush()
