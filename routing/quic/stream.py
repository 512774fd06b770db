"""One stream of a connection: a protocol agreed by multistream-select, then length-prefixed messages.

A message is its length as an unsigned 32-bit big-endian integer, then that many bytes.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import trio

from routing.quic.errors import MessageTooLarge, StreamClosed
from routing.quic.limits import CHUNK_BYTES, SEND_BACKLOG_HIGH, SEND_NOTED, SEND_PIECE
from routing.wire.multistream import Dialer, Listener, NegotiationError

if TYPE_CHECKING:
    from routing.quic.connection import Connection

LENGTH_BYTES = 4
MAX_MESSAGE_BYTES = 2**32 - 1

# Messages read without waiting before other tasks get their turn: a peer that sends thousands of tiny
# ones must not keep the whole node busy with them.
_READS_BEFORE_YIELD = 32

# Application error codes of RESET_STREAM and STOP_SENDING.
CODE_CANCELLED = 0
CODE_HANDLER_FAILED = 1
CODE_TOO_LARGE = 2
CODE_NEGOTIATION = 3
CODE_REFUSED = 4
CODE_TOO_MUCH_UNDER_WAY = 5
CODE_STALLED = 6

_CLOSED = "this side has already closed the stream"

Part = bytes | bytearray | memoryview


class Stream:
    """A two-way stream. One task may receive; any number may send, whole messages never mix.

    Attributes:
        connection: the connection it belongs to.
        inbound: the peer has opened it.
        unfed: bytes of the message being sent that the engine has not been given yet.
    """

    __slots__ = (
        "_backlogged",
        "_chunks",
        "_ended",
        "_failure",
        "_failure_kind",
        "_have",
        "_negotiation",
        "_offset",
        "_opening",
        "_protocol",
        "_reader",
        "_reads",
        "_send_problem",
        "_wanted",
        "_writers",
        "_writing",
        "connection",
        "inbound",
        "stream_id",
        "unfed",
    )

    def __init__(self, connection: Connection, stream_id: int, negotiation: Dialer | Listener) -> None:
        self.connection = connection
        self.stream_id = stream_id
        self.inbound = isinstance(negotiation, Listener)
        self.unfed = 0
        self._negotiation: Dialer | Listener | None = negotiation
        self._protocol = ""
        self._opening = b""
        self._chunks: deque[bytes] = deque()
        self._offset = 0  # bytes of the first chunk already taken
        self._have = 0  # unread bytes in all
        self._wanted = 0  # bytes the waiting reader needs, 0 while nobody waits
        self._reads = 0
        self._reader: trio.lowlevel.Task | None = None
        self._writers: trio.lowlevel.ParkingLot | None = None
        self._backlogged = False
        self._writing = False  # a message is being sent in pieces
        self._ended = False  # the peer sends no more
        self._send_problem: str | None = None  # why we send no more
        self._failure: str | None = None
        self._failure_kind: type[StreamClosed] = StreamClosed

    @property
    def peer_id(self) -> str:
        return self.connection.peer_id

    @property
    def protocol(self) -> str:
        """The protocol's name; "" on an inbound stream before it is agreed."""
        return self._protocol

    def __repr__(self) -> str:
        return f"<Stream {self.stream_id} {self._protocol} with {self.peer_id}>"

    # --- sending ---

    async def send_message(self, *parts: Part, end: bool = False) -> None:
        """Send one message, the parts laid end to end. They are copied before this returns.

        With `end` it is the last: as `aclose` after it, but safer (starved.py).

        Waits, before it takes the message, while the stream's backlog is over SEND_BACKLOG_HIGH;
        otherwise a message of no more than that is taken without giving up the processor. A longer one
        is taken piece by piece, as the peer reads; to cancel that resets the stream.

        Raises:
            StreamClosed: the stream or its connection has ended.
            TooMuchUnderWay: what waits to be sent to this peer, or to all, is too much.
            Stalled: the peer did not read for a while.
            ValueError: the message is longer than a length prefix can say.
        """
        size = 0
        for part in parts:
            size += part.nbytes if isinstance(part, memoryview) else len(part)
        if size > MAX_MESSAGE_BYTES:
            raise ValueError(f"message of {size} bytes, at most {MAX_MESSAGE_BYTES} fit a length prefix")
        await self._send(size.to_bytes(LENGTH_BYTES, "big"), parts, size, end)

    async def send_bytes(self, data: Part) -> None:
        """Send bytes without a length, for libp2p protocols that frame otherwise. As `send_message`."""
        await self._send(b"", (data,), data.nbytes if isinstance(data, memoryview) else len(data), False)

    async def _send(self, prefix: bytes, parts: tuple[Part, ...], size: int, end: bool) -> None:
        while (self._backlogged or self._writing) and self._failure is None:
            await self._park_writer()
        self._check_can_send()
        if size > SEND_BACKLOG_HIGH:
            await self._send_in_pieces(prefix, parts, size, end)
            return
        send, stream_id = self.connection.core.send, self.stream_id
        send(stream_id, self._opening + prefix, False)
        self._opening = b""
        for part in parts:
            send(stream_id, part, False)
        self._sent(end)

    async def _send_in_pieces(self, prefix: bytes, parts: tuple[Part, ...], size: int, end: bool) -> None:
        connection, stream_id = self.connection, self.stream_id
        self._writing = True
        self.unfed = size
        try:
            connection.note_sending(self)
            self._check_can_send()
            connection.core.send(stream_id, self._opening + prefix, False)
            self._opening = b""
            for part in parts:
                view = memoryview(part).cast("B")
                for start in range(0, len(view), SEND_PIECE):
                    while self._backlogged and self._failure is None:
                        await self._park_writer()
                    self._check_can_send()
                    piece = view[start : start + SEND_PIECE]
                    connection.core.send(stream_id, piece, False)
                    self.unfed -= len(piece)
                    self._sent(end and not self.unfed)
        except BaseException:
            if self._send_problem is None:
                self.reset()  # half a message: nothing can follow it
            raise
        finally:
            self._writing = False
            self.unfed = 0
            if self._writers is not None:
                self._writers.unpark_all()

    def _sent(self, end: bool) -> None:
        """The engine has been given something: pass it on, and see how much is left."""
        connection = self.connection
        if end:
            connection.core.send(self.stream_id, b"", True)
        connection.flush()
        unsent = connection.core.unsent(self.stream_id)
        if unsent > SEND_NOTED:
            if unsent > SEND_BACKLOG_HIGH:
                self._backlogged = True
                connection.note_backlog(self)
            if not self._writing and (self.inbound or self._backlogged):
                connection.note_sending(self)
                if self._failure is not None:
                    self._check_can_send()
        if end:
            self._send_problem = _CLOSED
            self._forget_if_over()

    async def _park_writer(self) -> None:
        if self._writers is None:
            self._writers = trio.lowlevel.ParkingLot()
        await self._writers.park()

    async def aclose(self) -> None:
        """Say that nothing more will be sent; what was sent still arrives. Reading may go on."""
        if self._send_problem is not None or self._failure is not None:
            return
        self._send_problem = _CLOSED
        self.connection.core.send(self.stream_id, self._opening, True)
        self._opening = b""
        self.connection.flush()
        self._forget_if_over()

    def finish(self) -> None:
        """End an exchange that is over: nothing more is sent, and the peer is told not to send either."""
        if self._failure is not None:
            return
        core = self.connection.core
        if self._send_problem is None:
            core.send(self.stream_id, self._opening, True)
            self._opening = b""
        if not self._ended:
            core.stop_stream(self.stream_id, CODE_CANCELLED)
        self._send_problem = "this side has already finished the stream"
        self._ended = True
        self.connection.forget(self)
        self._drop_unread()
        self._fail(self._send_problem)
        self.connection.flush()

    def reset(self, code: int = CODE_CANCELLED) -> None:
        """End both directions at once; unsent and unread bytes are dropped."""
        self._reset(code, "the stream was reset here")

    def give_up(self, code: int, kind: type[StreamClosed], reason: str) -> None:
        """`reset` for what the peer did: readers and writers get an error of this kind."""
        if self._failure is None:
            self._failure_kind = kind
        self._reset(code, reason)

    def _reset(self, code: int, reason: str) -> None:
        if self._failure is not None or (self._send_problem is not None and self._ended):
            return
        core = self.connection.core
        if self._send_problem is None or core.unsent(self.stream_id):
            core.reset_stream(self.stream_id, code)
        if not self._ended:
            core.stop_stream(self.stream_id, code)
        self._send_problem = reason
        self._ended = True
        self.connection.forget(self)
        self._drop_unread()
        self._fail(reason)
        self.connection.flush()

    def _check_can_send(self) -> None:
        problem = self._failure or self._send_problem
        if problem is not None:
            raise self._closed(problem)

    # --- receiving ---

    async def receive_message(self, max_bytes: int) -> bytes:
        """The next message.

        Args:
            max_bytes: the longest message this protocol allows here. A longer claim resets the stream
                before anything is allocated for it.

        Raises:
            StreamClosed: the peer ended or reset the stream, or the connection is gone.
            TooMuchUnderWay, Stalled: on a stream the peer opened, it has sent a part of the message, and
                too much of others or too slowly.
            MessageTooLarge: the peer announced more than `max_bytes`.
        """
        await self._now_and_then_yield()
        if self._have < LENGTH_BYTES:
            await self._wait_for(LENGTH_BYTES)
        if self.inbound and self.connection.is_crowded():
            await self.connection.turn()
            if self._have < LENGTH_BYTES:  # the stream has ended meanwhile
                await self._wait_for(LENGTH_BYTES)
        size = self._peek_length()
        if size > max_bytes:
            self.reset(CODE_TOO_LARGE)
            raise MessageTooLarge(
                f"{self.peer_id} announced a message of {size} bytes on {self._protocol}, "
                f"{max_bytes} are allowed: the stream was reset",
                peer=self.peer_id,
            )
        if self._have < LENGTH_BYTES + size:
            await self._wait_for(LENGTH_BYTES + size)
        return self._take(LENGTH_BYTES, size)

    async def receive_exactly(self, count: int) -> bytes:
        """The next `count` bytes, for libp2p protocols that frame otherwise.

        Raises:
            StreamClosed: the stream ends before.
        """
        await self._now_and_then_yield()
        if self._have < count:
            await self._wait_for(count)
        return self._take(0, count)

    async def _now_and_then_yield(self) -> None:
        self._reads += 1
        if self._reads >= _READS_BEFORE_YIELD:
            self._reads = 0
            await trio.lowlevel.checkpoint()

    async def _wait_for(self, count: int) -> None:
        if self._reader is not None:
            raise trio.BusyResourceError("another task is already receiving on this stream")
        if self._opening:
            # a stream the peer has not heard of yet can't bring anything
            self.connection.core.send(self.stream_id, self._opening, False)
            self._opening = b""
            self.connection.flush()
        if count <= LENGTH_BYTES or not self.inbound:
            await self._sleep_until_there(count)
            return
        self._wanted = count
        self.connection.note_arriving(self)
        try:
            await self._sleep_until_there(count)
        finally:
            self.connection.note_arrived(self)

    async def _sleep_until_there(self, count: int) -> None:
        while self._have < count:
            if self._failure is not None:
                raise self._closed(self._failure)
            if self._ended:
                where = "in the middle of a message" if self._have else "the stream"
                raise self._closed(f"the peer ended {where}")
            self._wanted = count
            try:
                if self.connection.reader_waits():
                    continue  # what was held back has been brought, perhaps what is wanted here
                self._reader = trio.lowlevel.current_task()
                self._reads = 0
                await trio.lowlevel.wait_task_rescheduled(self._abort_wait)
            finally:
                self._wanted = 0

    def _abort_wait(self, _: object) -> trio.lowlevel.Abort:
        self._reader = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _peek_length(self) -> int:
        first = self._chunks[0]
        if len(first) - self._offset < LENGTH_BYTES:
            first = b"".join(self._chunks)
            self._chunks.clear()
            self._chunks.append(first)
        return int.from_bytes(first[self._offset : self._offset + LENGTH_BYTES], "big")

    def _take(self, skip: int, size: int) -> bytes:
        """Remove `skip` bytes of the first chunk and the `size` bytes after them; the latter, copied once."""
        chunks = self._chunks
        pieces: list[bytes] = []
        start, missing = self._offset + skip, size
        while missing:
            chunk = chunks[0]
            available = len(chunk) - start
            if available > missing:
                pieces.append(chunk[start : start + missing])
                start += missing
                break
            pieces.append(chunk[start:] if start else chunk)
            missing -= available
            chunks.popleft()
            start = 0
        if chunks and start >= len(chunks[0]):
            chunks.popleft()
            start = 0
        self._offset = start
        self._have -= skip + size
        self.connection.note_read(self, skip + size)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    # --- what the connection tells ---

    def on_data(self, data: bytes, end: bool) -> int:
        """Bytes in order from the peer; returns how many of them are now unread."""
        if self._negotiation is not None:
            data = self._negotiate(data)
        if data:
            chunks = self._chunks
            if len(data) < CHUNK_BYTES and chunks and len(chunks[-1]) < CHUNK_BYTES:
                chunks[-1] += data
            else:
                chunks.append(data)
            self._have += len(data)
        if end:
            self._ended = True
        if self._reader is not None and (end or self._have >= self._wanted):
            self._wake_reader()
        if end:
            self._forget_if_over()
        return len(data)

    def on_reset(self, code: int) -> None:
        self._ended = True
        self._fail(f"the peer reset the stream, code {code}")
        self.connection.forget(self)

    def on_stop(self, code: int) -> None:
        """The peer reads no more: sending fails from here, what it has sent can still be read."""
        if self._send_problem is None:
            self._send_problem = f"the peer reads no more of it, code {code}"
        self._release_writers()
        self._forget_if_over()

    def on_connection_closed(self, reason: str) -> None:
        self._fail(reason)

    def on_backlog_drained(self) -> None:
        self._backlogged = False
        self._release_writers()

    def unread_unwanted(self) -> int:
        """Unread bytes nobody is waiting for."""
        return max(0, self._have - self._wanted)

    @property
    def unread(self) -> int:
        return self._have

    @property
    def missing(self) -> int:
        """Bytes that the waiting reader still needs."""
        return self._wanted - self._have

    @property
    def has_writers(self) -> bool:
        return self._writing or bool(self._writers)

    def begin_dialed(self, protocol: str, opening: bytes) -> None:
        self._protocol = protocol
        self._opening = opening

    def _negotiate(self, data: bytes) -> bytes:
        negotiation = self._negotiation
        assert negotiation is not None
        core = self.connection.core
        try:
            negotiation.receive_data(data)
        except NegotiationError as error:
            if isinstance(negotiation, Listener):
                # an end, not a reset, which would overtake the `na` that explains it
                core.send(self.stream_id, negotiation.data_to_send(), True)
            else:
                core.reset_stream(self.stream_id, CODE_NEGOTIATION)
            self._give_up(str(error))
            return b""
        if isinstance(negotiation, Listener):
            core.send(self.stream_id, negotiation.data_to_send(), False)
        if negotiation.agreed is None:
            return b""
        self._negotiation = None
        self._protocol = negotiation.agreed
        if isinstance(negotiation, Listener):
            self.connection.start_handler(self)
        return negotiation.trailing_data

    # --- ends ---

    def _give_up(self, reason: str) -> None:
        """The negotiation failed, and the peer will be told by the next flush: end this side."""
        if not self._ended:
            self.connection.core.stop_stream(self.stream_id, CODE_NEGOTIATION)
        self._send_problem = reason
        self._ended = True
        self.connection.forget(self)
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        if self._failure is None:
            self._failure = reason
        if self._reader is not None:
            self._wake_reader()
        self._release_writers()

    def _drop_unread(self) -> None:
        self._chunks.clear()
        self._offset = self._have = 0

    def _wake_reader(self) -> None:
        reader, self._reader = self._reader, None
        assert reader is not None
        trio.lowlevel.reschedule(reader)

    def _release_writers(self) -> None:
        self._backlogged = False
        if self._writers is not None:
            self._writers.unpark_all()

    def _forget_if_over(self) -> None:
        if self._ended and self._send_problem is not None:
            self.connection.forget(self)

    def _closed(self, reason: str) -> StreamClosed:
        protocol = self._protocol or "an unnamed stream"
        return self._failure_kind(f"{protocol} with {self.peer_id}: {reason}", peer=self.peer_id)
