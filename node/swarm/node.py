"""A node in its swarm: the one place where data plane, control plane, adverts, routes and relays meet."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import trio

from node.swarm import dial_me
from node.swarm.announcing import Announcer, Offered
from node.swarm.candidates import Candidates
from node.swarm.control import Control
from node.swarm.dial_me import DialMeService
from node.swarm.directory_keeper import DirectoryKeeper
from node.swarm.finding import Finder
from node.swarm.holdings_told import tell_nothing
from node.swarm.meeting import Meetings
from node.swarm.memory import Memory
from node.swarm.own_membership import load_membership
from node.swarm.place import Place
from node.swarm.relay_keeper import RelayKeeper
from node.swarm.watching import NOBODY, Watchers, Watching
from node.swarm.ways import Ways, standing_of
from node.swarm.whereabouts import Whereabouts, is_ip, is_narrower
from relay import punch_plan, reach_wire
from relay.contacts import Contacts
from relay.dialback import DialBackService
from relay.prober import ReachProber
from relay.probes import Probes
from relay.punch import Puncher
from relay.reachability import Reach, Reachability
from routing.advert_rows import Offer
from routing.adverts import AdvertTable
from routing.byte_stream import ByteStream, Meter
from routing.errors import LocalError
from routing.exchange import AdvertExchange
from routing.identity import PeerId
from routing.lan import LanDiscovery
from routing.libp2p.directory import Directory
from routing.links import PeerLinks
from routing.membership import check_member
from routing.quic.connection import Connection
from routing.quic.endpoint import Endpoint, Handler
from routing.remembered import RememberedPeers
from routing.routes import Standing
from routing.wire import exchange as exchange_wire
from routing.wire import holdings
from routing.wire.advert import CLOCK_SKEW, Advert

log = logging.getLogger("panal.swarm")

EXPIRY_SECONDS = 1.0
"""Between looks for adverts that have ended."""

REMEMBER_SECONDS = 60.0
"""Between writings of who is connected; who is new is written down within EXPIRY_SECONDS."""


@dataclass(frozen=True)
class Role:
    """What a node is in the swarm for.

    Attributes:
        serves: others may find it: it listens where the config says, announces itself and, if the config
            says so, relays. Else it only asks, from any free port.
        wanted_model: the model whose holders it keeps connected; None for none.
        offered: what it says it does.
        handlers: streams it serves besides the swarm's own.
        any_port: it listens, but where its port is taken another one will do: nobody was told of it.
    """

    serves: bool
    wanted_model: str | None = None
    offered: Callable[[], Offered] = Offered
    handlers: Mapping[str, Handler] = field(default_factory=dict)
    any_port: bool = False


class SwarmNode:
    """One node; `await nursery.start(node.run)`, once.

    Attributes:
        endpoint: the data plane.
        table: the adverts.
        links: the peers kept connected.
        prober: what is known of this node's own reachability.
        control: the control plane; None where the config has switched it off.
        whereabouts: where this node is.
        last_words: awaited, all at once, when the node ends and still has its connections. Each bounds its
            own time: Ctrl-C must end the node in under three seconds.
    """

    def __init__(
        self,
        place: Place,
        role: Role,
        *,
        watching: Watching = NOBODY,
        http: tuple[str, int] | None = None,
    ) -> None:
        """Binds the UDP socket; nothing is sent before `run`.

        Args:
            http: where this process has bound its HTTP door already.

        Raises:
            LocalError: the port is in use, the member certificate cannot be read or is another's.
        """
        self.place = place
        self._http = http
        self.identity = identity = place.identity
        self.role = role
        self.membership = load_membership(place)
        self._rng = random.Random()
        self._watchers = Watchers(watching)
        self._watching = watching = self._watchers.watching
        self._wanted_model = role.wanted_model
        self._instance = self._rng.getrandbits(64)
        self._nursery: trio.Nursery | None = None
        self.last_words: list[Callable[[], Awaitable[None]]] = []
        self._told_reach: Reach | None = None
        self._keeper: DirectoryKeeper | None = None
        swarm = self.membership.swarm
        self.table = AdvertTable(swarm.id, identity.peer_id, self._instance, self._check_member)
        self.exchange = AdvertExchange(self.table, time.time, self._heard)
        remembered = None if place.memory is None else RememberedPeers(place.memory)
        self.endpoint = self._bind_endpoint()
        self.endpoint.on_connection = self._connection_made
        contacts = Contacts()
        probes = Probes(self.endpoint, contacts)
        self.prober = ReachProber(probes, on_change=self._reachability_changed)
        self._dial_backs = DialBackService(probes)
        self._puncher = Puncher(probes, self.prober.candidates, on_connected=self._punched)
        named = [each.host for each in place.swarm.peers]
        named += [each.host for each in place.swarm.control_peers if is_ip(each.host)]
        self.whereabouts = Whereabouts(self.endpoint, self.prober, place.relay, lambda: self.control, named)
        self.candidates = Candidates(self.table, self.whereabouts.hosts)
        self._memory = Memory(remembered, self.table, self.candidates, self.endpoint, identity.peer_id)
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
            remembered,
            instance=self._instance,
            lifetime=place.swarm.advert_seconds,
            offered=role.offered,
            places=self.whereabouts.places,
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
        return f"{self.whereabouts.inner}/p2p/{self.identity.peer_id}"

    @property
    def relay_addresses(self) -> list[str]:
        """Where it takes connections as a relay; empty if it is none."""
        return self.whereabouts.relay_addresses()

    @property
    def is_looking(self) -> bool:
        """Whether the DHT is being asked for the first time: peers may come from there."""
        if self.control is None or not self.place.swarm.control_peers:
            return False
        return self._keeper is None or not self._keeper.has_looked

    def want_model(self, model_id: str) -> None:
        """From now on the holders of this model are kept connected."""
        self._wanted_model = model_id
        self._finder.want_model(model_id)

    def offer_changed(self) -> None:
        """What this node offers is no longer what its advert says: it is announced anew at once."""
        self._announcer.changed()

    def watch(self, watching: Watching) -> None:
        """Tell one more of what happens; of who is connected already at once."""
        self._watchers.add(watching)
        for peer_id, told in self.links.serving.items():
            watching.connected(peer_id, told)

    def unwatch(self, watching: Watching) -> None:
        """Tell it no more."""
        self._watchers.remove(watching)

    def failures(self) -> dict[str, str]:
        """Peers that this node wants and does not reach now, by label or address, with the reason."""
        return self.links.failures() | ({} if self._keeper is None else self._keeper.failures())

    def close(self) -> None:
        """Release what was opened, of a node that was never run."""
        self.endpoint.close()
        self._memory.close()

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
                        with trio.CancelScope(shield=True):
                            await self._say_last_words()
                    finally:  # whatever goes wrong with it, the node ends
                        live.shield = False
        finally:
            self._memory.close()

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
                self._memory.recall(self.membership.swarm.id)
                self._finder.start()
                nursery.start_soon(self.links.run)
                nursery.start_soon(self.prober.run)
                nursery.start_soon(self._finder.run)
                nursery.start_soon(self._keep_table)
                if self.place.swarm.lan and not self.whereabouts.is_loopback:
                    nursery.start_soon(self._look_on_lan)
                if self.control is not None:
                    nursery.start_soon(self._keep_directory, self.control)
                    if self.role.serves and self.place.relay.table.use:
                        nursery.start_soon(self._relay_keeper(self.control).run)
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
            holdings.PROTOCOL_ID: lambda stream: tell_nothing(stream, self.role.offered().name),
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
        reach, reason = self.whereabouts.reach
        if reach is not self._told_reach:  # the rest changes often, and is in the status
            self._told_reach = reach
            log.info("reachability: %s (%s)", reach, reason)
        self._announcer.changed()
        self._watching.reached(reachability)
        self.links.standing_changed()

    def _heard(self, offer: Offer) -> None:
        if offer.clone is not None:
            log.error("%s", offer.clone)
        self._finder.heard(offer)
        told = self.links.serving.get(offer.peer_id)
        if told is not None and offer.advert is not None and told.slices != offer.advert.slices:
            self.links.serves_otherwise(offer.peer_id)
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
            known |= self._memory.note_connected(known)
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
            model=lambda: self._wanted_model,
            advert=lambda: self._announcer.data,
            is_server=lambda: self.role.serves and self.whereabouts.takes_dials(),
            in_touch=lambda: bool(self.endpoint.connections),
            on_panal_peer=self.links.want,
        )
        await keeper.run()

    # --- inside ---

    async def _say_last_words(self) -> None:
        async with trio.open_nursery() as nursery:
            for each in self.last_words:
                nursery.start_soon(each)
            if self.role.serves:
                nursery.start_soon(self._announcer.leave)

    def _relay_keeper(self, control: Control) -> RelayKeeper:
        return RelayKeeper(control, self.whereabouts, lambda: self.standing, self.table, self.candidates)

    def _bind_endpoint(self) -> Endpoint:
        place, listen = self.place, self.place.swarm.listen

        def bound(port: int) -> Endpoint:
            return Endpoint(
                self.identity,
                listen=(listen.host, port),
                backend=place.swarm.backend,
                handlers=self._handlers(),
                membership=self.membership,
            )

        if not self.role.serves:
            return bound(0)
        try:
            return bound(listen.port)
        except LocalError as error:
            if not self.role.any_port:
                raise LocalError(f"[swarm] listen: {error}") from None
            endpoint = bound(0)
            log.info(
                "UDP %s port %d cannot be had: listening on port %d instead, until [swarm] listen names one",
                listen.host, listen.port, endpoint.local_address[1],
            )  # fmt: skip
            return endpoint

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
            share_port=self._http is not None and is_narrower(self._http, swarm.control),
            any_port=not swarm.control_is_chosen and not self.place.relay.table.serve,
            on_stream=take,
            on_reservations=lambda: self._announcer.changed(),
        )

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
