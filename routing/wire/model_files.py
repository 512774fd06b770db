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
from routing.wire.codecs import Buffer
from routing.wire.experts import (
    MAX_REFUSAL_BYTES,
    MODEL_ID_BYTES,
    ProtocolError,
    Refusal,
    RefusalCode,
    SliceKind,
)
from routing.wire.messages import TYPE_ANSWER, TYPE_REQUEST
from routing.wire.transfer import (
    CHUNK_HEADER_BYTES,
    chunk_fault,
    decode_head,
    encode_head,
    message_error,
)

PROTOCOL_ID = "/panal/model/1"

REQUEST_BYTES = 96
"""Size of every request: the largest message that a server takes."""

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
    fields = (request.model_id, request.metadata, request.offset, request.length, 0)
    head = encode_head(TYPE_REQUEST, request.call_id, request.file, lists=request.lists)
    return head + _REQUEST.pack(*fields)


def encode_chunk_header(request: ModelRequest) -> bytes:
    """The first CHUNK_HEADER_BYTES of the answer to a request; the bytes asked for follow."""
    return encode_head(TYPE_ANSWER, request.call_id, request.file)


def decode_message(buffer: Buffer, *, peer: str = "") -> Message:
    """Read one whole message; a chunk's data is a view of `buffer`.

    Raises:
        ProtocolError: the bytes are no message of this protocol.
    """
    head = decode_head(buffer, "model", REQUEST_BYTES, peer=peer)
    if isinstance(head, Refusal):
        return head

    def error(said: str) -> ProtocolError:
        return message_error("model", said, peer, head.call_id)

    if head.index or head.kind != SliceKind.EXPERTS:
        raise error(f"bytes {head.index} and {head.kind} where 0 and {int(SliceKind.EXPERTS)} belong")
    file = _FILES.get(head.number)
    if file is None:
        raise error(f"unknown file {head.number}")
    if head.message_type == TYPE_ANSWER:
        return ModelChunk(head.call_id, file, head.data)
    model_id, metadata, offset, length, zero = _REQUEST.unpack(head.data)
    request = ModelRequest(model_id, file, head.call_id, offset, length, head.lists, metadata)
    fault = _fault(request) or (f"reserved bytes {zero}" if zero else "")
    if fault:
        raise error(fault)
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
    fault = chunk_fault(request.offset, request.length)
    if fault:
        return fault
    if (request.file is ModelFile.METADATA) != (request.metadata != _NO_DIGEST):
        return "the metadata's digest belongs to a request for metadata, and to no other"
    return ""
