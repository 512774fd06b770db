"""The address of this machine that others can dial, where the config only says "all interfaces"."""

from __future__ import annotations

import ipaddress
import socket

from routing.multiaddr import ListenAddress

# Addresses for examples (RFC 5737, RFC 3849): on no network, so they are routed like any other far one.
_FAR = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
_ANY_PORT = 9  # discard; nothing is sent to it


def dialable(listen: ListenAddress) -> ListenAddress:
    """`listen` with, for "0.0.0.0" or "::", the address the system would use to leave: most likely what
    others on the network reach this machine by.

    A UDP socket is connected to a far address, which sends nothing, and asked for its own end. Where there is
    no way far away (a cable between two machines) it is the first address of an interface, and without any
    network the loopback address. A router's outer address is not found out, and the port
    stays what it is, 0 too. An address of one interface is returned as it is.
    """
    if listen.host == "0.0.0.0":
        host = _way_out(socket.AF_INET) or _of_interface() or "127.0.0.1"
    elif listen.host == "::":  # such a socket of ours takes IPv4 as well (routing.quic.udp)
        host = _way_out(socket.AF_INET6) or _way_out(socket.AF_INET) or _of_interface() or "::1"
    else:
        return listen
    return ListenAddress(host, listen.port)


def _way_out(family: socket.AddressFamily) -> str | None:
    """The address packets to far away would carry, None where there is no way (or no such family)."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((_FAR[family], _ANY_PORT))
            host: str = probe.getsockname()[0]
    except OSError:
        return None
    return None if "%" in host else host  # link-local: its zone means nothing on another machine


def _of_interface() -> str | None:
    """The first IPv4 address of an interface besides loopback; a link-local one only if there is no other."""
    import ifaddr

    every = [ip.ip for each in ifaddr.get_adapters() for ip in each.ips if isinstance(ip.ip, str)]
    usable = [host for host in every if not ipaddress.ip_address(host).is_loopback]
    return min(usable, key=lambda host: ipaddress.ip_address(host).is_link_local, default=None)
