"""The few bytes of a QUIC packet that anybody may read, enough to find its connection (RFC 9000, 17)."""

from __future__ import annotations

from routing.quic.core import CONNECTION_ID_BYTES

_LONG_HEADER = 0x80
_FIXED_BIT = 0x40
_LONG_TYPE = 0x30  # 0: Initial
_VERSION_1 = b"\x00\x00\x00\x01"
# Flags, version, length of the destination connection id.
_LONG_HEADER_BYTES = 6
# A client's first datagram is padded to this, so that answering can't amplify (section 14.1).
_MIN_INITIAL_BYTES = 1200
# An original destination connection id is 8 to 20 bytes (section 7.2).
_MIN_ORIGINAL_BYTES = 8
_MAX_CONNECTION_ID_BYTES = 20


def destination_of(data: bytes) -> bytes | None:
    """The connection id a datagram is for; None if it is no QUIC (hole-punch probes begin with 0x01)."""
    if len(data) <= CONNECTION_ID_BYTES or not data[0] & _FIXED_BIT:
        return None
    if data[0] & _LONG_HEADER:
        return data[_LONG_HEADER_BYTES : _LONG_HEADER_BYTES + data[_LONG_HEADER_BYTES - 1]]
    return data[1 : 1 + CONNECTION_ID_BYTES]


def may_open_connection(data: bytes, destination: bytes) -> bool:
    """Whether a datagram for a connection id nobody knows looks like a client's first one."""
    return (
        len(data) >= _MIN_INITIAL_BYTES
        and data[0] & (_LONG_HEADER | _LONG_TYPE) == _LONG_HEADER
        and data[1:5] == _VERSION_1
        and _MIN_ORIGINAL_BYTES <= len(destination) <= _MAX_CONNECTION_ID_BYTES
    )


def all_short_headers_to(connection_id: bytes, data: bytes, segment_bytes: int) -> bool:
    """Whether every segment of a GRO buffer is a short-header packet to the same connection id.

    Looks at the first bytes of all segments column by column, each column one slice: a loop over the
    segments would cost more than the engine takes to decrypt them. A last segment too short for a
    connection id makes a column too short, which is a no.
    """
    count = -(-len(data) // segment_bytes)
    if max(data[::segment_bytes]) >= _LONG_HEADER:
        return False
    return all(
        data[column::segment_bytes] == connection_id[column - 1 : column] * count
        for column in range(1, CONNECTION_ID_BYTES + 1)
    )
