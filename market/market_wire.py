"""Messages of `/panal/market/1`, bytes in and out, without I/O (docs/protocol.md, "Receipts").

One stream is one exchange: a hello or an offer, and one message back. 4 bytes: version, type, a number (of
receipts, or why it is refused), 0. Then what the type says. Rules:

1. Any bytes give a message or ProtocolError; each message has one encoding, but for the text of a refusal,
   which is made printable.
2. Signatures are not looked at here: `SignedReceipt.fault` does.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from market.receipt import FULL_BYTES, MAX_TOTAL, OFFERED_BYTES, BadReceiptBytes, SignedReceipt
from routing.wire.experts import ProtocolError
from routing.wire.limits import MAX_TEXT_BYTES
from routing.wire.text import sanitise

PROTOCOL_ID = "/panal/market/1"

MAX_SHOWN = 6
"""Receipts in a hello: one for each kind and direction."""

_VERSION = 1
_HEAD = struct.Struct("<BBBB")
_COUNT = struct.Struct("<Q")

MAX_MESSAGE_BYTES = _HEAD.size + max(MAX_SHOWN * FULL_BYTES, _COUNT.size + FULL_BYTES + MAX_TEXT_BYTES)


class Type(IntEnum):
    HELLO = 1
    HELLO_BACK = 2
    OFFER = 3
    COUNTERSIGNED = 4
    REFUSED = 5


class Reason(IntEnum):
    """Why a receipt is not countersigned."""

    BEHIND = 1
    """We have a later one, which stands in the refusal."""
    CLOSED = 2
    """Its epoch is over here, or has not begun."""
    QUOTE = 3
    """The quote it names cannot have priced the work."""
    DOUBLE = 4
    """Its issuer has signed double, now or before."""
    FULL = 5
    """There is no room for another account."""


@dataclass(frozen=True)
class Hello:
    """The sender's last full receipt of each stream with the other side: the first message of a connection.

    Attributes:
        back: it answers a hello.
    """

    shown: tuple[SignedReceipt, ...] = ()
    back: bool = False


@dataclass(frozen=True)
class Offer:
    """A receipt signed by its issuer, to be countersigned."""

    signed: SignedReceipt


@dataclass(frozen=True)
class Countersigned:
    """The receipt, full.

    Attributes:
        unsigned: µcr that the sender counts beyond it.
    """

    signed: SignedReceipt
    unsigned: int = 0


@dataclass(frozen=True)
class NotSigned:
    """An offered receipt is not countersigned.

    Attributes:
        text: one line for a person.
        shown: the sender's last full receipt of the stream; None if there is none.
        unsigned: µcr that the sender counts beyond it.
    """

    reason: Reason
    text: str
    shown: SignedReceipt | None = None
    unsigned: int = 0


MarketMessage = Hello | Offer | Countersigned | NotSigned


def encode(message: MarketMessage) -> bytes:
    """The message's bytes, at most MAX_MESSAGE_BYTES."""
    match message:
        case Hello():
            kind = Type.HELLO_BACK if message.back else Type.HELLO
            head = _HEAD.pack(_VERSION, kind, len(message.shown), 0)
            return head + b"".join(each.encode() for each in message.shown)
        case Offer():
            return _HEAD.pack(_VERSION, Type.OFFER, 0, 0) + message.signed.encode()
        case Countersigned():
            head = _HEAD.pack(_VERSION, Type.COUNTERSIGNED, 0, 0)
            return head + _COUNT.pack(min(message.unsigned, MAX_TOTAL)) + message.signed.encode()
        case NotSigned():
            head = _HEAD.pack(_VERSION, Type.REFUSED, message.reason, message.shown is not None)
            shown = b"" if message.shown is None else message.shown.encode()
            text = sanitise(message.text, MAX_TEXT_BYTES).encode()
            return head + _COUNT.pack(min(message.unsigned, MAX_TOTAL)) + shown + text


def decode(data: bytes, peer: str) -> MarketMessage:
    """Read a whole message.

    Raises:
        ProtocolError: what is wrong with it.
    """
    try:
        return _read(bytes(data))
    except ValueError as error:
        raise ProtocolError(f"market message of {peer or 'a peer'}: {error}", peer=peer) from None


def _read(data: bytes) -> MarketMessage:
    if not _HEAD.size <= len(data) <= MAX_MESSAGE_BYTES:
        raise ValueError(f"{len(data)} bytes, {_HEAD.size} to {MAX_MESSAGE_BYTES} are allowed")
    version, kind, number, flag = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise ValueError(f"version {version} where {_VERSION} was agreed: one of the two needs an update")
    body = data[_HEAD.size :]
    if kind in (Type.HELLO, Type.HELLO_BACK):
        if flag or number > MAX_SHOWN or len(body) != number * FULL_BYTES:
            raise ValueError(f"a hello of {number} receipts in {len(body)} bytes")
        shown = tuple(_receipt(body[at : at + FULL_BYTES]) for at in range(0, len(body), FULL_BYTES))
        return Hello(shown, kind == Type.HELLO_BACK)
    if kind == Type.OFFER:
        if flag or number or len(body) != OFFERED_BYTES:
            raise ValueError(f"an offer of {len(body)} bytes, not {OFFERED_BYTES}")
        return Offer(_receipt(body))
    if kind == Type.COUNTERSIGNED:
        if flag or number or len(body) != _COUNT.size + FULL_BYTES:
            raise ValueError(f"a countersigned receipt of {len(body)} bytes")
        return Countersigned(_receipt(body[_COUNT.size :]), _count(body))
    if kind == Type.REFUSED:
        return _refused(number, flag, body)
    raise ValueError(f"unknown message type {kind}")


def _refused(number: int, flag: int, body: bytes) -> NotSigned:
    if number not in tuple(Reason) or flag not in (0, 1):
        raise ValueError(f"a refusal for reason {number}, flag {flag}")
    text_at = _COUNT.size + flag * FULL_BYTES
    if not text_at <= len(body) <= text_at + MAX_TEXT_BYTES:
        raise ValueError(f"a refusal of {len(body)} bytes")
    shown = _receipt(body[_COUNT.size : text_at]) if flag else None
    text = sanitise(body[text_at:].decode("utf-8", errors="replace"), MAX_TEXT_BYTES)
    return NotSigned(Reason(number), text, shown, _count(body))


def _count(body: bytes) -> int:
    (count,) = _COUNT.unpack_from(body)
    if count > MAX_TOTAL:
        raise ValueError("a count that is out of range")
    return int(count)


def _receipt(data: bytes) -> SignedReceipt:
    try:
        return SignedReceipt.decode(data)
    except BadReceiptBytes as error:
        raise ValueError(f"a receipt: {error}") from None
