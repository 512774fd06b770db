"""Fetching from peers, in the background of whatever else goes on.

Rules
1. Of each source one stream a protocol, on which WINDOW_BYTES are asked ahead: a round trip costs nothing
   then, and the source never has more to send us than that. How fast it sends is for it to decide: it sees
   what else is on the line (node.share.sending).
2. What is proven as one is a *unit*: a cell, a chunk, a list of digests. Small units are asked for together,
   a large one in pieces. All of a unit comes from one source, so that who sent a wrong one is known: it is
   asked no more, and named.
3. Who fails rests, each time longer, and is given up in the end (node.share.work). What it had begun
   others do.
4. What is complete and right is kept whatever happens after.
5. Who is far slower than others that hold the same gives back what it had begun, and rests.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic

import trio

from node.home.call_bits import run_bits
from node.model.chunks import CHUNK_BYTES
from node.share.requests import Request
from node.share.target import Incoming, Progress, Result, Target, WrongBytes
from node.share.work import EVERY, Key, Source, Work
from routing.errors import LocalError, PeerError
from routing.links import PeerLinks
from routing.quic.connection import Connection
from routing.quic.errors import StreamClosed
from routing.quic.stream import Stream
from routing.routes import Kind
from routing.wire.experts import Refusal, RefusalCode, Refused

ASK_BYTES = CHUNK_BYTES
"""Asked for at once. Small units that fit are asked for together."""

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


def unrelayed(links: PeerLinks) -> Callable[[str], Connection | None]:
    """For `fetch`: nobody behind a relay is asked, whose circuits are others' bandwidth."""

    def connection_to(peer_id: str) -> Connection | None:
        link = links.link(peer_id)
        return None if link is None or link.route.kind is Kind.RELAYED else link.connection

    return connection_to


