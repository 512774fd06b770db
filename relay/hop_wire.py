"""The messages of libp2p's circuit relay v2, bytes in and out, without I/O.

Source: libp2p specs, `relay/circuit-v2.md` (protobuf proto2; on a stream each message stands behind its
length, see `routing.libp2p.delimited`). Rules kept here:

1. Any bytes give a message or MalformedMessage.
2. A message is at most MAX_MESSAGE_BYTES long, written or read.
3. Unknown fields are skipped (later versions add some), a field given twice counts as given last, and
   protobuf groups, unknown message types and wire types are refused.
4. Peer ids are those of Ed25519 keys, as everywhere in panal; addresses a dialer proposes for its target
   ("active relaying", deprecated in the spec) are skipped: a relay dials nobody on a stranger's word.
5. A status code is kept as a number: one that we don't know is a refusal like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from routing.errors import LocalError
from routing.identity import PeerId
from routing.libp2p.delimited import MalformedMessage
from routing.libp2p.protobuf import bytes_field, number_field, read_fields
from routing.peer_id_bytes import peer_id_from_bytes, peer_id_to_bytes

HOP_PROTOCOL = "/libp2p/circuit/relay/0.2.0/hop"
STOP_PROTOCOL = "/libp2p/circuit/relay/0.2.0/stop"

# Other implementations refuse more, too; the largest honest one, a reservation with a dozen addresses
# and a voucher, stays under 1 KiB.
MAX_MESSAGE_BYTES = 4096
# A relay lists its public addresses: a handful. More would only be work for us.
MAX_ADDRS = 32

_Type = TypeVar("_Type", bound=IntEnum)


class Status(IntEnum):
    """What a relay, or the target of a circuit, answers."""

    OK = 100
    RESERVATION_REFUSED = 200
    RESOURCE_LIMIT_EXCEEDED = 201
    PERMISSION_DENIED = 202
    CONNECTION_FAILED = 203
    NO_RESERVATION = 204
    MALFORMED_MESSAGE = 400
    UNEXPECTED_MESSAGE = 401


def status_name(code: int | None) -> str:
    """A status for people: its name in the spec, or its number if it is a later version's."""
    try:
        return Status(code or 0).name
    except ValueError:
        return "no status" if code is None else f"status {code}"


class HopType(IntEnum):
    RESERVE = 0
    CONNECT = 1
    STATUS = 2


class StopType(IntEnum):
    CONNECT = 0
    STATUS = 1


@dataclass(frozen=True)
class Limit:
    """What a relay allows one circuit.

    Attributes:
        duration: seconds; 0 without limit.
        data: bytes each way; 0 without limit.
    """

    duration: int = 0
    data: int = 0


@dataclass(frozen=True)
class ReservationInfo:
    """What a relay says about a reservation it has made.

    Attributes:
        expire: Unix time in seconds, by the relay's clock.
        addrs: the relay's public addresses as binary multiaddrs, without `/p2p-circuit`.
        voucher: a signed envelope, advisory in the spec and not read here; b"" if there is none.
    """

    expire: int
    addrs: tuple[bytes, ...] = ()
    voucher: bytes = b""


@dataclass(frozen=True)
class HopMessage:
    """Between a client and its relay."""

    type: HopType
    peer: PeerId | None = None
    reservation: ReservationInfo | None = None
    limit: Limit | None = None
    status: int | None = None


@dataclass(frozen=True)
class StopMessage:
    """Between a relay and the target of a circuit."""

    type: StopType
    peer: PeerId | None = None
    limit: Limit | None = None
    status: int | None = None


def encode_hop(message: HopMessage) -> bytes:
    """The message without its length.

    Raises:
        LocalError: it would be longer than MAX_MESSAGE_BYTES (too many or too long addresses).
    """
    body = number_field(1, message.type) + _peer(2, message.peer)
    if message.reservation is not None:
        body += _reservation(3, message.reservation)
    return _bounded(body + _limit(4, message.limit) + _status(5, message.status))


def encode_stop(message: StopMessage) -> bytes:
    """The message without its length."""
    body = number_field(1, message.type) + _peer(2, message.peer)
    return _bounded(body + _limit(3, message.limit) + _status(4, message.status))


