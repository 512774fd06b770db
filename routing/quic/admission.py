"""Who may come in: the inbound connections and handshakes of an endpoint, counted against its limits."""

from __future__ import annotations

import ipaddress
from collections import Counter

from routing.quic.connection import Connection
from routing.quic.limits import Limits
from routing.rates import Bucket, Buckets


class Admission:
    """Counts inbound connections; dialed ones are our own choice and pass through uncounted.

    Attributes:
        handshakes: inbound connections whose peer has not proven its identity yet.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._pace = Bucket(limits.handshake_burst, limits.handshakes_per_second, 0.0)
        self._pace_of = Buckets(limits.handshake_burst_per_ip, limits.handshakes_per_second_per_ip)
        self._inbound: Counter[str] = Counter()
        self._origins: dict[Connection, str] = {}
        self.handshakes: set[Connection] = set()

    def admits(self, host: str, now: float) -> bool:
        """Whether one more handshake with this address may begin now; counts it if so.

        What turns out to be no handshake has cost as much, and stays counted.
        """
        origin = origin_of(host)
        return (
            len(self.handshakes) < self._limits.handshakes
            and self._inbound[origin] < self._limits.connections_per_ip
            and self._inbound.total() < self._limits.connections
            and self._pace.allows(now)
            and self._pace_of.take(origin, now)
            and self._pace.take(now)
        )

    def began(self, connection: Connection, host: str) -> None:
        self.handshakes.add(connection)
        self._origins[connection] = origin = origin_of(host)
        self._inbound[origin] += 1

    def established(self, connection: Connection) -> None:
        self.handshakes.discard(connection)

    def ended(self, connection: Connection) -> None:
        if connection.dialed:
            return
        self.handshakes.discard(connection)
        origin = self._origins.pop(connection, None)
        if origin is None:
            return
        self._inbound[origin] -= 1
        if self._inbound[origin] <= 0:
            del self._inbound[origin]

    def overdue(self, now: float) -> list[Connection]:
        """Handshakes that have taken longer than they may."""
        begun_before = now - self._limits.handshake_timeout
        return [each for each in self.handshakes if each.opened_at < begun_before]


def origin_of(host: str) -> str:
    """What counts as one address: an IPv4 address, or an IPv6 network of 64 bits, which is one customer.

    The origin of a carried path may be no address, but a relay's name: that counts as it is.
    """
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False).network_address)
