"""What counts as one network where identities are many and cheap. Pure."""

from __future__ import annotations

import ipaddress

PREFIX_IPV4, PREFIX_IPV6 = 24, 48
"""Bits of a network that one customer may have."""


def subnet_of(host: str) -> str:
    """The /24 or /48 of a public address; "" for one that does not mean the same everywhere.

    Raises:
        ValueError: it is no address.
    """
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if not address.is_global:
        return ""
    prefix = PREFIX_IPV4 if address.version == 4 else PREFIX_IPV6
    return str(ipaddress.ip_network((address, prefix), strict=False))
