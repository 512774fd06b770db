"""What the evidence says about how this node can be reached. Pure: evidence and `now` in, a verdict out.

1. A peer that has a connection with us says where it sees us (`Seen`). Several, at different addresses, show
   what a NAT does with our address (*mapping*).
2. A peer sends a probe to that address from another port, or has somebody send one from an address we never
   wrote to (`Attempt`). What arrives shows whom the NAT or firewall lets in (*filtering*). A connection that
   nobody invited, from an address we never wrote to, shows it too.
3. The verdict is about one address, the one that peers in the widest scope see. Evidence about another one
   (an earlier one, that on our LAN) does not count, so that a change of address opens the question again.
4. An arrival proves something; silence only suggests it, since datagrams get lost and peers may lie. *Public*
   takes arrivals arranged by two peers where two were able to arrange one; against earlier arrivals silence
   wins only when it comes FLIP_AFTER times.
5. Evidence is forgotten after EVIDENCE_SECONDS.

One peer alone can leave the question open, or make a node that only it talks to look private, which costs a
relay; it can't make a private node look public, for its probe would have to pass the NAT.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from relay.targets import Address, Scope, scope_of

EVIDENCE_SECONDS = 900.0
"""Three rounds of asking: an older NAT binding or firewall rule may be gone."""

ROUND_SECONDS = 120.0
"""Observations this close together describe one state of the NAT; bindings change over longer times."""

ENOUGH_TRIES = 2
"""Silent probes before we believe that none gets in; each was sent twice."""

FLIP_AFTER = 3
"""Silent probes in a row before they outweigh an arrival within EVIDENCE_SECONDS."""

ENOUGH_PEERS = 2
"""Peers that must have arranged an arrival, or have seen the same address, where that many were able to."""

MAX_EVIDENCE = 128
"""Pieces kept; a round brings some fifteen."""

MAX_ADDRESSES = 4
"""Told to others; a NAT that depends on the destination has one for each peer, of no use to the rest."""


class Reach(StrEnum):
    """Whether strangers' datagrams arrive."""

    UNKNOWN = "unknown"
    PUBLIC = "public"
    PRIVATE = "private"


class Mapping(StrEnum):
    """What a NAT makes of our address (RFC 4787, section 4.1)."""

    UNKNOWN = "unknown"
    NONE = "none"
    """Peers see our own address and port: no NAT."""
    INDEPENDENT = "independent"
    """One outer address for all destinations."""
    DEPENDENT = "dependent"
    """Another one for each destination ("symmetric")."""


class Filtering(StrEnum):
    """Who gets in through the NAT or firewall (RFC 4787, section 5)."""

    UNKNOWN = "unknown"
    NONE = "none"
    """Anybody."""
    ADDRESS = "address"
    """Any port of an address we wrote to."""
    PORT = "port"
    """Only the address and port we wrote to."""


class Way(StrEnum):
    """How somebody tried to get in."""

    OTHER_PORT = "other port"
    """From an address we wrote to, but another port."""
    STRANGER = "stranger"
    """From an address we never wrote to, on the request of the peer that was asked."""
    UNINVITED = "uninvited"
    """A connection from an address we never wrote to."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A connected peer says where it sees us.

    Attributes:
        peer: who.
        peer_host: where it is itself.
        address: what it sees.
        local: our own end of that connection.
        dialed: we opened the connection, so our NAT chose `address`.
        when: of the answer.
    """

    peer: str
    peer_host: str
    address: Address
    local: Address
    dialed: bool
    when: float


@dataclass(frozen=True, slots=True)
class Attempt:
    """Somebody tried to reach us uninvited and, as far as we are told, did send.

    Attributes:
        asked: the peer that arranged it.
        way: from where.
        source: the host it came, or should have come, from.
        target: our address it was sent to.
        arrived: whether it did.
        when: it began.
    """

    asked: str
    way: Way
    source: str
    target: Address
    arrived: bool
    when: float


@dataclass(frozen=True, slots=True)
class Dialed:
    """A dial of ours over UDP."""

    peer: str
    answered: bool
    when: float


Evidence = Seen | Attempt | Dialed


class NatKind(Protocol):
    """What two nodes must know of each other to choose how they meet; adverts carry these four."""

    @property
    def reach(self) -> Reach: ...
    @property
    def mapping(self) -> Mapping: ...
    @property
    def filtering(self) -> Filtering: ...
    @property
    def udp(self) -> bool | None: ...


