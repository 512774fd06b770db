"""The other nodes: what adverts, links and connections know of them, put together by peer.

What an advert says is laid out once for each advert; what is looked up for each peer in each round is what
changes by itself. So a thousand peers take some milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from market.credits import MICRO
from node.status.coverage import Coverage, Extent
from node.status.facts import Held, Market, Peer, PeerCalls, Route, short_id
from node.status.node_facts import host_and_port
from node.status.paused_holders import PausedHolders
from node.status.peers_met import PeersMet, State
from node.status.rates import Share
from node.status.sources import Sources
from node.swarm.node import SwarmNode
from relay.targets import plain_host
from routing import not_reached, peer_calls, routes
from routing.advert_rows import Row
from routing.multiaddr import ListenAddress
from routing.quic.connection import Connection
from routing.wire.advert import Advert
from routing.wire.holdings import MAX_NAME_BYTES, Holdings, Slice
from routing.wire.text import sanitise

MAX_PEERS = 1_500
"""Peers that are told of, those nearest first; the table of adverts has room for some thousands."""

REASON_BYTES = 200
"""Of why a peer is reached as it is, or is not."""

VERSION_BYTES = 32

LOSS_SECONDS, LOSS_STEP = 60.0, 5.0
"""Loss is that of the last minute."""

ROUTE_SECONDS = 5.0
"""Why a route was taken may be known better later; the policy is asked again after so long."""

ROUTES_AT_ONCE = 32
"""And of so many peers in a round: each costs some tens of microseconds."""

_RANK: dict[State, int] = {"online": 0, "heard": 1, "offline": 2}


@dataclass(slots=True)
class _Said:
    """What a peer's newest advert says, laid out."""

    advert: Advert
    name: str
    address: str
    extents: Mapping[str, Extent]  # what `held` was made of
    held: list[Held]


@dataclass(slots=True)
class _Taken:
    """The route of a connection, and when the policy was asked about it."""

    connection: Connection
    route: Route
    at: float


