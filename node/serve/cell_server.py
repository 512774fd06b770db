"""The cell server: answers `/panal/cells/1` with the weights a node serves, without being in the way.

Rules
1. Bytes are read from the map a chunk at a time, on a thread: pages may have to come from the disk.
2. They leave in pieces, at a rate that yields to whatever else is on the caller's path (YieldingRate), and
   all together at the rate the owner allows. Streams take turns, piece by piece.
3. A caller may have a few streams; further ones are told to come again, after a while. A refusal waits for
   its turn like a piece. So nobody keeps the node busy with what it refuses.
4. Who does not read what it asked for loses its place. Those of whom no address is known, and who may so be
   one and the same, have few places together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import trio

from node.serve.cells import Cells, HeldCall
from node.serve.yielding_rate import CATCH_UP_SECONDS, YieldingRate
from routing.quic.admission import origin_of
from routing.quic.connection import Connection
from routing.quic.errors import Stalled, StreamClosed
from routing.quic.limits import SEND_NOTED
from routing.quic.stream import CODE_STALLED, LENGTH_BYTES, Stream
from routing.wire import cells as wire
from routing.wire.experts import ProtocolError, Refusal, RefusalCode

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


@dataclass
class CellCounts:
    """What a cell server has done since it started.

    Attributes:
        chunks, sent_bytes: answers, and the bytes of weights in them.
        refused: requests that were answered with a refusal.
    """

    chunks: int = 0
    sent_bytes: int = 0
    refused: int = 0


class CellServer:
    """Sends cells to whoever asks.

    Args:
        rate: bytes a second for all callers together.
    """

    def __init__(self, cells: Cells, *, rate: float) -> None:
        self._cells = cells
        self._rate = rate
        self._turns = trio.StrictFIFOLock()
        self._next = -math.inf
        self._streams: Counter[str] = Counter()
        self._carried = 0
        self._rates: WeakKeyDictionary[Connection, YieldingRate] = WeakKeyDictionary()
        self.counts = CellCounts()
        self._paused = ""

    def pause(self, text: str) -> None:
        """Refuse requests from now on."""
        self._paused = text

    def resume(self) -> None:
        """Answer them again."""
        self._paused = ""

    def swap(self, cells: Cells) -> None:
        """Give these from now on."""
        self._cells = cells

    async def serve(self, stream: Stream) -> None:
        """Handler of `/panal/cells/1`: requests one after the other; a caller may send some ahead."""
        with self._place(stream.connection) as is_served:
            if not is_served:
                await trio.sleep(REFUSE_SECONDS)
            while True:
                message = b""
                with trio.move_on_after(IDLE_SECONDS):
                    try:
                        message = await stream.receive_message(wire.REQUEST_BYTES)
                    except StreamClosed:
                        return
                if not message:
                    return
                admitted = self._admit(message, stream.peer_id, is_served=is_served)
                if isinstance(admitted, Refusal):
                    self.counts.refused += 1
                    await self._until_read(stream, IDLE_SECONDS)
                    await self._turn(stream, PIECE_BYTES)
                    await stream.send_message(wire.encode_refusal(admitted))
                    if not is_served or admitted.code is RefusalCode.MALFORMED:
                        await stream.aclose()
                        return
                else:
                    await self._send(stream, *admitted)

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

    def _admit(
        self, message: bytes, peer: str, *, is_served: bool
    ) -> tuple[wire.CellsRequest, HeldCall] | Refusal:
        """What to send, or why nothing. Nothing is read or allocated for it yet."""
        try:
            request = wire.decode_message(message, peer=peer)
        except ProtocolError as error:
            return Refusal(error.call_id, 0, 0, RefusalCode.MALFORMED, str(error))
        if not isinstance(request, wire.CellsRequest):
            return Refusal(0, 0, 0, RefusalCode.MALFORMED, "a request is expected here")
        if self._paused:
            return wire.refusal_to(request, RefusalCode.OVERLOADED, self._paused, load=COME_AGAIN_MS)
        if not is_served:
            text = f"{STREAMS_PER_CALLER} streams of a caller, {STREAMS} in all are served"
            return wire.refusal_to(request, RefusalCode.OVERLOADED, text, load=COME_AGAIN_MS)
        if not self._cells.knows(request.model_id):
            text = f"model {request.model_id.hex()[:12]} is not served here"
            return wire.refusal_to(request, RefusalCode.UNKNOWN_MODEL, text)
        held = self._cells.find(request.model_id, request.layer, request.call_index)
        if held is None:
            text = f"nothing of layer {request.layer} is served here"
            return wire.refusal_to(request, RefusalCode.UNKNOWN_CALL, text)
        asked = range(request.first, request.first + request.count)
        missing = tuple(sorted(set(asked).difference(held.experts())))
        if missing:
            text = f"layer {request.layer}: not all experts are served here"
            return wire.refusal_to(request, RefusalCode.NOT_HELD, text, missing=missing)
        size = request.count * held.call.bytes_per_cell
        if request.offset + request.length > size:
            text = f"bytes {request.offset} to {request.offset + request.length} of {size}"
            return wire.refusal_to(request, RefusalCode.MALFORMED, text)
        return request, held

    async def _send(self, stream: Stream, request: wire.CellsRequest, held: HeldCall) -> None:
        data = memoryview(await trio.to_thread.run_sync(read_blob, held, request))
        size = wire.CHUNK_HEADER_BYTES + len(data)
        header = size.to_bytes(LENGTH_BYTES, "big") + wire.encode_chunk_header(request)
        await stream.send_bytes(header)
        patience = IDLE_SECONDS
        for start in range(0, len(data), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            patience = await self._until_read(stream, patience)
            await self._turn(stream, len(piece))
            await stream.send_bytes(piece)
            self.counts.sent_bytes += len(piece)
        self.counts.chunks += 1

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

    async def _turn(self, stream: Stream, size: int) -> None:
        """Wait until a piece may go."""
        connection = stream.connection
        rate = self._rates.get(connection)
        if rate is None:
            rate = self._rates[connection] = YieldingRate(trio.current_time(), most=self._rate)
        await trio.sleep(rate.delay(size, connection.rtt, trio.current_time()))
        async with self._turns:
            await trio.sleep_until(self._next)
            self._next = max(self._next, trio.current_time() - CATCH_UP_SECONDS) + size / self._rate


def read_blob(held: HeldCall, request: wire.CellsRequest) -> bytes:
    """The bytes of a request, copied out of the map. All its experts are held, the range is in their blob."""
    size = held.call.bytes_per_cell
    position, end = request.offset, request.offset + request.length
    parts: list[bytes] = []
    while position < end:
        number, within = divmod(position, size)
        expert = request.first + number
        run = held.run_with(expert)
        for tensor in held.call.tensors:
            n_bytes = tensor.bytes_per_expert
            if within >= n_bytes:
                within -= n_bytes
                continue
            start = (expert - run.first) * n_bytes + within
            count = min(n_bytes - within, end - position)
            parts.append(run.tensors[tensor.role].data[start : start + count].tobytes())
            position, within = position + count, 0
            if position == end:
                break
    return b"".join(parts)


def _caller_of(connection: Connection) -> str:
    """Who has places: an address, since of identities anybody has as many as he likes."""
    return connection.peer_id if connection.is_carried else origin_of(connection.first_address[0])
