"""What works between this node and the network, check by check, each with what to do about it.

Two peers are dialed first and asked about our reachability while nobody else has been written to: the others
are then strangers who can try to get in. After that the rest is dialed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import trio

from relay.contacts import Contacts
from relay.prober import ReachProber
from relay.probes import Probes
from relay.reachability import ENOUGH_PEERS, Filtering, Mapping, Reach, Reachability
from routing.errors import LocalError, PeerError
from routing.multiaddr import PeerAddress
from routing.quic.connection import Connection
from routing.quic.endpoint import Endpoint

DIAL_TIMEOUT = 5.0
"""Seconds for one peer: three handshake round trips over the worst links in use, with two repeats."""

MAX_CLOCK_OFFSET = 300.0
"""Seconds a clock may be off before adverts of this node, or of others, count as expired."""


class Status(StrEnum):
    """How a check ended."""

    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"
    """Not checked; the detail says why."""


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: which; a peer's or relay's carries its address.
        status: how it ended.
        detail: what was found, in one line.
        advice: what to do about it; "" if nothing.
    """

    name: str
    status: Status
    detail: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.status}  {self.name}: {self.detail}" + (f"; {self.advice}" if self.advice else "")


@dataclass(frozen=True)
class Report:
    """All checks.

    Attributes:
        can_take_part: some peer or relay can be reached, so this node can be of the swarm in some way.
        reachability: the verdict on which most checks rest.
        checks: in the order in which they are shown.
    """

    can_take_part: bool
    reachability: Reachability
    checks: tuple[Check, ...]


RelayChecks = Callable[[], Awaitable[Sequence[Check]]]
"""Tries each relay that is known and returns a check for each; it needs libp2p, which not every node has."""


async def netcheck(
    endpoint: Endpoint,
    peers: Sequence[PeerAddress],
    *,
    relay_checks: RelayChecks | None = None,
    no_relay_checks: str = "libp2p is not installed",
    wall_clock: Callable[[], float] = time.time,
) -> Report:
    """Check everything once.

    Args:
        endpoint: running, without connections yet.
        peers: whom to dial.
        relay_checks: see RelayChecks.
        no_relay_checks: why there are none, if there are none.
    """
    contacts = Contacts()
    prober = ReachProber(Probes(endpoint, contacts), wall_clock=wall_clock)
    dials = _Dials(endpoint, contacts, prober)
    waiting = list(peers)
    while waiting and len(dials.connected) < ENOUGH_PEERS:
        now, waiting = waiting[:ENOUGH_PEERS], waiting[ENOUGH_PEERS:]
        await dials.dial(now)
    if dials.connected:
        await prober.round()
    await dials.dial(waiting)
    if waiting and dials.connected and prober.reachability.mapping is Mapping.UNKNOWN:
        await prober.round()
    relays = [Check("relay", Status.SKIP, f"not checked: {no_relay_checks}")]
    if relay_checks is not None:
        relays = list(await relay_checks()) or [Check("relay", Status.SKIP, "not checked: none is known")]
    verdict = prober.reachability
    port = endpoint.local_address[1]
    checks = (
        _udp(len(dials.connected), len(peers)),
        _address(verdict),
        _mapping(verdict, port),
        _filtering(verdict, port),
        _port_kept(verdict, port),
        _clock(list(prober.clock_offsets.values())),
        *(dials.checks[peer] for peer in peers),
        *relays,
    )
    reached = bool(dials.connected) or any(each.status is Status.PASS for each in relays)
    return Report(reached, verdict, checks)


class _Dials:
    """Dials peers and keeps a check of each."""

    def __init__(self, endpoint: Endpoint, contacts: Contacts, prober: ReachProber) -> None:
        self.checks: dict[PeerAddress, Check] = {}
        self.connected: list[Connection] = []
        self._endpoint = endpoint
        self._contacts = contacts
        self._prober = prober

    async def dial(self, peers: Sequence[PeerAddress]) -> None:
        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(self._dial_one, peer)

    async def _dial_one(self, peer: PeerAddress) -> None:
        name = f"peer {peer}"
        self._contacts.note(peer.host, self._endpoint.now())
        try:
            connection = await self._endpoint.connect(peer, timeout=DIAL_TIMEOUT)
        except (PeerError, LocalError) as error:
            self._prober.note_dial(str(peer), answered=False)
            reason = str(error).removeprefix(f"dialing {peer}: ")
            advice = "see whether it runs and its address is still right"
            self.checks[peer] = Check(name, Status.FAIL, reason, advice)
            return
        self._prober.note_dial(connection.peer_id, answered=True)
        self.connected.append(connection)
        self.checks[peer] = Check(name, Status.PASS, f"round trip {connection.rtt * 1000:.0f} ms")


