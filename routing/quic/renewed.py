"""A path over streams that their carrier limits, one after the other: circuits of libp2p's public relays end
after 128 KiB or two minutes, in the middle of whatever is on its way.

1. Who dialed opens a fresh circuit when half of one is used up or its time is nearly over. Each begins with
   an announcement of the path, by which the other end joins them: QUIC sees one path, nothing of the change.
2. Both ends send on the oldest circuit that has room. RESERVE is kept for what the other end has under way.
3. What is on a circuit that ends all the same is lost, as on any line: QUIC sends it again on the next.
   The next may go through another relay.
4. A path that no circuit carries is over: for who dialed when none could be opened for GIVE_UP_SECONDS, for
   the other end after LOST_SECONDS.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Awaitable, Callable, Sequence

import trio

from routing.byte_stream import ByteStream, Left, Meter
from routing.errors import LocalError, PeerError
from routing.quic.carried import READ_BYTES, STREAM_ENDED, Outbox, Unframer, frame
from routing.quic.endpoint import PROBE_START, Endpoint
from routing.quic.paths import Path

log = logging.getLogger("panal.quic")

ANNOUNCEMENT = PROBE_START + b"panal-path-1"
"""Begins a circuit, with the path's id after it. Being no QUIC, it says nothing to who does not know it."""

ID_BYTES = 16
"""Nobody guesses it: who did could draw another's packets, encrypted as they are, to a circuit of theirs."""

METERED_BELOW = 1 << 30
"""On circuits of fewer bytes nothing is sent that is not needed, as the warm-up."""

RESERVE = 12 << 10
"""Bytes of a circuit left for the other end: half of a call's answer, or a new connection's window."""

DATAGRAM_BYTES = 1500
"""The largest that QUIC sends here: with less room a circuit has none."""

END_SECONDS = 3.0
"""Nothing is sent on a circuit that will end within that: clocks and round trips differ."""

FRESH_SECONDS = 15.0
"""A circuit that lasts no longer than that needs a successor; a relay may take 10 s to call the peer."""

LOST_SECONDS = 6.0
"""Longer than four PINGs without an answer, after which the connections over a path are given up."""

GIVE_UP_SECONDS = 1.0
"""A relay that was restarted, or a reservation that is being made anew, is back by then; and whoever waits
for an answer over this path should soon ask others."""

FIRST_PAUSE, LAST_PAUSE = 0.25, 4.0
"""Seconds between tries for a fresh circuit."""

CLEAR_SECONDS = 1.0
"""A circuit that is used up and has brought nothing for so long is empty, and is closed."""

MAX_CIRCUITS = 16
"""Of one path at once: the one in use, the next, and those that drain. At 128 KiB each it bounds what a path
carries to about a megabyte a second."""

Renew = Callable[[], Awaitable[tuple[ByteStream, Meter | None]]]
"""Opens another circuit to the same peer, and tells its meter. PeerError or LocalError if there is none."""


class Circuit:
    """One stream of a path."""

    def __init__(self, stream: ByteStream, left: Meter) -> None:
        self.stream = stream
        self.left = left
        self.unframer = Unframer()
        self.broken = False
        self.heard = False
        self.used_at = trio.current_time()
        first = left()
        self._half = 0 if first.bytes is None else first.bytes // 2
        self._fresh = 0.0 if first.seconds is None else min(FRESH_SECONDS, first.seconds / 4)

    def room(self) -> int:
        """Bytes that may be sent on it; 0 if not one datagram."""
        seconds, count = self.left()
        if self.broken or (seconds is not None and seconds < min(END_SECONDS, self._fresh)):
            return 0
        room = READ_BYTES if count is None else count - RESERVE
        return min(room, READ_BYTES) if room >= DATAGRAM_BYTES else 0

    def worn_in(self) -> float:
        """Seconds until it needs a successor; 0 if it does."""
        seconds, count = self.left()
        if self.broken or (count is not None and count < self._half):
            return 0.0
        return math.inf if seconds is None else max(0.0, seconds - self._fresh)


