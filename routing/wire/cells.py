"""`/panal/cells/1`: the weights of cells, in chunks (docs/protocol.md, "Cells"). Sans-IO.

A request names a run of experts of one call and a range of bytes in their *blob*; the answer is these bytes.
The blob is the experts one after another, each as its digest has it: its tensors in the manifest's order. So
many small cells come in one chunk, a large one in several, and what has come need not come again.

A request with FLAG_LISTS asks for a range of the run's *lists* instead: the digests of each expert's chunks
(docs/protocol.md, "Digests"), by which a chunk is proven as it comes.

A message begins with the 16 bytes of `/panal/experts/1`, and refusals are the same. Replies come in the order
of the requests; a caller may send some ahead. Any bytes give a message or `ProtocolError`, never another
exception; a message has exactly one encoding.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

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
from routing.wire.limits import MAX_EXPERT, MAX_MISSING
from routing.wire.messages import MAGIC, TYPE_ANSWER, TYPE_REFUSAL, TYPE_REQUEST, VERSION
from routing.wire.messages import decode_message as decode_experts_message
from routing.wire.messages import encode_message as encode_experts_message

PROTOCOL_ID = "/panal/cells/1"

MAX_CHUNK_BYTES = 512 << 10
"""Bytes of a blob in one answer. A message stays below what a stream takes at once (SEND_BACKLOG_HIGH), so
that neither end holds more than one of them for a stream; at 50 Mbit/s it is there in 80 ms."""

MAX_CELLS = MAX_MISSING
"""Experts in a request: twice the most a layer has, and no more than a refusal can name."""

MAX_OFFSET = (1 << 63) - 1
"""Of a chunk in its blob. How much a blob really has is the manifest's to say."""

FLAG_LISTS = 0x0001
"""The request is for the experts' lists of digests, not for their bytes."""

REQUEST_BYTES = 64
"""Size of every request: the largest message that a server takes."""

CHUNK_HEADER_BYTES = 16

# magic, version, type, flags, call id, layer, call index, slice kind: as in routing.wire.messages
_PREFIX = struct.Struct("<4sBBHIHBB")
# model id, first expert, experts, bytes, offset
_REQUEST = struct.Struct("<32sHHIQ")

_U16_MAX = 0xFFFF
_U32_MAX = 0xFFFFFFFF


@dataclass(frozen=True)
class CellsRequest:
    """Send these bytes.

    Attributes:
        model_id: 32 bytes, the manifest's digest.
        layer, call_index: the MoE call whose experts are meant.
        call_id: chosen by the caller, repeated in the reply.
        first: the first expert of the run.
        count: experts in the run, 1 to MAX_CELLS.
        offset: of the bytes in the run's blob.
        length: how many bytes, 1 to MAX_CHUNK_BYTES.
        lists: the blob meant is that of the experts' lists.
    """

    model_id: bytes
    layer: int
    call_index: int
    call_id: int
    first: int
    count: int
    offset: int
    length: int
    lists: bool = False


@dataclass(frozen=True, eq=False)
class CellsChunk:
    """Bytes of a blob.

    Attributes:
        call_id, layer, call_index: the request's.
        data: the bytes; where they were decoded from, a view of it.
    """

    call_id: int
    layer: int
    call_index: int
    data: memoryview


Message = CellsRequest | CellsChunk | Refusal


def encode_request(request: CellsRequest) -> bytes:
    """A request as bytes, without the frame's length.

    Raises:
        LocalError: it breaks a rule that its receiver would refuse it for.
    """
    fault = _fault(request)
    if fault or len(request.model_id) != MODEL_ID_BYTES or not _fits_prefix(request):
        raise LocalError(f"a request for cells cannot be sent: {fault or 'a number is out of range'}")
    fields = (request.model_id, request.first, request.count, request.length, request.offset)
    flags = FLAG_LISTS if request.lists else 0
    return _encode_prefix(TYPE_REQUEST, request, flags) + _REQUEST.pack(*fields)


def encode_chunk_header(request: CellsRequest) -> bytes:
    """The first CHUNK_HEADER_BYTES of the answer to a request; the bytes asked for follow."""
    return _encode_prefix(TYPE_ANSWER, request)


def encode_refusal(refusal: Refusal) -> bytes:
    """A refusal as bytes, without the frame's length."""
    return encode_experts_message(refusal)


def _encode_prefix(message_type: int, request: CellsRequest, flags: int = 0) -> bytes:
    return _PREFIX.pack(
        MAGIC,
        VERSION,
        message_type,
        flags,
        request.call_id,
        request.layer,
        request.call_index,
        SliceKind.EXPERTS,
    )


