"""Yamux frames, bytes in and out: twelve bytes of header, and for data what follows it.

Source: hashicorp/yamux, `spec.md`, version 0, as libp2p uses it (`/yamux/1.0.0`).
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

_HEADER = struct.Struct("!BBHII")
HEADER_BYTES = _HEADER.size
_VERSION = 0

# What a stream may receive before it has said more; the spec's, no side may assume less.
INITIAL_WINDOW = 256 << 10
# A stream id and a window have 32 bits.
MAX_U32 = 0xFFFF_FFFF

SYN, ACK, FIN, RST = 1, 2, 4, 8


class Kind(enum.IntEnum):
    """What a frame is for."""

    DATA = 0
    WINDOW_UPDATE = 1
    PING = 2
    GO_AWAY = 3


class Frame(NamedTuple):
    """A header.

    Attributes:
        kind: see Kind.
        flags: SYN, ACK, FIN, RST together.
        stream_id: odd for streams the dialer opened, even for the listener's, 0 for the connection.
        length: of the data that follows; or bytes of credit, a ping's number, a reason to go away.
    """

    kind: Kind
    flags: int
    stream_id: int
    length: int


def encode_frame(kind: Kind, flags: int, stream_id: int, length: int) -> bytes:
    """A header's twelve bytes."""
    return _HEADER.pack(_VERSION, kind, flags, stream_id, length)


def decode_frame(header: bytes) -> Frame:
    """Read a header; ValueError if it is of another version or kind."""
    version, kind, flags, stream_id, length = _HEADER.unpack(header)
    if version != _VERSION:
        raise ValueError(f"yamux version {version}, only {_VERSION} is known")
    if kind > Kind.GO_AWAY:
        raise ValueError(f"yamux frame of unknown type {kind}")
    if (stream_id == 0) != (kind in (Kind.PING, Kind.GO_AWAY)):
        raise ValueError(f"yamux frame of type {kind} for stream {stream_id}")
    return Frame(Kind(kind), flags, stream_id, length)
