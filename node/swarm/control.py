"""The control plane of a node put together: libp2p connections, relays as client and as service, membership.

In a private swarm a relay serves members only. A control connection proves a peer id but no membership, so a
node shows its certificate on `/panal/member/1` before it asks: one message, the proof as in the QUIC
handshake (routing.membership), answered by one byte.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from node.config import RelayConfig
from relay.circuit import RelayClient, RelayReservation, ReservationChange
from relay.circuit_stream import CircuitStream
from relay.hop_wire import HOP_PROTOCOL
from relay.reservations import RelayLimits
from relay.service import RelayService
from relay.websocket import client_tls, connect
from relay.websocket_listener import WebSocketDoor, parse_proxies, server_tls
from routing.byte_stream import ByteStream, Meter
from routing.control_address import ControlAddress
from routing.dial_limits import DialLimits
from routing.errors import HeldBack, LocalError, PeerError
from routing.identity import Identity, PeerId
from routing.libp2p.host import ControlHost
from routing.libp2p.muxed_stream import MuxedStream
from routing.membership import CERTIFICATE_BYTES, SWARM_ID_BYTES, Membership, check_proof, proof
from routing.quic.carried import PROTOCOL_ID as DATAGRAMS
from routing.race import first

log = logging.getLogger("panal.control")

MEMBER = "/panal/member/1"
_TAKEN = b"\x01"

SHOW_TIMEOUT = 5.0
"""Seconds to show a certificate: one round trip on the worst of links, and the time to check a signature."""

MAX_RELAYS_USED = 2
"""Relays a node keeps a reservation with: one may go."""

RELAY_PATIENCE = 12.0
"""Seconds for a relay to grant a reservation before another gets its place: adverts may tell of relays that
do not exist, are full, or let only others in. All of a relay's addresses are dialed twice by then."""


@dataclass(eq=False)
class _Kept:
    """A relay that should hold a reservation for this node.

    Attributes:
        addresses: where it may be dialed, as last heard.
        since: when it was taken, or its reservation was lost, on trio's clock.
    """

    addresses: Sequence[ControlAddress]
    since: float
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


@contextmanager
def _named(key: str) -> Iterator[None]:
    """An error of ours names the config key it comes from."""
    try:
        yield
    except LocalError as error:
        raise LocalError(f"{key}: {error}") from None