class PeerFacts:
    """Reads them off. One for a node: it remembers who was there.

    Args:
        coverage: told who serves what, of those who are live.

    Attributes:
        left_out: peers that there was no room for when it was read last.
        paused: who has served something and is paused.
    """

    def __init__(self, node: SwarmNode, sources: Sources, coverage: Coverage) -> None:
        self._node = node
        self._sources = sources
        self._coverage = coverage
        self._met = PeersMet()
        self._said: dict[str, _Said] = {}
        self._routes: dict[str, _Taken] = {}
        self._connections: dict[str, Connection] = {}  # the one shown, as of the last tick
        self._losses: dict[Connection, Share] = {}
        self._asked = 0  # of the route policy, in this round
        self._credits: Mapping[str, int] = {}  # what peers owe, in this round
        self._told: Mapping[str, Holdings] = {}  # what connected peers said that they serve
        self.left_out = 0
        self.paused = PausedHolders()

    def tick(self, now: float, clock: float) -> None:
        """Once a second, whether anybody asks or not: who is there, and what gets lost."""
        endpoint = self._node.endpoint
        best = self._best_connections()
        ended = {peer: each for peer, each in self._connections.items() if peer not in best}
        since = {peer: now - max(clock - each.opened_at, 0.0) for peer, each in best.items()}
        self._met.observe(now, since, lambda peer: _why_closed(ended.get(peer)))
        self._connections = best
        losses: dict[Connection, Share] = {}
        for each in endpoint.connections:
            share = losses[each] = self._losses.get(each) or Share(LOSS_SECONDS, LOSS_STEP)
            share.note(each.datagrams_lost, each.datagrams_sent, clock)
        self._losses = losses
        self.paused.observe(row.advert for row in self._node.table.rows())
        for peer_id in self._routes.keys() - best.keys():
            del self._routes[peer_id]

    def read(self, now: float, clock: float, market: Market | None = None) -> list[Peer]:
        """All that are told of, in order."""
        node = self._node
        self._credits = {} if market is None else {each.peer: each.owes for each in market.credits}
        rows = {row.advert.peer_id: row for row in node.table.rows()}
        rows.pop(node.identity.peer_id, None)
        met = set(self._met.ids())
        self._asked = 0
        unusable = self._unusable()
        self._told, wanted = node.links.serving, node.links.wanted
        found: list[tuple[tuple[int, str, str], Peer]] = []
        for peer_id in rows.keys() | met | node.candidates.configured_for_quic:
            row = rows.get(peer_id)
            reason = node.links.reason(peer_id) if peer_id in wanted else ""
            reason = not_reached.why(node.ways.label(peer_id), reason) if reason else ""
            issued = None if row is None else row.issued
            state, why = self._met.state(peer_id, issued, reason)
            peer = self._peer(peer_id, row, state, why, clock, unusable.get(peer_id, ""))
            found.append(((_RANK[state], peer.name.casefold(), peer_id), peer))
        for peer_id in self._said.keys() - rows.keys():
            del self._said[peer_id]
        self._coverage.keep({peer.id for _, peer in found if peer.state != "offline"} | {SELF})
        found.sort(key=lambda each: each[0])
        self.left_out = max(len(found) - MAX_PEERS, 0)
        return [peer for _, peer in found[:MAX_PEERS]]

    def _peer(
        self, peer_id: str, row: Row | None, state: State, why: str, clock: float, unusable: str
    ) -> Peer:
        said = None if row is None else self._laid_out(peer_id, row.advert)
        told = self._told.get(peer_id)
        met = self._met.get(peer_id)
        connection = self._connections.get(peer_id) if state == "online" else None
        name = said.name if said is not None else ""
        address = said.address if said is not None else ""
        version = ""
        if told is not None:
            name = name or sanitise(told.name, MAX_NAME_BYTES)
            version = sanitise(told.software, VERSION_BYTES).removeprefix("panal ")
        route = None
        if connection is not None:
            route = self._route(peer_id, connection, clock)
            address = self._address(connection, route)
        if met is not None:
            if state == "online":  # remembered for when it is gone
                met.name, met.address, met.version = name, address, version
            name, address, version = name or met.name, address or met.address, version or met.version
        return Peer(
            id=peer_id,
            short_id=short_id(peer_id),
            name=name,
            version=version,
            state=state,
            connected=state == "online",
            reason=sanitise(why, REASON_BYTES) if why else "",
            route=route,
            address=address,
            rtt_ms=None if connection is None else round(connection.rtt * 1000, 1),
            loss=None if connection is None else self._loss(connection),
            since=None if met is None or met.since is None else round(met.since, 1),
            last_seen=self._last_seen(peer_id, row),
            reach="unknown" if said is None else said.advert.reach,
            relays=said is not None and said.advert.serves_relay,
            holds=self._holds(peer_id, state, said, told),
            calls=self._calls(peer_id),
            load_ms=None if said is None or not said.held else said.advert.load,
            credit=self._credit(peer_id),
            unusable=unusable,
        )

    # --- what is looked up ---

    def _laid_out(self, peer_id: str, advert: Advert) -> _Said:
        said = self._said.get(peer_id)
        if said is None:
            name = sanitise(advert.name, MAX_NAME_BYTES)
            self._said[peer_id] = said = _Said(advert, name, _address_in(advert), _NO_EXTENTS, [])
        elif said.advert is not advert:
            said.name, said.address = sanitise(advert.name, MAX_NAME_BYTES), _address_in(advert)
            said.advert = advert
        return said

    def _holds(self, peer_id: str, state: State, said: _Said | None, told: Holdings | None) -> list[Held]:
        """What it serves, noted as live if it is. The advert is newer than what it told when it connected."""
        slices: Sequence[Slice] = ()
        if said is not None:
            slices = said.advert.slices
        elif told is not None:
            slices = told.slices
        if state == "offline":
            slices = ()
        extents = self._coverage.note(peer_id, slices)
        if said is None:
            return _held(slices, extents)
        if said.extents is not extents:
            said.held, said.extents = _held(slices, extents), extents
        return said.held

    def _calls(self, peer_id: str) -> PeerCalls:
        live, server = self._sources.live, self._sources.server
        made = peer_calls.NONE if live is None else live.port.calls.of(peer_id)
        served = peer_calls.NONE if server is None else server.calls.of(peer_id)
        if made is peer_calls.NONE and served is peer_calls.NONE:
            return _NO_CALLS
        return PeerCalls(made.made, made.failed, made.late, served.served)

    def _credit(self, peer_id: str) -> float | None:
        owes = self._credits.get(peer_id)
        return None if owes is None else round(owes / MICRO, 6)

    def _unusable(self) -> dict[str, str]:
        """Why connected peers cannot be asked by this node's backbone, by peer."""
        live = self._sources.live
        if live is None:
            return {}
        return {
            peer_id: sanitise("; ".join(reasons), REASON_BYTES)
            for peer_id, reasons in live.table.strangers().items()
        }

    def _last_seen(self, peer_id: str, row: Row | None) -> float | None:
        seen = self._met.last_seen(peer_id, None if row is None else row.issued)
        return None if seen is None else round(seen, 1)

    def _loss(self, connection: Connection) -> float | None:
        share = self._losses.get(connection)
        value = None if share is None else share.value
        return None if value is None else round(value, 4)

    # --- connections ---

    def _best_connections(self) -> dict[str, Connection]:
        """For each peer the connection that is used, or would be."""
        node = self._node
        found: dict[str, list[Connection]] = {}
        for connection in node.endpoint.connections:
            if connection.is_open:
                found.setdefault(connection.peer_id, []).append(connection)
        best = {}
        for peer_id, those in found.items():
            linked = node.links.find(peer_id)
            if linked is not None and linked.connection in those:
                best[peer_id] = linked.connection
            else:
                best[peer_id] = min(those, key=lambda each: (node.ways.route_of(each).rank, each.opened_at))
        return best

    def _route(self, peer_id: str, connection: Connection, clock: float) -> Route:
        taken = self._routes.get(peer_id)
        if (
            taken is not None
            and taken.connection is connection
            and (clock - taken.at < ROUTE_SECONDS or self._asked >= ROUTES_AT_ONCE)
        ):
            return taken.route
        self._asked += 1
        node = self._node
        link = node.links.link(peer_id)
        known: routes.Route
        if link is not None and link.connection is connection:
            known = link.route
        else:
            known = node.ways.route_of(connection)
        route = Route(known.kind.value, sanitise(known.reason, REASON_BYTES), known.via, known.transport)
        self._routes[peer_id] = _Taken(connection, route, clock)
        return route

    def _address(self, connection: Connection, route: Route) -> str:
        if not connection.is_carried:
            host, port = connection.remote_address
            return host_and_port(plain_host(host), port)
        path = self._node.endpoint.path_of(connection)
        return route.via or ("" if path is None else path.origin)


SELF = ""
"""Stands for this node among those who serve."""

_NO_CALLS = PeerCalls()
_NO_EXTENTS: Mapping[str, Extent] = {}


def _held(slices: Sequence[Slice], extents: Mapping[str, Extent]) -> list[Held]:
    first = {held.model_id: held for held in reversed(slices) if held.kind == "experts"}
    return [Held(model_id, extent.cells, first[model_id].experts) for model_id, extent in extents.items()]


def _why_closed(connection: Connection | None) -> str:
    reason = None if connection is None else connection.close_reason
    return reason or "the connection ended"


def _address_in(advert: Advert) -> str:
    """The first address it names: where others see it, if it knows."""
    if not advert.addresses:
        return ""
    address = ListenAddress.parse(advert.addresses[0])  # checked when the advert came
    return host_and_port(address.host, address.port)
