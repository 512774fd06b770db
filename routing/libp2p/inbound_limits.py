"""How many connections strangers may have with us, and how fast: in all, and from one place. Pure."""

from __future__ import annotations

import ipaddress
from collections import Counter

from routing.rates import Bucket, Buckets

# Connections that others opened. Each costs a socket and at most MAX_UNREAD + MAX_QUEUED (yamux.py).
MAX_INBOUND = 256
# A household or an office behind one address, or a test swarm on one machine.
MAX_INBOUND_PER_IP = 32
# Handshakes not yet done: they cost a socket and an X25519 operation each before anybody is known.
MAX_HANDSHAKES = 64
MAX_HANDSHAKES_PER_IP = 16
# Connections that may begin, at once and each second: a handshake is 4 ms of CPU, and who hangs up right
# after it holds no place. What is too much is closed; an honest dialer tries again.
BURST, PER_SECOND = 128, 30.0
BURST_PER_IP, PER_SECOND_PER_IP = 32, 6.0


class InboundLimits:
    """Counts connections from arrival to end."""

    def __init__(self) -> None:
        self._handshakes: Counter[str] = Counter()
        self._connections: Counter[str] = Counter()
        self._pace = Bucket(BURST, PER_SECOND, 0.0)
        self._pace_of = Buckets(BURST_PER_IP, PER_SECOND_PER_IP)

    def admit(self, ip: str, now: float) -> str | None:
        """The key to count it under, or None if it must be refused."""
        key = origin(ip)
        held = self._connections[key] + self._handshakes[key]
        if (
            self._connections.total() + self._handshakes.total() >= MAX_INBOUND
            or self._handshakes.total() >= MAX_HANDSHAKES
            or held >= MAX_INBOUND_PER_IP
            or self._handshakes[key] >= MAX_HANDSHAKES_PER_IP
            or not self._pace.allows(now)
            or not self._pace_of.take(key, now)
        ):
            self._tidy()
            return None
        self._pace.take(now)
        self._handshakes[key] += 1
        return key

    def established(self, key: str) -> None:
        """Its handshake is done."""
        self._handshakes[key] -= 1
        self._connections[key] += 1

    def gone(self, key: str, *, was_established: bool) -> None:
        """It has ended."""
        (self._connections if was_established else self._handshakes)[key] -= 1
        self._tidy()

    def _tidy(self) -> None:
        self._connections = +self._connections
        self._handshakes = +self._handshakes


def origin(remote: str) -> str:
    """What one person can be assumed to hold: an IPv4 address, an IPv6 /64; other texts as they are."""
    try:
        address = ipaddress.ip_address(remote)
    except ValueError:
        return remote
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address.packed[:8] + bytes(8), 64)))
    return str(address)
