"""What works between this node and the network, check by check, each with what to do about it.

Two peers are dialed first and asked about our reachability while nobody else has been written to: the others
are then strangers who can try to get in. After that the rest is dialed. Peers that nobody named (those of
this network, those of earlier days) are asked where none of the named ones lets this node in.

Each check bears on whether this node can take part, or does not; the verdict rests on that alone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import trio

from relay.contacts import Contacts
from relay.dial_ends import ADVICE, End, end_of
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


class Bearing(StrEnum):
    """What a check says about whether this node can take part."""

    NONE = ""
    WAY_IN = "way in"
    """A node of this swarm is connected, or a relay takes this node."""
    ANSWER = "answer"
    """Somebody is there, who may be no node of this swarm."""
    REFUSAL = "refusal"
    """Somebody is there and does not take this node, or is not who was asked for."""
    SILENCE = "silence"


class Verdict(StrEnum):
    """Whether this node can take part."""

    CAN = "can"
    UNKNOWN = "unknown"
    CANNOT = "cannot"


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: which; a peer's or relay's carries its address.
        status: how it ended.
        detail: what was found, in one line.
        advice: what to do about it; "" if nothing.
        bearing: what it means for the verdict.
    """

    name: str
    status: Status
    detail: str
    advice: str = ""
    bearing: Bearing = Bearing.NONE

    def __str__(self) -> str:
        return f"{self.status}  {self.name}: {self.detail}" + (f"; {self.advice}" if self.advice else "")


@dataclass(frozen=True)
class Report:
    """All checks.

    Attributes:
        can_take_part: the verdict is CAN.
        verdict: what the checks come to.
        reason: why, in a few words.
        reachability: the judgement on which the checks of UDP rest.
        checks: in the order in which they are shown.
    """

    can_take_part: bool
    verdict: Verdict
    reason: str
    reachability: Reachability
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Unnamed:
    """A peer that nobody named.

    Attributes:
        origin: "LAN" or "remembered".
        addresses: where it may be, at least one, the best first.
    """

    origin: str
    addresses: tuple[PeerAddress, ...]


RelayChecks = Callable[[], Awaitable[Sequence[Check]]]
"""Tries each relay that is known and returns checks of each."""

Elsewhere = Callable[[], Awaitable[tuple[Sequence[Check], Sequence[Unnamed]]]]
"""Looks for peers that nobody named: how that went, and who was found."""


async def netcheck(
    endpoint: Endpoint,
    peers: Sequence[PeerAddress],
    *,
    elsewhere: Elsewhere | None = None,
    relay_checks: RelayChecks | None = None,
    no_relay_checks: str = "the control plane is off",
    forwardable: bool = True,
    wall_clock: Callable[[], float] = time.time,
) -> Report:
    """Check everything once.

    Args:
        endpoint: running, without connections yet.
        peers: whom to dial.
        elsewhere: asked where none of them lets this node in.
        relay_checks: see RelayChecks.
        no_relay_checks: why there are none, if there are none.
        forwardable: whether the node has a port of its own, which a router could forward.
    """
    contacts = Contacts()
    prober = ReachProber(Probes(endpoint, contacts), wall_clock=wall_clock)
    dials = _Dials(endpoint, contacts, prober)
    waiting = [Unnamed("", (peer,)) for peer in peers]
    while waiting and len(dials.connected) < ENOUGH_PEERS:
        now, waiting = waiting[:ENOUGH_PEERS], waiting[ENOUGH_PEERS:]
        await dials.dial(now)
    looked: Sequence[Check] = ()
    found: Sequence[Unnamed] = ()
    if not dials.connected and elsewhere is not None:
        looked, found = await elsewhere()
        await dials.dial(found)
    if dials.connected:
        await prober.round()
    await dials.dial(waiting)
    if waiting and dials.connected and prober.reachability.mapping is Mapping.UNKNOWN:
        await prober.round()
    relays = [Check("relay", Status.SKIP, f"not checked: {no_relay_checks}")]
    if relay_checks is not None:
        relays = list(await relay_checks()) or [Check("relay", Status.SKIP, "not checked: none is known")]
    judged = prober.reachability
    port = endpoint.local_address[1] if forwardable else None
    dialed = dials.results()
    checks = (
        _udp(dials.ends),
        _address(judged),
        _mapping(judged, port),
        _filtering(judged, port),
        _port_kept(judged, port),
        _clock(list(prober.clock_offsets.values())),
        *looked,
        *dialed,
        *relays,
    )
    verdict, reason = decide([each.bearing for each in checks], judged)
    return Report(verdict is Verdict.CAN, verdict, reason, judged, checks)


def decide(bearings: Sequence[Bearing], judged: Reachability) -> tuple[Verdict, str]:
    """The verdict on checks with these bearings, and why."""
    if Bearing.WAY_IN in bearings:
        return Verdict.CAN, f"its reach is {judged.reach} ({judged.reason})"
    if Bearing.REFUSAL in bearings:
        return Verdict.CANNOT, "nobody who answers takes it: see the failed checks"
    if Bearing.ANSWER in bearings:
        return Verdict.UNKNOWN, "who answers is no node of its swarm, and relays for nobody"
    if Bearing.SILENCE in bearings:
        return Verdict.CANNOT, "no peer and no relay can be reached"
    return Verdict.UNKNOWN, "no peer to ask"


