"""`/panal/model/1`: a model's manifest, metadata and trunk, in chunks (docs/protocol.md, "A model"). Sans-IO.

A request names one of the three and a range of its bytes; the answer is these bytes. With FLAG_LISTS the
range is one of its *lists* of digests, by which a chunk is proven as it comes (docs/protocol.md, "Digests").

A message begins with the 16 bytes of `/panal/experts/1`, the file's number in the place of the layer;
refusals are the same. Replies come in the order of the requests; a caller may send some ahead. Any bytes give
a message or `ProtocolError`, never another exception; a message has exactly one encoding.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from routing.errors import LocalError
from routing.wire.cells import CHUNK_HEADER_BYTES, FLAG_LISTS, MAX_CHUNK_BYTES, MAX_OFFSET
from routing.wire.codecs import Buffer
from routing.wire.experts import (
    MAX_REFUSAL_BYTES,
    MODEL_ID_BYTES,
    ProtocolError,
    Refusal,
    RefusalCode,
    SliceKind,
)
from routing.wire.messages import MAGIC, TYPE_ANSWER, TYPE_REFUSAL, TYPE_REQUEST, VERSION
from routing.wire.messages import decode_message as decode_experts_message

PROTOCOL_ID = "/panal/model/1"

REQUEST_BYTES = 96
"""Size of every request: the largest message that a server takes."""

# magic, version, type, flags, call id, file, reserved (a call index elsewhere), slice kind
_PREFIX = struct.Struct("<4sBBHIHBB")
# model id, metadata's digest, offset, bytes, reserved
_REQUEST = struct.Struct("<32s32sQII")

_NO_DIGEST = bytes(32)
_U32_MAX = 0xFFFFFFFF


class ModelFile(IntEnum):
    """What of a model is asked for."""

    MANIFEST = 1
    """Canonical JSON; its digest is the model id."""
    METADATA = 2
    """A GGUF without tensors: what a model's file says beside them."""
    TRUNK = 3
    """The tensors that stay with the backbone, in the manifest's order, without gaps."""


_FILES = {int(file): file for file in ModelFile}


@dataclass(frozen=True)
class ModelRequest:
    """Send these bytes.

    Attributes:
        model_id: 32 bytes, the manifest's digest.
        file: which of the three.
        call_id: chosen by the caller, repeated in the reply.
        offset, length: which bytes; length is 1 to MAX_CHUNK_BYTES.
        lists: of the lists of digests, not of the file.
        metadata: digest of the metadata meant, which is not the model id's to say; zeros for other files.
    """

    model_id: bytes
    file: ModelFile
    call_id: int
    offset: int
    length: int
    lists: bool = False
    metadata: bytes = _NO_DIGEST


@dataclass(frozen=True, eq=False)
class ModelChunk:
    """Bytes of a file.

    Attributes:
        call_id, file: the request's.
        data: the bytes; where they were decoded from, a view of it.
    """

    call_id: int
    file: ModelFile
    data: memoryview


Message = ModelRequest | ModelChunk | Refusal


def encode_request(request: ModelRequest) -> bytes:
    """A request as bytes, without the frame's length.

    Raises:
        LocalError: it breaks a rule that its receiver would refuse it for.
    """
    fault = _fault(request)
    sizes = len(request.model_id), len(request.metadata)
    if fault or sizes != (MODEL_ID_BYTES, len(_NO_DIGEST)) or not 0 <= request.call_id <= _U32_MAX:
        raise LocalError(f"a request for a model cannot be sent: {fault or 'a field has a wrong size'}")
    flags = FLAG_LISTS if request.lists else 0
    fields = (request.model_id, request.metadata, request.offset, request.length, 0)
    return _encode_prefix(TYPE_REQUEST, request, flags) + _REQUEST.pack(*fields)


def encode_chunk_header(request: ModelRequest) -> bytes:
    """The first CHUNK_HEADER_BYTES of the answer to a request; the bytes asked for follow."""
    return _encode_prefix(TYPE_ANSWER, request, 0)


def _encode_prefix(message_type: int, request: ModelRequest, flags: int) -> bytes:
    return _PREFIX.pack(
        MAGIC, VERSION, message_type, flags, request.call_id, request.file, 0, SliceKind.EXPERTS
    )


