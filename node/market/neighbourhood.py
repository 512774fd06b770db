"""Where a peer is, as coarse as newcomers' credit is shared out: identities cost nothing, networks do."""

from __future__ import annotations

import ipaddress

from routing.quic.connection import Connection
from routing.quic.endpoint import Endpoint

PREFIX_IPV4, PREFIX_IPV6 = 24, 48
"""Bits of a network that one customer may have, as for adverts (routing.adverts)."""


def neighbourhood_of(endpoint: Endpoint, connection: Connection | None) -> str:
    """A peer's network, or the relay it comes through; "" if that is this node's own network, or gone."""
    if connection is None:
        return ""
    path = endpoint.path_of(connection)
    origin = connection.first_address[0] if path is None else path.origin
    try:
        address = ipaddress.ip_address(origin.partition("%")[0])
    except ValueError:
        return origin
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if not address.is_global:
        return ""
    prefix = PREFIX_IPV4 if address.version == 4 else PREFIX_IPV6
    return str(ipaddress.ip_network((address, prefix), strict=False))
