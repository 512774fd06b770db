"""Hole punching without the I/O: messages of `/panal/punch/1`, who dials, when to probe, and where to.

The messages go over a connection that the two peers have already, through a relay:

    A -> B  connect {A's nonce, A's addresses}       connect {B's nonce, B's addresses}  B -> A
    A -> B  sync            A waits half the round trip it has just measured, B begins at once

From then on each sends probes made of the *other's* nonce to each of the other's addresses, and answers each
probe made of its own, with an answer made of the same, to the address it came from. The lower peer id dials
the first address it hears from, and tells how that ended:

    lower -> higher  outcome {connected, text}

A node that is public, or has been found so, can spare the other the wait and the guessing:

    A -> B  call_back {A's nonce, A's addresses}     B probes, dials what answers     outcome  B -> A
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, TypeVar

import msgspec

from relay.reach_wire import Nonce, pack_host, unpack_host
from relay.targets import Address, Scope, objection, scope_of
from routing.errors import PeerError
from routing.wire.text import sanitise

PROTOCOL_ID = "/panal/punch/1"

MAX_MESSAGE_BYTES = 512
"""Four addresses, or a line of text."""

MAX_CANDIDATES = 4
"""Addresses of one peer that are probed: outer and own, IPv4 and IPv6."""

MAX_TEXT_BYTES = 200
"""Of an outcome, for people."""

FIRST_PAUSE = 0.02
PAUSE_GROWTH = 1.5
LAST_PAUSE = 0.3
"""Seconds between probes. The first ones make up for a small difference in when the two begin, the later ones
for a large one and for loss."""

PROBE_SECONDS = 4.0
"""After this no NAT is going to open: the two began at most a second apart."""

_PORT_BYTES = 2
_T = TypeVar("_T", bound=msgspec.Struct)
_Address = Annotated[bytes, msgspec.Meta(min_length=4 + _PORT_BYTES, max_length=16 + _PORT_BYTES)]
_Addresses = Annotated[list[_Address], msgspec.Meta(max_length=MAX_CANDIDATES)]


class PunchError(PeerError):
    """A peer's bytes are no message of `/panal/punch/1`, or not the one whose turn it is."""


class PunchFailed(PeerError):
    """The two peers did not meet; the message says why."""


class Connect(msgspec.Struct, tag="connect", frozen=True):
    """Let us meet.

    Attributes:
        nonce: what probes to the sender, and its answers, are made of.
        addresses: where to send them: IP address and port, 6 or 18 bytes each, network order.
    """

    nonce: Nonce
    addresses: _Addresses


class Sync(msgspec.Struct, tag="sync", frozen=True):
    """Begin now."""


class CallBack(msgspec.Struct, tag="call_back", frozen=True):
    """Dial me, once an address of mine has answered a probe."""

    nonce: Nonce
    addresses: _Addresses


class Outcome(msgspec.Struct, tag="outcome", frozen=True):
    """How it ended at the end that dials.

    Attributes:
        connected: there is a connection now.
        text: else why not, for people.
        crossed: not begun, as the receiver is being asked for the same thing by the sender.
    """

    connected: bool
    text: Annotated[str, msgspec.Meta(max_length=MAX_TEXT_BYTES * 4)] = ""
    crossed: bool = False


Message = Connect | Sync | CallBack | Outcome
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """A message as bytes, without the frame's length."""
    if isinstance(message, Outcome):
        message = msgspec.structs.replace(message, text=sanitise(message.text, MAX_TEXT_BYTES))
    return msgspec.msgpack.encode(message)


def decode(data: bytes, *, peer: str = "") -> Message:
    """Read a message.

    Raises:
        PunchError: the bytes are none.
    """
    fault = ""
    if len(data) > MAX_MESSAGE_BYTES:
        fault = f"{len(data)} bytes, more than the {MAX_MESSAGE_BYTES} allowed"
    else:
        try:
            message: Message = _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            fault = sanitise(str(error), MAX_TEXT_BYTES)
        else:
            if isinstance(message, Outcome):
                return msgspec.structs.replace(message, text=sanitise(message.text, MAX_TEXT_BYTES))
            return message
    raise PunchError(f"punch message of {peer or 'a peer'}: {fault}", peer=peer)


def expect(message: Message, kind: type[_T], *, peer: str) -> _T:
    """The message, if it is of the kind whose turn it is.

    Raises:
        PunchFailed: it is an outcome: the peer has given up, and says why.
        PunchError: it is another one.
    """
    if isinstance(message, kind):
        return message
    if isinstance(message, Outcome):
        raise PunchFailed(f"{peer} gave the punch up: {message.text or 'no reason given'}", peer=peer)
    tag = message.__struct_config__.tag
    raise PunchError(f"punch message of {peer}: {tag} where {kind.__struct_config__.tag} belongs", peer=peer)


def pack_addresses(addresses: Sequence[Address]) -> list[bytes]:
    """The first few, each packed; what is no IP address is left out."""
    packed = [pack_host(host) + port.to_bytes(_PORT_BYTES, "big") for host, port in addresses]
    return [each for each in packed if len(each) > _PORT_BYTES][:MAX_CANDIDATES]


def unpack_addresses(packed: Sequence[bytes]) -> list[Address]:
    """(host, port) each, in order and none twice; what has a wrong length is left out."""
    found = [
        (unpack_host(each[:-_PORT_BYTES]), int.from_bytes(each[-_PORT_BYTES:], "big")) for each in packed
    ]
    return [address for address in dict.fromkeys(found) if address[0]]


def targets(theirs: Sequence[Address], ours: Sequence[Address]) -> list[Address]:
    """Which of the addresses a peer claims are probed.

    The peer may lie: whoever it names gets our probes, at most MAX_CANDIDATES times some 20 of 18 bytes in
    four seconds, and not often (relay.punch). An address that is not global is probed only if the peer says
    that it is behind the same NAT, naming an outer address of ours too, or if our own outer address is not
    global either. The first can be a lie: then a few probes that nobody answers go into our own network.

    Args:
        theirs: what the peer claims, its outer addresses first.
        ours: the same of this node.
    """
    our_hosts = {host for host, _ in ours}
    at_home = any(host in our_hosts for host, _ in theirs)
    outer = ours[0][0] if ours else ""
    found = []
    for address in theirs[:MAX_CANDIDATES]:
        if address in ours:
            continue  # ourselves, or a twin behind the same NAT that no probe of ours could tell from us
        asker = address[0] if at_home and scope_of(address[0]) is not Scope.LOOPBACK else outer
        if objection(address, asker) is None:
            found.append(address)
    return found


def dials(own: str, peer: str) -> bool:
    """Whether this node is the one that dials: the lower peer id, as text."""
    return own < peer


def pauses() -> Iterator[float]:
    """Seconds to wait after each round of probes, PROBE_SECONDS in all."""
    total, pause = 0.0, FIRST_PAUSE
    while total < PROBE_SECONDS:
        pause = min(pause, LAST_PAUSE, PROBE_SECONDS - total)
        yield pause
        total += pause
        pause *= PAUSE_GROWTH
