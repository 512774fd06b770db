"""`/panal/reach/1`, the asking side: gathers evidence about this node's own reachability and judges it.

A round asks connected peers where they see us and has a few of them dial back. Rounds follow quickly while
the question is open or evidence contradicts the verdict, and rarely after that. Evidence of strangers needs
addresses we never wrote to: run the first round when the bootstrap peers are connected, before all others.
"""

from __future__ import annotations

import logging
import random
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import trio

from relay.probes import Probes
from relay.reach_wire import (
    MAX_CONTACTED,
    MAX_MESSAGE_BYTES,
    NONCE_BYTES,
    PROTOCOL_ID,
    DialBack,
    DialedBack,
    Observe,
    Observed,
    ProbeKind,
    decode_answer,
    encode,
    pack_host,
    unpack_host,
)
from relay.reachability import (
    Attempt,
    Dialed,
    Evidence,
    Reach,
    Reachability,
    Seen,
    Way,
    bounded,
    judge,
)
from relay.targets import Address, plain_host, scope_of
from routing.errors import PeerError
from routing.quic.connection import Connection
from routing.quic.endpoint import Endpoint
from routing.quic.stream import Stream

log = logging.getLogger("panal.reach")

_Answer = TypeVar("_Answer", Observed, DialedBack)

FULL_PAUSE = 300.0
"""Seconds between rounds while the verdict stands; a third of what evidence lives."""

OPEN_PAUSE = 30.0
"""While it is open, or was just contradicted."""

LEAST_PAUSE = 3.0
"""Seconds between rounds whatever happens: peers count what they are asked."""

OUTER_CANDIDATES = 2
"""Outer addresses offered for a punch: more of them come from a NAT for which none is right."""

SETTLE = 0.5
"""Seconds to wait for more peers when one has connected: a round with several says more."""

OBSERVERS = 8
"""Peers asked where they see us in a round."""

DIALERS = 3
"""Peers asked to dial back in a round: two that agree, and one to spare."""

ANSWER_TIMEOUT = 8.0
"""Seconds for an answer to a dial-back: the answering peer may try three helpers."""

CLOCKS = 32
"""Peers whose clocks are remembered: enough to tell whose is wrong."""

ARRIVAL_GRACE = 1.0
"""Seconds beyond a round trip in which a probe that was sent must arrive."""


