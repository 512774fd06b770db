"""TCP as the control host uses it: listening, and where a socket leads."""

from __future__ import annotations

import ipaddress
import os

import trio

from routing.control_address import ControlAddress
from routing.errors import LocalError


async def open_listeners(host: str, port: int) -> list[trio.SocketListener]:
    """Listen on an IP address; LocalError if that can't be done."""
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        raise LocalError(
            f"can't listen on {host} port {port} (TCP): {system_words(error)}; choose another port"
        ) from None


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
