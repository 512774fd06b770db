"""Sending weights without being in the way: what all protocols that give something away have in common.

Rules
1. What is asked for is read a chunk at a time, on a thread: pages may have to come from the disk.
2. It leaves in pieces, at a rate that yields to whatever else is on the caller's path (YieldingRate), and all
   together at the rate the owner allows. Streams take turns, piece by piece.
3. A caller may have a few streams; further ones are told to come again, after a while. A refusal waits for
   its turn like a piece. So nobody keeps the node busy with what it refuses.
4. Who does not read what it asked for loses its place. Those of whom no address is known, and who may so be
   one and the same, have few places together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import trio

from node.serve.yielding_rate import CATCH_UP_SECONDS, YieldingRate
from routing.quic.admission import origin_of
from routing.quic.connection import Connection
from routing.quic.errors import Stalled, StreamClosed
from routing.quic.limits import SEND_NOTED
from routing.quic.stream import CODE_STALLED, LENGTH_BYTES, Stream
from routing.wire.cells import encode_refusal
from routing.wire.experts import Refusal, RefusalCode

STREAMS_PER_CALLER = 4
"""Streams that one caller has served at once: a second hides the pauses of the first, more bring nothing."""

STREAMS = 32
"""In all: each holds a chunk, and half of one more that the engine has not sent: 24 MiB."""

STREAMS_CARRIED = 8
"""In all, of callers through relays or over TCP: nothing tells them apart but peer ids, and of these anybody
makes as many as he likes. The other places stay for those whose address is known."""

COME_AGAIN_MS = 2_000
"""What a caller is told to wait for whom there is no place now."""

REFUSE_SECONDS = 1.0
"""Before they are told: who asks on a hundred streams, and again when refused, does so once a second."""

IDLE_SECONDS = 60.0
"""After so long without a request a stream gives its place to another; the same where an answer has waited so
long, in all, for its caller to read: a chunk takes 4 s at YieldingRate.MIN_RATE."""

PIECE_BYTES = 16 << 10
"""Sent at once: a call that comes meanwhile waits for 3 ms of it at 50 Mbit/s."""

UNSENT_BYTES = SEND_NOTED
"""A stream with more than this waiting in the engine gets no further piece: its path is slower than its rate,
and what waits there could not be held back any more."""

UNSENT_POLL = 0.005

HASHED_PER_SENT = 16
"""Bytes that are read and hashed to make a list of digests count as so many times fewer sent: hashing is that
much cheaper, and a request for a list is short."""


@dataclass
class SentCounts:
    """What was given away since the node started.

    Attributes:
        chunks, sent_bytes: answers, and the bytes of weights in them.
        refused: requests that were answered with a refusal.
    """

    chunks: int = 0
    sent_bytes: int = 0
    refused: int = 0


@dataclass(frozen=True)
class Answer:
    """What a request gets.

    Attributes:
        header: of the message.
        length: bytes after it.
        read: gives them.
    """

    header: bytes
    length: int
    read: Callable[[], Awaitable[bytes | memoryview]]


class Sender:
    """The places and turns of all who are sent something.

    Attributes:
        paused: why nobody is sent anything now; "" if they are.
    """

    def __init__(self, *, rate: float) -> None:
        """
        Args:
            rate: bytes a second for all callers together.
        """
        self._rate = rate
        self._turns = trio.StrictFIFOLock()
        self._next = -math.inf
        self._streams: Counter[str] = Counter()
        self._carried = 0
        self._rates: WeakKeyDictionary[Connection, YieldingRate] = WeakKeyDictionary()
        self.paused = ""

    def pause(self, text: str) -> None:
        """Refuse requests from now on; `text` says why."""
        self.paused = text

    def resume(self) -> None:
        """Answer them again."""
        self.paused = ""

    @property
    def is_busy(self) -> bool:
        """Whether anybody has a place."""
        return bool(self._streams)

    async def serve(
        self,
        stream: Stream,
        counts: SentCounts,
        max_request: int,
        admit: Callable[[bytes, str], Answer | Refusal],
    ) -> None:
        """Answer the requests of a stream one after the other; a caller may send some ahead.

        Args:
            max_request: bytes of the longest request.
            admit: (message, why nobody is served now) -> what to send, or why nothing. Nothing may be read or
                allocated for it yet.
        """
        with self._place(stream.connection) as is_served:
            if not is_served:
                await trio.sleep(REFUSE_SECONDS)
            while True:
                message = b""
                with trio.move_on_after(IDLE_SECONDS):
                    try:
                        message = await stream.receive_message(max_request)
                    except StreamClosed:
                        return
                if not message:
                    return
                admitted = admit(message, self.paused if is_served else no_place())
                if isinstance(admitted, Refusal):
                    counts.refused += 1
                    await self._until_read(stream, IDLE_SECONDS)
                    await self.turn(stream, PIECE_BYTES)
                    last = not is_served or admitted.code is RefusalCode.MALFORMED
                    await stream.send_message(encode_refusal(admitted), end=last)
                    if last:
                        return
                else:
                    await self._send(stream, counts, admitted)

    async def turn(self, stream: Stream, size: int) -> None:
        """Wait until so many bytes may go."""
        connection = stream.connection
        rate = self._rates.get(connection)
        if rate is None:
            rate = self._rates[connection] = YieldingRate(trio.current_time(), most=self._rate)
        await trio.sleep(rate.delay(size, connection.rtt, trio.current_time()))
        await self.own_turn(size)

    async def own_turn(self, size: int) -> None:
        """Wait as for so many bytes, of which none go out on the path."""
        async with self._turns:
            await trio.sleep_until(self._next)
            self._next = max(self._next, trio.current_time() - CATCH_UP_SECONDS) + size / self._rate

    @contextmanager
    def _place(self, connection: Connection) -> Iterator[bool]:
        """Whether there is one for a stream of this caller; it is kept meanwhile."""
        caller, is_carried = _caller_of(connection), connection.is_carried
        is_full = self._streams[caller] >= STREAMS_PER_CALLER or self._streams.total() >= STREAMS
        if is_full or (is_carried and self._carried >= STREAMS_CARRIED):
            yield False
            return
        self._streams[caller] += 1
        self._carried += is_carried
        try:
            yield True
        finally:
            self._carried -= is_carried
            self._streams[caller] -= 1
            if not self._streams[caller]:
                del self._streams[caller]

    async def _send(self, stream: Stream, counts: SentCounts, answer: Answer) -> None:
        data = memoryview(await answer.read())
        size = len(answer.header) + answer.length
        await stream.send_bytes(size.to_bytes(LENGTH_BYTES, "big") + answer.header)
        patience = IDLE_SECONDS
        for start in range(0, answer.length, PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            patience = await self._until_read(stream, patience)
            await self.turn(stream, len(piece))
            await stream.send_bytes(piece)
            counts.sent_bytes += len(piece)
        counts.chunks += 1

    async def _until_read(self, stream: Stream, patience: float) -> float:
        """Wait while a caller does not read what it was sent, or its path is slow; the patience that is left.

        Where there is none the stream is given up: to send on it fails.
        """
        connection, begun = stream.connection, trio.current_time()
        while connection.is_open and connection.core.unsent(stream.stream_id) > UNSENT_BYTES:
            if trio.current_time() - begun >= patience:
                stream.give_up(CODE_STALLED, Stalled, f"not read within {IDLE_SECONDS:g} s")
                return 0.0
            await trio.sleep(UNSENT_POLL)
        return patience - (trio.current_time() - begun)


def no_place() -> str:
    """What a caller is told for whom there is no place."""
    return f"{STREAMS_PER_CALLER} streams of a caller, {STREAMS} in all are served"


def _caller_of(connection: Connection) -> str:
    """Who has places: an address, since of identities anybody has as many as he likes."""
    return connection.peer_id if connection.is_carried else origin_of(connection.first_address[0])
