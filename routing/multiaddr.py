"""The multiaddrs panal uses on its QUIC plane: `/ip4|ip6/HOST/udp/PORT/quic-v1[/p2p/ID]`.

Source: the multiaddr spec's text form. A strict parser of these few forms instead of py-multiaddr,
which comes with libp2p (not needed for the QUIC plane), costs 50 to 65 ms until the first address is
read, and takes ports like " 7" and "070".
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from routing.errors import LocalError
from routing.identity import PeerId, parse_peer_id

# The longest we write: an IPv6 address, five digits of port and a peer id are 119 characters.
MAX_MULTIADDR_CHARS = 200

_FORM = "/ip4/ADDRESS/udp/PORT/quic-v1/p2p/PEER-ID"


@dataclass(frozen=True)
class PeerAddress:
    """Where a peer listens, and who must answer there.

    Attributes:
        host: IPv4 or IPv6 address in its shortest text form, never a name.
        port: UDP port, 1 to 65535.
        peer_id: who must answer; None accepts whoever does (the caller then looks at who it was).
    """

    host: str
    port: int
    peer_id: PeerId | None = None

    @classmethod
    def parse(cls, text: str) -> PeerAddress:
        """Read a multiaddr, with or without `/p2p/ID`.

        Raises:
            LocalError: names the bad part.
        """
        host, port, peer_id = _parse(text)
        if port == 0:
            raise LocalError(
                f"multiaddr {_shown(text)}: port 0 can't be dialed, write the port the peer listens on"
            )
        if ipaddress.ip_address(host).is_unspecified:
            raise LocalError(
                f"multiaddr {_shown(text)}: {host} can't be dialed, write the peer's own address"
            )
        return cls(host, port, peer_id)

    def __str__(self) -> str:
        tail = "" if self.peer_id is None else f"/p2p/{self.peer_id}"
        return _format(self.host, self.port) + tail


@dataclass(frozen=True)
class ListenAddress:
    """Where a node listens.

    Attributes:
        host: address of an interface, or "0.0.0.0" / "::" for all of them.
        port: UDP port; 0 lets the system choose one.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> ListenAddress:
        """Read a multiaddr without `/p2p/ID`.

        Raises:
            LocalError: names the bad part.
        """
        host, port, peer_id = _parse(text)
        if peer_id is not None:
            raise LocalError(
                f"multiaddr {_shown(text)}: /p2p/ has no place in a listen address, the key file decides it"
            )
        return cls(host, port)

    def __str__(self) -> str:
        return _format(self.host, self.port)


def parse_tcp_listen(text: str) -> tuple[str, int]:
    """Where a node listens for TCP: "/ip4/0.0.0.0/tcp/4190" as (host, port).

    Raises:
        LocalError: names the bad part.
    """
    shown = _shown(text)
    parts = text.split("/")
    if len(text) > MAX_MULTIADDR_CHARS or len(parts) != 5 or parts[0] != "" or parts[3] != "tcp":
        raise LocalError(f"multiaddr {shown} must have the form /ip4/ADDRESS/tcp/PORT")
    return _parse_host(parts[1], parts[2], shown), _parse_port(parts[4], shown, "TCP")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _format(host: str, port: int) -> str:
    return f"/ip{ipaddress.ip_address(host).version}/{host}/udp/{port}/quic-v1"


def _parse(text: str) -> tuple[str, int, PeerId | None]:
    shown = _shown(text)
    if len(text) > MAX_MULTIADDR_CHARS:
        raise LocalError(
            f"multiaddr {shown} is {len(text)} characters long, at most {MAX_MULTIADDR_CHARS} make sense"
        )
    parts = text.split("/")
    if parts[0] != "" or len(parts) < 2:
        raise LocalError(f"multiaddr {shown} must begin with '/', like {_FORM}")
    parts = parts[1:]
    if len(parts) not in (5, 7):
        raise LocalError(
            f"multiaddr {shown} has {len(parts)} parts, expected {_FORM} or the same without /p2p/PEER-ID"
        )
    host = _parse_host(parts[0], parts[1], shown)
    if parts[2] != "udp":
        raise LocalError(f"multiaddr {shown}: expected 'udp' after the address, found {parts[2]!r}")
    port = _parse_port(parts[3], shown)
    if parts[4] != "quic-v1":
        raise LocalError(f"multiaddr {shown}: expected 'quic-v1' after the port, found {parts[4]!r}")
    if len(parts) == 5:
        return host, port, None
    if parts[5] != "p2p":
        raise LocalError(f"multiaddr {shown}: expected 'p2p' after 'quic-v1', found {parts[5]!r}")
    try:
        return host, port, parse_peer_id(parts[6])
    except LocalError as error:
        raise LocalError(f"multiaddr {shown}: {error}") from None


def _parse_host(family: str, host: str, shown: str) -> str:
    if family not in ("ip4", "ip6"):
        raise LocalError(f"multiaddr {shown}: expected 'ip4' or 'ip6' first, found {family!r}")
    kind: type[ipaddress.IPv4Address] | type[ipaddress.IPv6Address]
    kind = ipaddress.IPv4Address if family == "ip4" else ipaddress.IPv6Address
    try:
        address = kind(host)
    except ValueError:
        raise LocalError(f"multiaddr {shown}: {host!r} is not an {family} address") from None
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        raise LocalError(
            f"multiaddr {shown}: zone {address.scope_id!r} means something on one machine only, leave it out"
        )
    return str(address)


def _parse_port(text: str, shown: str, protocol: str = "UDP") -> int:
    # int() alone would also take signs, spaces, underscores, leading zeros and other scripts' digits
    if (
        not (text.isascii() and text.isdigit() and len(text) <= 5)
        or text != str(int(text))
        or int(text) > 65535
    ):
        raise LocalError(f"multiaddr {shown}: {text!r} is not a {protocol} port (0 to 65535)")
    return int(text)