async def fetch(
    target: Target[Key],
    lacking: Mapping[Key, int],
    *,
    holders: Callable[[Key], Iterable[tuple[str, int]]],
    connection_to: Callable[[str], Connection | None],
    askable: Callable[[Key, str], int] = lambda key, peer_id: EVERY,
    rate: float = math.inf,
    distrusted: Mapping[str, str] | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Result[Key]:
    """Get units that are not there yet, in this order, from whoever holds them now.

    Returns when all are there, or when nobody is left who may give the rest. May be cancelled at any time.

    Args:
        lacking: units as bits.
        holders, askable: as for `Work`.
        connection_to: the connection to a peer, if it may be asked.
        rate: bytes a second that are asked for at most.
        distrusted: peers that sent what they must not before, with what it was: they are not asked.

    Raises:
        LocalError: the disk fails or is full.
    """
    work = Work(lacking, holders, askable)
    for peer_id, reason in (distrusted or {}).items():
        work.sources[peer_id] = Source(peer_id, given_up=reason, is_hostile=True)
    running = _Fetch(target, lacking, work, connection_to, rate, on_progress)
    try:
        await running.run()
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(target.seal)
    return running.result()


@dataclass(eq=False)
class _Run(Generic[Key]):
    """Neighbouring units asked of one source.

    Attributes:
        peer_id: the source.
        first, count: which they are.
        left: units that are not complete, as bits.
        asked: bytes that were asked for.
        is_over: given back, so that nothing more of it counts.
    """

    peer_id: str
    key: Key
    first: int
    count: int
    incoming: Incoming
    left: int
    asked: int = 0
    is_over: bool = False


class _Fetch(Generic[Key]):
    """One call of `fetch`."""

    def __init__(
        self,
        target: Target[Key],
        lacking: Mapping[Key, int],
        work: Work[Key],
        connection_to: Callable[[str], Connection | None],
        rate: float,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._target = target
        self._work = work
        self._connection_to = connection_to
        self._rate = rate
        self._on_progress = on_progress
        self._all_units = sum(bits.bit_count() for bits in lacking.values())
        self._all_bytes = target.bytes_of(lacking)
        self._units = 0
        self._came = 0
        self._came_at_seal = 0
        self._next = -math.inf
        self._call_id = 0
        self._changed = trio.Event()
        self._has_idle = False  # a source waits for what must come before it can go on
        self._error: LocalError | None = None

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while self._error is None:
                useful = self._work.useful(self._may_be_asked)
                idle = [each for each in useful if not each.is_asked]
                waits = [each for each in idle if self._work.can_take(each)]
                self._has_idle = len(waits) < len(idle)
                self._start(nursery, waits)
                if not waits and not any(each.is_asked for each in self._work.sources.values()):
                    break
                self._changed = trio.Event()
                now = trio.current_time()
                rested = [each.rests_until for each in useful if each.rests_until > now]
                with trio.move_on_at(min([now + LOOK_SECONDS, *rested])):
                    await self._changed.wait()
            nursery.cancel_scope.cancel()
        if self._error is not None:
            raise self._error

    def result(self) -> Result[Key]:
        sources = self._work.sources.values()
        return Result(
            units=self._units,
            by_peer={each.peer_id: each.n_bytes for each in sources if each.n_bytes},
            missing=self._work.left(),
            dropped={each.peer_id: each.given_up for each in sources if each.is_hostile},
            given_up={
                each.peer_id: each.given_up for each in sources if each.given_up and not each.is_hostile
            },
        )

    def _start(self, nursery: trio.Nursery, waiting: list[Source]) -> None:
        """Begin to ask those who have something to give and are not asked yet."""
        busy = sum(each.is_asked for each in self._work.sources.values())
        for source in waiting:
            connection = self._connection_to(source.peer_id)
            may_begin = trio.current_time() >= source.rests_until
            if busy < SOURCES and may_begin and connection is not None:
                busy += 1
                source.begin(trio.current_time())
                nursery.start_soon(self._ask, source, connection)

    async def _ask(self, source: Source, connection: Connection) -> None:
        pull = _Pull(source, self, connection)
        try:
            try:
                await pull.run()
            finally:
                pull.reset()
        except WrongBytes as error:
            source.is_hostile = True
            source.given_up = f"sent wrong bytes as {error}"
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

    def take(self, source: Source) -> _Run[Key] | None:
        """The next units that a source is to send."""
        found = self._work.take(source, self._target.fit)
        if found is None:
            return None
        key, first, count = found
        incoming = self._target.incoming(key, first, count)
        self._target.taken(key, first, count, source.peer_id)
        return _Run(source.peer_id, key, first, count, incoming, run_bits(first, count))

    def give_back(self, run: _Run[Key]) -> None:
        """What is left of a run is for others, or for later."""
        if run.left:
            self._target.given_back(run.key, run.first, run.count, run.peer_id)
        self._work.give_back(run.key, run.left)
        run.left, run.is_over = 0, True
        run.incoming.close()
        self._changed.set()

    def refused(self, source: Source, run: _Run[Key], refusal: Refusal) -> None:
        """A source does not give all of a run."""
        asked = run_bits(run.first, run.count)
        if refusal.code is RefusalCode.NOT_HELD:
            source.refuse(run.key, asked, self._target.missed(run.key, refusal))
        else:
            source.refuse(run.key, EVERY, EVERY)
        self.give_back(run)

    def request(self, run: _Run[Key]) -> Request:
        """The next chunk of a run."""
        self._call_id = (self._call_id + 1) & 0xFFFFFFFF
        length = min(ASK_BYTES, run.incoming.size - run.asked)
        request = self._target.request(run.key, run.first, run.count, run.asked, length, self._call_id)
        run.asked += length
        return request

    async def turn(self, size: int) -> None:
        """Wait until so much may be asked for."""
        start = max(self._next, trio.current_time())
        self._next = start + size / self._rate
        if start > trio.current_time():
            await trio.sleep_until(start)

    def is_slow(self, source: Source, begun: list[_Run[Key]]) -> bool:
        """Whether a source had better leave what it has begun to others."""
        run = next((run for run in begun if run.left), None)
        return run is not None and self._work.is_slow(source, run.key, run.left, self._may_be_asked)

    async def store(self, source: Source, run: _Run[Key], data: memoryview) -> None:
        """Take in what has come."""
        source.sent(len(data), trio.current_time())
        if run.is_over:
            return
        try:
            await trio.to_thread.run_sync(run.incoming.take, data)
        finally:  # what is right is kept, whatever came after it
            complete = [unit for unit in run.incoming.complete if run.left >> unit & 1]
            self._target.note(run.key, complete)
            for unit in complete:
                run.left &= ~(1 << unit)
                source.failures = 0
            self._units += len(complete)
            if complete and self._has_idle:
                self._changed.set()
        self._came += len(data)
        asked = tuple(each.peer_id for each in self._work.sources.values() if each.is_asked)
        self._on_progress(Progress(self._units, self._came, self._all_units, self._all_bytes, asked))
        if self._came - self._came_at_seal >= SEAL_BYTES:
            self._came_at_seal = self._came
            await trio.to_thread.run_sync(self._target.seal)


class _Pull(Generic[Key]):
    """One source being asked."""

    def __init__(self, source: Source, fetch: _Fetch[Key], connection: Connection) -> None:
        self._source = source
        self._fetch = fetch
        self._connection = connection
        self._streams: dict[str, Stream] = {}
        self._run: _Run[Key] | None = None  # the one whose bytes are being asked for
        self._ahead: deque[tuple[_Run[Key], Request]] = deque()

    def begun(self) -> list[_Run[Key]]:
        """Runs of which something was asked and has not come."""
        runs = [run for run, _ in self._ahead] + ([] if self._run is None else [self._run])
        return list({id(run): run for run in runs}.values())

    def reset(self) -> None:
        """Nothing more is read or asked."""
        for stream in self._streams.values():
            stream.reset()

    async def run(self) -> None:
        """Ask and take until there is nothing left that this source can give."""
        window = 0
        while True:
            while window < WINDOW_BYTES and (asked := self._next()) is not None:
                self._ahead.append(asked)
                window += asked[1].length
                await self._fetch.turn(asked[1].length)
                await self._stream(asked[1]).send_message(asked[1].encode())
            if not self._ahead:
                break
            run, request = self._ahead[0]
            reply = await self._reply(request)
            if isinstance(reply, memoryview):
                await self._fetch.store(self._source, run, reply)
                if self._fetch.is_slow(self._source, self.begun()):
                    self._source.rest(trio.current_time())
                    return
            elif not self._may_go_on(run, reply):
                return
            self._ahead.popleft()
            window -= request.length
        for stream in self._streams.values():
            await stream.aclose()

    def _next(self) -> tuple[_Run[Key], Request] | None:
        run = self._run
        if run is None or run.is_over or run.asked == run.incoming.size:
            run = self._run = self._fetch.take(self._source)
        return None if run is None else (run, self._fetch.request(run))

    def _stream(self, request: Request) -> Stream:
        stream = self._streams.get(request.protocol_id)
        if stream is None:
            stream = self._streams[request.protocol_id] = self._connection.open_stream(request.protocol_id)
        return stream

    async def _reply(self, request: Request) -> memoryview | Refusal:
        peer = self._source.peer_id
        with trio.move_on_after(REPLY_SECONDS) as patience:
            message = await self._stream(request).receive_message(request.max_reply_bytes())
        if patience.cancelled_caught:
            raise StreamClosed(f"{peer} sent nothing for {REPLY_SECONDS:g} s", peer=peer)
        self._source.was_heard = True
        return request.read(message, peer)

    def _may_go_on(self, run: _Run[Key], refusal: Refusal) -> bool:
        """Take note of a refusal; whether to go on with this source.

        Raises:
            Refused: it gives nothing at all.
        """
        source = self._source
        if refusal.code is RefusalCode.OVERLOADED:
            source.fail(refusal.text or "is overloaded", trio.current_time(), refusal.load / 1000)
            return False
        if refusal.code not in (RefusalCode.NOT_HELD, RefusalCode.UNKNOWN_CALL):
            raise Refused(refusal, peer=source.peer_id)
        self._fetch.refused(source, run, refusal)
        return True
