"""By which ways a peer may be reached, best first, each with its reason. Pure; the whole policy is here.

Rules
1. A way that exists is used: whoever opened the connection (routing.links looks there first).
2. Direct QUIC to whoever is public, or may be, or is on the same network.
3. Who is public is called back by a peer that is not: the peer's own dial opens its NAT.
4. Direct TCP to a public peer where UDP is blocked on one side; the QUIC connection is carried in it.
5. Two NATs or firewalls that can be punched are punched.
6. A relay only where nothing else can work, and until something better does. Between two public nodes that
   both have UDP never.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Literal

Reach = Literal["unknown", "public", "private"]
Mapping = Literal["unknown", "none", "independent", "dependent"]
Filtering = Literal["unknown", "none", "address", "port"]


class Kind(Enum):
    """What a route is called where people see it."""

    DIRECT = "direct"
    PUNCHED = "punched"
    RELAYED = "relayed"


class Way(Enum):
    """What is done to get a route; the value is its rank, lower is better."""

    DIAL = 0
    CALL_BACK = 1
    DIAL_TCP = 2
    CALL_BACK_TCP = 3
    PUNCH = 4
    RELAY = 5

    @property
    def kind(self) -> Kind:
        if self is Way.PUNCH:
            return Kind.PUNCHED
        return Kind.RELAYED if self is Way.RELAY else Kind.DIRECT


@dataclass(frozen=True)
class Standing:
    """How a node stands to the network: what it found out about itself, or what its advert says.

    Attributes:
        reach: whether strangers' datagrams arrive.
        mapping: "none" without NAT; "independent": one outer port for all destinations; "dependent": one for
            each.
        filtering: who gets in through a mapping: "none" anybody, "address" a contacted address, "port" only
            the contacted address and port.
        udp: whether UDP leaves its network at all; None while that is not known.
    """

    reach: Reach = "unknown"
    mapping: Mapping = "unknown"
    filtering: Filtering = "unknown"
    udp: bool | None = None

    @property
    def described(self) -> str:
        """In a few words, for a reason."""
        if self.udp is False:
            return "UDP blocked"
        if self.reach == "public":
            return "public"
        if self.mapping == "none":
            return "firewall"
        if self.mapping == "dependent":
            return "NAT with a port for each destination"
        if self.mapping == "independent":
            return {"none": "open NAT", "address": "NAT filtering by address"}.get(
                self.filtering, "NAT filtering by address and port"
            )
        return "reachability unknown"


Punchable = Callable[[Standing, Standing], tuple[bool, str]]
"""Whether probing from both sides can open a way between two nodes, and why (relay.reachability)."""


@dataclass(frozen=True)
class Attempt:
    """One way to try, and what is said of the route if it works."""

    way: Way
    reason: str


@dataclass(frozen=True)
class Route:
    """How a peer is reached now.

    Attributes:
        kind: direct, punched or relayed.
        reason: why this and nothing better, one line.
        transport: what the QUIC packets travel in.
        via: the relay's peer id, "" without one.
        rank: of the way that led here (`Way`); an inbound connection has that of the way it stands for.
    """

    kind: Kind
    reason: str
    transport: Literal["udp", "tcp"] = "udp"
    via: str = ""
    rank: int = Way.DIAL.value

    @property
    def path(self) -> str:
        """A key for what is measured on this path."""
        return f"{self.kind.value}/{self.transport}" + (f"/{self.via}" if self.via else "")

    @property
    def best(self) -> bool:
        """No better way is worth looking for."""
        return self.kind is Kind.DIRECT and self.transport == "udp"


OPENED_BY_PEER = "the peer opened the connection"


def ways(
    own: Standing,
    peer: Standing,
    *,
    same_network: bool,
    punchable: Punchable,
    same_machine: bool = False,
) -> list[Attempt]:
    """What to try for a peer, best first.

    Args:
        same_network: an address of it is on a network that both share; same_machine: on the loopback one.
    """
    found: list[Attempt] = []
    blocked = own.udp is False or peer.udp is False
    open_to_dials = peer.reach != "private"
    if same_network:
        where = "this machine" if same_machine else "the same network"
        found.append(Attempt(Way.DIAL, f"both are on {where}"))
    elif peer.udp is not False and open_to_dials:
        # also where UDP seems blocked here: perhaps a bootstrap was off, and only a dial shows it
        reason = "the peer is public" if peer.reach == "public" else "the peer answers where it listens"
        found.append(Attempt(Way.DIAL, reason))
    if not blocked and peer.reach != "public" and _may_be_called(own):
        found.append(Attempt(Way.CALL_BACK, f"this node is public: the peer ({peer.described}) dialed it"))
    if blocked and open_to_dials:
        where = "here" if own.udp is False else "at the peer"
        found.append(Attempt(Way.DIAL_TCP, f"UDP is blocked {where}: TCP to a public peer"))
    elif blocked and own.reach == "public" and own.udp is not False:
        found.append(Attempt(Way.CALL_BACK_TCP, "UDP is blocked at the peer: it dialed this node over TCP"))
    elif own.udp is None and open_to_dials:
        found.append(Attempt(Way.DIAL_TCP, "nothing came over UDP: TCP to a peer that takes it"))
    if not blocked and "public" not in (own.reach, peer.reach):
        works, why = punchable(own, peer)
        if works:
            found.append(Attempt(Way.PUNCH, why))
    if blocked or not (own.reach == peer.reach == "public"):
        found.append(Attempt(Way.RELAY, _why_relayed(own, peer, punchable)))
    return found


def _may_be_called(own: Standing) -> bool:
    return own.reach == "public" or (own.reach == "unknown" and own.mapping == "none")


def _why_relayed(own: Standing, peer: Standing, punchable: Punchable) -> str:
    if own.udp is False or peer.udp is False:
        both = own.udp is False and peer.udp is False
        who = "here and at the peer" if both else "here" if own.udp is False else "at the peer"
        return f"UDP is blocked {who} and no TCP gets through directly"
    works, why = punchable(own, peer)
    if "public" in (own.reach, peer.reach):
        return "until the direct way is open"
    ends = (("this node", own), ("the peer", peer))
    unknown = [who for who, standing in ends if standing.mapping == "unknown"]
    if unknown:
        return f"until it is known how {' and '.join(unknown)} can be reached"
    return "until the NATs are punched" if works else why
