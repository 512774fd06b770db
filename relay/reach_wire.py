"""Bytes of `/panal/reach/1` and of probe datagrams (docs/protocol.md, "Reachability"). Sans-IO, bounded.

A request and its answer are one MessagePack map each. A request makes its receiver, and a helper of it, send
COPIES datagrams to at most two ports each, so it must itself be as long as all of them are on the wire:
nobody gets more sent than he has sent.

A probe carries no byte that a peer has chosen, only a digest of its nonce: it cannot be made to look like a
query to some other service.
"""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, TypeVar

import msgspec
from blake3 import blake3

from relay.targets import Address, plain_host
from routing.errors import PeerError
from routing.wire.text import sanitise

PROTOCOL_ID = "/panal/reach/1"

MAX_MESSAGE_BYTES = 1024
"""A dial-back request with MAX_CONTACTED IPv6 addresses, and padding."""

PROBE_MARK = 0x01
"""First byte of a probe: QUIC's fixed bit is clear, so no QUIC packet begins so (RFC 9000, section 17)."""

NONCE_BYTES = 16
"""Guessed by nobody in the seconds it lives."""

MAX_PROBE_BYTES = 64
"""A probe has 18 bytes; the rest is room for later versions, whose payload is passed over."""

COPIES = 2
"""Of each probe, so that one lost datagram says nothing."""

MAX_PORTS = 2
"""Per dial-back: the port the peer sees, and one that the asker believes is open."""

MAX_CONTACTED = 32
"""Addresses a request names as already written to."""

_PROBE_ON_WIRE = 66
"""Bytes of a probe with IPv6 and UDP headers."""

MIN_PROBE_FOR_BYTES = COPIES * _PROBE_ON_WIRE
MIN_DIAL_BACK_BYTES = 2 * MAX_PORTS * COPIES * _PROBE_ON_WIRE
"""Probes from another port and by the helper, to each port."""

MAX_TEXT_BYTES = 120
"""Of a refusal, for people."""

_T = TypeVar("_T", bound=msgspec.Struct)
_Host = Annotated[bytes, msgspec.Meta(min_length=4, max_length=16)]
_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]


class ReachError(PeerError):
    """A peer's bytes are no message of `/panal/reach/1`."""


class Observe(msgspec.Struct, tag="observe", frozen=True):
    """Where do you see me?"""


class Observed(msgspec.Struct, tag="observed", frozen=True):
    """There.

    Attributes:
        host: 4 or 16 bytes, the asker's address on this connection; as text: `address()`.
        port: its UDP port.
        time: this node's clock, seconds since 1970 in UTC.
    """

    host: _Host
    port: _Port
    time: float

    def address(self) -> Address:
        """(host as text, port)."""
        return unpack_host(self.host), self.port


class DialBack(msgspec.Struct, tag="dial_back", frozen=True):
    """Send probes to my address as you see it, and have somebody send one whom I never wrote to.

    Attributes:
        nonce: what the probes' digests are made of.
        contacted: addresses the asker wrote to, 4 or 16 bytes each; the helper should have another one.
        port: one more port at the same address to try, 0 for none.
        padding: makes the message MIN_DIAL_BACK_BYTES long.
    """

    nonce: Nonce
    contacted: Annotated[list[_Host], msgspec.Meta(max_length=MAX_CONTACTED)] = []
    port: _Port = 0
    padding: bytes = b""


class DialedBack(msgspec.Struct, tag="dialed_back", frozen=True):
    """Sent.

    Attributes:
        other_port: probes have left from another port of this node.
        helper: the address of a node that says that it has sent probes; empty: there was none.
    """

    other_port: bool
    helper: Annotated[bytes, msgspec.Meta(max_length=16)] = b""


class ProbeFor(msgspec.Struct, tag="probe_for", frozen=True):
    """Send a probe for a peer of mine, to its address as I see it.

    Attributes:
        nonce: as in the dial-back.
        host, ports: where to.
        padding: makes the message MIN_PROBE_FOR_BYTES long for each port.
    """

    nonce: Nonce
    host: _Host
    ports: Annotated[list[_Port], msgspec.Meta(min_length=1, max_length=MAX_PORTS)]
    padding: bytes = b""


class Probed(msgspec.Struct, tag="probed", frozen=True):
    """Sent."""


class Declined(msgspec.Struct, tag="declined", frozen=True):
    """No.

    Attributes:
        text: why, for people.
    """

    text: Annotated[str, msgspec.Meta(max_length=MAX_TEXT_BYTES * 4)]


Request = Observe | DialBack | ProbeFor
Answer = Observed | DialedBack | Probed | Declined

_request_decoder = msgspec.msgpack.Decoder(Request)
_answer_decoder = msgspec.msgpack.Decoder(Answer)