class RenewedPath:
    """One path, at either of its ends.

    Attributes:
        path: as the endpoint knows it.
    """

    def __init__(self, endpoint: Endpoint, origin: str, left: Meter) -> None:
        self._endpoint = endpoint
        self._outbox = Outbox()
        count = left().bytes
        sparing = count is not None and count < METERED_BELOW
        self.path: Path = endpoint.open_path(self._outbox.put, origin, metered=sparing)
        self._circuits: list[Circuit] = []
        self._empty_since = trio.current_time()
        self._changed = trio.Event()
        self._reason = STREAM_ENDED

    async def dial(
        self,
        stream: ByteStream,
        left: Meter,
        renew: Renew,
        *,
        task_status: trio.TaskStatus[Path] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Carry datagrams, first in this stream, until the path ends; `nursery.start` gives it."""
        announcement = ANNOUNCEMENT + os.urandom(ID_BYTES)
        self._outbox.put([announcement])
        try:
            async with trio.open_nursery() as nursery:

                async def renew_all(newest: Circuit) -> None:
                    pause = FIRST_PAUSE
                    while True:
                        await self._worn()
                        if newest.heard:
                            pause = FIRST_PAUSE
                        else:  # it was of no use: the next may be none either
                            await trio.sleep(pause)
                            pause = min(2 * pause, LAST_PAUSE)
                        try:
                            fresh, fresh_left = await renew()
                            await fresh.write(frame(announcement))
                        except (PeerError, LocalError) as error:
                            log.debug("no fresh circuit: %s", error)
                            newest.heard = False
                            if self._is_lost():
                                self._reason = f"{self._reason}; {error}"
                                nursery.cancel_scope.cancel()
                            continue
                        newest = Circuit(fresh, fresh_left or _unlimited)
                        self._circuits.append(newest)
                        nursery.start_soon(self._read, newest)
                        self._note_change()

                first = Circuit(stream, left)
                self._circuits.append(first)
                nursery.start_soon(self._read, first)
                nursery.start_soon(self._close_used_up)
                nursery.start_soon(renew_all, first)
                task_status.started(self.path)
                await self._run()
                nursery.cancel_scope.cancel()
        finally:
            self._end()

    async def accept(self, circuit: Circuit, datagrams: Sequence[bytes]) -> None:
        """Carry datagrams, first in this stream, whose first datagrams have come, until the path ends."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.join, circuit, datagrams)
                await self._run()
                nursery.cancel_scope.cancel()
        finally:
            self._end()

    async def join(self, circuit: Circuit, datagrams: Sequence[bytes] = ()) -> None:
        """Use a circuit until it ends."""
        if len(self._circuits) >= MAX_CIRCUITS:
            circuit.stream.abort()
            return
        self._circuits.append(circuit)
        self._note_change()
        self._endpoint.take_carried(self.path, datagrams)
        await self._read(circuit)

    async def _read(self, circuit: Circuit) -> None:
        try:
            while data := await circuit.stream.read(READ_BYTES):
                circuit.heard, circuit.used_at = True, trio.current_time()
                self._endpoint.take_carried(self.path, circuit.unframer.feed(data))
                if not circuit.worn_in():
                    self._note_change()
        except PeerError as error:
            self._reason = str(error)
        finally:
            self._circuits.remove(circuit)
            self._empty_since = trio.current_time()
            circuit.stream.abort()
            self._note_change()

    async def _run(self) -> None:
        async with trio.open_nursery() as nursery:

            async def end() -> None:
                await self.path.ended.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(self._send)
            nursery.start_soon(end)
            while True:
                with trio.move_on_after(LOST_SECONDS):
                    while not self._circuits:
                        await self._changed.wait()
                if not self._circuits:
                    break
                while self._circuits:
                    await self._changed.wait()
            nursery.cancel_scope.cancel()

    async def _send(self) -> None:
        while True:
            await self._outbox.wait()
            circuit = next((each for each in self._circuits if each.room()), None)
            if circuit is None:
                await self._changed.wait()
                continue
            circuit.used_at = trio.current_time()
            try:
                await circuit.stream.write(self._outbox.take(circuit.room()))
            except PeerError:
                circuit.broken = True  # its reader says why
            if not circuit.worn_in():
                self._note_change()

    async def _worn(self) -> None:
        """Return when no circuit is left that needs no successor."""
        while wait := max((each.worn_in() for each in self._circuits), default=0.0):
            with trio.move_on_after(wait):
                await self._changed.wait()

    async def _close_used_up(self) -> None:
        while True:
            await trio.sleep(CLEAR_SECONDS / 4)
            for circuit in self._circuits[:-1]:
                if not circuit.room() and trio.current_time() - circuit.used_at > CLEAR_SECONDS:
                    circuit.stream.abort()

    def _is_lost(self) -> bool:
        return not self._circuits and trio.current_time() - self._empty_since >= GIVE_UP_SECONDS

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _end(self) -> None:
        self._endpoint.close_path(self.path, self._reason)
        for circuit in self._circuits:
            circuit.stream.abort()


def _unlimited() -> Left:
    return Left(None, None)
