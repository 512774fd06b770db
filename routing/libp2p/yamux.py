"""Many streams on one connection: Yamux, with every table and queue bounded.

Source: hashicorp/yamux, `spec.md`.

1. One task writes: control frames and data queue up whole and leave together in one Noise message.
2. One task reads. It stops while more than MAX_UNREAD bytes lie unread, so a peer is held by TCP itself.
3. A peer has at most MAX_INBOUND_STREAMS streams open; more are reset, and who goes on is dropped.
4. Each side PINGs; MISSED_PINGS without any byte in return end the connection.
5. Whoever breaks the rules loses the connection, and so does who floods us with frames that carry nothing.
6. After MAX_FRAMES_A_TURN frames everybody else has a turn: a read may bring five thousand.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import trio

from routing.control_address import ControlAddress
from routing.errors import PeerError
from routing.libp2p.muxed_stream import MAX_FRAME_DATA, MuxedStream
from routing.libp2p.secure_channel import ConnectionLost, SecureChannel
from routing.libp2p.yamux_frames import (
    ACK,
    FIN,
    HEADER_BYTES,
    INITIAL_WINDOW,
    RST,
    SYN,
    Frame,
    Kind,
    decode_frame,
    encode_frame,
)
from routing.rates import Bucket

YAMUX = "/yamux/1.0.0"

# Streams a peer may have open at us: a relay carries dozens of circuits of one peer, the DHT one query each.
MAX_INBOUND_STREAMS = 128
# Streams above the bound that are reset one by one before the peer counts as hostile.
MAX_REFUSED_IN_A_ROW = 256
# Streams we open on one connection; more is a leak of ours.
MAX_OUTBOUND_STREAMS = 512

# Writers wait while more than this is queued: about a 200 Mbit/s link's 10 ms.
QUEUE_HIGH = 256 << 10
# Given to the system at once, in Noise messages no longer than a frame: the peer can read a message when all
# of it has come.
WRITE_BYTES = 64 << 10
MESSAGE_BYTES = MAX_FRAME_DATA + HEADER_BYTES
# Control frames do not wait. A peer that makes us queue more of them than this and reads none is dropped.
MAX_QUEUED = 1 << 20

# Unread bytes of all streams of one connection before we stop reading it: eight streams' windows.
MAX_UNREAD = 2 << 20

# Frames taken before other tasks go on: a third of a millisecond. A new stream, for which a task begins,
# costs as much as so many others.
MAX_FRAMES_A_TURN = 64
OPENING_COST = 32

# What a peer may send in frames without data, at once and each second. PINGs: implementations send one in 5
# to 30 s. Streams: a publication in the DHT opens two for each of 25 keys. The rest: 16 MB/s of circuits in
# small reads take some thousand window updates.
PING_BURST, PINGS_PER_SECOND = 100, 10.0
OPENING_BURST, OPENINGS_PER_SECOND = 128, 50.0
CONTROL_BURST, CONTROLS_PER_SECOND = 10_000, 2000.0

# NAT bindings of TCP live minutes, so this is for noticing silent death: after 15 to 20 s.
PING_SECONDS = 5.0
# Counted in our own PINGs, not by the clock: after a pause of ours a healthy peer must not be dropped.
MISSED_PINGS = 3
# A stream we closed and the peer does not is kept this long, then reset and forgotten.
LINGER_SECONDS = 30.0
# A connection that we end gets this long to take what is queued.
FLUSH_SECONDS = 0.5


class ProtocolViolation(PeerError):
    """The peer broke Yamux's rules or a bound; the connection was ended."""


