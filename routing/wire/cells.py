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
from routing.wire.messages import TYPE_ANSWER, TYPE_REQUEST
from routing.wire.messages import encode_message as encode_experts_message
from routing.wire.transfer import CHUNK_HEADER_BYTES as CHUNK_HEADER_BYTES
from routing.wire.transfer import MAX_CHUNK_BYTES as MAX_CHUNK_BYTES
from routing.wire.transfer import MAX_OFFSET as MAX_OFFSET
from routing.wire.transfer import chunk_fault, decode_head, encode_head, message_error

PROTOCOL_ID = "/panal/cells/1"

MAX_CELLS = MAX_MISSING
"""Experts in a request: twice the most a layer has, and no more than a refusal can name."""

REQUEST_BYTES = 64
"""Size of every request: the largest message that a server takes."""

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
    head = encode_head(TYPE_REQUEST, request.call_id, request.layer, request.call_index, lists=request.lists)
    return head + _REQUEST.pack(*fields)


def encode_chunk_header(request: CellsRequest) -> bytes:
    """The first CHUNK_HEADER_BYTES of the answer to a request; the bytes asked for follow."""
    return encode_head(TYPE_ANSWER, request.call_id, request.layer, request.call_index)


def encode_refusal(refusal: Refusal) -> bytes:
    """A refusal as bytes, without the frame's length."""
    return encode_experts_message(refusal)


def decode_message(buffer: Buffer, *, peer: str = "") -> Message:
    """Read one whole message; a chunk's data is a view of `buffer`.

    Raises:
        ProtocolError: the bytes are no message of this protocol.
    """
    head = decode_head(buffer, "cells", REQUEST_BYTES, peer=peer)
    if isinstance(head, Refusal):
        return head
    if head.kind != SliceKind.EXPERTS:
        said = f"slice kind {head.kind} where {int(SliceKind.EXPERTS)} (experts) belongs"
        raise message_error("cells", said, peer, head.call_id)
    layer, call_index = head.number, head.index
    if head.message_type == TYPE_ANSWER:
        return CellsChunk(head.call_id, layer, call_index, head.data)
    model_id, first, count, length, offset = _REQUEST.unpack(head.data)
    request = CellsRequest(
        model_id, layer, call_index, head.call_id, first, count, offset, length, head.lists
    )
    fault = _fault(request)
    if fault:
        raise message_error("cells", fault, peer, head.call_id)
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
    return chunk_fault(request.offset, request.length)


def _fits_prefix(request: CellsRequest) -> bool:
    return (
        0 <= request.call_id <= _U32_MAX
        and 0 <= request.layer <= _U16_MAX
        and 0 <= request.call_index <= 0xFF
    )
