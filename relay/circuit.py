"""Being reached, and reaching others, through a relay: libp2p's circuit relay v2, the client's side.

Source: libp2p specs, `relay/circuit-v2.md`. Any relay of any implementation will do. Rules kept here:

1. `RelayClient.keep_reserved` holds a reservation: refreshed long before it ends, made again with growing
   pauses after the relay was lost or has refused.
2. The peer id at the far end of a circuit is the relay's word and nothing more. Whatever runs inside must
   prove it (our QUIC does, in its handshake).
3. Circuits are taken only from relays we hold a reservation with, and only so many.
4. On a circuit both ends agree on DATAGRAMS_PROTOCOL with multistream-select, optimistically: the first
   datagrams leave together with the question. What they carry is routing/quic's matter.
5. A relay may end a circuit after so many seconds or bytes, and says so beforehand: see `CircuitStream.left`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import trio

from relay.circuit_stream import CircuitStream, understood
from relay.hop_wire import (
    HOP_PROTOCOL,
    MAX_MESSAGE_BYTES,
    STOP_PROTOCOL,
    HopMessage,
    HopType,
    Limit,
    Status,
    StopMessage,
    StopType,
    decode_hop,
    decode_stop,
    encode_hop,
    encode_stop,
    status_name,
)
from relay.websocket import connect
from routing.control_address import ControlAddress
from routing.errors import LocalError, PeerError
from routing.identity import PeerId
from routing.libp2p.delimited import DelimitedReader, write_delimited
from routing.libp2p.host import ControlHost
from routing.libp2p.muxed_stream import MuxedStream
from routing.wire.multistream import Dialer, Listener

DATAGRAMS_PROTOCOL = "/panal/datagrams/1"

# Dialing the relay: TCP, TLS, WebSocket and Noise are some eight round trips.
CONNECT_SECONDS = 15.0
# One request; a CONNECT includes the relay's call to the target, which has 10 s of its own.
REQUEST_SECONDS = 15.0
# A circuit that was accepted must name its protocol by then.
AGREE_SECONDS = 10.0
# Refresh when this part of a reservation's life is over: two more tries fit into the rest.
REFRESH_AT = 0.5
# Whatever the relay says (its clock may be minutes off): not more often, not less often.
MIN_REFRESH_SECONDS = 30.0
MAX_REFRESH_SECONDS = 30 * 60.0
# Pauses between tries: doubled each time, with a random part so that a restarted relay isn't stormed.
FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 60.0
# Who refused us will not have changed its mind in a second.
REFUSED_PAUSE_SECONDS = 15.0
# Circuits that others may have open to us: several dozen backbones, some with the four or so that a relay
# with small limits takes, and no more memory than that.
MAX_INBOUND_CIRCUITS = 128


class CircuitRefused(PeerError):
    """The relay, or the target behind it, said no.

    Attributes:
        status: as in `relay.hop_wire.Status`, or a later version's number; None if there was none.
    """

    def __init__(self, message: str, *, peer: str, status: int | None) -> None:
        super().__init__(message, peer=peer)
        self.status = status


@dataclass(frozen=True)
class RelayReservation:
    """Our right to be called through a relay.

    Attributes:
        relay: where the relay was dialed.
        expires_at: Unix time by the relay's clock.
        addresses: where the relay says that others can dial it; forms we don't speak are left out.
        limit: of each circuit; None if the relay names none.
    """

    relay: ControlAddress
    expires_at: int
    addresses: tuple[ControlAddress, ...]
    limit: Limit | None


@dataclass(frozen=True)
class ReservationChange:
    """What `keep_reserved` reports.

    Attributes:
        state: "reserved" (also at each refresh) or "lost".
        relay: which relay.
        reservation: if reserved.
        reason: if lost: one line, for people.
    """

    state: Literal["reserved", "lost"]
    relay: ControlAddress
    reservation: RelayReservation | None = None
    reason: str = ""


class RelayClient:
    """Reserves at relays, calls and is called through them.

    Args:
        host: the control host; its handler of the stop protocol becomes ours with `accept_datagram_circuits`.
        ca_file: the certificate authorities to trust for `/wss` relays in place of the system's.
        rng: for the random part of pauses.
        wall_clock: Unix time, to be compared with the expiry that relays name.

    Attributes:
        host: the control host.
    """

    def __init__(
        self,
        host: ControlHost,
        *,
        ca_file: Path | None = None,
        rng: random.Random | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.host = host
        self._ca_file = ca_file
        self._rng = rng or random.Random()
        self._wall_clock = wall_clock
        self._reserved: set[PeerId] = set()
        # The first call may arrive together with the answer that grants the reservation.
        self._asked: set[PeerId] = set()
        self._some_peer_left = trio.Event()
        self._dialing: dict[ControlAddress, trio.Lock] = {}
        self._accepted = 0
        host.watch(disconnected=self._note_disconnected)

    @property
    def relays(self) -> frozenset[PeerId]:
        """The relays we can be called through now."""
        return frozenset(self._reserved)

    async def reserve(self, relay: ControlAddress) -> RelayReservation:
        """Make or refresh a reservation, connecting to the relay first if need be.

        Raises:
            CircuitRefused: the relay said no.
            PeerError: it can't be reached, or does not speak the protocol.
        """
        peer_id = await self._connect(relay)
        self._asked.add(peer_id)
        try:
            stream, answer = await _ask(self.host, peer_id, HopMessage(HopType.RESERVE))
            if answer.status == Status.OK and answer.reservation is not None:
                self._reserved.add(peer_id)
        finally:
            self._asked.discard(peer_id)
        await stream.aclose()
        if answer.status != Status.OK or answer.reservation is None:
            raise CircuitRefused(
                f"relay {relay} gives no reservation: {status_name(answer.status)}",
                peer=peer_id,
                status=answer.status,
            )
        addresses = []
        for data in answer.reservation.addrs:
            try:
                addresses.append(ControlAddress.from_bytes(data))
            except ValueError:
                continue
        return RelayReservation(relay, answer.reservation.expire, tuple(addresses), understood(answer.limit))

    async def keep_reserved(
        self, relay: ControlAddress, on_change: Callable[[ReservationChange], None]
    ) -> None:
        """Hold a reservation until cancelled, whatever happens to the relay. `on_change` must not wait."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                reservation = await self.reserve(relay)
            except (PeerError, LocalError) as error:  # also ours: a file of authorities that is gone
                on_change(ReservationChange("lost", relay, reason=str(error)))
                if isinstance(error, CircuitRefused):
                    pause = max(pause, REFUSED_PAUSE_SECONDS)
                await trio.sleep(pause * (0.5 + self._rng.random()))
                pause = min(2 * pause, MAX_PAUSE_SECONDS)
                continue
            pause = FIRST_PAUSE_SECONDS
            on_change(ReservationChange("reserved", relay, reservation))
            wait = REFRESH_AT * (reservation.expires_at - self._wall_clock())
            with trio.move_on_after(min(max(wait, MIN_REFRESH_SECONDS), MAX_REFRESH_SECONDS)):
                while relay.peer_id in self._reserved and self.host.is_connected(relay.peer_id):
                    await self._some_peer_left.wait()
                on_change(ReservationChange("lost", relay, reason=f"the connection to relay {relay} ended"))

    async def dial_through(self, relay: ControlAddress, peer_id: PeerId) -> CircuitStream:
        """Open a raw circuit to a peer that has a reservation with this relay.

        The far end's identity is not proven by this.

        Raises:
            CircuitRefused: NO_RESERVATION, CONNECTION_FAILED and the like; `status` says which.
            PeerError: the relay can't be reached, or does not speak the protocol.
        """
        stream, limit = await self._call(relay, peer_id)
        return CircuitStream(stream, peer_id, limit)

    async def open_datagram_circuit(self, relay: ControlAddress, peer_id: PeerId) -> CircuitStream:
        """A circuit for DATAGRAMS_PROTOCOL, to be written to at once.

        `peer_id` is not proven: QUIC inside must do that.

        Raises:
            CircuitRefused: as `dial_through`.
            PeerError: as `dial_through`; and from the first read, if the far end does not speak the protocol.
        """
        stream, limit = await self._call(relay, peer_id)
        dialer = Dialer(DATAGRAMS_PROTOCOL)
        circuit = CircuitStream(stream, peer_id, limit, negotiation=dialer)
        try:
            await circuit.write(dialer.opening())
        except BaseException:  # given up: the relay must not count it for longer
            circuit.abort()
            raise
        return circuit

    def accept_datagram_circuits(
        self,
        handle: Callable[[CircuitStream], Awaitable[None]],
        *,
        max_circuits: int = MAX_INBOUND_CIRCUITS,
    ) -> None:
        """Take circuits that others open to us through relays we have reserved at.

        Args:
            handle: called for each circuit once both ends have agreed on DATAGRAMS_PROTOCOL; the circuit ends
                when it returns. Its `peer_id` is only what the relay claims: QUIC inside must prove it.
            max_circuits: more at once are refused.
        """

        async def serve(stream: MuxedStream) -> None:
            if PeerId(stream.peer_id) not in self._reserved | self._asked:
                await _answer_call(stream, Status.PERMISSION_DENIED)  # a stranger takes no relay's place
                return
            if self._accepted >= max_circuits:
                await _answer_call(stream, Status.RESOURCE_LIMIT_EXCEEDED)
                return
            self._accepted += 1
            try:
                circuit = await self._take_call(stream)
                if circuit is not None:
                    await handle(circuit)
            finally:
                self._accepted -= 1

        self.host.set_handler(STOP_PROTOCOL, serve)

    async def _connect(self, relay: ControlAddress) -> PeerId:
        if relay.peer_id is None:
            raise LocalError(f"relay {relay} names no peer: write it with /p2p/PEER-ID at the end")
        # one dial of an address at a time: the next in line finds the connection there; another address of
        # the same relay does not wait, since of a relay's addresses some may lead nowhere from here
        lock = self._dialing.setdefault(relay, trio.Lock())
        try:
            async with lock:
                await connect(self.host, relay, timeout=CONNECT_SECONDS, ca_file=self._ca_file)
        finally:
            if not lock.locked():
                self._dialing.pop(relay, None)
        return relay.peer_id

    async def _call(self, relay: ControlAddress, peer_id: PeerId) -> tuple[MuxedStream, Limit | None]:
        relay_id = await self._connect(relay)
        stream, answer = await _ask(self.host, relay_id, HopMessage(HopType.CONNECT, peer=peer_id))
        if answer.status != Status.OK:
            await stream.aclose()
            raise CircuitRefused(
                f"no circuit to {peer_id} through relay {relay}: {status_name(answer.status)}",
                peer=peer_id,
                status=answer.status,
            )
        return stream, answer.limit

    async def _take_call(self, stream: MuxedStream) -> CircuitStream | None:
        with trio.fail_after(AGREE_SECONDS):
            reader = DelimitedReader(stream)
            body = await reader.read(MAX_MESSAGE_BYTES)
            if body is None:
                return None
            call = decode_stop(body)
            stream.put_back(bytes(reader.rest))
            if call.type is not StopType.CONNECT or call.peer is None:
                await _answer_call(stream, Status.UNEXPECTED_MESSAGE)
                return None
            await _answer_call(stream, Status.OK)
            circuit = CircuitStream(stream, call.peer, call.limit)
            listener = Listener((DATAGRAMS_PROTOCOL,))
            while listener.agreed is None:
                data = await circuit.read(MAX_MESSAGE_BYTES)
                if not data:
                    return None
                try:
                    listener.receive_data(data)
                finally:
                    if answer := listener.data_to_send():
                        await circuit.write(answer)
            circuit.put_back(listener.trailing_data)
            return circuit

    def _note_disconnected(self, peer_id: PeerId) -> None:
        self._reserved.discard(peer_id)
        self._some_peer_left.set()
        self._some_peer_left = trio.Event()


async def _answer_call(stream: MuxedStream, status: Status) -> None:
    await write_delimited(stream, encode_stop(StopMessage(StopType.STATUS, status=status)))


async def _ask(host: ControlHost, relay: PeerId, request: HopMessage) -> tuple[MuxedStream, HopMessage]:
    """One request on a new stream; the stream and the relay's answer."""
    stream = await host.open_stream(relay, HOP_PROTOCOL, timeout=REQUEST_SECONDS)
    try:
        with trio.fail_after(REQUEST_SECONDS):
            await write_delimited(stream, encode_hop(request))
            reader = DelimitedReader(stream)
            body = await reader.read(MAX_MESSAGE_BYTES)
        if body is None:
            raise PeerError(f"relay {relay} ended the stream without an answer", peer=relay)
        answer = decode_hop(body)
        if answer.type is not HopType.STATUS:
            raise PeerError(f"relay {relay} answered with a {answer.type.name} message", peer=relay)
        stream.put_back(bytes(reader.rest))
        return stream, answer
    except trio.TooSlowError:
        stream.abort()
        raise PeerError(f"relay {relay} did not answer within {REQUEST_SECONDS:.0f} s", peer=relay) from None
    except BaseException:
        stream.abort()
        raise