def decode_message(buffer: Buffer, *, peer: str = "") -> Message:
    """Read one whole message; a chunk's data is a view of `buffer`.

    Raises:
        ProtocolError: the bytes are no message of this protocol.
    """
    view = memoryview(buffer).cast("B")

    def error(what: str, call_id: int = 0) -> ProtocolError:
        return ProtocolError(f"cells message of {peer or 'a peer'}: {what}", peer=peer, call_id=call_id)

    if len(view) < _PREFIX.size:
        raise error(f"{len(view)} bytes are too few for a header")
    magic, version, message_type, flags, call_id, layer, call_index, kind = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise error(f"it begins with {magic.hex()}, not {MAGIC.hex()}")
    if version != VERSION:
        raise error(f"version {version} where {VERSION} was agreed: one of the two needs an update")
    if message_type == TYPE_REFUSAL:
        refusal = decode_experts_message(view, peer=peer)
        assert isinstance(refusal, Refusal), "the type says so"
        return refusal
    if kind != SliceKind.EXPERTS:
        raise error(f"slice kind {kind} where {int(SliceKind.EXPERTS)} (experts) belongs", call_id)
    if flags & ~(FLAG_LISTS if message_type == TYPE_REQUEST else 0):
        raise error(f"unknown flags {flags:#06x}", call_id)
    if message_type == TYPE_ANSWER:
        size = len(view) - CHUNK_HEADER_BYTES
        if not 1 <= size <= MAX_CHUNK_BYTES:
            raise error(f"a chunk of {size} bytes, 1 to {MAX_CHUNK_BYTES} are allowed", call_id)
        return CellsChunk(call_id, layer, call_index, view[CHUNK_HEADER_BYTES:].toreadonly())
    if message_type != TYPE_REQUEST:
        raise error(f"unknown message type {message_type}", call_id)
    if len(view) != REQUEST_BYTES:
        raise error(f"a request of {len(view)} bytes, not {REQUEST_BYTES}", call_id)
    model_id, first, count, length, offset = _REQUEST.unpack_from(view, _PREFIX.size)
    lists = bool(flags & FLAG_LISTS)
    request = CellsRequest(model_id, layer, call_index, call_id, first, count, offset, length, lists)
    fault = _fault(request)
    if fault:
        raise error(fault, call_id)
    return request


def check_chunk(request: CellsRequest, chunk: CellsChunk, peer: str = "") -> None:
    """Refuse an answer that is not the one to this request; whether its bytes are right, digests tell.

    Raises:
        ProtocolError: naming the first thing that does not fit.
    """
    asked = (request.call_id, request.layer, request.call_index)
    if (chunk.call_id, chunk.layer, chunk.call_index) != asked:
        what = f"it is for call {chunk.call_id}, layer {chunk.layer}, asked was call {request.call_id}"
    elif len(chunk.data) != request.length:
        what = f"it has {len(chunk.data)} bytes, asked were {request.length}"
    else:
        return
    text = f"cells of {peer or 'a peer'} for layer {request.layer}: {what}"
    raise ProtocolError(text, peer=peer, call_id=request.call_id)


def max_reply_bytes(request: CellsRequest) -> int:
    """The largest reply that makes sense: the limit to read it with."""
    return max(CHUNK_HEADER_BYTES + request.length, MAX_REFUSAL_BYTES)


def refusal_to(
    request: CellsRequest,
    code: RefusalCode,
    text: str = "",
    *,
    missing: tuple[int, ...] = (),
    load: int = 0,
) -> Refusal:
    """A refusal that repeats a request's call id, layer and call index."""
    return Refusal(request.call_id, request.layer, request.call_index, code, text, missing, load)


def _fault(request: CellsRequest) -> str:
    """What is wrong with a request's numbers; "" if nothing."""
    if not 1 <= request.count <= MAX_CELLS:
        return f"{request.count} experts, 1 to {MAX_CELLS} are allowed"
    if not 0 <= request.first <= MAX_EXPERT - (request.count - 1):
        return f"experts {request.first} and {request.count - 1} more, the last possible is {MAX_EXPERT}"
    if not 1 <= request.length <= MAX_CHUNK_BYTES:
        return f"a chunk of {request.length} bytes, 1 to {MAX_CHUNK_BYTES} are allowed"
    if not 0 <= request.offset <= MAX_OFFSET:
        return f"offset {request.offset} is out of range"
    return ""


def _fits_prefix(request: CellsRequest) -> bool:
    return (
        0 <= request.call_id <= _U32_MAX
        and 0 <= request.layer <= _U16_MAX
        and 0 <= request.call_index <= 0xFF
    )
