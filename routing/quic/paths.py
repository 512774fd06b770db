"""Ways for QUIC datagrams other than the UDP socket: streams of bytes that carry them to one peer.

Where UDP is blocked, or two NATs cannot be punched, the same QUIC connections run over a libp2p stream:
straight to a public peer, or on a circuit through a relay. Each such stream is a *path* with an address
of its own, of the same form as a UDP address, so that the engines need not know. The addresses are of a
private IPv6 prefix; a UDP datagram that claims to come from there is dropped.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import trio

from routing.quic.core import Address, Datagram

# A random prefix of the kind RFC 4193 sets aside; no network is built with it.
_PREFIX = "fd9a:e17c:4b52:"
_PORT = 1

MAX_FOR_NOBODY = 256
"""Datagrams in a row that belong to no connection before a path is closed: what is under way when one ends is
less, and to look at each costs time."""

SendCarried = Callable[[Sequence[bytes]], None]
"""Takes datagrams for the peer at the other end; never waits, may drop them."""


@dataclass(frozen=True)
class Path:
    """One carried path.

    Attributes:
        address: what stands for it where a UDP address would.
        origin: what limits by address count it under: the carrier's IP address or the relay's peer id.
        metered: it has a budget of bytes (a foreign relay's 128 KiB): nothing may be sent but what is needed.
        ended: set when it is over, by whatever end.
    """

    address: Address
    send: SendCarried
    origin: str
    metered: bool
    ended: trio.Event = field(default_factory=trio.Event, compare=False)


class Paths:
    """The carried paths of an endpoint, by their host."""

    def __init__(self) -> None:
        self._by_host: dict[str, Path] = {}
        self._for_nobody: dict[str, int] = {}
        self._numbers = count(1)

    def open(self, send: SendCarried, origin: str, *, metered: bool) -> Path:
        # in the canonical form, which the engines give back
        host = str(ipaddress.IPv6Address(f"{_PREFIX}:") + next(self._numbers))
        path = Path((host, _PORT), send, origin, metered)
        self._by_host[host] = path
        return path

    def close(self, path: Path) -> None:
        self._by_host.pop(path.address[0], None)
        self._for_nobody.pop(path.address[0], None)
        path.ended.set()

    def is_of_use(self, path: Path, datagrams: int, *, used: bool) -> bool:
        """Note what has come; False if a path has brought nothing but datagrams for nobody."""
        host = path.address[0]
        count = 0 if used else self._for_nobody.get(host, 0) + datagrams
        if host in self._by_host:
            self._for_nobody[host] = count
        return count <= MAX_FOR_NOBODY

    def find(self, host: str) -> Path | None:
        return self._by_host.get(host)

    def send(self, datagrams: Sequence[Datagram]) -> int:
        """Send the datagrams of one connection, all to carried paths; returns their bytes."""
        sent = 0
        by_host: dict[str, list[bytes]] = {}
        for data, address in (each[:2] for each in datagrams):
            by_host.setdefault(address[0], []).append(data)
            sent += len(data)
        for host, batch in by_host.items():
            path = self._by_host.get(host)
            if path is not None:  # else it has ended: lost, as on any line that is cut
                path.send(batch)
        return sent


def is_carried(host: str) -> bool:
    """Whether an address stands for a carried path."""
    return host.startswith(_PREFIX)