@dataclass(frozen=True)
class Reachability:
    """A verdict.

    Attributes:
        reach: whether strangers get in at `addresses`.
        mapping, filtering: what stands between.
        udp: whether UDP gets out at all; None while nobody was dialed.
        addresses: where others see us, the best first; empty while nobody has told.
        port_kept: the outer port is the one we are bound to; None while unknown.
        reason: why `reach` is what it is, in one line.
        evidence: what the verdict rests on, a line each.
    """

    reach: Reach = Reach.UNKNOWN
    mapping: Mapping = Mapping.UNKNOWN
    filtering: Filtering = Filtering.UNKNOWN
    udp: bool | None = None
    addresses: tuple[Address, ...] = ()
    port_kept: bool | None = None
    reason: str = "nobody has been asked yet"
    evidence: tuple[str, ...] = ()

    def differs(self, other: Reachability) -> bool:
        """Whether anything that others should be told has changed."""
        mine = (self.reach, self.mapping, self.filtering, self.udp, self.addresses)
        return mine != (other.reach, other.mapping, other.filtering, other.udp, other.addresses)


def judge(evidence: Iterable[Evidence], now: float) -> Reachability:
    """The verdict on this evidence, in the order in which it came."""
    fresh = [each for each in evidence if now - each.when < EVIDENCE_SECONDS]
    seen = list({each.peer: each for each in fresh if isinstance(each, Seen)}.values())
    attempts = [each for each in fresh if isinstance(each, Attempt)]
    dials = [each for each in fresh if isinstance(each, Dialed)]
    udp = _udp(seen, attempts, dials)
    host = _outer_host(seen)
    if host is None:
        reason = "no peer has said where it sees this node"
        if udp is False:
            reason = f"none of {len(dials)} dials over UDP was answered: UDP is blocked, or the peers are off"
        return Reachability(udp=udp, reason=reason, evidence=tuple(map(_line, dials)))
    near = any(_is_near(each) for each in seen if each.address[0] == host)
    seen = [each for each in seen if _is_near(each) == near]
    attempts = [each for each in attempts if each.target[0] == host]
    strangers = [each for each in attempts if each.way is not Way.OTHER_PORT]
    other_ports = [each for each in attempts if each.way is Way.OTHER_PORT]
    reach, reason = _reach(strangers, other_ports)
    pool = _of_one_round(seen)
    return Reachability(
        reach=reach,
        mapping=_mapping(pool),
        filtering=_filtering(reach, strangers, other_ports),
        udp=udp,
        addresses=_addresses(host, seen, attempts),
        port_kept=_port_kept(pool),
        reason=reason,
        evidence=(*map(_line, seen), *map(_line, attempts)),
    )


def can_punch(a: NatKind, b: NatKind) -> tuple[bool, str]:
    """Whether two nodes can meet by UDP without a relay, and why, in one line.

    Measured on the kinds of wanlab (docs/protocol.md, "Hole punching"). What is unknown is worth a try.
    """
    if a.udp is False or b.udp is False:
        return False, "UDP is blocked at one end"
    if Reach.PUBLIC in (a.reach, b.reach):
        return True, "one end is public: the other dials it"
    dependent = [each.mapping is Mapping.DEPENDENT for each in (a, b)]
    if all(dependent):
        return False, "both NATs use another port for each destination: neither can be told where to send"
    if any(dependent):
        other = b if dependent[0] else a
        if other.filtering is Filtering.PORT:
            return False, "one NAT uses another port for each destination, the other lets in known ports only"
        if other.filtering is Filtering.UNKNOWN:
            return (
                True,
                "one NAT uses another port for each destination; whom the other end lets in is unknown",
            )
        return True, "one NAT uses another port for each destination, but the other end lets in any port"
    if Mapping.UNKNOWN in (a.mapping, b.mapping):
        return True, "what the NATs do is not known: worth a try"
    return True, "both NATs keep one port for all destinations"


def bounded(evidence: Sequence[Evidence], now: float) -> list[Evidence]:
    """What is worth keeping: the fresh, the latest observation of each peer, MAX_EVIDENCE at most."""
    latest = {each.peer: each for each in evidence if isinstance(each, Seen)}
    kept = [
        each
        for each in evidence
        if now - each.when < EVIDENCE_SECONDS and (not isinstance(each, Seen) or latest[each.peer] is each)
    ]
    return kept[-MAX_EVIDENCE:]


def _udp(seen: Sequence[Seen], attempts: Sequence[Attempt], dials: Sequence[Dialed]) -> bool | None:
    if seen or any(each.arrived for each in attempts) or any(each.answered for each in dials):
        return True
    return False if len(dials) >= ENOUGH_TRIES else None


def _is_near(each: Seen) -> bool:
    """A peer of our own network, which sees an address that means nothing outside."""
    return each.address[0] == each.local[0] and scope_of(each.address[0]) is not Scope.GLOBAL


