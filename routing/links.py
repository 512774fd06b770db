"""Keeps wanted peers connected by the best way there is, learns what they serve, and says so.

One task for each wanted peer: take the connection that exists or get one, ask what the peer serves, use it;
meanwhile try for a better way; when it is lost, begin again. Rules:

1. What works is used at once; a better way is looked for beside it (a relayed peer is asked from the first
   second on, and moves to the punched way without a call being lost).
2. Only a strictly better way replaces one that works, so that routes never flap; a way that broke soon after
   it was taken waits longer each time before it is tried again.
3. Every way has its own pauses: that punching fails does not delay the relay.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol

import trio

from routing.backoff import Backoff
from routing.dispatch.quic_peer import QuicExpertPeer
from routing.errors import LocalError, PeerError
from routing.not_reached import describe
from routing.quic.connection import CLOSE_NORMAL, Connection
from routing.quic.endpoint import Endpoint
from routing.race import first
from routing.routes import Attempt, Route, Way
from routing.wire import holdings
from routing.wire.messages import VERSION

log = logging.getLogger("panal.links")

DIAL_TIMEOUT = 5.0
"""Seconds for a dial and for the first answer: three handshake round trips over the worst links in use."""

FIRST_RETRY = 0.25
"""Seconds before a lost peer is dialled again; doubles up to LAST_RETRY while nobody answers."""

LAST_RETRY = 5.0
"""A peer that comes back is in use again within this many seconds."""

PROVEN = 1.0
"""Seconds a connection must last to count as one that worked: a peer that hangs up at once is not dialled at
once again and again."""

STAGGER = 0.4
"""Seconds a way is given before the next is started beside it: most handshakes are over by then."""

FIRST_UPGRADE = 0.1
"""Seconds after a connection by a lesser way before better ones are tried."""

UPGRADE_RETRY, LAST_UPGRADE = 10.0, 300.0
"""Pauses between tries for a better way; NATs change rarely, and each try costs both sides some packets."""

FORGIVEN = 600.0
"""After so long without a failure a way is tried as if it were new."""

SOON = 30.0
"""A way that broke within this many seconds of being taken counts as one that failed."""

DRAIN = 5.0
"""Seconds a connection that was replaced stays open, for calls still on their way."""

LONG_CALLS = 60.0
"""Seconds it stays open for calls that take longer: the rows of a long prompt on a slow relay."""


class Wayfinder(Protocol):
    """Knows by which ways peers may be reached, and goes them (node.swarm)."""

    def attempts(self, peer_id: str) -> list[Attempt]:
        """What may be tried now, best first (routing.routes.ways)."""

    async def carry_out(
        self, peer_id: str, attempt: Attempt, over: Connection | None
    ) -> tuple[Connection, Route]:
        """Try one way.

        Args:
            over: a connection that exists, for ways that need one to agree on (`needs_connection`).

        Raises:
            PeerError, LocalError: it did not work; one line.
        """

    def route_of(self, connection: Connection) -> Route:
        """How a connection that exists came about."""

    def label(self, peer_id: str) -> str:
        """How texts call a peer: by its address if one is known."""


def needs_connection(way: Way) -> bool:
    """Whether a way is agreed on over another connection to the same peer."""
    return way in (Way.CALL_BACK, Way.CALL_BACK_TCP, Way.PUNCH)


async def ask_holdings(connection: Connection) -> holdings.Holdings:
    """What a connected peer serves.

    Raises:
        PeerError: no answer in time, or none that is valid.
    """
    stream = connection.open_stream(holdings.PROTOCOL_ID)
    try:
        with trio.move_on_after(DIAL_TIMEOUT):
            await stream.send_message(holdings.encode_request(holdings.HoldingsRequest(versions=[VERSION])))
            answer = await stream.receive_message(holdings.MAX_ANSWER_BYTES)
            await stream.aclose()
            return holdings.decode_holdings(answer, peer=connection.peer_id)
    finally:
        stream.reset()
    raise PeerError(
        f"{connection.peer_id} did not say what it serves in {DIAL_TIMEOUT:g} s", peer=connection.peer_id
    )


@dataclass
class Link:
    """A peer in use.

    Attributes:
        name: what it calls itself.
        since: when this connection was taken into use, on trio's clock.
    """

    connection: Connection
    route: Route
    peer: QuicExpertPeer
    name: str
    since: float


class PeerLinks:
    """The peers a node wants to be connected to.

    Args:
        on_connected: called with (peer id, what it serves).
        on_lost: called with (peer id, reason in words).
        on_route: called with (peer id, route) whenever the route to a peer is chosen or changes.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        wayfinder: Wayfinder,
        *,
        on_connected: Callable[[str, holdings.Holdings], None],
        on_lost: Callable[[str, str], None],
        on_route: Callable[[str, Route], None] = lambda peer_id, route: None,
    ) -> None:
        self._endpoint = endpoint
        self._wayfinder = wayfinder
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._on_route = on_route
        self._wanted: dict[str, trio.CancelScope] = {}
        self._links: dict[str, Link] = {}
        self._serving: dict[str, holdings.Holdings] = {}  # what each peer that counts as connected serves
        self._failures: dict[str, str] = {}
        self._failed_ways: dict[str, set[Way]] = {}  # of peers that are not connected
        self._missing: dict[str, float] = {}
        self._tried: set[str] = set()
        self._tried_only: set[str] = set()
        self._news: dict[str, trio.Event] = {}
        self._otherwise: set[str] = set()  # peers that are to be asked anew what they serve
        self._round_changed = trio.Event()
        self._pauses = Backoff(FIRST_RETRY, LAST_RETRY, FORGIVEN)
        self._upgrades = Backoff(UPGRADE_RETRY, LAST_UPGRADE, FORGIVEN)
        self._nursery: trio.Nursery | None = None

    # --- for users ---

    def want(self, peer_id: str, *, surely: bool = True) -> None:
        """Keep this peer connected from now on.

        Args:
            surely: that it does not answer is worth a warning; else it is only tried.
        """
        if surely:
            self._tried_only.discard(peer_id)
        if peer_id in self._wanted:
            return
        if not surely:
            self._tried_only.add(peer_id)
        scope = self._wanted[peer_id] = trio.CancelScope()
        self._news[peer_id] = trio.Event()
        self._missing[peer_id] = trio.current_time()
        if self._nursery is not None:
            self._nursery.start_soon(self._keep, peer_id, scope)

    def unwant(self, peer_id: str) -> None:
        """Let go of a peer; its connections stay open as long as others use them."""
        self._tried_only.discard(peer_id)
        self._tried.discard(peer_id)
        scope = self._wanted.pop(peer_id, None)
        if scope is not None:
            scope.cancel()

    @property
    def wanted(self) -> set[str]:
        return set(self._wanted)

    @property
    def serving(self) -> dict[str, holdings.Holdings]:
        """What each peer in use says that it serves."""
        return dict(self._serving)

    def find(self, peer_id: str) -> QuicExpertPeer | None:
        """A connected peer, for the star."""
        link = self._links.get(peer_id)
        return link.peer if link is not None and link.connection.is_open else None

    def has_connection(self, peer_id: str) -> bool:
        """Whether a peer is connected, wanted or not: to have it costs no dial."""
        return bool(self._endpoint.connections_to(peer_id))

    def missing_since(self, peer_id: str) -> float | None:
        """Since when a wanted peer has had no connection, on trio's clock; None while it has one."""
        return None if self.find(peer_id) is not None else self._missing.get(peer_id)

    def link(self, peer_id: str) -> Link | None:
        """How a peer is connected now, with what is known now as the reason; None if it is not."""
        link = self._links.get(peer_id)
        if link is None or not link.connection.is_open:
            return None
        self._reconsider(peer_id, link)
        return link

    def failures(self) -> dict[str, str]:
        """Surely wanted peers that are not connected now, by their labels, with the reason."""
        return {
            self._wayfinder.label(peer_id): reason
            for peer_id, reason in self._failures.items()
            if peer_id not in self._tried_only
        }

    def reason(self, peer_id: str) -> str:
        """Why a wanted peer is not connected now; "" if no try of it has failed yet."""
        return self._failures.get(peer_id, "")

    def is_under_way(self, peer_id: str) -> bool:
        """Whether a peer that is not connected may be soon: a way to it has not failed yet."""
        if peer_id not in self._wanted or self.find(peer_id) is not None:
            return False
        return bool(self._first_ways(peer_id) - self._failed_ways.get(peer_id, set()))

    def news(self, peer_id: str) -> None:
        """Something changed about a peer: it connected to us, or said how it can be reached."""
        event = self._news.get(peer_id)
        if event is not None:
            event.set()

    def serves_otherwise(self, peer_id: str) -> None:
        """A peer is said to serve something else than it told: if it is connected, it is asked anew."""
        if peer_id in self._serving:
            self._otherwise.add(peer_id)
            self.news(peer_id)

    def standing_changed(self) -> None:
        """This node can be reached otherwise than before: what failed may work now, and is tried anew."""
        self._upgrades = Backoff(UPGRADE_RETRY, LAST_UPGRADE, FORGIVEN)
        for peer_id in self._wanted:
            self.news(peer_id)

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                for peer_id, scope in self._wanted.items():
                    nursery.start_soon(self._keep, peer_id, scope)
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def first_round(self) -> None:
        """Wait until every peer wanted by then was tried once, with or without success."""
        while set(self._wanted) - self._tried:
            await self._round_changed.wait()

    # --- one task for each peer ---

    async def _keep(self, peer_id: str, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                await self._keep_once(peer_id)
        if self._serving.pop(peer_id, None) is not None:  # it went as it was let go: nobody else says so
            self._on_lost(peer_id, "not wanted any more")
        if peer_id in self._wanted:
            return  # wanted anew before this task had ended: all that follows is its successor's
        self._links.pop(peer_id, None)
        self._failures.pop(peer_id, None)
        self._failed_ways.pop(peer_id, None)
        self._missing.pop(peer_id, None)
        self._news.pop(peer_id, None)

    async def _keep_once(self, peer_id: str) -> None:
        tried = self._first_ways(peer_id)
        try:
            connection, route = await self._reach(peer_id)
            told = await ask_holdings(connection)
        except (PeerError, LocalError) as error:
            self._failed_ways.setdefault(peer_id, set()).update(tried)
            await self._failed(peer_id, str(error))
            return
        self._failures.pop(peer_id, None)
        self._failed_ways.pop(peer_id, None)
        self._take(peer_id, connection, route, told.name)
        self._serving[peer_id] = told
        self._on_connected(peer_id, told)
        self._tried_once(peer_id)
        log.info(
            "connected to %s (%s), %s: %s", peer_id, told.name or "no name", route.kind.value, route.reason
        )
        begun = trio.current_time()
        reason = await self._hold(peer_id)
        now = self._missing[peer_id] = trio.current_time()
        self._failures[peer_id] = reason
        self._serving.pop(peer_id, None)
        self._on_lost(peer_id, reason)
        log.warning("lost %s: %s", peer_id, reason)
        if now - begun >= PROVEN:
            self._pauses.worked(peer_id)
            await trio.sleep(FIRST_RETRY)
        else:
            await trio.sleep(self._pauses.failed(peer_id, now))

    async def _failed(self, peer_id: str, reason: str) -> None:
        if self._failures.get(peer_id) != reason:
            level = logging.INFO if peer_id in self._tried_only else logging.WARNING
            log.log(level, "%s", describe(self._wayfinder.label(peer_id), reason))
        self._failures[peer_id] = reason
        self._tried_once(peer_id)
        pause = self._pauses.failed(peer_id, trio.current_time())
        with trio.move_on_after(pause):
            await self._next_news(peer_id)

    async def _next_news(self, peer_id: str) -> None:
        await self._news[peer_id].wait()
        self._news[peer_id] = trio.Event()  # what comes while this is looked at is not lost

    def _tried_once(self, peer_id: str) -> None:
        self._tried.add(peer_id)
        self._round_changed.set()
        self._round_changed = trio.Event()

    def _take(self, peer_id: str, connection: Connection, route: Route, name: str) -> None:
        peer = QuicExpertPeer(connection, path=route.path)
        self._links[peer_id] = Link(connection, route, peer, name, trio.current_time())
        self._on_route(peer_id, route)

    # --- getting there ---

    def _existing(self, peer_id: str) -> tuple[Connection, Route] | None:
        found = [
            (connection, self._wayfinder.route_of(connection))
            for connection in self._endpoint.connections_to(peer_id)
        ]
        return min(found, key=lambda each: each[1].rank, default=None)

    def _first_ways(self, peer_id: str) -> set[Way]:
        """Those that need no connection to it."""
        return {each.way for each in self._wayfinder.attempts(peer_id) if not needs_connection(each.way)}

    async def _reach(self, peer_id: str) -> tuple[Connection, Route]:
        existing = self._existing(peer_id)
        if existing is not None:
            return existing
        attempts = [each for each in self._wayfinder.attempts(peer_id) if not needs_connection(each.way)]
        if not attempts:
            raise PeerError(f"{self._wayfinder.label(peer_id)}: no way to it is known", peer=peer_id)

        def go(attempt: Attempt) -> Callable[[], Awaitable[tuple[Connection, Route]]]:
            return lambda: self._wayfinder.carry_out(peer_id, attempt, None)

        def discard(late: tuple[Connection, Route]) -> None:
            late[0].shut(CLOSE_NORMAL, "another way was there at the same time")

        return await first(peer_id, [go(each) for each in attempts], discard, stagger=STAGGER)

    # --- while connected ---

    async def _hold(self, peer_id: str) -> str:
        """Use the link, and better ones, until it is lost; returns why."""
        pause = FIRST_UPGRADE
        while True:
            link = self._links[peer_id]
            with trio.move_on_after(pause):
                await self._closed_or_news(peer_id, link)
            if not link.connection.is_open:
                other = self._existing(peer_id)
                if trio.current_time() - link.since < SOON:
                    self._upgrades.failed((peer_id, link.route.rank), trio.current_time())
                if other is None:
                    return link.connection.close_reason or "connection closed"
                self._take(peer_id, *other, link.name)  # two had been open: the session goes on
                await self._ask_anew(peer_id)
                continue
            if peer_id in self._otherwise:
                await self._ask_anew(peer_id)
            better = None if link.route.best else await self._better_while_open(peer_id, link)
            if better is not None:
                self._replace(peer_id, link, *better)
                await self._ask_anew(peer_id)
            pause = UPGRADE_RETRY

    async def _ask_anew(self, peer_id: str) -> None:
        """What the peer serves, after a change of connection: the other end may have been started anew."""
        link = self._links[peer_id]
        self._otherwise.discard(peer_id)
        try:
            told = await ask_holdings(link.connection)
        except (PeerError, LocalError) as error:
            log.info("%s: %s", peer_id, error)
            return  # if it cannot be asked for experts either, that shows
        if told != self._serving.get(peer_id):
            link.name = told.name
            self._serving[peer_id] = told
            self._on_connected(peer_id, told)

    def _reconsider(self, peer_id: str, link: Link) -> None:
        """Say of a route what is known now: its reason may have been a guess when it was taken."""
        if not link.connection.dialed:
            return
        via = self._wayfinder.route_of(link.connection).via
        if via != link.route.via:  # another relay has taken over
            link.route = replace(link.route, via=via)
        for attempt in self._wayfinder.attempts(peer_id):
            if attempt.way.value == link.route.rank and attempt.reason != link.route.reason:
                link.route = replace(link.route, reason=attempt.reason)

    async def _closed_or_news(self, peer_id: str, link: Link) -> None:
        async with trio.open_nursery() as nursery:

            async def closed() -> None:
                await link.connection.closed.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(closed)
            await self._next_news(peer_id)
            nursery.cancel_scope.cancel()

    async def _better_while_open(self, peer_id: str, link: Link) -> tuple[Connection, Route] | None:
        """Look for a better way; a link that is lost meanwhile is worth more attention."""
        better = None
        async with trio.open_nursery() as nursery:

            async def closed() -> None:
                await link.connection.closed.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(closed)
            better = await self._better(peer_id, link)
            nursery.cancel_scope.cancel()
        return better

    async def _better(self, peer_id: str, link: Link) -> tuple[Connection, Route] | None:
        existing = self._existing(peer_id)
        if existing is not None and existing[1].rank < link.route.rank:
            return existing
        for attempt in self._wayfinder.attempts(peer_id):
            now, key = trio.current_time(), (peer_id, attempt.way.value)
            if attempt.way.value >= link.route.rank or self._upgrades.ready_at(key, now) > now:
                continue
            try:
                connection, route = await self._wayfinder.carry_out(peer_id, attempt, link.connection)
            except (PeerError, LocalError) as error:
                self._upgrades.failed(key, now)
                log.info("%s stays %s: %s", peer_id, link.route.kind.value, error)
                continue
            return connection, route
        return None

    def _replace(self, peer_id: str, link: Link, connection: Connection, route: Route) -> None:
        log.info(
            "%s is now %s instead of %s: %s", peer_id, route.kind.value, link.route.kind.value, route.reason
        )
        self._take(peer_id, connection, route, link.name)
        if self._nursery is not None and link.connection.dialed:
            self._nursery.start_soon(self._drain, link)

    async def _drain(self, link: Link) -> None:
        with trio.move_on_after(DRAIN):
            await link.connection.closed.wait()
        with trio.move_on_after(LONG_CALLS):
            await link.peer.wait_idle()
        link.connection.shut(CLOSE_NORMAL, "replaced by a better way")
