"""What `/panal/experts/1` talks about: a request, and an answer or a typed refusal.

One exchange is one request and one reply with the same call id, layer and call index. This module says
what they are, how large, and what must hold between them; `routing.wire.messages` puts them into bytes.

Pairs are in (row, slot) order: row 0's experts in the order of its slots, then row 1's. So slot numbers
need not travel. One row may name the same expert twice (grovemoe's chunks do).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from routing.errors import PeerError
from routing.wire.codecs import Codec, Float32Array, finite
from routing.wire.limits import FRAME_PREFIX_BYTES, MAX_MISSING, MAX_TEXT_BYTES
from routing.wire.runs import run_groups
from routing.wire.tensors import DType, list_nbytes

REQUEST_HEADER_BYTES = 64
ANSWER_HEADER_BYTES = 24
REFUSAL_HEADER_BYTES = 24
MODEL_ID_BYTES = 32
"""A BLAKE3 digest."""

MAX_REFUSAL_BYTES = REFUSAL_HEADER_BYTES + 2 * MAX_MISSING + MAX_TEXT_BYTES


class SliceKind(IntEnum):
    """What is asked for."""

    EXPERTS = 1
    LAYERS = 2
    """Reserved for spans: whole layers."""


class Combine(IntEnum):
    """What an expert server sends back."""

    ROWS = 1
    """Each pair's weighted output: the backbone adds in slot order, byte-identical to one machine."""
    SUM = 2
    """One vector per row of x, its pairs added in slot order: fewer bytes, other last bits."""
    STABLE = 3
    """One vector per row of x and run of experts (routing.wire.runs), the run's pairs added in slot order:
    other last bits than one machine's, but the same whoever serves."""


class RefusalCode(IntEnum):
    """Why a server does not answer."""

    UNKNOWN_MODEL = 1
    UNKNOWN_CALL = 2
    """The model has no such layer, or the layer no such call."""
    NOT_HELD = 3
    """Experts asked for are not held here; the refusal lists them."""
    OVERLOADED = 4
    DEADLINE = 5
    """The deadline passed before the work was done."""
    MALFORMED = 6
    NOT_SUPPORTED = 7
    """Codec, combine or slice kind."""
    INTERNAL = 8
    UNPAID = 9
    """The caller owes as much as it may; the text says what would settle it."""


UNPAID_WORDS = "it is owed too much"

_REFUSAL_WORDS: dict[RefusalCode, str] = {
    RefusalCode.UNKNOWN_MODEL: "it does not serve this model",
    RefusalCode.UNKNOWN_CALL: "it knows no such layer or call of this model",
    RefusalCode.NOT_HELD: "it does not hold all of these experts",
    RefusalCode.OVERLOADED: "it is overloaded",
    RefusalCode.DEADLINE: "the deadline passed there",
    RefusalCode.MALFORMED: "it found the request malformed",
    RefusalCode.NOT_SUPPORTED: "it does not support this codec, combine or slice kind",
    RefusalCode.INTERNAL: "it failed inside",
    RefusalCode.UNPAID: UNPAID_WORDS,
}


@dataclass(frozen=True, eq=False)
class ExpertsRequest:
    """Compute these rows with these experts.

    Attributes:
        model_id: 32 bytes, the manifest's digest.
        layer: block number in the model.
        call_index: which MoE call of the layer, 0 for nearly all models.
        call_id: chosen by the caller, repeated in the reply.
        x: f32 [rows, n_in].
        counts: u16 [rows], how many pairs each row has, at least 1.
        experts: u16 [pairs], in (row, slot) order.
        weights: f32 [pairs], or None where the recipe weights before the experts or not at all.
        n_out: width of an output row, as the caller's manifest has it.
        codec: how x travels.
        codec_back: how the answer is to travel.
        combine: rows, sum or stable.
        deadline_ms: milliseconds from arrival after which no answer is wanted, at least 1.
        run_length: for stable: experts of a run, as the caller's manifest has it; else 0.
    """

    model_id: bytes
    layer: int
    call_index: int
    call_id: int
    x: Float32Array
    counts: npt.NDArray[np.uint16]
    experts: npt.NDArray[np.uint16]
    weights: Float32Array | None
    n_out: int
    codec: Codec
    codec_back: Codec
    combine: Combine
    deadline_ms: int
    run_length: int = 0

    @property
    def rows(self) -> int:
        """Number of rows of x."""
        return int(self.x.shape[0])

    @property
    def pairs(self) -> int:
        """Number of (row, slot) pairs."""
        return int(self.experts.shape[0])

    @cached_property
    def vectors(self) -> int:
        """Number of vectors of n_out values that the answer has."""
        if self.combine is Combine.STABLE:
            return run_groups(self.counts, self.experts, self.run_length).sizes.size
        return self.pairs if self.combine is Combine.ROWS else self.rows


@dataclass(frozen=True, eq=False)
class ExpertsAnswer:
    """What the experts gave.

    Attributes:
        call_id, layer, call_index: the request's.
        y: f32 [pairs, n_out] for rows, [rows, n_out] for sum, [groups, n_out] for stable.
        codec: how y travels.
        combine: the request's.
        compute_us: microseconds spent on this request, waiting in the server's queue not included.
        load: milliseconds that a call arriving now would wait, 0 when idle, 65535 for that or more.
    """

    call_id: int
    layer: int
    call_index: int
    y: Float32Array
    codec: Codec
    combine: Combine
    compute_us: int = 0
    load: int = 0


