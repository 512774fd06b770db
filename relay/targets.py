"""Which addresses a peer may have this node send a few bytes to.

Dial-backs and hole punches send to addresses that somebody else names. The rules that keep a node from being
pointed at a stranger, or at its own network:

1. An address on the global internet may be named; how often and how many bytes is `relay.rate`'s matter.
2. Any other address only by a peer that is itself in the same scope: nobody far away reaches this node's LAN
   or its own machine through it.
3. Never multicast, broadcast, unspecified or reserved addresses, and no port below 1024 save 443, where nodes
   hide as HTTPS: the services that answer a stray datagram with something live there.
"""

from __future__ import annotations

import ipaddress
from enum import StrEnum

Address = tuple[str, int]
"""(host, port) of a UDP socket; the host is an IP address as text, in its shortest form."""

_FIRST_FREE_PORT = 1024
_HTTPS = 443


class Scope(StrEnum):
    """How far an address means the same."""

    LOOPBACK = "loopback"
    LINK = "link"
    PRIVATE = "private"
    GLOBAL = "global"


def plain_host(host: str) -> str:
    """A host as peers write it: IPv4 as such where a dual-stack socket says ::ffff:1.2.3.4; "" for no IP.

    Paths that carry QUIC in a byte stream have addresses too, which mean something to this process only.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return ""
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
    return str(address)


def scope_of(host: str) -> Scope | None:
    """The scope of an address; None for what nobody sends single datagrams to, or what is no address."""
    try:
        address = ipaddress.ip_address(plain_host(host))
    except ValueError:
        return None
    if address.is_unspecified or address.is_multicast:
        return None
    if address.is_loopback:
        return Scope.LOOPBACK
    if address.is_link_local:
        return Scope.LINK
    if address.is_global:
        return Scope.GLOBAL
    # also the shared space of carriers (100.64.0.0/10) and the benchmark range that labs use
    if address.is_reserved:
        return None
    return Scope.PRIVATE


def objection(target: Address, asker: str) -> str | None:
    """Why a probe to `target` is refused to a peer seen at host `asker`; None if it is not."""
    host, port = target
    scope = scope_of(host)
    if scope is None:
        return f"{host[:60]} is no address of a single machine"
    if not 0 < port < 65536 or (port < _FIRST_FREE_PORT and port != _HTTPS):
        return f"port {port} is not one that nodes listen on"
    if scope is not Scope.GLOBAL and scope is not scope_of(asker):
        return f"{host} is a {scope} address and the asker is not there"
    return None