class Control:
    """The control plane.

    Args:
        listen: where TCP is accepted; None only dials.
        share_port: the HTTP door has the same port on loopback.
        any_port: where the port is taken, another one will do.
        on_stream: handed each stream of carried QUIC that a peer opens, directly or through a relay, and the
            relay's limits.
        on_reservations: called when the relays through which this node can be reached have changed.
    """

    def __init__(
        self,
        identity: Identity,
        membership: Membership,
        config: RelayConfig,
        *,
        listen: tuple[str, int] | None,
        share_port: bool = False,
        any_port: bool = False,
        on_stream: Callable[[ByteStream, Meter | None], Awaitable[None]],
        on_reservations: Callable[[], None],
    ) -> None:
        self._membership = membership
        self._config = config
        # read now: a file that cannot be used is told at the start, not when somebody dials
        with _named("relay.ca"):
            if config.ca is not None:
                client_tls(config.ca)
        with _named("relay.certificate"):
            self._tls = None
            if config.certificate is not None and config.certificate_key is not None:
                self._tls = server_tls(config.certificate, config.certificate_key)
        self._on_reservations = on_reservations
        self.host = ControlHost(identity, listen=listen, share_port=share_port, any_port=any_port)
        self.client = RelayClient(self.host, ca_file=config.ca)
        self.service: RelayService | None = None
        self._members: set[PeerId] = set()
        self._shown: set[PeerId] = set()
        self._reservations: dict[PeerId, RelayReservation] = {}
        self._keeping: dict[PeerId, _Kept] = {}
        self._given_up: dict[PeerId, float] = {}  # when
        self._limits = DialLimits()
        self._nursery: trio.Nursery | None = None
        self.host.watch(disconnected=self._disconnected)
        self.host.set_handler(MEMBER, self._take_proof)

        async def take_stream(stream: MuxedStream) -> None:
            await on_stream(stream, None)

        async def take_circuit(circuit: CircuitStream) -> None:
            await on_stream(circuit, _meter_of(circuit))

        self.host.set_handler(DATAGRAMS, take_stream)
        self.client.accept_datagram_circuits(take_circuit)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled.

        Raises:
            LocalError: a port is in use, a certificate cannot be read.
        """
        async with trio.open_nursery() as nursery:
            with _named("swarm.control"):
                await nursery.start(self.host.run)
            self._nursery = nursery
            try:
                if self._config.table.serve:
                    await self._serve_relay(nursery)
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def connect(self, address: ControlAddress, *, timeout: float) -> None:
        """Connect to a peer at any kind of control address.

        Raises:
            PeerError, LocalError: it did not work.
        """
        await connect(self.host, address, timeout=timeout, ca_file=self._config.ca)

    # --- ways (node.swarm.ways.ControlPlane) ---

    async def stream_to(self, address: ControlAddress, protocol: str, *, timeout: float) -> ByteStream:
        """A stream to a peer that takes TCP or WebSocket connections."""
        assert address.peer_id is not None
        await self.connect(address, timeout=timeout)
        return await self.host.open_stream(address.peer_id, protocol, timeout=timeout)

    async def circuit_to(
        self, relay: ControlAddress, peer_id: PeerId, *, timeout: float
    ) -> tuple[ByteStream, Meter | None]:
        """A circuit through a relay, and what its relay lets through; None if it does not count."""
        with trio.move_on_after(timeout):
            await self.show_membership(relay)
            circuit = await self.client.open_datagram_circuit(relay, peer_id)
            return circuit, _meter_of(circuit)
        raise PeerError(f"no circuit to {peer_id} through {relay} within {timeout:g} s", peer=peer_id)

    # --- relays ---

    @property
    def reserved(self) -> list[ControlAddress]:
        """Relays through which this node can be reached, as others should dial them."""
        found: list[ControlAddress] = []
        for relay_id, reservation in self._reservations.items():
            found.append(reservation.relay)
            found += [each.with_peer(relay_id) for each in reservation.addresses]
        return list(dict.fromkeys(found))

    def use_relays(self, relays: Sequence[ControlAddress]) -> None:
        """Keep reservations with a few of these, and give up those with others.

        A relay in use is not exchanged for another. One that grants nothing is, if there is another: first
        for those that were never tried, then for who was given up longest ago.
        """
        wanted: dict[PeerId, list[ControlAddress]] = {}
        for relay in relays:
            if relay.peer_id is not None and relay.peer_id != self.host.peer_id:
                wanted.setdefault(relay.peer_id, []).append(relay)
        now = trio.current_time()
        self._given_up = {each: when for each, when in self._given_up.items() if each in wanted}

        def order(relay_id: PeerId) -> tuple[int, float]:
            kept = self._keeping.get(relay_id)
            if kept is not None and (relay_id in self._reservations or now - kept.since < RELAY_PATIENCE):
                return 0, kept.since
            return 1, now if kept is not None else self._given_up.get(relay_id, 0.0)

        chosen = sorted(wanted, key=order)[:MAX_RELAYS_USED]
        for relay_id in set(self._keeping) - set(chosen):
            self._keeping.pop(relay_id).scope.cancel()
            self._given_up[relay_id] = now
        for relay_id in chosen:
            if relay_id in self._keeping:
                self._keeping[relay_id].addresses = wanted[relay_id]
            elif self._nursery is not None:
                kept = self._keeping[relay_id] = _Kept(wanted[relay_id], now)
                self._nursery.start_soon(self._keep_reserved, relay_id, kept)

    def relay_peers(self) -> list[ControlAddress]:
        """Connected peers that relay for others, of whatever implementation."""
        found = []
        for peer_id in self.host.connected_peers:
            info = self.host.info(peer_id)
            if info is not None and HOP_PROTOCOL in info.protocols:
                found += [each.with_peer(peer_id) for each in info.addresses]
        return found

    async def show_membership(self, relay: ControlAddress) -> None:
        """Prove to a connected or dialed peer that this node is a member; nothing to prove in an open swarm.

        Raises:
            PeerError: it does not answer. One that speaks no MEMBER (a relay of others) is passed over.
        """
        if not self._membership.swarm.is_private or relay.peer_id in self._shown:
            return
        assert relay.peer_id is not None
        await self.connect(relay, timeout=SHOW_TIMEOUT)
        info = await self.host.wait_identified(relay.peer_id)
        if info is None or MEMBER not in info.protocols:
            return
        stream = await self.host.open_stream(relay.peer_id, MEMBER, timeout=SHOW_TIMEOUT)
        try:
            with trio.move_on_after(SHOW_TIMEOUT):
                await stream.write(proof(self._membership))
                if await stream.read(1) == _TAKEN:
                    self._shown.add(relay.peer_id)
                    return
            raise PeerError(f"{relay} did not take this node's member certificate", peer=relay.peer_id)
        finally:
            stream.abort()

    # --- inside ---

    async def _serve_relay(self, nursery: trio.Nursery) -> None:
        table = self._config.table
        limits = RelayLimits(
            reservations=table.reservations,
            reservations_per_ip=table.reservations_per_ip,
            circuits=table.circuits,
            circuit_seconds=table.circuit_seconds,
            circuit_bytes=table.circuit_bytes,
            circuit_bytes_per_second=table.circuit_bytes_per_second,
            bytes_per_second=table.bytes_per_second,
        )
        self.service = RelayService(
            self.host, limits, allow=self._may_use_relay, addresses=lambda: self._config.announce
        )
        self.service.start()
        if self._config.websocket is None:
            return

        async def take(stream: trio.abc.Stream, remote: str) -> None:
            await self.host.serve_stream(stream, remote=remote)

        door = WebSocketDoor(take, trusted_proxies=parse_proxies(table.trusted_proxies), tls=self._tls)
        with _named("relay.websocket"):
            await nursery.start(door.serve, *self._config.websocket)

    def _may_use_relay(self, peer_id: PeerId) -> bool:
        return not self._membership.swarm.is_private or peer_id in self._members

    async def _take_proof(self, stream: MuxedStream) -> None:
        with trio.move_on_after(SHOW_TIMEOUT):
            shown = b""
            want = SWARM_ID_BYTES + (CERTIFICATE_BYTES if self._membership.swarm.is_private else 0)
            while len(shown) < want:
                data = await stream.read(want - len(shown))
                if not data:
                    break
                shown += data
            peer_id = PeerId(stream.peer_id)
            reason = check_proof(self._membership.swarm, shown, peer_id, time.time())
            if reason:
                log.info("%s %s", peer_id, reason)
                stream.abort()
                return
            if self.host.is_connected(peer_id):
                self._members.add(peer_id)
                await stream.write(_TAKEN)

    async def _keep_reserved(self, relay_id: PeerId, kept: _Kept) -> None:
        def changed(change: ReservationChange) -> None:
            if change.reservation is not None:
                new = relay_id not in self._reservations
                self._reservations[relay_id] = change.reservation
                if new:
                    log.info("reachable through relay %s", relay)
                    self._on_reservations()
            elif self._reservations.pop(relay_id, None) is not None:
                kept.since = trio.current_time()
                log.warning("no longer reachable through relay %s: %s", relay, change.reason)
                self._on_reservations()
            else:
                log.debug("no reservation at %s: %s", relay, change.reason)

        try:
            with kept.scope:
                relay = await self._reach_relay(relay_id, kept)
                await self.client.keep_reserved(relay, changed)
        finally:
            is_last = self._keeping.get(relay_id, kept) is kept  # nobody has begun anew with it
            if is_last and self._reservations.pop(relay_id, None) is not None:
                self._on_reservations()

    async def _reach_relay(self, relay_id: PeerId, kept: _Kept) -> ControlAddress:
        """The first of a relay's addresses that can be dialed from here, once this node is known there."""

        def reach(relay: ControlAddress) -> Callable[[], Awaitable[ControlAddress]]:
            async def connect() -> ControlAddress:
                if not self._limits.may(relay.host, trio.current_time()):
                    raise HeldBack(f"{relay.host} was dialed too often without an answer", peer=relay_id)
                await self.connect(relay, timeout=SHOW_TIMEOUT)
                self._limits.answered(relay.host)
                await self.show_membership(relay)
                return relay

            return connect

        while True:
            try:
                return await first(relay_id, [reach(each) for each in kept.addresses], lambda relay: None)
            except (PeerError, LocalError) as error:
                log.debug("%s", error)
            await trio.sleep(SHOW_TIMEOUT)

    def _disconnected(self, peer_id: PeerId) -> None:
        self._members.discard(peer_id)
        self._shown.discard(peer_id)


def _meter_of(circuit: CircuitStream) -> Meter | None:
    return None if circuit.limit is None else circuit.left