def _udp(connected: int, tried: int) -> Check:
    name = "UDP out"
    if not tried:
        return Check(
            name, Status.SKIP, "not checked: no peer is known", "name one with --peer, or in [swarm] peers"
        )
    if connected:
        return Check(name, Status.PASS, f"{connected} of {tried} peers answered")
    return Check(
        name,
        Status.FAIL,
        f"none of {tried} peers answered",
        "if they run, this network blocks UDP: let it out, or take part through a relay over TCP",
    )


def _address(verdict: Reachability) -> Check:
    name = "public address"
    if not verdict.addresses:
        return Check(name, Status.SKIP, "not checked: no peer has said where it sees this node")
    host, port = verdict.addresses[0]
    seen = f"{host}, UDP port {port}"
    return Check(
        name, Status.PASS, seen + (", this machine's own" if verdict.mapping is Mapping.NONE else "")
    )


def _mapping(verdict: Reachability, port: int) -> Check:
    name = "mapping"
    match verdict.mapping:
        case Mapping.NONE:
            return Check(name, Status.PASS, "no NAT changes this node's address")
        case Mapping.INDEPENDENT:
            return Check(name, Status.PASS, "the NAT keeps one outer port for all destinations")
        case Mapping.DEPENDENT:
            return Check(
                name,
                Status.FAIL,
                "the NAT takes another outer port for each destination, so few peers can be punched to",
                f"forward UDP port {port} to this machine in the router, else a relay is used",
            )
    return Check(name, Status.SKIP, "not checked: it takes two peers at different addresses that answer")


def _filtering(verdict: Reachability, port: int) -> Check:
    name = "filtering"
    if verdict.filtering is Filtering.NONE:
        return Check(name, Status.PASS, f"anybody gets in ({verdict.reason})")
    let_in = (
        f"let UDP port {port} in through the firewall"
        if verdict.mapping is Mapping.NONE
        else f"forward UDP port {port} to this machine in the router"
    )
    if verdict.filtering is Filtering.ADDRESS:
        detail = "only addresses that this node wrote to get in; others can be let in by hole punching"
        return Check(
            name, Status.PASS, detail, "" if verdict.reach is Reach.UNKNOWN else f"{let_in} to spare that"
        )
    if verdict.filtering is Filtering.PORT:
        detail = "only addresses and ports that this node wrote to get in"
        if verdict.mapping is Mapping.DEPENDENT:
            return Check(name, Status.FAIL, detail, let_in)
        return Check(
            name,
            Status.PASS,
            detail + "; most others can be let in by hole punching",
            f"{let_in} to spare that",
        )
    return Check(name, Status.SKIP, f"not known: {verdict.reason}")


def _port_kept(verdict: Reachability, port: int) -> Check:
    name = "port kept"
    if verdict.port_kept is None:
        return Check(name, Status.SKIP, "not checked: no peer has said where it sees this node")
    if verdict.port_kept:
        return Check(name, Status.PASS, f"the outer port is {port}, as here")
    outer = verdict.addresses[0][1] if verdict.addresses else "another"
    return Check(
        name,
        Status.FAIL,
        f"the NAT makes {outer} of port {port}",
        "peers are told the outer one; a forwarded port must lead to the inner one",
    )


def _clock(offsets: Sequence[float]) -> Check:
    name = "clock"
    if not offsets:
        return Check(name, Status.SKIP, "not checked: no peer has told the time")
    offset = statistics.median(offsets)
    peers = f"{len(offsets)} peer{'s' if len(offsets) > 1 else ''}"
    if abs(offset) <= MAX_CLOCK_OFFSET:
        return Check(name, Status.PASS, f"within {abs(offset):.1f} s of {peers}")
    return Check(
        name,
        Status.FAIL,
        f"{abs(offset):.0f} s {'behind' if offset > 0 else 'ahead of'} the clocks of {peers}",
        f"set this machine's clock (NTP): past {MAX_CLOCK_OFFSET:.0f} s adverts count as expired",
    )
