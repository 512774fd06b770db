"""Goes the ways to a peer that the policy names (routing.routes), and knows how connections came about."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol
from weakref import WeakKeyDictionary

import trio

from node.swarm.candidates import Candidate, Candidates
from node.swarm.carrying import Carrying
from relay.circuit import CircuitRefused
from relay.hop_wire import Status
from relay.reachability import Filtering, Mapping, Reach, Reachability, can_punch
from routing.byte_stream import ByteStream, Meter
from routing.control_address import ControlAddress
from routing.dial_limits import DialLimits
from routing.errors import HeldBack, PeerError
from routing.identity import PeerId
from routing.links import DIAL_TIMEOUT
from routing.multiaddr import PeerAddress
from routing.quic.accepted import AcceptedPaths
from routing.quic.carried import PROTOCOL_ID as DATAGRAMS
from routing.quic.connection import CLOSE_NORMAL, Connection
from routing.quic.endpoint import Endpoint
from routing.race import first
from routing.routes import OPENED_BY_PEER, Attempt, Kind, Route, Standing, Way, ways

log = logging.getLogger("panal.ways")

CIRCUIT_TIMEOUT = 10.0
"""Seconds for a relayed connection: to the relay, through it, and the handshake with the peer at three times
the usual round trip."""

_Opened = tuple[ControlAddress, ByteStream, Meter | None]
"""A relay, a circuit through it, and what it lets through."""


class ControlPlane(Protocol):
    """What the ways need of the control plane."""

    async def stream_to(self, address: ControlAddress, protocol: str, *, timeout: float) -> ByteStream:
        """A stream to a peer that takes TCP or WebSocket connections."""

    async def circuit_to(
        self, relay: ControlAddress, peer_id: PeerId, *, timeout: float
    ) -> tuple[ByteStream, Meter | None]:
        """A circuit through a relay, and what its relay lets through; None if it does not count."""


class Meeting(Protocol):
    """Two nodes that have a relayed connection look for a direct one (relay.punch)."""

    async def punch(self, over: Connection) -> Connection:
        """Probe from both sides at once; PeerError if nothing came through."""

    async def call_back(self, over: Connection) -> Connection:
        """Have the peer dial this node; PeerError if it did not arrive."""

    async def call_back_over_tcp(self, over: Connection) -> Connection:
        """The same over TCP."""


class Ways:
    """A `routing.links.Wayfinder`.

    Args:
        own: this node's standing now.
        control: None where the control plane is off.
        meeting: None where nothing can be agreed on (no handlers for it).
        use_relays: whether the config lets traffic go through relays.
        is_seen: whether this node knows where others see it, without which it cannot be met half-way.
        takes_tcp: whether this node listens for TCP and says where in its advert.
        note_contact: told of each host before anything is sent there: who answers later was invited.
        note_dial: told of each dial over UDP and whether it was answered.
        limits: how often hosts that others name are dialed without an answer.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        candidates: Candidates,
        own: Callable[[], Standing],
        *,
        control: ControlPlane | None,
        meeting: Meeting | None,
        use_relays: bool,
        is_seen: Callable[[], bool] = lambda: True,
        takes_tcp: bool = False,
        note_contact: Callable[[str], None] = lambda host: None,
        note_dial: Callable[[str, bool], None] = lambda peer_id, answered: None,
        limits: DialLimits | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._candidates = candidates
        self._own = own
        self._control = control
        self._meeting = meeting
        self._use_relays = use_relays
        self._is_seen = is_seen
        self._takes_tcp = takes_tcp
        self._note_contact = note_contact
        self._note_dial = note_dial
        self._accepted = AcceptedPaths(endpoint)
        self._limits = limits or DialLimits()
        self._routes: WeakKeyDictionary[Connection, Route] = WeakKeyDictionary()
        self._carrying = Carrying(endpoint)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry connections in streams until cancelled."""
        await self._carrying.run(task_status=task_status)

    # --- Wayfinder ---

    def attempts(self, peer_id: str) -> list[Attempt]:
        candidate = self._candidates.find(peer_id)
        if candidate is None:
            return []
        found = ways(
            self._own(),
            candidate.standing,
            same_network=bool(candidate.near),
            same_machine=candidate.on_this_machine,
            punchable=_punchable,
        )
        return [each for each in found if self._possible(each.way, candidate)]

    async def carry_out(
        self, peer_id: str, attempt: Attempt, over: Connection | None
    ) -> tuple[Connection, Route]:
        candidate = self._candidates.find(peer_id)
        if candidate is None:
            raise PeerError(f"{self.label(peer_id)}: no address is known", peer=peer_id)
        way, transport, via = attempt.way, "udp", ""
        if way is Way.DIAL:
            connection = await self._dial(candidate)
        elif way is Way.DIAL_TCP:
            connection, transport = await self._dial_tcp(candidate), "tcp"
        elif way is Way.RELAY:
            connection, via = await self._relay(candidate)
            transport = "tcp"
        else:
            assert over is not None and self._meeting is not None
            meeting = self._meeting
            if way is Way.PUNCH:
                connection = await meeting.punch(over)
            elif way is Way.CALL_BACK:
                connection = await meeting.call_back(over)
            else:
                connection, transport = await meeting.call_back_over_tcp(over), "tcp"
        route = Route(
            way.kind, attempt.reason, "tcp" if transport == "tcp" else "udp", via=via, rank=way.value
        )
        self._routes[connection] = route
        return connection, route

    def route_of(self, connection: Connection) -> Route:
        known = self._routes.get(connection)
        if known is not None:
            return known
        if not connection.is_carried:
            return Route(Kind.DIRECT, OPENED_BY_PEER)
        path = self._endpoint.path_of(connection)
        origin = path.origin if path is not None else ""
        if origin.startswith("relay "):
            return Route(
                Kind.RELAYED,
                "the peer opened it through a relay",
                "tcp",
                via=origin.removeprefix("relay "),
                rank=Way.RELAY.value,
            )
        return Route(
            Kind.DIRECT, "UDP is blocked at the peer: it dialed over TCP", "tcp", rank=Way.DIAL_TCP.value
        )

    def label(self, peer_id: str) -> str:
        return self._candidates.label(peer_id)

    # --- for the node ---

    def punched(self, connection: Connection) -> None:
        """A connection came about by punching that the peer began."""
        self._routes[connection] = Route(
            Kind.PUNCHED, "the peer and this node punched their NATs", rank=Way.PUNCH.value
        )

    async def dial_over_tcp(self, peer_id: str) -> Connection:
        """Dial a peer where its advert says that it takes TCP.

        Raises:
            PeerError, LocalError: it says nothing, or did not answer.
        """
        candidate = self._candidates.find(peer_id)
        if candidate is None or not self._possible(Way.DIAL_TCP, candidate):
            raise PeerError("no TCP address of it is known", peer=peer_id)
        connection = await self._dial_tcp(candidate)
        self._routes[connection] = Route(
            Kind.DIRECT, "UDP is blocked here: TCP to a public peer", "tcp", rank=Way.DIAL_TCP.value
        )
        return connection

    async def accept(self, stream: ByteStream, left: Meter | None = None) -> None:
        """Carry what a peer has opened; returns when the stream ends, or nothing uses it.

        Args:
            left: what its relay lets through; None if nothing limits it.
        """
        await self._accepted.accept(stream, left)

    # --- inside ---

    def _possible(self, way: Way, candidate: Candidate) -> bool:
        if way is Way.DIAL:
            return bool(candidate.quic or candidate.near)
        if way is Way.DIAL_TCP:
            return self._control is not None and bool(candidate.control)
        if way is Way.RELAY:
            return self._control is not None and self._use_relays and bool(candidate.relays)
        if way is Way.CALL_BACK_TCP:
            return self._meeting is not None and self._takes_tcp
        return self._meeting is not None and self._is_seen()

    async def _dial(self, candidate: Candidate) -> Connection:
        addresses = list(dict.fromkeys([*candidate.near, *candidate.quic]))

        def dial(address: PeerAddress) -> Callable[[], Awaitable[Connection]]:
            async def connect() -> Connection:
                self._check_limits(candidate, address.host)
                self._note_contact(address.host)
                connection = await self._endpoint.connect(address, timeout=DIAL_TIMEOUT, fresh=True)
                self._limits.answered(address.host)
                return connection

            return connect

        try:
            connection = await first(candidate.peer_id, [dial(address) for address in addresses], _close)
        except PeerError:
            self._note_dial(candidate.peer_id, False)
            raise
        self._note_dial(candidate.peer_id, True)
        return connection

    async def _dial_tcp(self, candidate: Candidate) -> Connection:
        control = self._control
        assert control is not None

        def dial(address: ControlAddress) -> Callable[[], Awaitable[Connection]]:
            async def connect() -> Connection:
                self._check_limits(candidate, address.host)
                stream = await control.stream_to(
                    address.with_peer(candidate.peer_id), DATAGRAMS, timeout=DIAL_TIMEOUT
                )
                self._limits.answered(address.host)
                return await self._carrying.connect(candidate.peer_id, stream)

            return connect

        return await first(candidate.peer_id, [dial(address) for address in candidate.control], _close)

    async def _relay(self, candidate: Candidate) -> tuple[Connection, str]:
        control = self._control
        assert control is not None
        peer_id = candidate.peer_id
        used: dict[Connection, str] = {}

        def circuit(relay: ControlAddress) -> Callable[[], Awaitable[_Opened]]:
            async def open_circuit() -> _Opened:
                self._check_limits(candidate, relay.host)
                try:
                    opened = await control.circuit_to(relay, peer_id, timeout=CIRCUIT_TIMEOUT)
                except CircuitRefused as error:
                    if error.status is None:
                        raise
                    self._limits.answered(relay.host)  # the relay is there, whatever it says of the peer
                    if error.status == Status.RESOURCE_LIMIT_EXCEEDED:
                        raise HeldBack(str(error), peer=peer_id) from error
                    raise
                self._limits.answered(relay.host)
                return relay, *opened

            return open_circuit

        def dial(first_relay: ControlAddress) -> Callable[[], Awaitable[Connection]]:
            async def connect() -> Connection:
                made: list[Connection] = []

                async def renew() -> tuple[ByteStream, Meter | None]:
                    # the same relay if it can be had, else any through which the peer can be called now
                    known = self._candidates.find(peer_id)
                    others = self._relays_of(known) if known is not None else []
                    relays = dict.fromkeys([first_relay, *others])
                    relay, stream, left = await first(
                        peer_id, [circuit(each) for each in relays], lambda opened: opened[1].abort()
                    )
                    for connection in made:
                        self._note_relay(connection, str(relay.peer_id))
                    return stream, left

                _, stream, left = await circuit(first_relay)()
                connection = await self._carrying.connect(peer_id, stream, left, renew)
                made.append(connection)
                used[connection] = str(first_relay.peer_id)
                return connection

            return connect

        connection = await first(peer_id, [dial(relay) for relay in self._relays_of(candidate)], _close)
        return connection, used[connection]

    def _relays_of(self, candidate: Candidate) -> list[ControlAddress]:
        """Where a peer can be called, under all addresses that are known of its relays."""
        relays = list(candidate.relays)
        for relay in candidate.relays:  # where the peer has dialed it may not be open to this node
            known = None if relay.peer_id is None else self._candidates.find(relay.peer_id)
            relays += [] if known is None else [each.with_peer(known.peer_id) for each in known.control]
        return list(dict.fromkeys(relays))

    def _note_relay(self, connection: Connection, relay_id: str) -> None:
        route = self._routes.get(connection)
        if route is not None and route.via != relay_id:
            log.info("%s is now relayed by %s instead of %s", connection.peer_id, relay_id, route.via)
            self._routes[connection] = replace(route, via=relay_id)

    def _check_limits(self, candidate: Candidate, host: str) -> None:
        """Refuse to dial once more where others send us and nobody answers; our own config may."""
        if candidate.peer_id in self._candidates.configured:
            return
        if not self._limits.may(host, trio.current_time()):
            raise HeldBack(f"{host} was dialed too often without an answer", peer=candidate.peer_id)


def _close(connection: Connection) -> None:
    connection.shut(CLOSE_NORMAL, "another address was there at the same time")


def standing_of(reachability: Reachability) -> Standing:
    """What was found out about this node, for the route policy."""
    return Standing(
        reachability.reach.value,
        reachability.mapping.value,
        reachability.filtering.value,
        reachability.udp,
    )


def _punchable(own: Standing, peer: Standing) -> tuple[bool, str]:
    return can_punch(_nat_kind(own), _nat_kind(peer))


def _nat_kind(standing: Standing) -> Reachability:
    return Reachability(
        Reach(standing.reach), Mapping(standing.mapping), Filtering(standing.filtering), standing.udp
    )