class YamuxConnection:
    """One connection's streams. `run` drives it until it ends.

    Attributes:
        channel: the encrypted stream below.
        remote: the peer's IP address, or "relay PEER-ID".
        dialed: whether this side dialed.
        rtt: the last measured round trip, seconds; NaN before the first.
        far_end: the address the connection goes to, where it is one of TCP.
        closed: set when `run` has ended.
        handlers: how many handlers of its streams run; they may outlive their streams, and count as these.
    """

    def __init__(
        self,
        channel: SecureChannel,
        *,
        remote: str,
        dialed: bool,
        early: bytes,
        on_stream: Callable[[YamuxConnection, MuxedStream], None],
    ) -> None:
        self.channel = channel
        self.remote = remote
        self.dialed = dialed
        self.rtt = math.nan
        self.far_end: ControlAddress | None = None
        self.closed = trio.Event()
        self.handlers = 0
        self._on_stream = on_stream
        self._streams: dict[int, MuxedStream] = {}
        self._next_id = 1 if dialed else 2
        self._refused = 0
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._to_write = trio.Event()
        self._room = trio.lowlevel.ParkingLot()
        self._unread = 0
        self._less_unread = trio.lowlevel.ParkingLot()
        self._arrived = bytearray(early)
        self._to_skip = 0
        self._heard = True
        self._ping_sent: float | None = None
        self._ping_number = 0
        self._over: str | None = None
        self._ending = False
        self._scope = trio.CancelScope()
        now = trio.current_time()
        self._pings = Bucket(PING_BURST, PINGS_PER_SECOND, now)
        self._openings = Bucket(OPENING_BURST, OPENINGS_PER_SECOND, now)
        self._controls = Bucket(CONTROL_BURST, CONTROLS_PER_SECOND, now)

    @property
    def peer_id(self) -> str:
        """Who is at the other end."""
        return self.channel.peer_id

    @property
    def is_open(self) -> bool:
        """Whether new streams can be opened."""
        return self._over is None and not self._ending

    @property
    def stream_count(self) -> int:
        """Streams open now, of both sides."""
        return len(self._streams)

    async def run(self) -> None:
        """Drive the connection; returns when it has ended, whatever the peer did."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write_loop)
                    nursery.start_soon(self._ping_loop)
                    await self._read_loop()
                    nursery.cancel_scope.cancel()
        finally:
            self._end("the connection was closed")
            self.closed.set()
            await self.channel.abort()

    def open_stream(self) -> MuxedStream:
        """A new stream; it costs no round trip.

        Raises:
            ConnectionLost: the connection is ending, or MAX_OUTBOUND_STREAMS are open.
        """
        if not self.is_open:
            raise ConnectionLost(f"{self.peer_id}: {self._over or 'is closing'}", peer=self.peer_id)
        if self._opened(by_us=True) >= MAX_OUTBOUND_STREAMS:
            raise ConnectionLost(
                f"{self.peer_id}: {MAX_OUTBOUND_STREAMS} streams are open", peer=self.peer_id
            )
        stream = self._streams[self._next_id] = MuxedStream(self, self._next_id, opened_by_us=True)
        self._next_id += 2
        self.enqueue(Kind.WINDOW_UPDATE, SYN, stream.stream_id, 0)
        return stream

    def close(self, reason: str = "closed by this side") -> None:
        """End the connection: what is queued leaves first, within FLUSH_SECONDS."""
        if self._ending or self._over is not None:
            return
        self.enqueue(Kind.GO_AWAY, 0, 0, 0)
        self._ending = True
        self._scope.deadline = trio.current_time() + FLUSH_SECONDS
        self._to_write.set()
        for stream in list(self._streams.values()):
            stream.on_broken(reason)

    # what streams call

    def enqueue(self, kind: Kind, flags: int, stream_id: int, length: int, data: bytes = b"") -> None:
        """Queue a frame; never waits. The connection ends if the peer lets MAX_QUEUED pile up."""
        if self._over is not None or self._ending:
            return
        frame = encode_frame(kind, flags, stream_id, length) + data
        self._queue.append(frame)
        self._queued += len(frame)
        self._to_write.set()
        if self._queued > MAX_QUEUED:
            self._end("it does not read what it asks for")
            self._scope.cancel()

    def has_room(self) -> bool:
        """Whether a writer of data may queue another frame."""
        return self._queued < QUEUE_HIGH

    async def wait_for_room(self) -> None:
        """Until `has_room`, or the end."""
        await self._room.park()

    def note_unread(self, change: int) -> None:
        """Bytes more or fewer that lie unread in streams."""
        self._unread += change
        if change < 0:
            self._less_unread.unpark_all()

    def forget(self, stream: MuxedStream) -> None:
        """The stream is over on both sides."""
        self._streams.pop(stream.stream_id, None)

    # the three tasks

    async def _write_loop(self) -> None:
        while True:
            if not self._queue:
                if self._ending:
                    self._scope.cancel()
                self._to_write = trio.Event()
                await self._to_write.wait()
                continue
            messages, taken = self._take_queued()
            try:
                await self.channel.write(*messages)
            except PeerError as error:
                self._end(str(error))
                self._scope.cancel()
                return
            self._queued -= taken
            if self.has_room():
                self._room.unpark_all()

    def _take_queued(self) -> tuple[list[bytes], int]:
        """Whole frames laid into messages, at most WRITE_BYTES; and how many bytes they are."""
        messages, message, taken = [], bytearray(), 0
        while self._queue and taken + len(self._queue[0]) <= WRITE_BYTES:
            frame = self._queue.popleft()
            taken += len(frame)
            if message and len(message) + len(frame) > MESSAGE_BYTES:
                messages.append(bytes(message))
                message = bytearray()
            message += frame
        return [*messages, bytes(message)], taken

    async def _read_loop(self) -> None:
        try:
            while True:
                while self._take_frames():  # at first of what came right behind the handshake
                    await trio.lowlevel.checkpoint()
                while self._unread > MAX_UNREAD:
                    await self._less_unread.park()
                data = await self.channel.read()
                if not data:
                    self._end("the peer hung up")
                    return
                self._heard = True
                self._arrived += data
        except PeerError as error:
            self._end(str(error))
        except ValueError as error:
            self._end(f"the peer broke Yamux's rules: {error}")

    async def _ping_loop(self) -> None:
        missed = 0
        while True:
            self._ping_number = (self._ping_number + 1) & 0xFFFF
            self._ping_sent = trio.current_time()
            self.enqueue(Kind.PING, SYN, 0, self._ping_number)
            await trio.sleep(PING_SECONDS)
            missed = 0 if self._heard or self._unread > MAX_UNREAD else missed + 1
            self._heard = False
            if missed >= MISSED_PINGS:
                self._end(f"no answer for {missed * PING_SECONDS:.0f} s")
                self._scope.cancel()
            self._sweep(trio.current_time())

    def _sweep(self, now: float) -> None:
        for stream in list(self._streams.values()):
            if stream.closed_at is not None and now - stream.closed_at > LINGER_SECONDS:
                stream.abort()

    # frames

    def _take_frames(self) -> bool:
        """Take what has arrived whole, up to a turn's worth; whether there may be more."""
        arrived, position, now = self._arrived, 0, trio.current_time()
        left, more = MAX_FRAMES_A_TURN, True
        while left > 0:
            if self._to_skip:
                skipped = min(self._to_skip, len(arrived) - position)
                position += skipped
                self._to_skip -= skipped
            if len(arrived) - position < HEADER_BYTES:
                more = False
                break
            frame = decode_frame(bytes(arrived[position : position + HEADER_BYTES]))
            body = position + HEADER_BYTES
            if frame.flags & SYN:
                if frame.kind is Kind.DATA and len(arrived) - body < frame.length <= INITIAL_WINDOW:
                    more = False  # the stream begins when its first bytes are here, or it would begin twice
                    break
                left -= OPENING_COST
            left -= 1
            self._check_pace(frame, now)
            if frame.kind is not Kind.DATA:
                self._take_control(frame)
                position = body
                continue
            stream = self._stream_for(frame)
            if stream is None:  # one that we have given up: its last bytes are passed over
                self._to_skip = frame.length
                position = body
                continue
            if frame.length > stream.receive_window:
                raise ValueError(f"{frame.length} bytes sent where {stream.receive_window} are allowed")
            if len(arrived) - body < frame.length:
                more = False
                break
            if frame.length:
                stream.on_data(bytes(arrived[body : body + frame.length]))
            self._take_flags(stream, frame)
            position = body + frame.length
        del arrived[:position]
        return more

    def _check_pace(self, frame: Frame, now: float) -> None:
        """ValueError if the peer sends more frames without data than any honest one has reason to."""
        if frame.kind is Kind.PING and frame.flags & SYN:
            paced = self._pings.take(now)
        elif frame.flags & SYN:
            paced = self._openings.take(now)
        else:
            paced = bool(frame.length and frame.kind is Kind.DATA) or self._controls.take(now)
        if not paced:
            raise ValueError("it floods us with frames that carry nothing")

    def _take_control(self, frame: Frame) -> None:
        if frame.kind is Kind.WINDOW_UPDATE:
            stream = self._stream_for(frame)
            if stream is not None:
                stream.on_credit(frame.length)
                self._take_flags(stream, frame)
        elif frame.kind is Kind.PING:
            if frame.flags & SYN:
                self.enqueue(Kind.PING, ACK, 0, frame.length)
            elif self._ping_sent is not None and frame.length == self._ping_number:
                self.rtt = trio.current_time() - self._ping_sent
                self._ping_sent = None
        else:
            self.close("the peer is going away")

    def _stream_for(self, frame: Frame) -> MuxedStream | None:
        stream = self._streams.get(frame.stream_id)
        if not frame.flags & SYN:
            return stream
        if stream is not None:
            raise ValueError(f"it opened stream {frame.stream_id} again")
        if frame.stream_id % 2 == self._next_id % 2:
            raise ValueError("it opened a stream with our number")
        held = max(self._opened(by_us=False), self.handlers)
        if held >= MAX_INBOUND_STREAMS or not self.is_open:
            self._refused += 1
            if self._refused > MAX_REFUSED_IN_A_ROW:
                raise ValueError(f"more than {MAX_INBOUND_STREAMS} streams, again and again")
            self.enqueue(Kind.WINDOW_UPDATE, RST, frame.stream_id, 0)
            return None
        self._refused = 0
        stream = self._streams[frame.stream_id] = MuxedStream(self, frame.stream_id, opened_by_us=False)
        self.enqueue(Kind.WINDOW_UPDATE, ACK, frame.stream_id, 0)
        self._on_stream(self, stream)
        return stream

    def _take_flags(self, stream: MuxedStream, frame: Frame) -> None:
        if frame.flags & RST:
            stream.on_broken("the peer reset the stream")
        elif frame.flags & FIN:
            stream.on_end()

    def _opened(self, *, by_us: bool) -> int:
        return sum(stream.opened_by_us == by_us for stream in self._streams.values())

    def _end(self, reason: str) -> None:
        if self._over is not None:
            return
        self._over = reason
        self._queue.clear()
        for stream in list(self._streams.values()):
            stream.on_broken(reason)
        self._room.unpark_all()
        self._less_unread.unpark_all()