class _Dials:
    """Dials peers and keeps a check of each."""

    def __init__(self, endpoint: Endpoint, contacts: Contacts, prober: ReachProber) -> None:
        self.connected: list[Connection] = []
        self.ends: list[End | None] = []
        """How the dial of each peer ended; None: with a connection."""
        self._checks: dict[PeerAddress, tuple[Check, Connection | None]] = {}
        self._order: list[PeerAddress] = []
        self._endpoint = endpoint
        self._contacts = contacts
        self._prober = prober

    async def dial(self, peers: Sequence[Unnamed]) -> None:
        self._order += [peer.addresses[0] for peer in peers]
        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(self._dial_one, peer)

    def results(self) -> list[Check]:
        """A check of each peer; a peer may still have thought better of it (it sees this node's membership
        after this node has seen its own)."""
        results = []
        for address in self._order:
            check, connection = self._checks[address]
            if connection is not None and connection.close_reason is not None:
                detail = f"connected, then it ended: {connection.close_reason}"
                check = Check(check.name, Status.FAIL, detail, ADVICE[End.REFUSAL], Bearing.REFUSAL)
            results.append(check)
        return results

    async def _dial_one(self, peer: Unnamed) -> None:
        failure: tuple[End, Check] | None = None
        for address in peer.addresses:
            name = f"{peer.origin} peer {address}".lstrip()
            self._contacts.note(address.host, self._endpoint.now())
            try:
                connection = await self._endpoint.connect(address, timeout=DIAL_TIMEOUT)
            except (PeerError, LocalError) as error:
                end = end_of(error)
                if end is not End.OURS:
                    self._prober.note_dial(str(address), answered=end is not End.SILENCE)
                if failure is None or failure[0] in (End.SILENCE, End.OURS):
                    reason = str(error).removeprefix(f"dialing {address}: ")
                    failure = end, Check(name, Status.FAIL, reason, ADVICE[end], bearing_of(end, peer.origin))
                continue
            self._prober.note_dial(connection.peer_id, answered=True)
            self.connected.append(connection)
            self.ends.append(None)
            detail = f"round trip {connection.rtt * 1000:.0f} ms"
            check = Check(name, Status.PASS, detail, bearing=Bearing.WAY_IN)
            self._checks[peer.addresses[0]] = check, connection
            return
        assert failure is not None
        end, check = failure
        self.ends.append(end)
        self._checks[peer.addresses[0]] = check, None


def bearing_of(end: End, origin: str = "") -> Bearing:
    """What a failed dial means for the verdict; nobody vouches for what was remembered."""
    if end is End.OURS or origin == "remembered":
        return Bearing.NONE
    return Bearing.SILENCE if end is End.SILENCE else Bearing.REFUSAL


def _udp(ends: Sequence[End | None]) -> Check:
    name = "UDP out"
    tried = [end for end in ends if end is not End.OURS]
    if not tried:
        why, advice = "no peer is known", "name one with --peer, or in [swarm] peers"
        if ends:
            why, advice = "no peer can be dialed from here", "see why below"
        return Check(name, Status.SKIP, f"not checked: {why}", advice)
    answered = [end for end in tried if end is not End.SILENCE]
    peers = f"{len(tried)} peers"
    if answered:
        besides = "" if None in answered else ", but none is a node that takes this one"
        return Check(name, Status.PASS, f"{len(answered)} of {peers} answered{besides}")
    return Check(
        name,
        Status.FAIL,
        f"none of {peers} answered",
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


def _mapping(verdict: Reachability, port: int | None) -> Check:
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
                "" if port is None else f"{_forward(port)}, else a relay is used",
            )
    return Check(name, Status.SKIP, "not checked: it takes two peers at different addresses that answer")


def _filtering(verdict: Reachability, port: int | None) -> Check:
    name = "filtering"
    if verdict.filtering is Filtering.NONE:
        return Check(name, Status.PASS, f"anybody gets in ({verdict.reason})")
    let_in = ""
    if port is not None:
        untouched = verdict.mapping is Mapping.NONE
        let_in = f"let UDP port {port} in through the firewall" if untouched else _forward(port)
    spared = let_in and f"{let_in} to spare that"
    if verdict.filtering is Filtering.ADDRESS:
        detail = "only addresses that this node wrote to get in; others can be let in by hole punching"
        return Check(name, Status.PASS, detail, "" if verdict.reach is Reach.UNKNOWN else spared)
    if verdict.filtering is Filtering.PORT:
        detail = "only addresses and ports that this node wrote to get in"
        if verdict.mapping is Mapping.DEPENDENT:
            return Check(name, Status.FAIL, detail, let_in)
        if verdict.mapping is Mapping.UNKNOWN:
            detail += "; the mapping, which is not known, decides on hole punching"
            return Check(name, Status.PASS, detail, spared)
        return Check(name, Status.PASS, detail + "; most others can be let in by hole punching", spared)
    return Check(name, Status.SKIP, f"not known: {verdict.reason}")


def _forward(port: int) -> str:
    return f"forward UDP port {port} to this machine in the router"


def _port_kept(verdict: Reachability, port: int | None) -> Check:
    name = "port kept"
    if port is None:
        return Check(name, Status.SKIP, "not checked: a node that only asks takes any port")
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