def decode_hop(body: bytes) -> HopMessage:
    """Read a message without its length.

    Raises:
        MalformedMessage: what is wrong with it.
    """
    fields = _Fields(body, "hop message")
    return HopMessage(
        type=_message_type(HopType, fields.number(1), "hop"),
        peer=_decode_peer(fields.block(2)),
        reservation=_decode_reservation(fields.block(3)),
        limit=_decode_limit(fields.block(4)),
        status=fields.number(5),
    )


def decode_stop(body: bytes) -> StopMessage:
    """Read a message without its length.

    Raises:
        MalformedMessage: what is wrong with it.
    """
    fields = _Fields(body, "stop message")
    return StopMessage(
        type=_message_type(StopType, fields.number(1), "stop"),
        peer=_decode_peer(fields.block(2)),
        limit=_decode_limit(fields.block(3)),
        status=fields.number(4),
    )


class _Fields:
    """The fields of one protobuf message; of a field given twice the last counts."""

    def __init__(self, body: bytes, what: str) -> None:
        self._what = what
        self._values: dict[int, list[int | bytes]] = {}
        try:
            for number, value in read_fields(body):
                self._values.setdefault(number, []).append(value)
        except ValueError as error:
            raise MalformedMessage(f"{what}: {error}") from None

    def number(self, field: int) -> int | None:
        value = self._values.get(field, [None])[-1]
        if isinstance(value, bytes):
            raise MalformedMessage(f"{self._what}: bytes in field {field}, a number is expected")
        return value

    def block(self, field: int) -> bytes | None:
        blocks = self.blocks(field)
        return blocks[-1] if blocks else None

    def blocks(self, field: int) -> list[bytes]:
        values = self._values.get(field, [])
        blocks = [value for value in values if isinstance(value, bytes)]
        if len(blocks) < len(values):
            raise MalformedMessage(f"{self._what}: a number in field {field}, bytes are expected")
        return blocks


def _message_type(kind: type[_Type], code: int | None, name: str) -> _Type:
    if code is None:
        raise MalformedMessage(f"{name} message without a type")
    try:
        return kind(code)
    except ValueError:
        raise MalformedMessage(f"{name} message of unknown type {code}") from None


def _decode_peer(body: bytes | None) -> PeerId | None:
    if body is None:
        return None
    peer_id = _Fields(body, "peer").block(1)
    if peer_id is None:
        raise MalformedMessage("peer without an id")
    try:
        return peer_id_from_bytes(peer_id)
    except ValueError:
        raise MalformedMessage("peer id that is not that of an Ed25519 key") from None


def _decode_reservation(body: bytes | None) -> ReservationInfo | None:
    if body is None:
        return None
    fields = _Fields(body, "reservation")
    addrs = fields.blocks(2)
    if len(addrs) > MAX_ADDRS:
        raise MalformedMessage(f"reservation with {len(addrs)} addresses, allowed are {MAX_ADDRS}")
    return ReservationInfo(fields.number(1) or 0, tuple(addrs), fields.block(3) or b"")


def _decode_limit(body: bytes | None) -> Limit | None:
    if body is None:
        return None
    fields = _Fields(body, "limit")
    return Limit(fields.number(1) or 0, fields.number(2) or 0)


def _peer(number: int, peer_id: PeerId | None) -> bytes:
    if peer_id is None:
        return b""
    return bytes_field(number, bytes_field(1, peer_id_to_bytes(peer_id)))


def _reservation(number: int, info: ReservationInfo) -> bytes:
    body = number_field(1, info.expire) + b"".join(bytes_field(2, addr) for addr in info.addrs)
    return bytes_field(number, body + (bytes_field(3, info.voucher) if info.voucher else b""))


def _limit(number: int, limit: Limit | None) -> bytes:
    if limit is None:
        return b""
    return bytes_field(number, number_field(1, limit.duration) + number_field(2, limit.data))


def _status(number: int, status: int | None) -> bytes:
    return b"" if status is None else number_field(number, status)


def _bounded(body: bytes) -> bytes:
    if len(body) > MAX_MESSAGE_BYTES:
        raise LocalError(f"circuit message of {len(body)} bytes, at most {MAX_MESSAGE_BYTES} may be sent")
    return body
