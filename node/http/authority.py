"""`Host: name:port`: what a browser believes it talks to, taken apart and compared. Pure.

A page of a stranger may let its own name resolve to 127.0.0.1 (DNS rebinding): the browser then sends that
name as the Host, and takes our answers for the stranger's. So a door answers to names it knows only:

1. Loopback: `localhost`, and every loopback address.
2. The address that the connection came in at, as a literal: a literal cannot be made to point elsewhere.
3. Names that the config lists.

The port is not compared: it may be forwarded (`ssh -L`), and a name says who is meant.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

MAX_PORT = 65535
_AUTHORITY = re.compile(
    r"(?:\[(?P<literal>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]{1,253}))(?::(?P<port>[0-9]{1,5}))?",
    re.ASCII | re.IGNORECASE,
)


@dataclass(frozen=True)
class Authority:
    """A host and perhaps a port.

    Attributes:
        host: a name in lower case, or an address as Python writes it.
        port: None: the scheme's.
    """

    host: str
    port: int | None

    @classmethod
    def parse(cls, text: str) -> Authority | None:
        """None for what is no host."""
        found = _AUTHORITY.fullmatch(text)
        if found is None:
            return None
        port = None if found["port"] is None else int(found["port"])
        if port is not None and port > MAX_PORT:
            return None
        if found["literal"] is not None:
            address = parse_address(found["literal"])
            return None if address is None or address.version == 4 else cls(str(address), port)
        return cls(found["name"].lower(), port)


def parse_address(text: str) -> IpAddress | None:
    """An IP address; one of IPv4 written as IPv6 is the former. None for a name."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped if isinstance(mapped, ipaddress.IPv4Address) else address


class KnownHosts:
    """The names that a door answers to.

    Args:
        names: what the config lists, names or addresses.
    """

    def __init__(self, names: tuple[str, ...] = ()) -> None:
        self._names = {name.lower().strip("[]") for name in names} | {"localhost"}

    def knows(self, host: str, own: IpAddress) -> bool:
        """Whether this door is meant.

        Args:
            host: as `Authority` has it.
            own: the address that the connection came in at.
        """
        if host in self._names:
            return True
        address = parse_address(host)
        return address is not None and (address.is_loopback or address == own)
