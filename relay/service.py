"""A relay for others: libp2p's circuit relay v2, the serving side.

Source: libp2p specs, `relay/circuit-v2.md`. What goes through a circuit is end-to-end encrypted between its
ends; the relay sees sizes and times. Rules kept here (who gets a place is `relay.reservations`' matter):

1. One stream is one request. It must be there within REQUEST_SECONDS, and is answered with a status.
2. The target must answer the call within CALL_SECONDS; the relay never dials anybody.
3. A circuit copies both ways with large reads. It reads on only when what it read is handed over and paid
   for, so a slow reader holds up its own circuit alone: at most one Yamux window and one read each way.
4. An end of one side's writing is passed on; the other way stays open until it ends too.
5. A circuit is reset when its time or its bytes are used up, or when one end takes nothing for STALL_SECONDS.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from relay.hop_wire import (
    HOP_PROTOCOL,
    MAX_MESSAGE_BYTES,
    STOP_PROTOCOL,
    HopMessage,
    HopType,
    Limit,
    ReservationInfo,
    Status,
    StopMessage,
    StopType,
    decode_hop,
    decode_stop,
    encode_hop,
    encode_stop,
    status_name,
)
from relay.reservations import Circuit, RelayLimits, RelayRefused, Reservations
from routing.control_address import ControlAddress
from routing.errors import PeerError
from routing.identity import PeerId
from routing.libp2p.delimited import DelimitedReader, MalformedMessage, write_delimited
from routing.libp2p.host import ControlHost
from routing.libp2p.inbound_limits import origin
from routing.libp2p.muxed_stream import Carrier, MuxedStream

# A request leaves together with its stream; on the worst of links that is a few round trips.
REQUEST_SECONDS = 10.0
# From the call to the target until its answer: it may have to accept at the other end of the world.
CALL_SECONDS = 10.0
# Requests that are being read or called, in all, of one address and of one peer: many identities of one
# machine must not take all. Who sends more at once is resetting us.
MAX_REQUESTS = 128
MAX_REQUESTS_PER_ORIGIN = 32
MAX_REQUESTS_PER_PEER = 16
# An end that takes nothing for so long is dead or hostile; its place is worth more to others.
STALL_SECONDS = 30.0
_STALL_CHECK_SECONDS = 5.0
# Few and large reads cost least; larger than a Yamux frame, smaller than its window.
_READ_BYTES = 64 << 10


@dataclass(frozen=True)
class RelayStatistics:
    """What a relay has done since it started.

    Attributes:
        reservations: held now.
        circuits: open now, half-open ones included.
        circuits_opened: since the start.
        bytes_relayed: both ways together, each byte once.
        refused: requests by the name of the status they got.
    """

    reservations: int
    circuits: int
    circuits_opened: int
    bytes_relayed: int
    refused: dict[str, int] = field(default_factory=dict)


class RelayService:
    """Serves the hop protocol on a control host from `start` to `stop`.

    Args:
        host: the control host; its connections are what is relayed over.
        limits: what is given at most.
        allow: whether a peer is served at all, as caller and as target; for private swarms.
        addresses: where this relay can be reached from outside, told to those who reserve.
        clock: seconds that never go back; `wall_clock` is Unix time, for the expiry that peers are told.
    """

    def __init__(
        self,
        host: ControlHost,
        limits: RelayLimits | None = None,
        *,
        allow: Callable[[PeerId], bool] = lambda peer_id: True,
        addresses: Callable[[], Sequence[ControlAddress]] = lambda: (),
        clock: Callable[[], float] = trio.current_time,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._host = host
        self._limits = limits or RelayLimits()
        self._addresses = addresses
        self._clock = clock
        self._wall_clock = wall_clock
        self._table = Reservations(self._limits, clock(), allow)
        self._requests: Counter[str] = Counter()
        self._requests_from: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._opened = 0
        self._bytes = 0
        # the connection on which a peer reserved: calls go there, not to another process of the same identity
        self._reserved_on: dict[PeerId, Carrier] = {}
        host.watch(disconnected=self._disconnected)

    def start(self) -> None:
        """Begin to serve; connected peers learn of it through identify."""
        self._host.set_handler(HOP_PROTOCOL, self._serve)

    def stop(self) -> None:
        """Take no more requests; open circuits live on until they end."""
        self._host.set_handler(HOP_PROTOCOL, None)

    def statistics(self) -> RelayStatistics:
        """What has been done so far."""
        return RelayStatistics(
            reservations=len(self._table.reservations(self._clock())),
            circuits=self._table.circuits,
            circuits_opened=self._opened,
            bytes_relayed=self._bytes,
            refused=dict(self._refused),
        )

    async def _serve(self, stream: MuxedStream) -> None:
        peer, place = stream.peer_id, origin(stream.remote)
        if (
            self._requests.total() >= MAX_REQUESTS
            or self._requests_from[place] >= MAX_REQUESTS_PER_ORIGIN
            or self._requests[peer] >= MAX_REQUESTS_PER_PEER
        ):
            self._refused["TOO_MANY_REQUESTS"] += 1
            stream.abort()
            return
        self._requests[peer] += 1
        self._requests_from[place] += 1
        try:
            call = await self._answer(stream)
        finally:
            self._requests[peer] -= 1
            self._requests_from[place] -= 1
            # drops the keys at 0, which every stranger would leave
            self._requests, self._requests_from = +self._requests, +self._requests_from
        if call is not None:
            circuit, target = call
            try:
                await self._relay(circuit, stream, target)
            finally:
                self._table.close_circuit(circuit)

    async def _answer(self, stream: MuxedStream) -> tuple[Circuit, MuxedStream] | None:
        """Read one request and answer it; a circuit and its other stream if one was opened."""
        try:
            with trio.fail_after(REQUEST_SECONDS):
                reader = DelimitedReader(stream)
                body = await reader.read(MAX_MESSAGE_BYTES)
            if body is None:
                return None
            request = decode_hop(body)
            stream.put_back(bytes(reader.rest))
            if request.type is HopType.RESERVE:
                await self._reserve(stream)
            elif request.type is HopType.CONNECT and request.peer is not None:
                return await self._connect(stream, request.peer)
            else:
                await self._refuse(stream, Status.UNEXPECTED_MESSAGE)
        except MalformedMessage:
            await self._refuse(stream, Status.MALFORMED_MESSAGE)
        except RelayRefused as refusal:
            await self._refuse(stream, refusal.status)
        return None

    def _disconnected(self, peer_id: PeerId) -> None:
        self._reserved_on.pop(peer_id, None)
        self._table.disconnected(peer_id)

    async def _reserve(self, stream: MuxedStream) -> None:
        if not stream.carrier.is_open:
            return  # it has hung up since, and nothing would end its reservation before its time
        peer_id, now = PeerId(stream.peer_id), self._clock()
        reservation = self._table.reserve(peer_id, origin(stream.remote), now, relayed=_is_relayed(stream))
        self._reserved_on[peer_id] = stream.carrier
        info = ReservationInfo(
            expire=math.floor(self._wall_clock() + reservation.expires_at - now),
            addrs=tuple(each.with_peer(self._host.peer_id).to_bytes() for each in self._addresses()),
        )
        await self._send(
            stream, HopMessage(HopType.STATUS, reservation=info, limit=self._told_limit(), status=Status.OK)
        )

    async def _connect(self, stream: MuxedStream, target: PeerId) -> tuple[Circuit, MuxedStream]:
        circuit = self._table.open_circuit(
            PeerId(stream.peer_id), origin(stream.remote), target, self._clock(), relayed=_is_relayed(stream)
        )
        other: MuxedStream | None = None
        try:
            other = await self._call(circuit)
            await self._send(stream, HopMessage(HopType.STATUS, limit=self._told_limit(), status=Status.OK))
        except BaseException:
            self._table.close_circuit(circuit)
            if other is not None:
                other.abort()
            raise
        self._opened += 1
        return circuit, other

    async def _call(self, circuit: Circuit) -> MuxedStream:
        """Ask the target to take the circuit; its stream once it has agreed."""
        other: MuxedStream | None = None
        try:
            with trio.fail_after(CALL_SECONDS):
                other = await self._host.open_stream(
                    circuit.target,
                    STOP_PROTOCOL,
                    timeout=CALL_SECONDS,
                    on=self._reserved_on.get(circuit.target),
                )
                call = StopMessage(StopType.CONNECT, peer=circuit.source, limit=self._told_limit())
                await write_delimited(other, encode_stop(call))
                reader = DelimitedReader(other)
                body = await reader.read(MAX_MESSAGE_BYTES)
            answer = decode_stop(body) if body is not None else None
            if answer is None or answer.type is not StopType.STATUS or answer.status != Status.OK:
                status = "nothing" if answer is None else status_name(answer.status)
                raise PeerError(f"answered the call with {status}")
            other.put_back(bytes(reader.rest))
            return other
        except (PeerError, trio.TooSlowError) as error:
            if other is not None:
                other.abort()
            raise RelayRefused(
                Status.CONNECTION_FAILED, f"{circuit.target}: {error}", peer=circuit.source
            ) from None
        except BaseException:
            if other is not None:
                other.abort()
            raise

    async def _relay(self, circuit: Circuit, source: MuxedStream, target: MuxedStream) -> None:
        """Copy both ways until both have ended, one breaks, or a limit is reached."""
        waiting = _Waiting()
        try:
            async with trio.open_nursery() as nursery:
                if circuit.over_at is not None:
                    remaining = circuit.over_at - self._clock()
                    nursery.cancel_scope.deadline = trio.current_time() + remaining

                async def copy(reader: MuxedStream, writer: MuxedStream, *, to_target: bool) -> None:
                    if not await self._copy(circuit, reader, writer, waiting, to_target=to_target):
                        nursery.cancel_scope.cancel()
                    waiting.ways_open -= 1
                    if not waiting.ways_open:
                        nursery.cancel_scope.cancel()

                nursery.start_soon(lambda: copy(source, target, to_target=True))
                nursery.start_soon(lambda: copy(target, source, to_target=False))
                await _watch(waiting)
                nursery.cancel_scope.cancel()
        finally:
            # Streams that have ended both ways are over already; for them this does nothing.
            source.abort()
            target.abort()

    async def _copy(
        self,
        circuit: Circuit,
        reader: MuxedStream,
        writer: MuxedStream,
        waiting: _Waiting,
        *,
        to_target: bool,
    ) -> bool:
        """Copy one way; True if it ended in good order, False if the circuit must be reset."""
        try:
            while True:
                room = circuit.room(to_target=to_target, at_most=_READ_BYTES)
                if not room:
                    return False
                data = await reader.read(room)
                if not data:
                    writer.close_write()
                    return True
                waiting.since[to_target] = trio.current_time()
                await writer.write(data)
                waiting.since[to_target] = math.inf
                self._bytes += len(data)
                delay = circuit.passed(len(data), self._clock(), to_target=to_target)
                if delay:
                    await trio.sleep(delay)
        except PeerError:
            return False

    async def _refuse(self, stream: MuxedStream, status: Status) -> None:
        self._refused[status.name] += 1
        await self._send(stream, HopMessage(HopType.STATUS, status=status))

    async def _send(self, stream: MuxedStream, message: HopMessage) -> None:
        with trio.fail_after(REQUEST_SECONDS):
            await write_delimited(stream, encode_hop(message))

    def _told_limit(self) -> Limit | None:
        # the spec's way to say "no limit" is to leave it out
        limit = self._limits.limit()
        return limit if limit.duration or limit.data else None


class _Waiting:
    """Since when each way of a circuit has been waiting for its reader to take something.

    Attributes:
        since: by direction (True is to the target); infinity while it does not wait.
        ways_open: directions that have not ended.
    """

    def __init__(self) -> None:
        self.since = {True: math.inf, False: math.inf}
        self.ways_open = 2


async def _watch(waiting: _Waiting) -> None:
    """Return when one way has been stuck too long. One timer a circuit: one for each write costs more."""
    while trio.current_time() - min(waiting.since.values()) < STALL_SECONDS:
        await trio.sleep(_STALL_CHECK_SECONDS)


def _is_relayed(stream: MuxedStream) -> bool:
    return stream.remote.startswith("relay ")