def decode_message(buffer: Buffer, *, peer: str = "") -> Message:
    """Read one whole message; a chunk's data is a view of `buffer`.

    Raises:
        ProtocolError: the bytes are no message of this protocol.
    """
    view = memoryview(buffer).cast("B")

    def error(what: str, call_id: int = 0) -> ProtocolError:
        return ProtocolError(f"model message of {peer or 'a peer'}: {what}", peer=peer, call_id=call_id)

    if len(view) < _PREFIX.size:
        raise error(f"{len(view)} bytes are too few for a header")
    magic, version, message_type, flags, call_id, number, reserved, kind = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise error(f"it begins with {magic.hex()}, not {MAGIC.hex()}")
    if version != VERSION:
        raise error(f"version {version} where {VERSION} was agreed: one of the two needs an update")
    if message_type == TYPE_REFUSAL:
        refusal = decode_experts_message(view, peer=peer)
        assert isinstance(refusal, Refusal), "the type says so"
        return refusal
    if reserved or kind != SliceKind.EXPERTS:
        raise error(f"bytes {reserved} and {kind} where 0 and {int(SliceKind.EXPERTS)} belong", call_id)
    if flags & ~(FLAG_LISTS if message_type == TYPE_REQUEST else 0):
        raise error(f"unknown flags {flags:#06x}", call_id)
    file = _FILES.get(number)
    if file is None:
        raise error(f"unknown file {number}", call_id)
    if message_type == TYPE_ANSWER:
        size = len(view) - CHUNK_HEADER_BYTES
        if not 1 <= size <= MAX_CHUNK_BYTES:
            raise error(f"a chunk of {size} bytes, 1 to {MAX_CHUNK_BYTES} are allowed", call_id)
        return ModelChunk(call_id, file, view[CHUNK_HEADER_BYTES:].toreadonly())
    if message_type != TYPE_REQUEST:
        raise error(f"unknown message type {message_type}", call_id)
    if len(view) != REQUEST_BYTES:
        raise error(f"a request of {len(view)} bytes, not {REQUEST_BYTES}", call_id)
    model_id, metadata, offset, length, zero = _REQUEST.unpack_from(view, _PREFIX.size)
    request = ModelRequest(model_id, file, call_id, offset, length, bool(flags & FLAG_LISTS), metadata)
    fault = _fault(request) or (f"reserved bytes {zero}" if zero else "")
    if fault:
        raise error(fault, call_id)
    return request


def check_chunk(request: ModelRequest, chunk: ModelChunk, peer: str = "") -> None:
    """Refuse an answer that is not the one to this request; whether its bytes are right, digests tell.

    Raises:
        ProtocolError: naming the first thing that does not fit.
    """
    name = request.file.name.lower()
    if (chunk.call_id, chunk.file) != (request.call_id, request.file):
        what = f"it is for call {chunk.call_id} and file {int(chunk.file)}, asked was call {request.call_id}"
    elif len(chunk.data) != request.length:
        what = f"it has {len(chunk.data)} bytes, asked were {request.length}"
    else:
        return
    raise ProtocolError(f"{name} of {peer or 'a peer'}: {what}", peer=peer, call_id=request.call_id)


def max_reply_bytes(request: ModelRequest) -> int:
    """The largest reply that makes sense: the limit to read it with."""
    return max(CHUNK_HEADER_BYTES + request.length, MAX_REFUSAL_BYTES)


def refusal_to(request: ModelRequest, code: RefusalCode, text: str = "", *, load: int = 0) -> Refusal:
    """A refusal that repeats a request's call id and file."""
    return Refusal(request.call_id, int(request.file), 0, code, text, (), load)


def _fault(request: ModelRequest) -> str:
    """What is wrong with a request's numbers; "" if nothing."""
    if not 1 <= request.length <= MAX_CHUNK_BYTES:
        return f"a chunk of {request.length} bytes, 1 to {MAX_CHUNK_BYTES} are allowed"
    if not 0 <= request.offset <= MAX_OFFSET:
        return f"offset {request.offset} is out of range"
    if (request.file is ModelFile.METADATA) != (request.metadata != _NO_DIGEST):
        return "the metadata's digest belongs to a request for metadata, and to no other"
    return ""