class ReachProber:
    """Keeps a verdict on this node's reachability.

    Attributes:
        reachability: the verdict now.
        clock_offsets: peer's clock minus ours in seconds, corrected by half a round trip, by peer id.
    """

    def __init__(
        self,
        probes: Probes,
        *,
        on_change: Callable[[Reachability], None] | None = None,
        wall_clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        """
        Args:
            on_change: called with each verdict that differs from the one before in what others should know.
            wall_clock: seconds since 1970, compared with what peers say.
        """
        self.reachability = Reachability()
        self.clock_offsets: dict[str, float] = {}
        self._probes = probes
        self._contacts = probes.contacts
        self._endpoint: Endpoint = probes.endpoint
        self._on_change = on_change
        self._wall_clock = wall_clock
        self._rng = rng or random.Random()
        self._evidence: list[Evidence] = []
        self._known: set[Connection] = set()
        self._wake = trio.Event()

    # --- for the node ---

    async def run(self) -> None:
        """Rounds until cancelled."""
        while True:
            self._wake = trio.Event()  # before the round: what comes during it asks for another one
            before = self.reachability.reach
            await self.round()
            ended = trio.current_time()
            settled = self.reachability.reach is not Reach.UNKNOWN and self.reachability.reach is before
            pause = (FULL_PAUSE if settled and not self._contradicted() else OPEN_PAUSE) * (
                0.9 + 0.2 * self._rng.random()
            )
            with trio.move_on_after(pause):
                await self._wake.wait()
                await trio.sleep_until(max(ended + LEAST_PAUSE, trio.current_time() + SETTLE))

    def wake(self) -> None:
        """Begin a round now: the first peers are connected, or this machine's address has changed."""
        self._wake.set()

    def on_connection(self, connection: Connection) -> None:
        """Tell it of each new connection (`Endpoint.on_connection`): one that nobody invited is evidence, and
        news unless the verdict says as much. To a public server somebody new comes every few seconds."""
        is_news = self.reachability.reach is not Reach.PUBLIC or self._contradicted()
        if self.reachability.reach is Reach.UNKNOWN or (is_news and self._is_uninvited(connection)):
            self.wake()

    def note_dial(self, peer: str, *, answered: bool) -> None:
        """A dial over UDP has ended: all of them unanswered mean that UDP is blocked."""
        self._add([Dialed(peer, answered, self._endpoint.now())])

    def candidates(self) -> list[Address]:
        """Where a peer could reach us: the outer addresses, then our own on the networks we use."""
        own = [each.local for each in self._evidence if isinstance(each, Seen)]
        return list(dict.fromkeys([*self.reachability.addresses[:OUTER_CANDIDATES], *own]))

    async def round(self) -> Reachability:
        """Ask once, and judge. Peers that do not answer, or do not know the protocol, are passed over."""
        uninvited = self._look_at_connections()
        peers = self._peers()
        found: list[Evidence] = []
        async with trio.open_nursery() as nursery:
            for connection in peers[:OBSERVERS]:
                nursery.start_soon(self._observe, connection, connection in uninvited, found)
            for connection in uninvited:
                if connection not in peers[:OBSERVERS]:
                    nursery.start_soon(self._observe, connection, True, found)
        # where this node is seen is of use at once, to punch; dial-backs take seconds more
        self._add(found)
        seen = {each.peer: each.address for each in found if isinstance(each, Seen)}
        found.clear()
        askable = [each for each in peers if each.peer_id in seen][:DIALERS]
        # one peer alone is asked twice, else its silence would leave the question open
        tries = 2 if len(askable) == 1 else 1
        for _ in range(tries):
            async with trio.open_nursery() as nursery:
                for connection in askable:
                    nursery.start_soon(self._have_dialed_back, connection, seen[connection.peer_id], found)
        self._add(found)
        return self.reachability

    # --- inside ---

    def _peers(self) -> list[Connection]:
        """Connected peers at different addresses first; those we dialed before those that dialed us."""
        live = [each for each in self._endpoint.connections if each.is_open and not each.is_carried]
        self._rng.shuffle(live)
        live.sort(key=lambda each: not each.dialed)
        by_host: dict[str, Connection] = {}
        by_peer: dict[str, Connection] = {}
        for each in live:
            if each.peer_id not in by_peer:
                by_peer[each.peer_id] = each
                by_host.setdefault(each.remote_address[0], each)
        first = list(by_host.values())
        return first + [each for each in by_peer.values() if each not in first]

    def _is_uninvited(self, connection: Connection) -> bool:
        return (
            not connection.dialed
            and not connection.is_carried
            and connection not in self._known
            and not self._contacts.has(connection.first_address[0], self._endpoint.now())
        )

    def _look_at_connections(self) -> list[Connection]:
        """Those that nobody invited, once each; the hosts of all count as written to from here on."""
        live = [each for each in self._endpoint.connections if each.is_open]
        uninvited = [each for each in live if self._is_uninvited(each)]
        self._known = set(live)
        for each in live:
            if not each.is_carried:
                self._contacts.note(each.remote_address[0], self._endpoint.now())
        return uninvited[:OBSERVERS]

    async def _observe(self, connection: Connection, uninvited: bool, found: list[Evidence]) -> None:
        begun = self._wall_clock()
        answer = await _ask(connection, Observe(), Observed, ANSWER_TIMEOUT)
        if answer is None:
            return
        if scope_of(answer.address()[0]) is None:
            log.debug("%s sees this node where nobody can be", connection.peer_id)
            return
        ended = self._wall_clock()
        now, peer = self._endpoint.now(), connection.peer_id
        self.clock_offsets[peer] = answer.time - (begun + ended) / 2
        if len(self.clock_offsets) > CLOCKS:
            del self.clock_offsets[next(iter(self.clock_offsets))]
        host = plain_host(connection.remote_address[0])
        local = (own_host(self._endpoint, host), self._endpoint.local_address[1])
        found.append(Seen(peer, host, answer.address(), local, connection.dialed, now))
        if uninvited:
            found.append(Attempt(peer, Way.UNINVITED, host, answer.address(), True, now))

    async def _have_dialed_back(self, connection: Connection, target: Address, found: list[Evidence]) -> None:
        nonce = secrets.token_bytes(NONCE_BYTES)
        arrived: dict[Way, str] = {}
        news = trio.Event()

        def take(kind: ProbeKind, sender: Address) -> None:
            way = self._way_of(connection, sender)
            if way is not None:
                arrived.setdefault(way, sender[0])
                news.set()

        contacted = [pack_host(each) for each in self._contacts.recent(self._endpoint.now())]
        request = DialBack(nonce, contacted[:MAX_CONTACTED])
        with self._probes.expecting(nonce, ProbeKind.OTHER_PORT, ProbeKind.STRANGER, then=take):
            answer = await _ask(connection, request, DialedBack, ANSWER_TIMEOUT)
            if answer is None:
                return
            helper = unpack_host(answer.helper)
            if helper and self._contacts.has(helper, self._endpoint.now()):
                helper = ""  # no stranger to us, whether its probe arrives or not
            sent = {Way.OTHER_PORT} if answer.other_port else set()
            sent |= {Way.STRANGER} if helper else set()
            with trio.move_on_after(ARRIVAL_GRACE + connection.rtt):
                while not sent <= set(arrived):
                    news = trio.Event()
                    await news.wait()
        now, peer = self._endpoint.now(), connection.peer_id
        for way in sorted(sent | set(arrived)):
            source = arrived.get(way) or (helper if way is Way.STRANGER else connection.remote_address[0])
            found.append(Attempt(peer, way, source, target, way in arrived, now))

    def _way_of(self, asked: Connection, sender: Address) -> Way | None:
        """By what door a probe came, from where it really comes: what it says of itself proves nothing."""
        if not self._contacts.has(sender[0], self._endpoint.now()):
            return Way.STRANGER
        host, port = asked.remote_address
        return Way.OTHER_PORT if sender[0] == plain_host(host) and sender[1] != port else None

    def _contradicted(self) -> bool:
        """Whether the latest attempts say otherwise than the verdict."""
        strangers = [
            each for each in self._evidence if isinstance(each, Attempt) and each.way is not Way.OTHER_PORT
        ]
        return bool(strangers) and strangers[-1].arrived != (self.reachability.reach is Reach.PUBLIC)

    def _add(self, found: Sequence[Evidence]) -> None:
        now = self._endpoint.now()
        self._evidence = bounded([*self._evidence, *found], now)
        before, self.reachability = self.reachability, judge(self._evidence, now)
        if self.reachability.differs(before):
            log.debug("%s (%s)", self.reachability.reach, self.reachability.reason)
            if self._on_change is not None:
                self._on_change(self.reachability)


async def _ask(
    connection: Connection, request: Observe | DialBack, kind: type[_Answer], timeout: float
) -> _Answer | None:
    """One request on a stream of its own; None if there is no valid answer in time."""
    stream: Stream | None = None
    try:
        stream = connection.open_stream(PROTOCOL_ID)
        with trio.move_on_after(timeout):
            await stream.send_message(encode(request))
            answer = await stream.receive_message(MAX_MESSAGE_BYTES)
            return decode_answer(answer, kind, peer=connection.peer_id)
    except PeerError as error:
        log.debug("asking %s for our reachability: %s", connection.peer_id, error)
    finally:
        if stream is not None:
            stream.reset()
    return None


def own_host(endpoint: Endpoint, towards: str) -> str:
    """Our own address on the way to a host: the endpoint's, or what the routing table chooses."""
    bound = plain_host(endpoint.local_address[0])
    if bound and bound not in ("0.0.0.0", "::"):
        return bound
    family = socket.AF_INET6 if ":" in towards else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((towards, 9))  # sends nothing: it only looks the route up
            return plain_host(probe.getsockname()[0])
    except OSError:
        return bound
