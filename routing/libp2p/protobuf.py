"""The part of protobuf's wire format that libp2p's messages use: varints and length-delimited fields.

Source: protobuf.dev, "Encoding". Each of libp2p's messages here is a few numbers, byte strings and
messages within, so a codec of two functions stands in for generated code. Reading is strict about what
could hurt (lengths, counts, groups) and, as protobuf demands, passes over unknown fields.
"""

from __future__ import annotations

from collections.abc import Iterator

# 64 bits need ten groups of seven.
_MAX_VARINT_BYTES = 10
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# A Kademlia reply of another implementation may list a thousand providers. Bounds the work.
MAX_FIELDS = 4096


def encode_varint(value: int) -> bytes:
    """An unsigned LEB128 number, as lengths and field keys are written."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_varint(data: bytes, position: int) -> tuple[int, int]:
    """The number at `position` and the position after it; ValueError if it is cut off or too long."""
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if position + index >= len(data):
            raise ValueError("a number is cut off")
        byte = data[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position + index + 1
    raise ValueError("a number is longer than 64 bits")


def number_field(number: int, value: int) -> bytes:
    """One field with a number, an enum or a bool."""
    return encode_varint(number << 3 | _VARINT) + encode_varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    """One field with bytes, a text or a message."""
    return encode_varint(number << 3 | _BYTES) + encode_varint(len(value)) + value


def read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """All fields in order, as (field number, number or bytes).

    Raises:
        ValueError: the bytes are no message, or more fields than MAX_FIELDS.
    """
    position = 0
    for _ in range(MAX_FIELDS):
        if position == len(data):
            return
        key, position = decode_varint(data, position)
        kind = key & 7
        if kind == _VARINT:
            number, position = decode_varint(data, position)
            yield key >> 3, number
        elif kind == _BYTES:
            size, position = decode_varint(data, position)
            if size > len(data) - position:
                raise ValueError(f"a field of {size} bytes in a message with {len(data) - position} left")
            yield key >> 3, data[position : position + size]
            position += size
        elif kind in (_FIXED64, _FIXED32):  # in no message of ours: passed over
            position += 8 if kind == _FIXED64 else 4
            if position > len(data):
                raise ValueError("a number is cut off")
        else:
            raise ValueError(f"wire type {kind} has no place in a message")
    if position != len(data):
        raise ValueError(f"more than {MAX_FIELDS} fields")


def as_bytes(value: int | bytes) -> bytes:
    """A field that must hold bytes; ValueError if the peer wrote a number."""
    if isinstance(value, int):
        raise ValueError("a number where bytes are expected")
    return value


def as_number(value: int | bytes) -> int:
    """A field that must hold a number; ValueError if the peer wrote bytes."""
    if isinstance(value, bytes):
        raise ValueError("bytes where a number is expected")
    return value