def _outer_host(seen: Sequence[Seen]) -> str | None:
    """The address to judge: not that of our LAN if there is another, seen by several, and global."""

    def rank(host: str) -> tuple[bool, int, bool, int]:
        those = [each for each in seen if each.address[0] == host]
        observers = len({each.peer_host for each in those})
        return (
            not all(_is_near(each) for each in those),
            min(observers, ENOUGH_PEERS),
            scope_of(host) is Scope.GLOBAL,
            observers,
        )

    return max({each.address[0]: None for each in seen}, key=rank, default=None)


def _of_one_round(seen: Sequence[Seen]) -> list[Seen]:
    """Observations on connections we dialed, of about the same time: what the NAT does now."""
    dialed = [each for each in seen if each.dialed]
    newest = max((each.when for each in dialed), default=0.0)
    return [each for each in dialed if newest - each.when < ROUND_SECONDS]


def _mapping(pool: Sequence[Seen]) -> Mapping:
    if not pool:
        return Mapping.UNKNOWN
    if 2 * sum(each.address == each.local for each in pool) >= len(pool):
        return Mapping.NONE
    observers: dict[Address, set[str]] = {}
    for each in pool:
        observers.setdefault(each.address, set()).add(each.peer_host)
    if max(len(hosts) for hosts in observers.values()) >= ENOUGH_PEERS:
        return Mapping.INDEPENDENT
    if len({each.peer_host for each in pool}) >= ENOUGH_PEERS:
        return Mapping.DEPENDENT
    return Mapping.UNKNOWN


def _port_kept(pool: Sequence[Seen]) -> bool | None:
    if not pool:
        return None
    return 2 * sum(each.address[1] == each.local[1] for each in pool) > len(pool)


def _gets_in(attempts: Sequence[Attempt]) -> bool | None:
    """Whether attempts of a way get in: None while too little is known."""
    silent = 0  # since the last arrival
    arrived = False
    for each in attempts:
        arrived, silent = (True, 0) if each.arrived else (arrived, silent + 1)
    if arrived and silent < FLIP_AFTER:
        return True
    return False if silent >= ENOUGH_TRIES else None


def _reach(strangers: Sequence[Attempt], other_ports: Sequence[Attempt]) -> tuple[Reach, str]:
    gets_in = _gets_in(strangers)
    asked = {each.asked for each in strangers}
    if gets_in:
        through = {each.asked for each in strangers if each.arrived}
        if len(through) >= ENOUGH_PEERS:
            return Reach.PUBLIC, f"uninvited packets arrive: {len(through)} peers had some sent"
        if len(asked) < ENOUGH_PEERS:
            return Reach.PUBLIC, "an uninvited packet arrived; only one peer was able to have one sent"
        return Reach.UNKNOWN, f"uninvited packets arrive through only one of {len(asked)} peers"
    if gets_in is False:
        silent = sum(not each.arrived for each in strangers)
        return Reach.PRIVATE, f"{silent} uninvited packets were sent and none arrived"
    if _gets_in(other_ports) is False:
        # who keeps out an address it knows keeps out all others
        return Reach.PRIVATE, "packets from other ports of hosts it wrote to were sent and none arrived"
    if asked:
        return Reach.UNKNOWN, "too few probes yet"
    return Reach.UNKNOWN, "no peer knows another host that could try; whoever dials will tell"


def _filtering(reach: Reach, strangers: Sequence[Attempt], other_ports: Sequence[Attempt]) -> Filtering:
    if reach is Reach.PUBLIC or _gets_in(strangers):
        return Filtering.NONE
    known = _gets_in(other_ports)
    if known:
        return Filtering.ADDRESS  # or none, if no stranger has tried; ADDRESS promises no more than is known
    return Filtering.PORT if known is False else Filtering.UNKNOWN


def _addresses(host: str, seen: Sequence[Seen], attempts: Sequence[Attempt]) -> tuple[Address, ...]:
    """At `host`, where strangers got in first, then by how many see it; a few, in a stable order."""
    entered = {each.target for each in attempts if each.arrived}
    count = Counter(each.address for each in seen if each.address[0] == host)
    count.update(dict.fromkeys(entered, 0))
    return tuple(sorted(count, key=lambda each: (each not in entered, -count[each], each))[:MAX_ADDRESSES])


def _line(each: Evidence) -> str:
    match each:
        case Seen():
            how = "we dialed" if each.dialed else "it dialed"
            return (
                f"{each.peer} at {each.peer_host} sees {_at(each.address)} ({how}; ours is {_at(each.local)})"
            )
        case Attempt():
            result = "arrived" if each.arrived else "did not arrive"
            return (
                f"{each.way} at {each.source or '?'}, asked by {each.asked}, to {_at(each.target)}: {result}"
            )
        case Dialed():
            return f"dialed {each.peer}: {'answered' if each.answered else 'no answer'}"


def _at(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
