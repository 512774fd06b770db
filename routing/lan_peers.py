"""What nodes on one local network announce to each other by mDNS (RFC 6762, RFC 6763), and what we believe.

A node announces the service instance `PEER-ID._panal._udp.local.`; its SRV record has the UDP port of its
QUIC plane, its address records the addresses, and its TXT record these keys:

    swarm     the first 16 hex digits of the swarm's id
    control   the TCP port of its libp2p control plane, 0 if it has none

Everybody on the network can say anything, so that an announcement is only a hint whom to dial:

1. Who answers has to prove the peer id and the membership in the handshake, as with any other address.
2. Only addresses that a local network can have are taken: nobody makes us dial the internet.
3. So many peers, so many addresses each, each reported at most so often. More is passed over.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from routing.errors import LocalError
from routing.identity import PeerId, parse_peer_id
from routing.membership import Swarm
from routing.multiaddr import PeerAddress

SERVICE = "_panal._udp.local."
SWARM_DIGITS = 16  # enough to keep swarms apart that don't lie; the handshake compares the whole id

MAX_PEERS = 64  # a house or an office; larger swarms find each other in other ways
MAX_ADDRESSES = 8  # of one peer: wire, wifi, bridges, in both families
REPORT_SECONDS = 1.0  # between two reports of one peer, however often its announcement changes

# RFC 1918, RFC 3927, RFC 4193 and loopback, for several nodes on one machine. IPv6 link-local addresses mean
# something together with an interface only and can't be written as a multiaddr.
LOCAL_NETWORKS = tuple(
    ipaddress.ip_network(network)
    for network in (
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "169.254.0.0/16",
        "127.0.0.0/8",
        "fc00::/7",
        "::1/128",
    )
)


@dataclass(frozen=True)
class LanPeer:
    """A node on this network, as announced.

    Attributes:
        peer_id: who it says it is.
        addresses: of its QUIC plane, at least one.
        control_port: TCP port of its control plane at the same hosts; 0: it has none.
    """

    peer_id: PeerId
    addresses: tuple[PeerAddress, ...]
    control_port: int


@dataclass(frozen=True)
class Announcement:
    """The records of a service instance, as they came.

    Attributes:
        name: "INSTANCE._panal._udp.local."
        port: of its SRV record.
        hosts: of its address records, as text.
        properties: of its TXT record; a value is None where there is a key without "=".
    """

    name: str
    port: int
    hosts: Sequence[str]
    properties: Mapping[bytes, bytes | None]


def is_local(host: str) -> bool:
    """Whether an address can be one of a local network. A zone, or what is no address, cannot."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        return False
    return any(address in network for network in LOCAL_NETWORKS)


def announced_properties(swarm: Swarm, control_port: int) -> dict[str, str]:
    """The TXT record of a node."""
    return {"swarm": _swarm_digits(swarm), "control": str(control_port)}


def instance_name(peer_id: PeerId) -> str:
    """The service instance of a node."""
    return f"{peer_id}.{SERVICE}"


class LanPeers:
    """The peers of our swarm that were announced on this network."""

    def __init__(self, swarm: Swarm, own_id: PeerId, *, ipv6: bool) -> None:
        """
        Args:
            ipv6: whether our socket reaches IPv6 addresses; else they are passed over.
        """
        self._swarm = _swarm_digits(swarm).encode()
        self._own_id = own_id
        self._ipv6 = ipv6
        self._peers: dict[PeerId, LanPeer] = {}
        self._quiet_until: dict[PeerId, float] = {}

    @property
    def peers(self) -> tuple[LanPeer, ...]:
        """All that are announced now. May be asked from another thread."""
        return tuple(self._peers.values())

    def clear(self) -> None:
        """Another network: whoever is there has to be found again."""
        self._peers.clear()
        self._quiet_until.clear()

    def wants(self, name: str) -> bool:
        """Whether an instance could be a peer of ours: asked before its records are looked at."""
        return not self.unwanted(name)

    def unwanted(self, name: str) -> str:
        """Why an instance is passed over before its records are looked at, "" if it is not."""
        peer_id = self._peer_id(name)
        if peer_id is None:
            return "this node itself" if name == instance_name(self._own_id) else "no peer id in its name"
        if peer_id not in self._peers and len(self._peers) >= MAX_PEERS:
            return f"there are {MAX_PEERS} peers on this network already"
        return ""

    def is_quiet(self, name: str, now: float) -> bool:
        """Whether the peer was reported a moment ago: look at its announcement later."""
        peer_id = self._peer_id(name)
        return peer_id is not None and now < self._quiet_until.get(peer_id, now)

    def take(self, announcement: Announcement, now: float) -> LanPeer | None:
        """Read an announcement. The peer if it is one of ours and new, or announced otherwise than before."""
        peer = self._read(announcement)
        if peer is None or self._peers.get(peer.peer_id) == peer:
            return None
        if peer.peer_id not in self._peers and len(self._peers) >= MAX_PEERS:
            return None
        self._peers[peer.peer_id] = peer
        self._quiet_until[peer.peer_id] = now + REPORT_SECONDS
        return peer

    def objection(self, announcement: Announcement) -> str:
        """Why an announcement is none of a peer of ours, "" if it is."""
        said = announcement.properties.get(b"swarm")
        if said is None:
            return "it names no swarm"
        if said != self._swarm:
            return "another swarm"
        if self._peer_id(announcement.name) is None:
            return self.unwanted(announcement.name)
        if _port(announcement.properties.get(b"control")) is None or not 0 < announcement.port < 65536:
            return "a port that is none"
        if not any(map(self._reaches, announcement.hosts)):
            return "no address of a local network that this node can dial"
        return ""

    def drop(self, name: str) -> None:
        """An instance is announced no more."""
        peer_id = self._peer_id(name)
        if peer_id is not None:
            self._peers.pop(peer_id, None)

    def _peer_id(self, name: str) -> PeerId | None:
        instance = name.removesuffix("." + SERVICE)
        if instance == name or instance == self._own_id:
            return None
        try:
            return parse_peer_id(instance)
        except LocalError:
            return None

    def _read(self, announcement: Announcement) -> LanPeer | None:
        peer_id = self._peer_id(announcement.name)
        properties = announcement.properties
        control = _port(properties.get(b"control"))
        if peer_id is None or control is None or self.objection(announcement):
            return None
        hosts = dict.fromkeys(host for host in announcement.hosts if self._reaches(host))
        addresses = tuple(PeerAddress(host, announcement.port, peer_id) for host in hosts)[:MAX_ADDRESSES]
        return LanPeer(peer_id, addresses, control) if addresses else None

    def _reaches(self, host: str) -> bool:
        return is_local(host) and (self._ipv6 or ":" not in host)


def _swarm_digits(swarm: Swarm) -> str:
    return swarm.id.hex()[:SWARM_DIGITS]


def _port(value: bytes | None) -> int | None:
    if value is None or not value.isdigit() or len(value) > 5 or int(value) > 65535:
        return None
    return int(value)
