"""Kademlia's routing table: which DHT servers we know, many near to us and some everywhere else. Pure.

1. A server is entered when it has answered us or has connected and says it serves; never by hearsay.
2. A bucket holds K servers that share as many leading bits with us; a full one keeps its old ones, which
   have proven to stay, unless one of them failed.
3. At most MAX_PER_SUBNET servers of one public subnet, so that nobody fills it from one rented machine.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from routing.control_address import ControlAddress
from routing.identity import PeerId
from routing.libp2p.kad_wire import KadPeer, position_of_peer

# Servers in a bucket, in a reply, and to store a record at: the spec's k.
K = 20
# Servers of one IPv4 /24 or IPv6 /48.
MAX_PER_SUBNET = 8
# Failures in a row after which a server is dropped.
MAX_FAILURES = 2
_BITS = 256


@dataclass
class _Entry:
    peer: KadPeer
    position: int
    failures: int = 0
    subnets: frozenset[str] = field(default_factory=frozenset)


class RoutingTable:
    """The servers known to one node."""

    def __init__(self, own_id: PeerId) -> None:
        self._own_id = own_id
        self._own = position_of_peer(own_id)
        self._entries: dict[PeerId, _Entry] = {}
        self._sizes = [0] * _BITS

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, peer_id: str) -> bool:
        return peer_id in self._entries

    def add(self, peer_id: PeerId, addresses: tuple[ControlAddress, ...]) -> bool:
        """Enter a server, or renew its addresses; False if there is no place for it."""
        if peer_id == self._own_id:
            return False
        known = self._entries.get(peer_id)
        if known is not None:
            known.failures = 0
            if addresses:
                known.peer = KadPeer(peer_id, addresses)
                known.subnets = _subnets(addresses)
            return True
        entry = _Entry(KadPeer(peer_id, addresses), position_of_peer(peer_id), subnets=_subnets(addresses))
        if any(self._in_subnet(subnet) >= MAX_PER_SUBNET for subnet in entry.subnets):
            return False
        bucket = self._bucket(entry.position)
        if self._sizes[bucket] >= K and not self._drop_failed(bucket):
            return False
        self._entries[peer_id] = entry
        self._sizes[bucket] += 1
        return True

    def failed(self, peer_id: PeerId) -> None:
        """A server did not answer; after MAX_FAILURES in a row it is dropped."""
        entry = self._entries.get(peer_id)
        if entry is not None:
            entry.failures += 1
            if entry.failures >= MAX_FAILURES:
                self.remove(peer_id)

    def remove(self, peer_id: PeerId) -> None:
        """Forget a server."""
        entry = self._entries.pop(peer_id, None)
        if entry is not None:
            self._sizes[self._bucket(entry.position)] -= 1

    def closest(self, position: int, count: int = K) -> list[KadPeer]:
        """The servers nearest to a position, nearest first."""
        nearest = sorted(self._entries.values(), key=lambda entry: entry.position ^ position)
        return [entry.peer for entry in nearest[:count]]

    def all(self) -> list[KadPeer]:
        """Every server known."""
        return [entry.peer for entry in self._entries.values()]

    def _bucket(self, position: int) -> int:
        return _BITS - (position ^ self._own).bit_length() if position != self._own else _BITS - 1

    def _drop_failed(self, bucket: int) -> bool:
        for peer_id, entry in self._entries.items():
            if entry.failures and self._bucket(entry.position) == bucket:
                self.remove(peer_id)
                return True
        return False

    def _in_subnet(self, subnet: str) -> int:
        return sum(subnet in entry.subnets for entry in self._entries.values())


def _subnets(addresses: tuple[ControlAddress, ...]) -> frozenset[str]:
    """The public subnets of addresses; a home or test network counts as none."""
    found = set()
    for address in addresses:
        if address.family in ("ip4", "ip6"):
            ip = ipaddress.ip_address(address.host)
            if ip.is_global:
                bits = 24 if ip.version == 4 else 48
                found.add(str(ipaddress.ip_network((ip, bits), strict=False)))
    return frozenset(found)
