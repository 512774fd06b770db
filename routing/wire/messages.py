"""Bytes of `/panal/experts/1` and back: sans-IO, one function each way (docs/protocol.md, "Messages").

Rules
1. Any bytes give a message or `ProtocolError`, never another exception.
2. Sizes are checked against the limits and the buffer before anything is allocated for them.
3. A message has exactly one encoding: what is reserved or padding must be zero. Only a refusal's text may
   come back changed (made printable).
4. Floats from a peer are finite, or the message is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from routing.errors import LocalError
from routing.wire.codecs import Buffer, Codec, Float32Array, finite
from routing.wire.experts import (
    ANSWER_HEADER_BYTES,
    MODEL_ID_BYTES,
    REFUSAL_HEADER_BYTES,
    REQUEST_HEADER_BYTES,
    Combine,
    ExpertsAnswer,
    ExpertsRequest,
    Message,
    ProtocolError,
    Refusal,
    RefusalCode,
    Refused,
    SliceKind,
    answer_nbytes,
    check_answer,
    framed_nbytes,
    max_reply_bytes,
    message_nbytes,
    refusal_to,
    request_nbytes,
)
from routing.wire.limits import DEFAULT_LIMITS, MAX_EXPERT, MAX_MISSING, MAX_TEXT_BYTES, MAX_WIDTH, Limits
from routing.wire.runs import MAX_RUN_LENGTH
from routing.wire.tensors import DType, Tensor, TensorError, decode_tensors, encode_tensors
from routing.wire.text import sanitise

__all__ = [
    "PROTOCOL_ID",
    "Combine",
    "ExpertsAnswer",
    "ExpertsRequest",
    "Message",
    "ProtocolError",
    "Refusal",
    "RefusalCode",
    "Refused",
    "SliceKind",
    "answer_nbytes",
    "check_answer",
    "decode_message",
    "encode_message",
    "framed_nbytes",
    "max_reply_bytes",
    "message_nbytes",
    "refusal_to",
    "request_nbytes",
]

PROTOCOL_ID = "/panal/experts/1"
MAGIC = b"PNAL"
VERSION = 1

TYPE_REQUEST = 1
TYPE_ANSWER = 2
TYPE_REFUSAL = 3

FLAG_WEIGHTS = 0x0001
"""The request carries a weight per pair."""

# magic, version, type, flags, call id, layer, call index, slice kind
_PREFIX = struct.Struct("<4sBBHIHBB")
# model id, codec, codec back, combine, reserved, deadline ms, n_out, run length
_REQUEST = struct.Struct("<32sBBBBIII")
# compute us, load, codec, combine
_ANSWER = struct.Struct("<IHBB")
# code, reserved, text bytes, load, missing
_REFUSAL = struct.Struct("<BBHHH")

_CODECS = {int(codec): codec for codec in Codec}
_COMBINES = {int(combine): combine for combine in Combine}
_CODES = {int(code): code for code in RefusalCode}

_U16_MAX = 0xFFFF
_U32_MAX = 0xFFFFFFFF


def encode_message(message: Message) -> bytes:
    """Put a message into bytes, without the frame's length.

    Raises:
        LocalError: if the message breaks a rule that its receiver would refuse it for.
    """
    if isinstance(message, ExpertsRequest):
        return _encode_request(message)
    if isinstance(message, ExpertsAnswer):
        return _encode_answer(message)
    return _encode_refusal(message)


def decode_message(buffer: Buffer, limits: Limits = DEFAULT_LIMITS, *, peer: str = "") -> Message:
    """Read one whole message.

    f32 x and y, counts, experts and weights are read-only views of `buffer`, which must not change while
    they are used.

    Args:
        buffer: the message, without the frame's length.
        limits: what to accept.
        peer: who sent it, for the text of errors.

    Raises:
        ProtocolError: if the bytes are no message within the limits.
    """
    return _Decoder(memoryview(buffer).cast("B"), limits, peer).message()


def _encode_prefix(message_type: int, flags: int, message: Message) -> bytes:
    in_range = (
        0 <= message.call_id <= _U32_MAX
        and 0 <= message.layer <= _U16_MAX
        and 0 <= message.call_index <= 0xFF
    )
    if not in_range:
        raise LocalError(
            f"call id {message.call_id}, layer {message.layer} or call {message.call_index} is out of range"
        )
    return _PREFIX.pack(
        MAGIC,
        VERSION,
        message_type,
        flags,
        message.call_id,
        message.layer,
        message.call_index,
        SliceKind.EXPERTS,
    )


def _encode_request(request: ExpertsRequest) -> bytes:
    if len(request.model_id) != MODEL_ID_BYTES:
        raise LocalError(f"a model id has {MODEL_ID_BYTES} bytes, not {len(request.model_id)}")
    if not 1 <= request.deadline_ms <= _U32_MAX:
        raise LocalError(f"a deadline of {request.deadline_ms} ms is out of range")
    if not 1 <= request.n_out <= MAX_WIDTH:
        raise LocalError(f"n_out {request.n_out} is out of range")
    if not _is_run_length(request.run_length, request.combine):
        raise LocalError(f"runs of {request.run_length} with combine {request.combine.name.lower()}")
    if request.x.ndim != 2 or not _is_vector(request.counts, np.uint16, request.x.shape[0]):
        raise LocalError(f"counts must be uint16, one for each row of x {list(request.x.shape)}")
    pairs = int(request.counts.sum(dtype=np.int64))
    if not request.counts.all() or not _is_vector(request.experts, np.uint16, pairs):
        raise LocalError(f"experts must be uint16 [{pairs}], as the counts add up, and no count 0")
    if request.weights is not None and not _is_vector(request.weights, np.float32, pairs):
        raise LocalError(f"weights must be float32 [{pairs}], one for each pair")
    tensors = [
        Tensor.coded(request.codec, request.x),
        Tensor.of(request.counts),
        Tensor.of(request.experts),
    ]
    flags = 0
    if request.weights is not None:
        flags = FLAG_WEIGHTS
        tensors.append(Tensor.of(request.weights))
    fields = _REQUEST.pack(
        request.model_id,
        request.codec,
        request.codec_back,
        request.combine,
        0,
        request.deadline_ms,
        request.n_out,
        request.run_length,
    )
    prefix = _encode_prefix(TYPE_REQUEST, flags, request)
    return b"".join([prefix, fields, *encode_tensors(tensors, REQUEST_HEADER_BYTES)])


def _is_run_length(run_length: int, combine: Combine) -> bool:
    return 1 <= run_length <= MAX_RUN_LENGTH if combine is Combine.STABLE else run_length == 0


def _is_vector(array: npt.NDArray[Any], dtype: npt.DTypeLike, length: int) -> bool:
    return array.dtype == dtype and array.shape == (length,)


def _encode_answer(answer: ExpertsAnswer) -> bytes:
    if answer.y.ndim != 2:
        raise LocalError(f"y has {answer.y.ndim} dimensions, not 2")
    fields = _ANSWER.pack(
        min(max(answer.compute_us, 0), _U32_MAX),
        min(max(answer.load, 0), _U16_MAX),
        answer.codec,
        answer.combine,
    )
    prefix = _encode_prefix(TYPE_ANSWER, 0, answer)
    tensors = [Tensor.coded(answer.codec, answer.y)]
    return b"".join([prefix, fields, *encode_tensors(tensors, ANSWER_HEADER_BYTES)])


def _encode_refusal(refusal: Refusal) -> bytes:
    """A refusal always encodes: a long text or list is cut, since an error about an error helps no one."""
    text = sanitise(refusal.text, MAX_TEXT_BYTES).encode()
    missing = [expert for expert in refusal.missing if 0 <= expert <= MAX_EXPERT][:MAX_MISSING]
    fields = _REFUSAL.pack(refusal.code, 0, len(text), min(max(refusal.load, 0), _U16_MAX), len(missing))
    prefix = _encode_prefix(TYPE_REFUSAL, 0, refusal)
    return b"".join([prefix, fields, struct.pack(f"<{len(missing)}H", *missing), text])


class _Decoder:
    """Reads one message; each method refuses by raising."""

    def __init__(self, buffer: memoryview, limits: Limits, peer: str) -> None:
        self.buffer = buffer
        self.limits = limits
        self.peer = peer
        self.call_id = 0

    def message(self) -> Message:
        if len(self.buffer) > self.limits.max_message_bytes:
            raise self.error(
                f"{len(self.buffer)} bytes, more than the {self.limits.max_message_bytes} allowed"
            )
        if len(self.buffer) < _PREFIX.size:
            raise self.error(f"{len(self.buffer)} bytes are too few for a header")
        magic, version, message_type, flags, call_id, layer, call_index, kind = _PREFIX.unpack_from(
            self.buffer
        )
        if magic != MAGIC:
            raise self.error(f"it begins with {magic.hex()}, not {MAGIC.hex()}")
        if version != VERSION:
            raise self.error(f"version {version} where {VERSION} was agreed: one of the two needs an update")
        self.call_id = call_id
        if kind != SliceKind.EXPERTS:
            raise self.error(f"slice kind {kind} where {int(SliceKind.EXPERTS)} (experts) belongs")
        known_flags = FLAG_WEIGHTS if message_type == TYPE_REQUEST else 0
        if flags & ~known_flags:
            raise self.error(f"unknown flags {flags & ~known_flags:#06x}")
        if message_type == TYPE_REQUEST:
            return self.request(bool(flags & FLAG_WEIGHTS), layer, call_index)
        if message_type == TYPE_ANSWER:
            return self.answer(layer, call_index)
        if message_type == TYPE_REFUSAL:
            return self.refusal(layer, call_index)
        raise self.error(f"unknown message type {message_type}")

    def request(self, weighted: bool, layer: int, call_index: int) -> ExpertsRequest:
        self.need(REQUEST_HEADER_BYTES, "request")
        model_id, codec_code, back_code, combine_code, reserved, deadline_ms, n_out, run_length = (
            _REQUEST.unpack_from(self.buffer, _PREFIX.size)
        )
        if reserved:
            raise self.error("the reserved field of the request is not zero")
        codec = self.codec(codec_code)
        codec_back = self.codec(back_code)
        combine = self.combine(combine_code)
        if not _is_run_length(run_length, combine):
            raise self.error(f"runs of {run_length} experts with combine {combine.name.lower()}")
        if deadline_ms == 0:
            raise self.error("a deadline of 0 ms")
        if not 1 <= n_out <= self.limits.max_width:
            raise self.error(f"n_out {n_out} is not within 1 to {self.limits.max_width}")
        tensors = self.tensors(REQUEST_HEADER_BYTES, 4 if weighted else 3)
        self.matrix_shape("x", tensors[0], codec, self.limits.max_rows)
        rows = tensors[0].shape[0]
        counts = self.vector("counts", tensors[1], DType.U16, rows)
        pairs = int(counts.sum(dtype=np.int64))
        if not counts.all():
            raise self.error("a row without pairs")
        if pairs > self.limits.max_pairs:
            raise self.error(f"{pairs} pairs, more than the {self.limits.max_pairs} allowed")
        experts = self.vector("experts", tensors[2], DType.U16, pairs)
        weights: Float32Array | None = None
        if weighted:
            weights = self.vector("weights", tensors[3], DType.F32, pairs)
            if not finite(weights):
                raise self.error("its weights hold NaN or infinity")
        return ExpertsRequest(
            model_id=model_id,
            layer=layer,
            call_index=call_index,
            call_id=self.call_id,
            x=self.values("x", tensors[0]),
            counts=counts,
            experts=experts,
            weights=weights,
            n_out=n_out,
            codec=codec,
            codec_back=codec_back,
            combine=combine,
            deadline_ms=deadline_ms,
            run_length=run_length,
        )

    def answer(self, layer: int, call_index: int) -> ExpertsAnswer:
        self.need(ANSWER_HEADER_BYTES, "answer")
        compute_us, load, codec_code, combine_code = _ANSWER.unpack_from(self.buffer, _PREFIX.size)
        codec = self.codec(codec_code)
        combine = self.combine(combine_code)
        tensors = self.tensors(ANSWER_HEADER_BYTES, 1)
        max_vectors = self.limits.max_rows if combine is Combine.SUM else self.limits.max_pairs
        self.matrix_shape("y", tensors[0], codec, max_vectors)
        y = self.values("y", tensors[0])
        return ExpertsAnswer(self.call_id, layer, call_index, y, codec, combine, compute_us, load)

    def refusal(self, layer: int, call_index: int) -> Refusal:
        self.need(REFUSAL_HEADER_BYTES, "refusal")
        code_number, reserved, text_bytes, load, n_missing = _REFUSAL.unpack_from(self.buffer, _PREFIX.size)
        code = _CODES.get(code_number)
        if code is None:
            raise self.error(f"unknown refusal code {code_number}")
        if reserved:
            raise self.error("the reserved field of the refusal is not zero")
        if text_bytes > MAX_TEXT_BYTES:
            raise self.error(
                f"a refusal's text of {text_bytes} bytes, more than the {MAX_TEXT_BYTES} allowed"
            )
        if n_missing > MAX_MISSING:
            raise self.error(f"a refusal naming {n_missing} experts, more than the {MAX_MISSING} allowed")
        expected = REFUSAL_HEADER_BYTES + 2 * n_missing + text_bytes
        if len(self.buffer) != expected:
            raise self.error(f"a refusal of {len(self.buffer)} bytes where its fields ask for {expected}")
        missing = struct.unpack_from(f"<{n_missing}H", self.buffer, REFUSAL_HEADER_BYTES)
        text = bytes(self.buffer[REFUSAL_HEADER_BYTES + 2 * n_missing :]).decode("utf-8", errors="replace")
        return Refusal(self.call_id, layer, call_index, code, sanitise(text, MAX_TEXT_BYTES), missing, load)

    def need(self, header_bytes: int, what: str) -> None:
        if len(self.buffer) < header_bytes:
            raise self.error(f"{len(self.buffer)} bytes are too few for the header of a {what}")

    def codec(self, code: int) -> Codec:
        codec = _CODECS.get(code)
        if codec is None:
            raise self.error(f"unknown codec {code}")
        return codec

    def combine(self, code: int) -> Combine:
        combine = _COMBINES.get(code)
        if combine is None:
            raise self.error(f"unknown combine {code}")
        return combine

    def tensors(self, offset: int, count: int) -> Sequence[Tensor]:
        try:
            tensors = decode_tensors(self.buffer, offset)
        except TensorError as error:
            raise self.error(str(error)) from error
        if len(tensors) != count:
            raise self.error(f"{len(tensors)} tensors where {count} belong")
        return tensors

    def matrix_shape(self, name: str, tensor: Tensor, codec: Codec, max_rows: int) -> None:
        if int(tensor.dtype) != int(codec):
            raise self.error(f"{name} is {tensor.dtype.name} where the header says {codec.name}")
        if len(tensor.shape) != 2:
            raise self.error(f"{name} has {len(tensor.shape)} dimensions, not 2")
        rows, width = tensor.shape
        if rows > max_rows:
            raise self.error(f"{name} has {rows} rows, more than the {max_rows} allowed")
        if width > self.limits.max_width:
            raise self.error(f"{name} is {width} wide, more than the {self.limits.max_width} allowed")

    def vector(self, name: str, tensor: Tensor, dtype: DType, length: int) -> npt.NDArray[Any]:
        if tensor.dtype is not dtype or tensor.shape != (length,):
            raise self.error(
                f"{name} is {tensor.dtype.name} {list(tensor.shape)} where {dtype.name} [{length}] belongs"
            )
        return tensor.array()

    def values(self, name: str, tensor: Tensor) -> Float32Array:
        values = tensor.matrix()
        if not finite(values):
            raise self.error(f"{name} holds NaN or infinity")
        return values

    def error(self, what: str) -> ProtocolError:
        sender = self.peer or "a peer"
        return ProtocolError(f"message of {sender}: {what}", peer=self.peer, call_id=self.call_id)
