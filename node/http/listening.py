"""Where the door stands: its socket, bound before anything else is opened."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from dataclasses import dataclass

from node.config import HttpConfig
from node.http.api_keys import ApiKeys
from routing.errors import LocalError

FIRST_PORTS = range(4190, 4200)
"""The first free one of these, on loopback, where the config chooses none, and after them any: one machine
seldom has more nodes."""

BACKLOG = 256
"""Connections that wait to be accepted: clients of a benchmark all come at once."""


@dataclass(frozen=True)
class DoorSettings:
    """What a door is to be.

    Attributes:
        listen: IP address and port, and no other; port 0 is any. None: the first free one of FIRST_PORTS, or
            any.
        hosts: names it answers to, besides those of loopback and its own address.
        avoid: ports that this node has another use for, where the config chooses none.
        keys: None: whoever reaches it may ask; on loopback only.
    """

    listen: tuple[str, int] | None = None
    hosts: tuple[str, ...] = ()
    keys: ApiKeys | None = None
    avoid: frozenset[int] = frozenset()

    @classmethod
    def of(cls, config: HttpConfig, avoid: frozenset[int] = frozenset()) -> DoorSettings | None:
        """What the config says; None: no door.

        Raises:
            LocalError: the file of keys cannot be used.
        """
        if config.listen is None:
            return None
        keys = None if config.key_file is None else ApiKeys.read(config.key_file)
        return cls(config.listen if config.is_chosen else None, config.hosts, keys, avoid)


def bind(settings: DoorSettings) -> socket.socket:
    """A listening socket.

    Raises:
        LocalError: names http.listen and what to do.
    """
    host, port = settings.listen or ("127.0.0.1", FIRST_PORTS[0])
    if settings.keys is None and not ipaddress.ip_address(host).is_loopback:
        raise LocalError(
            f"http.listen: {host} is not only this machine, where everybody could use it: name an "
            "http.key_file, or listen at 127.0.0.1"
        )
    ports = [port]
    if settings.listen is None:
        ports = [each for each in FIRST_PORTS if each not in settings.avoid] + [0]  # 0: any
    for each in ports:
        try:
            return _bind(host, each)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and each != ports[-1]:
                continue
            raise LocalError(_why(error, host, each)) from None
    raise AssertionError("there is at least one port")


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # elsewhere it would share the port with whoever has it
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        listening.bind((host, port))
        if hasattr(socket, "SO_REUSEPORT"):
            # Only now: nobody else's door can have the port, but our own control plane may join on a wider
            # address (docs/decisions/0014).
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _why(error: OSError, host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    place = f"{shown}:{port}"
    why = os.strerror(error.errno or 0) if error.errno else str(error)
    if error.errno == errno.EADDRINUSE:
        advice = "end who has it, or choose another port"
    elif error.errno in (errno.EACCES, errno.EPERM):
        advice = "choose a port from 1024 on"
    else:
        advice = "choose an address of this machine"
    return f'http.listen: cannot listen at {place}: {why}: {advice} (listen = "off" goes without)'
