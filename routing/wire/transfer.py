"""The first 16 bytes of messages that carry files in chunks: `/panal/cells/1`, `/panal/model/1`. Sans-IO.

They are those of `/panal/experts/1`, and so are refusals; what the two numbers in the place of layer and call
index mean is each protocol's own.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from routing.wire.codecs import Buffer
from routing.wire.experts import ProtocolError, Refusal, SliceKind
from routing.wire.messages import MAGIC, TYPE_ANSWER, TYPE_REFUSAL, TYPE_REQUEST, VERSION
from routing.wire.messages import decode_message as decode_experts_message

MAX_CHUNK_BYTES = 512 << 10
"""Bytes of a blob in one answer. A message stays below what a stream takes at once (SEND_BACKLOG_HIGH), so
that neither end holds more than one of them for a stream; at 50 Mbit/s it is there in 80 ms."""

MAX_OFFSET = (1 << 63) - 1
"""Of a chunk in its blob. How much a blob really has is the manifest's to say."""

FLAG_LISTS = 0x0001
"""The request is for lists of digests, not for bytes."""

CHUNK_HEADER_BYTES = 16

# magic, version, type, flags, call id, layer or file, call index or 0, slice kind: routing.wire.messages
_HEAD = struct.Struct("<4sBBHIHBB")


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before a request's own fields, or before a chunk's bytes.

    Attributes:
        lists: FLAG_LISTS is set.
        number, index: in the place of an expert call's layer and call index.
        kind: in that of a slice's kind; to be looked at by each protocol.
        data: what follows it; of an answer the chunk, read-only.
    """

    message_type: int
    lists: bool
    call_id: int
    number: int
    index: int
    kind: int
    data: memoryview


def encode_head(
    message_type: int, call_id: int, number: int, index: int = 0, *, lists: bool = False
) -> bytes:
    """CHUNK_HEADER_BYTES of a request or of an answer."""
    flags = FLAG_LISTS if lists else 0
    return _HEAD.pack(MAGIC, VERSION, message_type, flags, call_id, number, index, SliceKind.EXPERTS)


def decode_head(buffer: Buffer, what: str, request_bytes: int, *, peer: str = "") -> Head | Refusal:
    """Read what both protocols have in common of one whole message.

    Args:
        what: the kind of message, for errors.
        request_bytes: the size that every request of the protocol has.

    Raises:
        ProtocolError: the bytes are no message of such a protocol.
    """
    view = memoryview(buffer).cast("B")

    def error(said: str, call_id: int = 0) -> ProtocolError:
        return message_error(what, said, peer, call_id)

    if len(view) < _HEAD.size:
        raise error(f"{len(view)} bytes are too few for a header")
    magic, version, message_type, flags, call_id, number, index, kind = _HEAD.unpack_from(view)
    if magic != MAGIC:
        raise error(f"it begins with {magic.hex()}, not {MAGIC.hex()}")
    if version != VERSION:
        raise error(f"version {version} where {VERSION} was agreed: one of the two needs an update")
    if message_type == TYPE_REFUSAL:
        refusal = decode_experts_message(view, peer=peer)
        assert isinstance(refusal, Refusal), "the type says so"
        return refusal
    if flags & ~(FLAG_LISTS if message_type == TYPE_REQUEST else 0):
        raise error(f"unknown flags {flags:#06x}", call_id)
    data = view[_HEAD.size :].toreadonly()
    if message_type == TYPE_ANSWER:
        if not 1 <= len(data) <= MAX_CHUNK_BYTES:
            raise error(f"a chunk of {len(data)} bytes, 1 to {MAX_CHUNK_BYTES} are allowed", call_id)
    elif message_type != TYPE_REQUEST:
        raise error(f"unknown message type {message_type}", call_id)
    elif len(view) != request_bytes:
        raise error(f"a request of {len(view)} bytes, not {request_bytes}", call_id)
    return Head(message_type, bool(flags & FLAG_LISTS), call_id, number, index, kind, data)


def message_error(what: str, said: str, peer: str, call_id: int) -> ProtocolError:
    """A message of this kind is wrong."""
    return ProtocolError(f"{what} message of {peer or 'a peer'}: {said}", peer=peer, call_id=call_id)


def chunk_fault(offset: int, length: int) -> str:
    """What is wrong with a range of bytes; "" if nothing."""
    if not 1 <= length <= MAX_CHUNK_BYTES:
        return f"a chunk of {length} bytes, 1 to {MAX_CHUNK_BYTES} are allowed"
    if not 0 <= offset <= MAX_OFFSET:
        return f"offset {offset} is out of range"
    return ""
