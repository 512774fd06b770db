"""A node in its swarm: the one place where data plane, control plane, adverts, routes and relays meet."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import trio

from node.config.own_address import dialable
from node.swarm import dial_me
from node.swarm.announcing import Announcer, Offered, Places
from node.swarm.candidates import Candidates
from node.swarm.control import Control
from node.swarm.dial_me import DialMeService
from node.swarm.directory_keeper import DirectoryKeeper
from node.swarm.finding import Finder
from node.swarm.meeting import Meetings
from node.swarm.place import Place
from node.swarm.watching import NOBODY, Watching
from node.swarm.ways import Ways, standing_of
from node.swarm_files import read_member
from relay import punch_plan, reach_wire
from relay.contacts import Contacts
from relay.dialback import DialBackService
from relay.prober import ReachProber, own_host
from relay.probes import Probes
from relay.punch import Puncher
from relay.reachability import Reachability
from relay.targets import plain_host
from routing.advert_rows import Offer
from routing.adverts import AdvertTable
from routing.byte_stream import ByteStream, Meter
from routing.control_address import ControlAddress
from routing.dial_limits import networks_of, reachable_from
from routing.errors import LocalError
from routing.exchange import AdvertExchange
from routing.identity import PeerId
from routing.lan import LanDiscovery
from routing.libp2p.directory import Directory
from routing.links import PeerLinks
from routing.membership import Membership, check_member
from routing.multiaddr import ListenAddress
from routing.quic.connection import Connection
from routing.quic.endpoint import Endpoint, Handler
from routing.quic.errors import StreamClosed
from routing.quic.stream import Stream
from routing.remembered import RememberedPeers
from routing.routes import Standing
from routing.wire import exchange as exchange_wire
from routing.wire import holdings
from routing.wire.advert import CLOCK_SKEW, Advert, SignedAdvert
from routing.wire.holdings import Holdings
from routing.wire.messages import VERSION

log = logging.getLogger("panal.swarm")

EXPIRY_SECONDS = 1.0
"""Between looks for adverts that have ended."""

REMEMBER_SECONDS = 60.0
"""Between writings of who is connected; who is new is written down within EXPIRY_SECONDS."""

RELAY_LOOK_SECONDS = 2.0
"""Between looks at whether relays are needed, and which there are."""

UNDECIDED_SECONDS = 8.0
"""A node that does not know by then whether it can be reached asks for relays as if it could not."""


@dataclass(frozen=True)
class Role:
    """What a node is in the swarm for.

    Attributes:
        serves: others may find it: it listens where the config says, announces itself and, if the config
            says so, relays. Else it only asks, from any free port.
        wanted_model: the model whose holders it keeps connected; None for none.
        offered: what it says it does.
        handlers: streams it serves besides the swarm's own.
    """

    serves: bool
    wanted_model: str | None = None
    offered: Callable[[], Offered] = Offered
    handlers: Mapping[str, Handler] = field(default_factory=dict)


class SwarmNode:
    """One node; `await nursery.start(node.run)`, once.

    Attributes:
        endpoint: the data plane.
        table: the adverts.
        links: the peers kept connected.
        prober: what is known of this node's own reachability.
        control: the control plane; None where the config has switched it off.
    """

    def __init__(
        self,
        place: Place,
        role: Role,
        *,
        watching: Watching = NOBODY,
    ) -> None:
        """Binds the UDP socket; nothing is sent before `run`.

        Raises:
            LocalError: the port is in use, the member certificate cannot be read or is another's.
        """
        self.place = place
        self.identity = identity = place.identity
        self.role = role
        self.membership = load_membership(place)
        self._rng = random.Random()
        self._watching = watching
        self._instance = self._rng.getrandbits(64)
        self._nursery: trio.Nursery | None = None
        self._keeper: DirectoryKeeper | None = None
        swarm = self.membership.swarm
        self.table = AdvertTable(swarm.id, identity.peer_id, self._instance, self._check_member)
        self.exchange = AdvertExchange(self.table, time.time, self._heard)
        self._remembered = None if place.memory is None else RememberedPeers(place.memory)
        listen = place.swarm.listen
        self.endpoint = Endpoint(
            identity,
            listen=(listen.host, listen.port if role.serves else 0),
            backend=place.swarm.backend,
            handlers=self._handlers(),
            membership=self.membership,
        )
        self.endpoint.on_connection = self._connection_made
        contacts = Contacts()
        probes = Probes(self.endpoint, contacts)
        self.prober = ReachProber(probes, on_change=self._reachability_changed)
        self._dial_backs = DialBackService(probes)
        self._puncher = Puncher(probes, self.prober.candidates, on_connected=self._punched)
        self.candidates = Candidates(self.table, self._own_hosts)
        self.candidates.configure(
            [*place.swarm.peers, *place.swarm.control_peers],
        )
        for peer_id in self.candidates.configured:
            self.table.pin(peer_id)
        self.control = self._make_control()
        self.ways = Ways(
            self.endpoint,
            self.candidates,
            lambda: self.standing,
            control=self.control,
            meeting=Meetings(self.endpoint, self._puncher),
            use_relays=place.relay.table.use,
            takes_tcp=role.serves and place.swarm.control is not None,
            is_seen=lambda: bool(self.prober.reachability.addresses),
            note_contact=lambda host: contacts.note(host, self.endpoint.now()),
            note_dial=lambda peer_id, answered: self.prober.note_dial(peer_id, answered=answered),
        )
        self._dial_me = DialMeService(self.ways.dial_over_tcp)
        self.links = PeerLinks(
            self.endpoint,
            self.ways,
            on_connected=watching.connected,
            on_lost=watching.lost,
            on_route=watching.routed,
        )
        self._finder = Finder(
            self.table,
            self.candidates,
            self.links,
            identity.peer_id,
            wanted_model=role.wanted_model,
            connected=lambda: len(self.endpoint.connections),
            failures=lambda: self.failures(),
            rng=self._rng,
        )
        self._announcer = Announcer(
            identity,
            self.membership,
            self.exchange,
            self._remembered,
            instance=self._instance,
            lifetime=place.swarm.advert_seconds,
            offered=role.offered,
            places=self._places,
            standing=lambda: self.standing,
            own_seq=lambda: self.table.own_seq,
        )

    # --- for users ---

    @property
    def standing(self) -> Standing:
        """How this node stands to the network, as far as it has found out."""
        return standing_of(self.prober.reachability)

    @property
    def address(self) -> str:
        """Where others on the network reach it: what they put into their peers."""
        bound = dialable(ListenAddress(*self.endpoint.local_address))
        return f"{bound}/p2p/{self.identity.peer_id}"

    @property
    def relay_addresses(self) -> list[str]:
        """Where it takes connections as a relay; empty if it is none."""
        if self.control is None or self.control.service is None:
            return []
        places = self._control_places(
            self.control, [dialable(ListenAddress(*self.endpoint.local_address)).host]
        )
        return [f"{place}/p2p/{self.identity.peer_id}" for place in places]

    def failures(self) -> dict[str, str]:
        """Peers that this node wants and does not reach now, by label or address, with the reason."""
        return self.links.failures() | ({} if self._keeper is None else self._keeper.failures())

    def close(self) -> None:
        """Release what was opened, of a node that was never run."""
        self.endpoint.close()
        self._close_memory()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be in the swarm until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                live: trio.CancelScope = await nursery.start(self._live)
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    try:
                        if self.role.serves:
                            with trio.CancelScope(shield=True):
                                await self._announcer.leave()
                    finally:  # whatever goes wrong with it, the node ends
                        live.shield = False
        finally:
            self._close_memory()

    async def _live(
        self, *, task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Everything that runs. When the node is cancelled this lives on, in the scope it hands out, until
        that is unshielded: a farewell takes connections."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await nursery.start(self.endpoint.run)
                await nursery.start(self.ways.run)
                if self.control is not None:
                    await nursery.start(self.control.run)
                self._remember_last_time()
                self._finder.start()
                nursery.start_soon(self.links.run)
                nursery.start_soon(self.prober.run)
                nursery.start_soon(self._finder.run)
                nursery.start_soon(self._keep_table)
                if self.place.swarm.lan and not self._is_loopback:
                    nursery.start_soon(self._look_on_lan)
                if self.control is not None:
                    nursery.start_soon(self._keep_directory, self.control)
                    if self.role.serves:
                        nursery.start_soon(self._keep_relays, self.control)
                if self.role.serves:
                    nursery.start_soon(self._announcer.run)
                nursery.cancel_scope.shield = True
                task_status.started(nursery.cancel_scope)
                await trio.sleep_forever()
        finally:
            self._nursery = None

    # --- what others call ---

    def _handlers(self) -> dict[str, Handler]:
        handlers: dict[str, Handler] = {
            exchange_wire.PROTOCOL_ID: lambda stream: self.exchange.serve(stream),
            reach_wire.PROTOCOL_ID: lambda stream: self._dial_backs.serve(stream),
            punch_plan.PROTOCOL_ID: lambda stream: self._puncher.serve(stream),
            dial_me.PROTOCOL_ID: lambda stream: self._dial_me.serve(stream),
            holdings.PROTOCOL_ID: _serve_nothing,
        }
        return handlers | dict(self.role.handlers)

    def _check_member(self, advert: Advert, now: float) -> str:
        return check_member(self.membership.swarm, advert.member, PeerId(advert.peer_id), now)

    def _connection_made(self, connection: Connection) -> None:
        self.prober.on_connection(connection)
        self.links.news(connection.peer_id)
        if self._nursery is not None:
            self._nursery.start_soon(self._follow, connection)

    async def _follow(self, connection: Connection) -> None:
        """Hear a connected peer's news; there is room for its own advert, however full the table is."""
        peer_id = connection.peer_id
        self.table.pin(peer_id)
        try:
            await self.exchange.follow(connection)
        finally:
            configured = PeerId(peer_id) in self.candidates.configured
            if not configured and not self.endpoint.connections_to(peer_id):
                self.table.unpin(peer_id)

    def _punched(self, connection: Connection) -> None:
        self.ways.punched(connection)
        self.links.news(connection.peer_id)

    def _reachability_changed(self, reachability: Reachability) -> None:
        self._announcer.changed()
        self._watching.reached(reachability)
        self.links.standing_changed()

    def _heard(self, offer: Offer) -> None:
        if offer.clone is not None:
            log.error("%s", offer.clone)
        self._finder.heard(offer)
        if offer.peer_id != self.identity.peer_id or offer.clone is not None:
            self._watching.heard(offer)

    # --- tasks ---

    async def _keep_table(self) -> None:
        written = trio.current_time()
        known: set[str] = set()
        wrong_clocks: set[str] = set()
        while True:
            await trio.sleep(EXPIRY_SECONDS)
            for peer_id in self.table.expire(time.time()):
                log.info("%s has not been heard of for its advert's life: gone", peer_id)
                self._finder.gone(peer_id)
                self._watching.gone(peer_id)
            if trio.current_time() - written >= REMEMBER_SECONDS:
                written = trio.current_time()
                known.clear()
            known |= self._remember_connected(known)
            wrong_clocks = self._compare_clocks(wrong_clocks)

    async def _look_on_lan(self) -> None:
        control_port = self.place.swarm.control[1] if self.place.swarm.control is not None else 0
        lan = LanDiscovery(
            self.membership.swarm,
            self.identity.peer_id,
            self.endpoint.local_address,
            self._finder.found_on_lan,
            control_port=control_port,
            announce=self.role.serves,
        )
        await lan.run()

    async def _keep_directory(self, control: Control) -> None:
        keeper = self._keeper = DirectoryKeeper(
            control,
            Directory(control.host, self.membership.swarm.id, clock=time.time),
            self.exchange,
            self.table,
            self.candidates,
            configured=self.place.swarm.control_peers,
            own_id=self.identity.peer_id,
            model=self.role.wanted_model,
            advert=lambda: self._announcer.data,
            is_server=lambda: self.role.serves and self._takes_dials(control),
            in_touch=lambda: bool(self.endpoint.connections),
            on_panal_peer=self.links.want,
        )
        await keeper.run()

    async def _keep_relays(self, control: Control) -> None:
        begun = trio.current_time()
        while True:
            standing = self.standing
            waited = trio.current_time() - begun > UNDECIDED_SECONDS
            needed = standing.udp is False or (
                # a NAT that lets everybody in over UDP still lets nobody in over TCP
                self._is_translated() if standing.reach == "public" else standing.reach == "private" or waited
            )
            if not self.place.relay.table.use or not needed:
                control.use_relays([])
            else:
                networks = networks_of(self._own_hosts())
                connected = [each for each in control.relay_peers() if reachable_from(networks, each.host)]
                control.use_relays([*self._advertised_relays(), *connected])
            await trio.sleep(RELAY_LOOK_SECONDS)

    # --- inside ---

    def _is_translated(self) -> bool:
        """Whether others see this node at addresses that this machine does not have."""
        outer = {host for host, _ in self.prober.reachability.addresses}
        return any(own_host(self.endpoint, host) != host for host in outer)

    def _make_control(self) -> Control | None:
        swarm = self.place.swarm
        if swarm.control is None and not swarm.control_peers:
            return None

        async def take(stream: ByteStream, left: Meter | None) -> None:
            await self.ways.accept(stream, left)

        return Control(
            self.identity,
            self.membership,
            self.place.relay,
            listen=swarm.control if self.role.serves else None,
            on_stream=take,
            on_reservations=lambda: self._announcer.changed(),
        )

    @property
    def _is_loopback(self) -> bool:
        return plain_host(self.endpoint.local_address[0]) in ("127.0.0.1", "::1")

    def _takes_dials(self, control: Control) -> bool:
        """Whether strangers can probably dial this node over TCP."""
        reach = self.standing.reach
        # while nobody has told: who relays was set up to be dialed, who is relayed thinks it cannot be
        asserted = control.service is not None or not control.reserved
        return reach == "public" or (reach == "unknown" and asserted)

    def _own_hosts(self) -> list[str]:
        own = [host for host, _ in self.prober.candidates()]
        return [*own, dialable(ListenAddress(*self.endpoint.local_address)).host]

    def _advertised_relays(self) -> list[ControlAddress]:
        found = []
        for row in self.table.relays():
            candidate = self.candidates.find(row.advert.peer_id)
            if candidate is not None:
                found += [each.with_peer(candidate.peer_id) for each in candidate.control]
        return found

    def _places(self) -> Places:
        """Where this node can be reached now; the control plane tells its peers the same."""
        outer = self.prober.reachability.addresses
        inner = dialable(ListenAddress(*self.endpoint.local_address))
        addresses = [str(ListenAddress(host, port)) for host, port in outer] + [str(inner)]
        control: list[str] = []
        relays: list[str] = []
        if self.control is not None:
            control = self._control_places(self.control, [host for host, _ in outer] + [inner.host])
            self.control.host.announce(tuple(map(ControlAddress.parse, control)))
            relays = [str(each) for each in self.control.reserved]
        serves = self.control is not None and self.control.service is not None
        return Places(list(dict.fromkeys(addresses)), control, relays, serves)

    def _control_places(self, control: Control, hosts: list[str]) -> list[str]:
        ports = [int(text.rpartition("/")[2]) for text in control.host.local_addresses]
        found = [str(ControlAddress.of(host, port)) for host in hosts for port in ports]
        found += [str(each.with_peer(None)) for each in self.place.relay.announce]
        return list(dict.fromkeys(found))

    def _close_memory(self) -> None:
        if self._remembered is not None:
            self._remembered.close()

    def _remember_last_time(self) -> None:
        if self._remembered is None:
            return
        remembered = self._remembered.peers(self.membership.swarm.id)
        self.candidates.remember([peer.advert for peer in remembered])

    def _compare_clocks(self, named: set[str]) -> set[str]:
        """Name peers whose clock and ours differ too much, but for those named already; returns them all."""
        wrong = {
            peer_id: offset
            for peer_id, offset in self.prober.clock_offsets.items()
            if abs(offset) > CLOCK_SKEW
        }
        for peer_id in wrong.keys() - named:
            log.warning(
                "the clock of %s is %.0f s %s this node's, and %d s are tolerated: the two cannot use each "
                "other's adverts; set both clocks by NTP (panal netcheck tells whether this one is wrong)",
                peer_id,
                abs(wrong[peer_id]),
                "ahead of" if wrong[peer_id] > 0 else "behind",
                CLOCK_SKEW,
            )
        return set(wrong)

    def _remember_connected(self, known: set[str]) -> set[str]:
        """Note where connected peers are, but for those known already; returns whom it has noted."""
        now = time.time()
        noted = set()
        for peer_id in {connection.peer_id for connection in self.endpoint.connections} - known:
            row = self.table.get(peer_id)
            if row is not None and peer_id != self.identity.peer_id:
                noted.add(peer_id)
                self.candidates.remember([row.advert])
                if self._remembered is not None:
                    self._remembered.remember(SignedAdvert(row.advert, row.data), now)
        return noted


def load_membership(place: Place) -> Membership:
    """What this node shows to others.

    Raises:
        LocalError: the member certificate cannot be read, has expired, or is not this node's.
    """
    swarm, path = place.swarm.swarm, place.swarm.member
    if path is None:
        return Membership(swarm, b"")
    certificate = read_member(path)
    reason = check_member(swarm, certificate, place.identity.peer_id, time.time())
    if reason:
        raise LocalError(
            f"{path}: this node ({place.identity.peer_id}) {reason}; panal swarm join INVITATION mends it"
        )
    return Membership(swarm, certificate)


async def _serve_nothing(stream: Stream) -> None:
    """`/panal/slices/1` of a node that only asks."""
    told = holdings.encode_holdings(
        Holdings(versions=[VERSION], name="", slices=[], codecs=[], combines=[], max_rows=1)
    )
    while True:
        try:
            message = await stream.receive_message(holdings.MAX_REQUEST_BYTES)
        except StreamClosed:
            return
        holdings.decode_request(message, peer=stream.peer_id)
        await stream.send_message(told)