@dataclass(frozen=True)
class Refusal:
    """No answer, and why.

    Attributes:
        call_id, layer, call_index: the request's; 0 where it could not be read.
        code: the reason.
        text: one printable line for a person, at most MAX_TEXT_BYTES as UTF-8; may be empty.
        missing: the experts that are not held, ascending or not; empty for other codes.
        load: as in an answer.
    """

    call_id: int
    layer: int
    call_index: int
    code: RefusalCode
    text: str = ""
    missing: tuple[int, ...] = ()
    load: int = 0


Message = ExpertsRequest | ExpertsAnswer | Refusal


class ProtocolError(PeerError):
    """A peer's bytes are no message, or no fitting reply.

    Attributes:
        call_id: of the message at fault if that much could be read, else 0: a server's refusal repeats it.
    """

    def __init__(self, message: str, *, peer: str = "", call_id: int = 0) -> None:
        super().__init__(message, peer=peer)
        self.call_id = call_id


class Refused(PeerError):
    """A server answered with a refusal.

    Attributes:
        refusal: what it sent.
    """

    def __init__(self, refusal: Refusal, *, peer: str = "") -> None:
        text = f": {refusal.text}" if refusal.text else ""
        super().__init__(
            f"{peer or 'a peer'} refused layer {refusal.layer}: {_REFUSAL_WORDS[refusal.code]}{text}",
            peer=peer,
        )
        self.refusal = refusal


def check_answer(request: ExpertsRequest, answer: ExpertsAnswer, peer: str = "") -> None:
    """Refuse an answer that is not the one to this request, or not made of numbers.

    Raises:
        ProtocolError: naming the first thing that does not fit.
    """

    def refuse(what: str) -> ProtocolError:
        return ProtocolError(
            f"answer of {peer or 'a peer'} for layer {request.layer}: {what}",
            peer=peer,
            call_id=request.call_id,
        )

    if answer.call_id != request.call_id:
        raise refuse(f"it has call id {answer.call_id}, asked was {request.call_id}")
    if (answer.layer, answer.call_index) != (request.layer, request.call_index):
        raise refuse(
            f"it is for layer {answer.layer} call {answer.call_index}, not call {request.call_index}"
        )
    if answer.combine is not request.combine:
        raise refuse(f"it is combined as {answer.combine.name.lower()}, not {request.combine.name.lower()}")
    if answer.codec is not request.codec_back:
        raise refuse(f"its codec is {answer.codec.name.lower()}, not {request.codec_back.name.lower()}")
    if answer.y.shape != (request.vectors, request.n_out):
        raise refuse(f"its shape is {list(answer.y.shape)}, not {[request.vectors, request.n_out]}")
    if answer.y.dtype != np.float32:
        raise refuse(f"its values are {answer.y.dtype}, not float32")
    if not finite(answer.y):
        raise refuse("it holds NaN or infinity")


def request_nbytes(rows: int, pairs: int, n_in: int, codec: Codec, weighted: bool) -> int:
    """Exact size in bytes of a request message, without the frame's length."""
    tensors: list[tuple[DType, tuple[int, ...]]] = [
        (DType(int(codec)), (rows, n_in)),
        (DType.U16, (rows,)),
        (DType.U16, (pairs,)),
    ]
    if weighted:
        tensors.append((DType.F32, (pairs,)))
    return REQUEST_HEADER_BYTES + list_nbytes(tensors, REQUEST_HEADER_BYTES)


def answer_nbytes(vectors: int, n_out: int, codec: Codec) -> int:
    """Exact size in bytes of an answer message, without the frame's length."""
    return ANSWER_HEADER_BYTES + list_nbytes([(DType(int(codec)), (vectors, n_out))], ANSWER_HEADER_BYTES)


def message_nbytes(message: Message) -> int:
    """Exact size in bytes of a message, without the frame's length.

    A message has one encoding only, so this is also the size of the bytes it was decoded from.
    """
    if isinstance(message, ExpertsRequest):
        return request_nbytes(
            message.rows, message.pairs, message.x.shape[1], message.codec, message.weights is not None
        )
    if isinstance(message, ExpertsAnswer):
        return answer_nbytes(message.y.shape[0], message.y.shape[1], message.codec)
    return REFUSAL_HEADER_BYTES + 2 * len(message.missing) + len(message.text.encode())


def framed_nbytes(message: Message) -> int:
    """Size in bytes of a message with its length prefix: what a stream carries for it."""
    return FRAME_PREFIX_BYTES + message_nbytes(message)


def max_reply_bytes(request: ExpertsRequest) -> int:
    """The largest reply to a request that makes sense: the limit to read it with."""
    return max(answer_nbytes(request.vectors, request.n_out, request.codec_back), MAX_REFUSAL_BYTES)


def refusal_to(
    request: ExpertsRequest,
    code: RefusalCode,
    text: str = "",
    *,
    missing: tuple[int, ...] = (),
    load: int = 0,
) -> Refusal:
    """A refusal that repeats a request's call id, layer and call index."""
    return Refusal(request.call_id, request.layer, request.call_index, code, text, missing, load)
