"""The multiaddrs of the control plane: `/ip4|ip6|dns4|dns6/HOST/tcp/PORT[/ws|/wss|/tls/ws][/p2p/ID]`.

Sources: the multiaddr spec, its text and its binary form (`multiformats/multicodec` has the codes).
As strict as routing/multiaddr.py, which has the QUIC plane's form: one text for each address, nothing
that could not be dialed. `/p2p-circuit` after a relay's address means "through this relay".
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Literal

from routing.errors import LocalError
from routing.identity import PeerId, parse_peer_id
from routing.peer_id_bytes import peer_id_from_bytes, peer_id_to_bytes

Family = Literal["ip4", "ip6", "dns4", "dns6"]
Transport = Literal["tcp", "ws", "wss"]

# A name of 253 characters, a port, /tls/ws and a peer id are 330 characters.
MAX_ADDRESS_CHARS = 360

_FORM = "/ip4/ADDRESS/tcp/PORT/p2p/PEER-ID"
_CIRCUIT = "/p2p-circuit"
_CODES: dict[str, int] = {"ip4": 4, "tcp": 6, "ip6": 41, "dns4": 54, "dns6": 55, "tls": 448, "ws": 477}
_WSS_CODE, _P2P_CODE = 478, 421
_NAMES = {code: name for name, code in _CODES.items()}
# RFC 1123: labels of letters, digits and hyphens; the last one is no number, else it would be an address.
_LABEL = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)")
_MAX_NAME_CHARS = 253


@dataclass(frozen=True)
class ControlAddress:
    """Where a peer listens for TCP or WebSocket, and who must answer there.

    Attributes:
        host: IP address in its shortest text form, or a lower-case name.
        port: TCP port, 1 to 65535.
        transport: "tcp"; "ws" for a WebSocket; "wss" for one inside TLS.
        peer_id: who must answer; None where the text does not say.
        family: "ip4", "ip6", or "dns4"/"dns6" for a name that resolves to such addresses.
    """

    host: str
    port: int
    transport: Transport = "tcp"
    peer_id: PeerId | None = None
    family: Family = "ip4"

    @classmethod
    def of(cls, host: str, port: int, peer_id: PeerId | None = None) -> ControlAddress:
        """The TCP address of an IP address and a port."""
        family: Family = "ip6" if ":" in host else "ip4"
        return cls(host, port, "tcp", peer_id, family)

    @classmethod
    def parse(cls, text: str) -> ControlAddress:
        """Read a multiaddr, with or without `/p2p/ID`.

        Raises:
            LocalError: names the bad part.
        """
        shown = _shown(text)
        if len(text) > MAX_ADDRESS_CHARS:
            raise LocalError(
                f"multiaddr {shown} is {len(text)} characters long, at most {MAX_ADDRESS_CHARS} make sense"
            )
        if _CIRCUIT in text:
            raise LocalError(f"multiaddr {shown} leads through a relay, where a direct address is expected")
        parts = text.split("/")
        if parts[0] != "" or len(parts) < 5:
            raise LocalError(f"multiaddr {shown} must have the form {_FORM}")
        family, host = _parse_host(parts[1], parts[2], shown)
        if parts[3] != "tcp":
            raise LocalError(f"multiaddr {shown}: expected 'tcp' after the address, found {parts[3]!r}")
        port = _parse_port(parts[4], shown)
        transport, rest = _parse_transport(parts[5:])
        peer_id = _parse_peer(rest, shown)
        return cls(host, port, transport, peer_id, family)

    def with_peer(self, peer_id: PeerId | None) -> ControlAddress:
        """The same place with another answerer named."""
        return ControlAddress(self.host, self.port, self.transport, peer_id, self.family)

    def __str__(self) -> str:
        layers = {"tcp": "", "ws": "/ws", "wss": "/tls/ws"}[self.transport]
        tail = "" if self.peer_id is None else f"/p2p/{self.peer_id}"
        return f"/{self.family}/{self.host}/tcp/{self.port}{layers}{tail}"

    def to_bytes(self) -> bytes:
        """The binary multiaddr, as identify and Kademlia carry it."""
        out = _code(_CODES[self.family])
        if self.family in ("ip4", "ip6"):
            out += ipaddress.ip_address(self.host).packed
        else:
            out += _code(len(self.host)) + self.host.encode()
        out += _code(_CODES["tcp"]) + self.port.to_bytes(2, "big")
        if self.transport != "tcp":
            out += (_code(_CODES["tls"]) if self.transport == "wss" else b"") + _code(_CODES["ws"])
        if self.peer_id is not None:
            raw = peer_id_to_bytes(self.peer_id)
            out += _code(_P2P_CODE) + _code(len(raw)) + raw
        return out

    @classmethod
    def from_bytes(cls, data: bytes) -> ControlAddress:
        """Read a binary multiaddr.

        Raises:
            ValueError: it is none, or of a form not spoken here (UDP, a circuit, another kind of peer id).
        """
        if len(data) > MAX_ADDRESS_CHARS:
            raise ValueError(f"a multiaddr of {len(data)} bytes")
        parts, position = "", 0
        while position < len(data):
            code, position = _read_code(data, position)
            name = _NAMES.get(code)
            size = {"ip4": 4, "ip6": 16, "tcp": 2}.get(name or "", 0)
            if name in ("dns4", "dns6") or code == _P2P_CODE:
                size, position = _read_code(data, position)
            value = data[position : position + size]
            if len(value) < size:
                raise ValueError("a multiaddr is cut off")
            position += size
            if code == _P2P_CODE:
                parts += f"/p2p/{peer_id_from_bytes(value)}"
            elif code == _WSS_CODE:
                parts += "/wss"
            elif name in ("ip4", "ip6"):
                parts += f"/{name}/{ipaddress.ip_address(value)}"
            elif name in ("dns4", "dns6"):
                parts += f"/{name}/{value.decode('ascii')}"
            elif name == "tcp":
                parts += f"/tcp/{int.from_bytes(value, 'big')}"
            elif name is not None:
                parts += f"/{name}"
            else:
                raise ValueError(f"a multiaddr with the unknown part {code}")
        try:
            return cls.parse(parts)
        except LocalError as error:
            raise ValueError(str(error)) from None


@dataclass(frozen=True)
class CircuitAddress:
    """A way through a relay: `<relay's address>/p2p/RELAY/p2p-circuit[/p2p/PEER]`.

    Attributes:
        relay: where the relay listens, its peer id included.
        peer_id: who is at the far end; None where the text does not say.
    """

    relay: ControlAddress
    peer_id: PeerId | None = None

    @classmethod
    def parse(cls, text: str) -> CircuitAddress:
        """Read a circuit's multiaddr.

        Raises:
            LocalError: names the bad part.
        """
        shown = _shown(text)
        head, circuit, tail = text.partition(_CIRCUIT)
        if not circuit:
            raise LocalError(f"multiaddr {shown} does not lead through a relay: /p2p-circuit is missing")
        relay = ControlAddress.parse(head)
        if relay.peer_id is None:
            raise LocalError(
                f"multiaddr {shown} does not name its relay: /p2p/ID before /p2p-circuit is missing"
            )
        if tail and not tail.startswith("/"):
            raise LocalError(f"multiaddr {shown}: expected '/p2p-circuit', found '/p2p-circuit{tail[:20]}'")
        return cls(relay, _parse_peer(tail.split("/")[1:], shown) if tail else None)

    def __str__(self) -> str:
        return f"{self.relay}{_CIRCUIT}" + ("" if self.peer_id is None else f"/p2p/{self.peer_id}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _parse_host(family: str, host: str, shown: str) -> tuple[Family, str]:
    if family in ("ip4", "ip6"):
        kind: type[ipaddress.IPv4Address] | type[ipaddress.IPv6Address]
        kind = ipaddress.IPv4Address if family == "ip4" else ipaddress.IPv6Address
        try:
            address = kind(host)
        except ValueError:
            raise LocalError(f"multiaddr {shown}: {host!r} is not an {family} address") from None
        if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
            raise LocalError(
                f"multiaddr {shown}: zone {address.scope_id!r} means something on one machine only"
            )
        if address.is_unspecified:
            raise LocalError(f"multiaddr {shown}: {host} can't be dialed, write the peer's own address")
        return ("ip4" if family == "ip4" else "ip6"), str(address)
    if family in ("dns4", "dns6"):
        name = host.lower()
        labels = name.split(".")
        if len(name) > _MAX_NAME_CHARS or labels[-1].isdigit() or not all(map(_LABEL.fullmatch, labels)):
            raise LocalError(f"multiaddr {shown}: {host!r} is not a host name")
        return ("dns4" if family == "dns4" else "dns6"), name
    raise LocalError(f"multiaddr {shown}: expected 'ip4', 'ip6', 'dns4' or 'dns6' first, found {family!r}")


def _parse_port(text: str, shown: str) -> int:
    # int() alone would also take signs, spaces, underscores, leading zeros and other scripts' digits
    if (
        text.isascii()
        and text.isdigit()
        and len(text) <= 5
        and text == str(int(text))
        and 0 < int(text) < 65536
    ):
        return int(text)
    raise LocalError(f"multiaddr {shown}: {text!r} is not a TCP port that can be dialed (1 to 65535)")


def _parse_transport(parts: list[str]) -> tuple[Transport, list[str]]:
    if parts[:2] == ["tls", "ws"]:
        return "wss", parts[2:]
    if parts[:1] == ["wss"]:
        return "wss", parts[1:]
    if parts[:1] == ["ws"]:
        return "ws", parts[1:]
    return "tcp", parts


def _parse_peer(parts: list[str], shown: str) -> PeerId | None:
    if not parts:
        return None
    if len(parts) != 2 or parts[0] != "p2p":
        raise LocalError(
            f"multiaddr {shown}: expected /p2p/PEER-ID at the end, found {'/' + '/'.join(parts)!r}"
        )
    try:
        return parse_peer_id(parts[1])
    except LocalError as error:
        raise LocalError(f"multiaddr {shown}: {error}") from None


def _code(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_code(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift <= 14:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("a multiaddr is cut off")
