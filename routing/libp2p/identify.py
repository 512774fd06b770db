"""What peers tell each other about themselves: addresses, protocols, and where they see the other.

Source: libp2p specs, `identify/README.md`. Only the message, no I/O. No signed peer record is sent: it
is optional, nothing here needs it, and js-libp2p refuses py-libp2p's.
"""

from __future__ import annotations

from dataclasses import dataclass

from routing.control_address import ControlAddress
from routing.libp2p.protobuf import as_bytes, bytes_field, read_fields

IDENTIFY = "/ipfs/id/1.0.0"
IDENTIFY_PUSH = "/ipfs/id/push/1.0.0"

# The spec's own figure is 64 KiB; a go-libp2p node sends under 3 KiB.
MAX_IDENTIFY_BYTES = 8 << 10
# Of what a peer claims, this much is kept.
MAX_ADDRESSES = 16
MAX_PROTOCOLS = 64
MAX_PROTOCOL_CHARS = 128
MAX_AGENT_CHARS = 64

_PUBLIC_KEY, _LISTEN, _PROTOCOL, _OBSERVED, _VERSION, _AGENT = 1, 2, 3, 4, 5, 6


@dataclass(frozen=True)
class PeerInfo:
    """What a peer says of itself. Nothing of it is proven.

    Attributes:
        addresses: where it listens (TCP and WebSocket only; others are left out).
        protocols: what it speaks.
        observed: the address from which it sees us come; None if it does not say or not in a form we know.
        agent: name and version of its software.
    """

    addresses: tuple[ControlAddress, ...] = ()
    protocols: frozenset[str] = frozenset()
    observed: ControlAddress | None = None
    agent: str = ""


def encode_identify(public_key: bytes, info: PeerInfo) -> bytes:
    """The Identify message; `public_key` in libp2p's protobuf form."""
    out = bytes_field(_PUBLIC_KEY, public_key)
    for address in info.addresses:
        out += bytes_field(_LISTEN, address.to_bytes())
    for protocol in sorted(info.protocols):
        out += bytes_field(_PROTOCOL, protocol.encode())
    if info.observed is not None:
        out += bytes_field(_OBSERVED, info.observed.to_bytes())
    return out + bytes_field(_VERSION, b"panal/1") + bytes_field(_AGENT, info.agent.encode())


def decode_identify(data: bytes) -> PeerInfo:
    """Read an Identify message; ValueError if it is none. Addresses in other forms are left out."""
    addresses: list[ControlAddress] = []
    protocols: set[str] = set()
    observed: ControlAddress | None = None
    agent = ""
    for number, value in read_fields(data):
        if number == _LISTEN and len(addresses) < MAX_ADDRESSES:
            address = _address(as_bytes(value))
            if address is not None:
                addresses.append(address)
        elif number == _PROTOCOL and len(protocols) < MAX_PROTOCOLS:
            protocols.add(as_bytes(value)[:MAX_PROTOCOL_CHARS].decode("ascii", errors="replace"))
        elif number == _OBSERVED:
            observed = _address(as_bytes(value))
        elif number == _AGENT:
            agent = as_bytes(value)[:MAX_AGENT_CHARS].decode("ascii", errors="replace")
    return PeerInfo(tuple(addresses), frozenset(protocols), observed, agent)


def _address(data: bytes) -> ControlAddress | None:
    try:
        return ControlAddress.from_bytes(data)
    except ValueError:
        return None
