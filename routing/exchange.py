"""`/panal/adverts/1` on QUIC streams: each node follows its connected peers' tables and serves its own.

One task per connection pulls (`follow`); one per inbound stream answers (`serve`). An answer waits until
something has changed, so news crosses a link as soon as there is any, and an idle swarm sends three
short messages a minute and link. No look-up ever waits for this.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio

from routing.advert_rows import Cursor, Offer
from routing.adverts import AdvertTable
from routing.errors import PeerError
from routing.quic.connection import Connection
from routing.quic.stream import Stream
from routing.wire import exchange as wire

_T = TypeVar("_T")

log = logging.getLogger("panal.adverts")

ANSWER_GRACE = 10.0
"""Seconds beyond the agreed wait in which the answer must be here: a quarter megabyte over a slow link."""

GATHER = 0.05
"""Seconds between a change and the answer that tells it: what comes in bursts goes out together."""

LOOK_AGAIN = 1.0
"""Seconds after which a held request looks whether its connection is still there."""

ROUND_PAUSE = 0.05
"""Seconds between answer and next request: a peer that answers at once without news is asked no faster."""

SERVED_PAUSE = 0.04
"""Seconds between an answer and the next request that is looked at: nobody has reason to ask faster than
ROUND_PAUSE, and to read the whole table takes a millisecond."""

ADVERTS_BURST = 8_192
"""Adverts taken from one connection as fast as they come: a full table, twice."""

ADVERTS_PER_SECOND = 100.0
"""And in the long run: a table of 4,096 that is refreshed each 200 s brings 20."""

FIRST_RETRY = 1.0
"""Seconds before a peer whose stream broke while its connection lives is asked again; doubles each time."""

LAST_RETRY = 60.0
"""A peer without the protocol costs a message a minute."""

MAX_STREAMS_SERVED = 2
"""Requests of one connection held at once: one, and one whose end has not been noticed."""

MAX_REFUSED = 32
"""Bad adverts before a peer is shunned. An honest one passes on none, save those of its swarm if that is
another, and what a later version allows."""

SHUN_SECONDS = 600.0
"""A peer that brought bad adverts is not asked for so long."""

MAX_REMEMBERED = 1_024
"""Peers whose cursor, and whose shunning, are remembered after their connection has ended."""


class AdvertExchange:
    """Keeps the table in step with those of connected peers.

    Args:
        table: this node's.
        clock: unix time in seconds.
        on_change: called with each offer that changed the table, whoever made it, and with each that
            showed a clone. It must not wait.
    """

    def __init__(
        self, table: AdvertTable, clock: Callable[[], float], on_change: Callable[[Offer], None]
    ) -> None:
        self._table = table
        self._clock = clock
        self._on_change = on_change
        self._changed = trio.Event()
        self._served: dict[Connection, dict[Stream, int]] = {}  # what each stream was told last
        self._numbers: dict[Connection, int] = {}
        self._last_number = 0
        self._cursors: dict[str, Cursor] = {}
        self._shunned: dict[str, float] = {}
        self._turn = trio.Lock()

    @property
    def held(self) -> int:
        """Streams of others that are served now."""
        return sum(len(streams) for streams in self._served.values())

    def offer(self, data: bytes, *, from_peer: str, age: float | None = None, via: int = 0) -> Offer:
        """`AdvertTable.offer` for all who hear of adverts (DHT, LAN, ...): peers and `on_change` are told."""
        offer = self._table.offer(data, self._clock(), from_peer=from_peer, age=age, via=via)
        self._tell(offer)
        return offer

    def put_own(self, data: bytes) -> None:
        """Put this node's own advert into the table and tell peers.

        Raises:
            LocalError: as `AdvertTable.put_own`.
        """
        self._tell(self._table.put_own(data, self._clock()))

    async def say_farewell(self, data: bytes, *, patience: float = 1.0) -> None:
        """`put_own` with a farewell, then wait until who follows us has been sent it, or long enough."""
        self.put_own(data)
        counter = self._table.cursor.counter
        with trio.move_on_after(patience):
            while any(told < counter for streams in self._served.values() for told in streams.values()):
                await trio.sleep(GATHER)

    async def serve(self, stream: Stream) -> None:
        """Handler of inbound streams: request, answer, and so on until the peer ends it.

        Raises:
            PeerError: the peer's bytes are no request, it has too many streams, or it has gone.
        """
        connection = stream.connection
        with self._place(stream) as told:
            while True:
                data = await stream.receive_message(wire.MAX_REQUEST_BYTES)
                request = wire.decode_request(data, peer=stream.peer_id)
                answer = await self._answer(request, connection)
                await stream.send_message(wire.encode_answer(answer))
                told[stream] = answer.counter
                await trio.sleep(SERVED_PAUSE)

    async def follow(self, connection: Connection) -> None:
        """Pull a peer's changes until the connection ends. One task per connection.

        A peer that keeps bringing bad adverts is left alone for SHUN_SECONDS; the connection stays.
        """
        self._last_number += 1
        self._numbers[connection] = self._last_number
        pace = _Pace()
        retry = FIRST_RETRY
        try:
            while connection.is_open:
                shunned = self._shunned.get(connection.peer_id, 0.0) - trio.current_time()
                if shunned > 0:
                    await _sleep(connection, shunned)
                elif await self._pull(connection, pace):
                    retry = FIRST_RETRY
                else:
                    await _sleep(connection, retry)
                    retry = min(retry * 2, LAST_RETRY)
        finally:
            self._numbers.pop(connection, None)

    # --- serving ---

    @contextmanager
    def _place(self, stream: Stream) -> Iterator[dict[Stream, int]]:
        connection = stream.connection
        streams = self._served.setdefault(connection, {})
        if len(streams) >= MAX_STREAMS_SERVED:
            raise PeerError(
                f"{stream.peer_id} has {len(streams)} streams of {wire.PROTOCOL_ID} open: one is enough",
                peer=stream.peer_id,
            )
        streams[stream] = 0
        try:
            yield streams
        finally:
            del streams[stream]
            if not streams:
                del self._served[connection]

    async def _answer(self, request: wire.ChangesRequest, connection: Connection) -> wire.ChangesAnswer:
        cursor = Cursor(request.epoch, request.counter)
        deadline = trio.current_time() + request.wait_ms / 1000
        while True:
            changed = self._changed
            via = self._numbers.get(connection, 0)
            changes = self._table.changes(cursor, self._clock(), not_via=via)
            left = deadline - trio.current_time()
            if changes.adverts or left <= 0 or not connection.is_open or cursor.epoch != changes.cursor.epoch:
                adverts = [(_milliseconds(age), data) for age, data in changes.adverts]
                return wire.ChangesAnswer(changes.cursor.epoch, changes.cursor.counter, changes.more, adverts)
            cursor = changes.cursor  # what was left out needs no second look
            with trio.move_on_after(min(left, LOOK_AGAIN)):
                await changed.wait()
                await trio.sleep(GATHER)

    # --- following ---

    async def _pull(self, connection: Connection, pace: _Pace) -> bool:
        """Ask on one stream until it breaks or the peer is shunned; whether it ever answered."""
        peer_id = connection.peer_id
        answered = False
        stream = None
        try:
            stream = connection.open_stream(wire.PROTOCOL_ID)
            while not self._misbehaves(peer_id):
                brought = await self._ask(stream, pace)
                answered = True
                await _sleep(connection, pace.after(brought, trio.current_time()))
        except PeerError as error:
            if connection.is_open:
                log.debug("no adverts from %s for now: %s", peer_id, error)
        finally:
            if stream is not None:
                stream.reset()
        return answered

    async def _ask(self, stream: Stream, pace: _Pace) -> int:
        """One request, its answer, and what it brings; how many adverts that was."""
        peer_id = stream.peer_id
        cursor = self._cursors.get(peer_id, Cursor())
        request = wire.ChangesRequest(cursor.epoch, cursor.counter, wire.MAX_WAIT_MS)
        with trio.move_on_after(wire.MAX_WAIT_MS / 1000 + ANSWER_GRACE):
            await stream.send_message(wire.encode_request(request))
            data = await stream.receive_message(wire.MAX_ANSWER_BYTES)
            answer = wire.decode_answer(data, peer=peer_id)
            via = self._numbers.get(stream.connection, 0)
            for age, advert in answer.adverts:
                async with self._turn:  # a signature each: others go first, however many bring adverts
                    offer = self.offer(advert, from_peer=peer_id, age=age / 1000, via=via)
                    if offer.reason:
                        log.debug("%s brought by %s was refused", offer.reason, peer_id)
                    await trio.lowlevel.checkpoint()
            _remember(self._cursors, peer_id, Cursor(answer.epoch, answer.counter))
            return len(answer.adverts)
        raise PeerError(f"{peer_id} did not answer on {wire.PROTOCOL_ID} in time", peer=peer_id)

    def _misbehaves(self, peer_id: str) -> bool:
        if self._table.refusals(peer_id) <= MAX_REFUSED:
            return False
        log.warning(
            "%s brought more than %d adverts that are forged, foreign or malformed: "
            "no adverts are taken from it for %.0f s",
            peer_id,
            MAX_REFUSED,
            SHUN_SECONDS,
        )
        self._table.forgive(peer_id)
        _remember(self._shunned, peer_id, trio.current_time() + SHUN_SECONDS)
        return True

    def _tell(self, offer: Offer) -> None:
        if offer.changed:
            self._changed.set()
            self._changed = trio.Event()
        if offer.changed or offer.clone is not None:
            self._on_change(offer)


class _Pace:
    """How fast one connection is asked: bounded in adverts, so that copies and replays cost little, too."""

    def __init__(self) -> None:
        self._tokens = float(ADVERTS_BURST)
        self._refilled = -math.inf

    def after(self, brought: int, now: float) -> float:
        """Seconds to wait after an answer that brought so many adverts."""
        refill = (now - self._refilled) * ADVERTS_PER_SECOND
        self._tokens = min(float(ADVERTS_BURST), self._tokens + refill) - brought
        self._refilled = now
        return max(ROUND_PAUSE, -self._tokens / ADVERTS_PER_SECOND)


async def _sleep(connection: Connection, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await connection.closed.wait()


def _remember(known: dict[str, _T], peer_id: str, value: _T) -> None:
    """Note something of a peer; of too many the one noted longest ago is forgotten."""
    known.pop(peer_id, None)
    if len(known) >= MAX_REMEMBERED:
        del known[next(iter(known))]
    known[peer_id] = value


def _milliseconds(age: float) -> int:
    return min(int(age * 1000), wire.MAX_AGE_MS)
