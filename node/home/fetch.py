"""Fetching cells from peers, in the background of whatever else goes on.

Rules
1. Of each source one stream, on which WINDOW_BYTES are asked ahead: a round trip costs nothing then, and the
   source never has more to send us than that. How fast it sends is for it to decide: it sees what else is on
   the line (node.serve.cell_server).
2. A run of small cells is asked for at once, a large cell in chunks. All of a cell comes from one source, so
   that who sent a wrong one is known: it is asked no more, and named.
3. Who fails rests, each time longer, and is given up in the end (node.home.fetch_work). What it had begun
   others do.
4. What is complete and right is kept whatever happens after (node.home.incoming).
5. Who is far slower than others that hold the same gives back what it had begun, and rests.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import trio

from node.home.call_bits import CallBits, CallKey, run_bits
from node.home.fetch_work import Source, Work
from node.home.fetched import FetchedCells
from node.home.incoming import IncomingCells, WrongBytes
from routing.dispatch.holders import LayerHolders
from routing.errors import LocalError, PeerError
from routing.links import PeerLinks
from routing.quic.connection import Connection
from routing.quic.errors import StreamClosed
from routing.quic.stream import Stream
from routing.routes import Kind
from routing.wire import cells as wire
from routing.wire.experts import ProtocolError, Refusal, RefusalCode, Refused

CHUNK_BYTES = 256 << 10
"""Asked for at once. Small cells that fit are asked for together."""

WINDOW_BYTES = 2 << 20
"""Asked for ahead of what has come, of each source: 200 Mbit/s at 80 ms, and what a stream's window holds."""

SOURCES = 8
"""Asked at once: 16 MiB of memory at most; with as many the own line is full long since."""

REPLY_SECONDS = 30.0
"""Without a chunk from a source for so long it counts as gone: a chunk of the slowest that serves us (see
YieldingRate.MIN_RATE) with all that is asked ahead of it takes half of it."""

LOOK_SECONDS = 1.0
"""Between looks for sources that have come."""

SEAL_BYTES = 256 << 20
"""Fetched between two seals: what a power cut may cost, and what is read through again after a kill."""


@dataclass(frozen=True)
class FetchProgress:
    """How far it is.

    Attributes:
        cells, n_bytes: that have come; bytes count as they come.
        all_cells, all_bytes: that were lacking when it began.
        sources: peers that are being asked.
    """

    cells: int
    n_bytes: int
    all_cells: int
    all_bytes: int
    sources: tuple[str, ...]


@dataclass(frozen=True)
class FetchResult:
    """What came of it.

    Attributes:
        cells: that have come.
        by_peer: bytes that each peer sent.
        missing: cells that nobody gave; empty if all is there.
        dropped: peers that sent what they must not, with what it was.
        given_up: peers that failed again and again, or do not share, with the last reason.
    """

    cells: int
    by_peer: dict[str, int]
    missing: dict[CallKey, int]
    dropped: dict[str, str]
    given_up: dict[str, str]


def unrelayed(links: PeerLinks) -> Callable[[str], Connection | None]:
    """For `fetch_cells`: nobody behind a relay is asked, whose circuits are others' bandwidth."""

    def connection_to(peer_id: str) -> Connection | None:
        link = links.link(peer_id)
        return None if link is None or link.route.kind is Kind.RELAYED else link.connection

    return connection_to


async def fetch_cells(
    fetched: FetchedCells,
    wanted: CallBits,
    *,
    holders: Callable[[int, int], LayerHolders],
    connection_to: Callable[[str], Connection | None],
    rate: float = math.inf,
    on_progress: Callable[[FetchProgress], None] = lambda progress: None,
) -> FetchResult:
    """Get the cells that are not there yet, in this order, from whoever holds them now.

    Returns when all are there, or when nobody is left who may give the rest. May be cancelled at any time.

    Args:
        wanted: as `call_bits.cells_of` gives them.
        holders: who holds the experts of (layer, call index) now (`HolderTable.holders`).
        connection_to: the connection to a peer, if it may be asked.
        rate: bytes a second that are asked for at most.

    Raises:
        LocalError: the disk has not enough room, or fails.
    """
    lacking = fetched.lacks(wanted)
    fetched.require_room(fetched.bytes_of(lacking))
    work = Work(lacking, holders)
    fetch = _Fetch(fetched, lacking, work, connection_to, rate, on_progress)
    try:
        await fetch.run()
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(fetched.seal)
    return fetch.result()


