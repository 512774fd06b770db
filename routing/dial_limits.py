"""Whom hearsay may make this node dial, and how often. Pure.

Adverts and DHT replies name addresses, and anybody can write one that names somebody else's. What is dialed
then gets a handshake's first packets and nothing more; these rules keep that from adding up.

1. Dials that nobody answered are counted for each host, whoever named it. An answer clears the count.
2. An address of a private network is dialed only by a node that is on such a network itself, this machine's
   own only by a node that listens there, a link-local one never. (`reachable_from`)
3. A name is resolved only if it can be one of the public DNS.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from routing.rates import Buckets
from routing.subnet import subnet_of

UNANSWERED_BURST, UNANSWERED_PER_SECOND = 60, 0.5
"""Of one host: a household of nodes that is off, each with two addresses, tried each few seconds at first. In
the long run 30 a minute, 6 KB/s with all repeats."""

_LOOPBACK = "loopback"

_INNER = [
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
]

_NEVER = [ipaddress.ip_network(text) for text in ("169.254.0.0/16", "fe80::/10", "0.0.0.0/8", "224.0.0.0/3")]

_LOCAL_NAMES = (
    "localhost",
    "local",
    "internal",
    "intranet",
    "lan",
    "home",
    "corp",
    "arpa",
    "test",
    "invalid",
)
"""Last labels that no public DNS knows (RFC 6761, RFC 6762, RFC 8375, and what routers use)."""


class DialLimits:
    """Counts unanswered dials.

    Args:
        burst, per_second: how many of them there may be.
        by_network: all addresses of a /24 or /48 together.
    """

    def __init__(
        self,
        burst: int = UNANSWERED_BURST,
        per_second: float = UNANSWERED_PER_SECOND,
        *,
        by_network: bool = False,
    ) -> None:
        self._unanswered = Buckets(burst, per_second)
        self._key = _prefix if by_network else str

    def may(self, host: str, now: float) -> bool:
        """Whether a host that somebody named may be dialed once more; counts it as unanswered if so."""
        return self._unanswered.take(self._key(host), now)

    def answered(self, host: str) -> None:
        """Somebody is there."""
        self._unanswered.forget(self._key(host))


def networks_of(hosts: Iterable[str]) -> frozenset[str]:
    """The kinds of networks that addresses of this machine are on, for `reachable_from`."""
    return frozenset(filter(None, map(_network, hosts)))


def reachable_from(networks: frozenset[str], host: str) -> bool:
    """Whether a host that an advert names may be dialed by a node on these networks."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        labels = host.lower().rstrip(".").split(".")
        return len(labels) > 1 and labels[-1] not in _LOCAL_NAMES and not labels[-1].isdigit()
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if any(address in network for network in _NEVER if network.version == address.version):
        return False
    if address.is_multicast or address.is_unspecified:
        return False
    network = _network(str(address))
    return not network or network in networks


def _prefix(host: str) -> str:
    """The network of an address; a name, or an address of a private network, stands for itself."""
    try:
        return subnet_of(host) or host
    except ValueError:
        return host.lower()


def _network(host: str) -> str:
    """Which private network an address is in; "" for one that means the same everywhere.

    Ranges for tests and documentation count as such: laboratories use them.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return ""
    if address.is_loopback:
        return _LOOPBACK
    return next((str(each) for each in _INNER if each.version == address.version and address in each), "")