def encode(message: Request | Answer) -> bytes:
    """A message as bytes, without the frame's length; requests are padded as the protocol wants."""
    if isinstance(message, DialBack):
        message = _padded(message, MIN_DIAL_BACK_BYTES)
    elif isinstance(message, ProbeFor):
        message = _padded(message, MIN_PROBE_FOR_BYTES * len(message.ports))
    elif isinstance(message, Declined):
        message = Declined(sanitise(message.text, MAX_TEXT_BYTES))
    return msgspec.msgpack.encode(message)


def decode_request(data: bytes, *, peer: str = "") -> Request:
    """Read a request.

    Raises:
        ReachError: it is none, or shorter than what it asks for.
    """
    message: Request = _decoded(_request_decoder, data, peer)
    least = 0
    if isinstance(message, DialBack):
        least = MIN_DIAL_BACK_BYTES
        hosts = message.contacted
    elif isinstance(message, ProbeFor):
        least = MIN_PROBE_FOR_BYTES * len(message.ports)
        hosts = [message.host]
    else:
        hosts = []
    if len(data) < least:
        raise _error(peer, f"{len(data)} bytes, a request like this has at least {least}")
    if any(len(host) not in (4, 16) for host in hosts):
        raise _error(peer, "an address has 4 or 16 bytes")
    return message


def decode_answer(data: bytes, kind: type[_T], *, peer: str = "") -> _T:
    """Read the answer to a request that `kind` answers.

    Raises:
        ReachError: it is none, or another one; with the peer's reason if it declined.
    """
    message: Answer = _decoded(_answer_decoder, data, peer)
    if isinstance(message, Declined):
        raise _error(peer, f"declined: {sanitise(message.text, MAX_TEXT_BYTES)}")
    if not isinstance(message, kind):
        raise _error(peer, f"{message.__struct_config__.tag} is not the answer to what was asked")
    if isinstance(message, Observed):
        if len(message.host) not in (4, 16) or not message.port:
            raise _error(peer, "an address has 4 or 16 bytes, and a port")
        if not math.isfinite(message.time):
            raise _error(peer, "its clock shows no number")
    if isinstance(message, DialedBack) and len(message.helper) not in (0, 4, 16):
        raise _error(peer, "an address has 4 or 16 bytes")
    return message


def pack_host(host: str) -> bytes:
    """4 or 16 bytes of an IP address; empty for what is none."""
    plain = plain_host(host)
    return ipaddress.ip_address(plain).packed if plain else b""


def unpack_host(packed: bytes) -> str:
    """The address as text; "" if it has neither 4 nor 16 bytes."""
    return plain_host(str(ipaddress.ip_address(packed))) if len(packed) in (4, 16) else ""


# --- probes ---


class ProbeKind(IntEnum):
    """What a probe is for."""

    OTHER_PORT = 1
    """Of the peer that was asked to dial back."""
    STRANGER = 2
    """Of its helper."""
    PUNCH = 3
    """Opens a way, and asks for an answer."""
    PUNCH_ANSWER = 4
    """Goes back to where a PUNCH came from."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe datagram: mark, kind, digest."""

    kind: ProbeKind
    digest: bytes


def probe_digest(nonce: bytes, kind: ProbeKind) -> bytes:
    """The 16 bytes that stand for a nonce in a probe of this kind."""
    return blake3(b"panal probe" + bytes([kind]) + nonce).digest(length=NONCE_BYTES)


def encode_probe(nonce: bytes, kind: ProbeKind) -> bytes:
    """A datagram of 18 bytes."""
    return bytes([PROBE_MARK, kind]) + probe_digest(nonce, kind)


def decode_probe(data: bytes) -> Probe | None:
    """Read a datagram; None if it is no probe of this version: anybody may have sent it, nothing is said."""
    if not 2 + NONCE_BYTES <= len(data) <= MAX_PROBE_BYTES or data[0] != PROBE_MARK:
        return None
    try:
        kind = ProbeKind(data[1])
    except ValueError:
        return None
    return Probe(kind, bytes(data[2 : 2 + NONCE_BYTES]))


def _padded(message: _T, least: int) -> _T:
    short = least - len(msgspec.msgpack.encode(message))
    return msgspec.structs.replace(message, padding=bytes(short)) if short > 0 else message


def _decoded(decoder: msgspec.msgpack.Decoder[_T], data: bytes, peer: str) -> _T:
    if len(data) > MAX_MESSAGE_BYTES:
        raise _error(peer, f"{len(data)} bytes, more than the {MAX_MESSAGE_BYTES} allowed")
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _error(peer, str(error)) from None


def _error(peer: str, fault: str) -> ReachError:
    return ReachError(f"reach message of {peer or 'a peer'}: {sanitise(fault, 200)}", peer=peer)
