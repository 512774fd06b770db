"""TCP as the control host uses it: listening, and where a socket leads."""

from __future__ import annotations

import ipaddress
import os
import socket

import trio

from routing.control_address import ControlAddress
from routing.errors import LocalError

BACKLOG = 1024
"""Connections that wait to be accepted: many begin at once after a network was away."""


async def open_listeners(host: str, port: int, *, share: bool = False) -> list[trio.SocketListener]:
    """Listen on an IP address.

    Args:
        share: another socket of this process listens at the same port on a narrower address (the status page
            on loopback): the system gives each connection to the narrower of the two.

    Raises:
        LocalError: that cannot be done.
    """
    try:
        if share:
            return [_shared_listener(host, port)]
        return await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise LocalError(
            f"can't listen on {host} port {port} (TCP): {system_words(error)}; choose another port"
        ) from None


def _shared_listener(host: str, port: int) -> trio.SocketListener:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return trio.SocketListener(trio.socket.from_stdlib_socket(listening))


def far_end(stream: trio.abc.Stream) -> ControlAddress | None:
    """Where a TCP stream leads; None for other streams, and if it broke before we looked."""
    if not isinstance(stream, trio.SocketStream):
        return None
    try:
        host, port = stream.socket.getpeername()[:2]
    except OSError:
        return None
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return ControlAddress.of(str(address), port)


def remote_ip(stream: trio.abc.Stream) -> str:
    """The IP address a TCP stream leads to; "gone" if it broke before we looked."""
    address = far_end(stream)
    return "gone" if address is None else address.host


def system_words(error: OSError) -> str:
    """What the system says, without its numbers; of several attempts the first one's."""
    first: BaseException | None = error.__cause__
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    cause = first if isinstance(first, OSError) else error
    text = (os.strerror(cause.errno) if cause.errno else "") or cause.strerror or str(cause)
    return text[:1].lower() + text[1:]