@dataclass(eq=False)
class _Run:
    """Neighbouring cells asked of one source.

    Attributes:
        left: cells that are not complete, as bits.
        asked: bytes of the blob that were asked for.
        is_over: given back, so that nothing more of it counts.
    """

    key: CallKey
    incoming: IncomingCells
    left: int
    asked: int = 0
    is_over: bool = False


class _Fetch:
    """One call of `fetch_cells`."""

    def __init__(
        self,
        fetched: FetchedCells,
        lacking: CallBits,
        work: Work,
        connection_to: Callable[[str], Connection | None],
        rate: float,
        on_progress: Callable[[FetchProgress], None],
    ) -> None:
        self._fetched = fetched
        self._work = work
        self._connection_to = connection_to
        self._rate = rate
        self._on_progress = on_progress
        self._most = {
            key: min(max(1, CHUNK_BYTES // fetched.bytes_of({key: 1})), wire.MAX_CELLS) for key in lacking
        }
        self._all_cells = sum(bits.bit_count() for bits in lacking.values())
        self._all_bytes = fetched.bytes_of(lacking)
        self._cells = 0
        self._came = 0
        self._came_at_seal = 0
        self._next = -math.inf
        self._call_id = 0
        self._changed = trio.Event()
        self._error: LocalError | None = None

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while self._error is None:
                useful = self._work.useful(self._may_be_asked)
                self._start(nursery, useful)
                if not useful and not any(each.is_asked for each in self._work.sources.values()):
                    break
                self._changed = trio.Event()
                now = trio.current_time()
                rested = [each.rests_until for each in useful if each.rests_until > now]
                with trio.move_on_at(min([now + LOOK_SECONDS, *rested])):
                    await self._changed.wait()
            nursery.cancel_scope.cancel()
        if self._error is not None:
            raise self._error

    def result(self) -> FetchResult:
        sources = self._work.sources.values()
        return FetchResult(
            cells=self._cells,
            by_peer={each.peer_id: each.n_bytes for each in sources if each.n_bytes},
            missing=self._work.left(),
            dropped={each.peer_id: each.given_up for each in sources if each.is_hostile},
            given_up={
                each.peer_id: each.given_up for each in sources if each.given_up and not each.is_hostile
            },
        )

    def _start(self, nursery: trio.Nursery, useful: list[Source]) -> None:
        """Begin to ask those who have something to give and are not asked yet."""
        busy = sum(each.is_asked for each in self._work.sources.values())
        for source in useful:
            connection = self._connection_to(source.peer_id)
            may_begin = not source.is_asked and trio.current_time() >= source.rests_until
            if busy < SOURCES and may_begin and connection is not None:
                busy += 1
                source.begin(trio.current_time())
                nursery.start_soon(self._ask, source, connection)

    async def _ask(self, source: Source, connection: Connection) -> None:
        pull = _Pull(source, self)
        try:
            stream = connection.open_stream(wire.PROTOCOL_ID)
            try:
                await pull.run(stream)
                await stream.aclose()
            finally:
                stream.reset()
        except WrongBytes as error:
            source.is_hostile = True
            source.given_up = f"sent wrong bytes as expert {error.expert} of layer {error.layer}"
        except Refused as error:
            source.given_up = str(error)
        except StreamClosed as error:
            source.fail(str(error), trio.current_time())
        except PeerError as error:
            source.is_hostile = True
            source.given_up = str(error)
        except LocalError as error:
            self._error = error
        finally:
            for run in pull.begun():
                self.give_back(run)
            source.end(trio.current_time())
            self._changed.set()

    def _may_be_asked(self, peer_id: str) -> bool:
        return self._connection_to(peer_id) is not None

    # --- what the pulls ask ---

    def take(self, source: Source) -> _Run | None:
        """The next cells that a source is to send."""
        found = self._work.take(source, self._most)
        if found is None:
            return None
        key, first, count = found
        return _Run(key, self._fetched.incoming(key, first, count), run_bits(first, count))

    def give_back(self, run: _Run) -> None:
        """What is left of a run is for others, or for later."""
        self._work.give_back(run.key, run.left)
        run.left, run.is_over = 0, True
        run.incoming.close()
        self._changed.set()

    def request(self, run: _Run) -> wire.CellsRequest:
        """The next chunk of a run."""
        self._call_id = (self._call_id + 1) & 0xFFFFFFFF
        request = wire.CellsRequest(
            model_id=bytes.fromhex(self._fetched.model_id),
            layer=run.key[0],
            call_index=run.key[1],
            call_id=self._call_id,
            first=run.incoming.first,
            count=run.incoming.count,
            offset=run.asked,
            length=min(CHUNK_BYTES, run.incoming.size - run.asked),
        )
        run.asked += request.length
        return request

    async def turn(self, size: int) -> None:
        """Wait until so much may be asked for."""
        start = max(self._next, trio.current_time())
        self._next = start + size / self._rate
        if start > trio.current_time():
            await trio.sleep_until(start)

    def is_slow(self, source: Source, begun: list[_Run]) -> bool:
        """Whether a source had better leave what it has begun to others."""
        run = next((run for run in begun if run.left), None)
        return run is not None and self._work.is_slow(source, run.key, run.left, self._may_be_asked)

    async def store(self, source: Source, run: _Run, data: memoryview) -> None:
        """Take in what has come."""
        source.sent(len(data), trio.current_time())
        if run.is_over:
            return
        try:
            await trio.to_thread.run_sync(run.incoming.take, data)
        finally:  # what is right is kept, whatever came after it
            complete = [expert for expert in run.incoming.complete if run.left >> expert & 1]
            self._fetched.note(run.key, complete)
            for expert in complete:
                run.left &= ~(1 << expert)
                source.failures = 0
            self._cells += len(complete)
        self._came += len(data)
        asked = tuple(each.peer_id for each in self._work.sources.values() if each.is_asked)
        self._on_progress(FetchProgress(self._cells, self._came, self._all_cells, self._all_bytes, asked))
        if self._came - self._came_at_seal >= SEAL_BYTES:
            self._came_at_seal = self._came
            await trio.to_thread.run_sync(self._fetched.seal)


class _Pull:
    """One source being asked, on one stream."""

    def __init__(self, source: Source, fetch: _Fetch) -> None:
        self._source = source
        self._fetch = fetch
        self._run: _Run | None = None  # the one whose bytes are being asked for
        self._ahead: deque[tuple[_Run, wire.CellsRequest]] = deque()

    def begun(self) -> list[_Run]:
        """Runs of which something was asked and has not come."""
        runs = [run for run, _ in self._ahead] + ([] if self._run is None else [self._run])
        return list({id(run): run for run in runs}.values())

    async def run(self, stream: Stream) -> None:
        """Ask and take until there is nothing left that this source can give."""
        window = 0
        while True:
            while window < WINDOW_BYTES and (asked := self._next()) is not None:
                self._ahead.append(asked)
                window += asked[1].length
                await self._fetch.turn(asked[1].length)
                await stream.send_message(wire.encode_request(asked[1]))
            if not self._ahead:
                return
            run, request = self._ahead[0]
            reply = await self._reply(stream, request)
            if isinstance(reply, wire.CellsChunk):
                await self._fetch.store(self._source, run, reply.data)
                if self._fetch.is_slow(self._source, self.begun()):
                    self._source.rest(trio.current_time())
                    return
            elif not self._may_go_on(run, reply):
                return
            self._ahead.popleft()
            window -= request.length

    def _next(self) -> tuple[_Run, wire.CellsRequest] | None:
        run = self._run
        if run is None or run.is_over or run.asked == run.incoming.size:
            run = self._run = self._fetch.take(self._source)
        return None if run is None else (run, self._fetch.request(run))

    async def _reply(self, stream: Stream, request: wire.CellsRequest) -> wire.CellsChunk | Refusal:
        peer = self._source.peer_id
        with trio.move_on_after(REPLY_SECONDS) as patience:
            message = await stream.receive_message(wire.max_reply_bytes(request))
        if patience.cancelled_caught:
            raise StreamClosed(f"{peer} sent nothing for {REPLY_SECONDS:g} s", peer=peer)
        self._source.was_heard = True
        reply = wire.decode_message(message, peer=peer)
        if isinstance(reply, wire.CellsRequest):
            raise ProtocolError(f"{peer} sent a request where a reply belongs", peer=peer)
        if isinstance(reply, wire.CellsChunk):
            wire.check_chunk(request, reply, peer)
        return reply

    def _may_go_on(self, run: _Run, refusal: Refusal) -> bool:
        """Take note of a refusal; whether to go on with this stream.

        Raises:
            Refused: it gives nothing at all.
        """
        source, asked = self._source, run_bits(run.incoming.first, run.incoming.count)
        if refusal.code is RefusalCode.OVERLOADED:
            source.fail(refusal.text or "is overloaded", trio.current_time(), refusal.load / 1000)
            return False
        if refusal.code is RefusalCode.NOT_HELD:
            source.refuse(run.key, asked, sum(1 << expert for expert in set(refusal.missing)))
        elif refusal.code is RefusalCode.UNKNOWN_CALL:
            source.refuse(run.key, -1, -1)
        else:
            raise Refused(refusal, peer=source.peer_id)
        self._fetch.give_back(run)
        return True
