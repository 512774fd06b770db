"""`/panal/experts/1`: golden bytes from docs/protocol.md, sizes, and one test for each malformed field."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from routing.errors import LocalError, PeerError
from routing.wire.codecs import Codec
from routing.wire.experts import MAX_REFUSAL_BYTES
from routing.wire.limits import MAX_MISSING, MAX_TEXT_BYTES, Limits
from routing.wire.messages import (
    Combine,
    ExpertsAnswer,
    ExpertsRequest,
    ProtocolError,
    Refusal,
    RefusalCode,
    Refused,
    answer_nbytes,
    check_answer,
    decode_message,
    encode_message,
    framed_nbytes,
    max_reply_bytes,
    message_nbytes,
    refusal_to,
    request_nbytes,
)

PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol.md"


def golden(name: str) -> bytes:
    """The worked example's bytes, as the document has them."""
    block = re.search(rf"```{name}\n(.*?)```", PROTOCOL.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    return bytes.fromhex(" ".join(line.split("#")[0] for line in block[1].splitlines()))


def example_request() -> ExpertsRequest:
    return ExpertsRequest(
        model_id=bytes(range(32)),
        layer=3,
        call_index=0,
        call_id=7,
        x=np.array([[1, -2, 0.5, 127], [3, 5, -254, 1]], np.float32),
        counts=np.array([1, 2], np.uint16),
        experts=np.array([9, 0, 9], np.uint16),
        weights=np.array([1, 0.5, 0.25], np.float32),
        n_out=4,
        codec=Codec.INT8,
        codec_back=Codec.F16,
        combine=Combine.SUM,
        deadline_ms=10_000,
    )


def example_answer() -> ExpertsAnswer:
    y = np.array([[1, -2, 0, 0.5], [70000, 0, 1 / 3, -0.0]], np.float32)
    return ExpertsAnswer(7, 3, 0, y, Codec.F16, Combine.SUM, compute_us=1500, load=0)


def example_refusal() -> Refusal:
    return Refusal(7, 3, 0, RefusalCode.NOT_HELD, "serves experts 0-7", (9,), load=12)


def changed(message: bytes, offset: int, value: int, layout: str = "B") -> bytes:
    buffer = bytearray(message)
    struct.pack_into("<" + layout, buffer, offset, value)
    return bytes(buffer)


# ---- golden bytes -------------------------------------------------------------------------------


def test_request_has_the_documented_bytes() -> None:
    assert encode_message(example_request()) == golden("request")


def test_answer_has_the_documented_bytes() -> None:
    assert encode_message(example_answer()) == golden("answer")


def test_refusal_has_the_documented_bytes() -> None:
    assert encode_message(example_refusal()) == golden("refusal")


def test_documented_request_decodes() -> None:
    request = decode_message(golden("request"))
    assert isinstance(request, ExpertsRequest)
    assert request.model_id == bytes(range(32))
    assert (request.layer, request.call_index, request.call_id) == (3, 0, 7)
    assert request.x.tolist() == [[1, -2, 0, 127], [4, 4, -254, 0]]
    assert request.counts.tolist() == [1, 2]
    assert request.experts.tolist() == [9, 0, 9]
    assert request.weights is not None and request.weights.tolist() == [1, 0.5, 0.25]
    assert (request.codec, request.codec_back, request.combine) == (Codec.INT8, Codec.F16, Combine.SUM)
    assert (request.deadline_ms, request.n_out) == (10_000, 4)
    assert (request.rows, request.pairs, request.vectors) == (2, 3, 2)


def test_documented_answer_and_refusal_decode() -> None:
    answer = decode_message(golden("answer"))
    assert isinstance(answer, ExpertsAnswer)
    assert answer.y[1, 0] == 65504 and np.signbit(answer.y[1, 3])
    assert (answer.compute_us, answer.load, answer.codec, answer.combine) == (1500, 0, Codec.F16, Combine.SUM)
    assert decode_message(golden("refusal")) == example_refusal()


def test_f32_arrays_are_read_only_views_of_the_buffer() -> None:
    buffer = bytearray(encode_message(replace(example_request(), codec=Codec.F32)))
    request = decode_message(buffer)
    assert isinstance(request, ExpertsRequest) and request.weights is not None
    whole = np.frombuffer(buffer, np.uint8)
    for array in (request.x, request.counts, request.experts, request.weights):
        assert np.shares_memory(array, whole) and not array.flags.writeable


# ---- sizes --------------------------------------------------------------------------------------


def one_token(codec: Codec, combine: Combine) -> tuple[ExpertsRequest, ExpertsAnswer]:
    rng = np.random.default_rng(0)
    request = replace(
        example_request(),
        x=rng.standard_normal((1, 3072)).astype(np.float32),
        counts=np.array([8], np.uint16),
        experts=np.arange(8, dtype=np.uint16),
        weights=rng.random(8).astype(np.float32),
        n_out=3072,
        codec=codec,
        codec_back=codec,
        combine=combine,
    )
    y = rng.standard_normal((request.vectors, 3072)).astype(np.float32)
    return request, ExpertsAnswer(7, 3, 0, y, codec, combine)


@pytest.mark.parametrize(
    ("codec", "combine", "payload"),
    [
        (Codec.F32, Combine.ROWS, 110_592),
        (Codec.F32, Combine.SUM, 24_576),
        (Codec.F16, Combine.SUM, 12_288),
        (Codec.INT8, Combine.SUM, 6_528),
    ],
)
def test_bytes_per_token_and_layer_agree_with_the_formula(
    codec: Codec, combine: Combine, payload: int
) -> None:
    """n_embd 3072, top-8, one server: what travels is the payload and 208 bytes."""
    request, answer = one_token(codec, combine)
    frames = 2 * 4
    assert len(encode_message(request)) + len(encode_message(answer)) + frames == payload + 208
    assert framed_nbytes(request) + framed_nbytes(answer) == payload + 208


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 33), (2, 64), (5, 100)])
def test_size_functions_are_exact(codec: Codec, weighted: bool, rows: int, width: int) -> None:
    counts = np.arange(1, rows + 1, dtype=np.uint16)
    pairs = int(counts.sum())
    request = replace(
        example_request(),
        x=np.ones((rows, width), np.float32),
        counts=counts,
        experts=np.zeros(pairs, np.uint16),
        weights=np.ones(pairs, np.float32) if weighted else None,
        codec=codec,
    )
    encoded = encode_message(request)
    assert len(encoded) == request_nbytes(rows, pairs, width, codec, weighted) == message_nbytes(request)
    back = decode_message(encoded)
    assert isinstance(back, ExpertsRequest) and (back.weights is not None) == weighted
    answer = ExpertsAnswer(7, 3, 0, np.ones((rows, width), np.float32), codec, Combine.SUM)
    assert len(encode_message(answer)) == answer_nbytes(rows, width, codec) == message_nbytes(answer)


def test_refusal_size_and_the_limit_to_read_a_reply_with() -> None:
    assert len(encode_message(example_refusal())) == message_nbytes(example_refusal())
    assert max_reply_bytes(example_request()) == MAX_REFUSAL_BYTES
    request, answer = one_token(Codec.F32, Combine.ROWS)
    assert max_reply_bytes(request) == len(encode_message(answer))
    largest = Refusal(7, 3, 0, RefusalCode.NOT_HELD, "x" * 1000, tuple(range(5000)))
    assert len(encode_message(largest)) == MAX_REFUSAL_BYTES


# ---- malformed: every message -------------------------------------------------------------------


def refused(buffer: bytes, match: str, limits: Limits | None = None) -> ProtocolError:
    with pytest.raises(ProtocolError, match=match) as caught:
        decode_message(buffer, limits or Limits(), peer="12D3KooWpeer")
    assert caught.value.peer == "12D3KooWpeer"
    assert "12D3KooWpeer" in str(caught.value) and "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("name", ["request", "answer", "refusal"])
def test_truncation_at_every_byte_is_refused(name: str) -> None:
    message = golden(name)
    for length in range(len(message)):
        refused(message[:length], "bytes|ends")


@pytest.mark.parametrize("name", ["request", "answer", "refusal"])
def test_a_byte_too_many_is_refused(name: str) -> None:
    refused(golden(name) + b"\0", "follow the last tensor|where its fields ask for")


def test_magic() -> None:
    refused(changed(golden("request"), 0, 0x51), "begins with 514e414c")


def test_version() -> None:
    refused(changed(golden("request"), 4, 2), "version 2 where 1 was agreed")


@pytest.mark.parametrize("message_type", [0, 4, 255])
def test_message_type(message_type: int) -> None:
    error = refused(changed(golden("request"), 5, message_type), "unknown")
    assert error.call_id == 7


@pytest.mark.parametrize(("name", "flags"), [("request", 0x0003), ("answer", 0x0001), ("refusal", 0x8000)])
def test_flags(name: str, flags: int) -> None:
    refused(changed(golden(name), 6, flags, "H"), "unknown flags")


@pytest.mark.parametrize("kind", [0, 2, 9])
def test_slice_kind(kind: int) -> None:
    refused(changed(golden("request"), 15, kind), f"slice kind {kind}")


def test_a_message_above_the_limit_is_refused() -> None:
    refused(golden("request"), "148 bytes, more than the 147", Limits(max_message_bytes=147))
    decode_message(golden("request"), Limits(max_message_bytes=148))


# ---- malformed: request -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "value", "layout", "match"),
    [
        (48, 0, "B", "unknown codec 0"),
        (48, 4, "B", "unknown codec 4"),
        (48, 1, "B", "x is INT8_BLOCKS where the header says F32"),
        (49, 7, "B", "unknown codec 7"),
        (50, 0, "B", "unknown combine 0"),
        (50, 3, "B", "runs of 0 experts with combine stable"),
        (50, 4, "B", "unknown combine 4"),
        (51, 1, "B", "reserved field of the request"),
        (52, 0, "I", "deadline of 0"),
        (56, 0, "I", "n_out 0 is not within"),
        (56, 65_537, "I", "n_out 65537 is not within"),
        (60, 1, "I", "runs of 1 experts with combine sum"),
        (64, 0, "H", "list of 0 tensors"),
        (64, 65, "H", "list of 65 tensors"),
        (64, 3, "H", "tensor"),
        (66, 1, "H", "tensor list's reserved field is 1"),
        (68, 0, "B", "tensor 0 has the unknown dtype 0"),
        (68, 10, "B", "tensor 0 has the unknown dtype 10"),
        (69, 0, "B", "tensor 0 has 0 dimensions"),
        (69, 5, "B", "tensor 0 has 5 dimensions"),
        (70, 1, "H", "reserved field of tensor 0 is 1"),
        (72, 0, "I", "tensor 0 has an empty dimension"),
        (72, 0xFFFFFFFF, "I", "tensor 0 claims 25769803770 bytes where 44 are left"),
        (72, 1, "I", "padding before tensor 1 is not zero"),
        (76, 7, "I", "padding before tensor 1 is not zero"),
        (80, 4, "B", "padding|counts is U8"),
        (84, 3, "I", r"counts is U16 \[3\] where U16 \[2\] belongs"),
        (92, 2, "I", "padding before tensor 3 is not zero"),
        (92, 4, "I", r"experts is U16 \[4\] where U16 \[3\] belongs"),
        (100, 2, "I", "4 bytes follow the last tensor"),
        (100, 4, "I", "tensor 3 claims 16 bytes where 12 are left"),
        (104, 0x7C00, "H", "x holds NaN or infinity"),
        (104, 0x7E00, "H", "x holds NaN or infinity"),
        (116, 1, "B", "padding before tensor 1 is not zero"),
        (120, 0, "H", "row without pairs"),
        (120, 2, "H", r"experts is U16 \[3\] where U16 \[4\] belongs"),
        (122, 65535, "H", r"experts is U16 \[3\] where U16 \[65536\] belongs"),
        (136, 0x7FC00000, "I", "weights hold NaN or infinity"),
        (136, 0x7F800000, "I", "weights hold NaN or infinity"),
    ],
)
def test_request_field(offset: int, value: int, layout: str, match: str) -> None:
    error = refused(changed(golden("request"), offset, value, layout), match)
    assert error.call_id == 7


def test_the_weights_flag_must_agree_with_the_tensors() -> None:
    refused(changed(golden("request"), 6, 0, "H"), "4 tensors where 3 belong")
    without = encode_message(replace(example_request(), weights=None))
    refused(changed(without, 6, 1, "H"), "3 tensors where 4 belong")


def test_rows_pairs_and_width_have_limits() -> None:
    refused(golden("request"), "x has 2 rows, more than the 1", Limits(max_rows=1))
    refused(golden("request"), "3 pairs, more than the 2", Limits(max_pairs=2))
    refused(golden("request"), "n_out 4 is not within 1 to 3", Limits(max_width=3))
    narrow = replace(example_request(), n_out=1)
    refused(encode_message(narrow), "x is 4 wide, more than the 3", Limits(max_width=3))


def test_a_request_with_a_three_dimensional_x_is_refused() -> None:
    request = encode_message(replace(example_request(), codec=Codec.F32, weights=None))
    descriptor = struct.pack("<BBHIII", 1, 3, 0, 2, 4, 1)
    shifted = request[:68] + descriptor + request[80:96] + bytes(4) + request[96:]
    refused(shifted, "x has 3 dimensions, not 2")


# ---- malformed: answer and refusal --------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "value", "layout", "match"),
    [
        (22, 0, "B", "unknown codec 0"),
        (22, 1, "B", "y is F16 where the header says F32"),
        (23, 9, "B", "unknown combine 9"),
        (24, 2, "H", "tensor 1|ends in"),
        (28, 5, "B", "y is U16 where the header says F16"),
        (32, 3, "I", "claims 24 bytes where 16 are left"),
        (40, 0x7C00, "H", "y holds NaN or infinity"),
    ],
)
def test_answer_field(offset: int, value: int, layout: str, match: str) -> None:
    refused(changed(golden("answer"), offset, value, layout), match)


@pytest.mark.parametrize(
    ("offset", "value", "layout", "match"),
    [
        (16, 0, "B", "unknown refusal code 0"),
        (16, 10, "B", "unknown refusal code 10"),
        (17, 1, "B", "reserved field of the refusal"),
        (18, 17, "H", "a refusal of 44 bytes where its fields ask for 43"),
        (18, MAX_TEXT_BYTES + 1, "H", "text of 241 bytes"),
        (22, 2, "H", "a refusal of 44 bytes where its fields ask for 46"),
        (22, MAX_MISSING + 1, "H", "naming 1025 experts"),
    ],
)
def test_refusal_field(offset: int, value: int, layout: str, match: str) -> None:
    refused(changed(golden("refusal"), offset, value, layout), match)


def test_a_refusals_text_is_made_printable() -> None:
    hostile = "a\x1b[31mb\r\nc\u202ed\x00" + "\xff" * 4
    wire = golden("refusal")[:26]
    text = hostile.encode("utf-8", errors="surrogatepass") + b"\xff\xfe"
    refusal = decode_message(changed(wire, 18, len(text), "H") + text)
    assert isinstance(refusal, Refusal)
    assert refusal.text.isprintable() and refusal.text.startswith("a [31mb c d")
    sent = decode_message(encode_message(replace(example_refusal(), text="ñ" * 200)))
    assert isinstance(sent, Refusal) and sent.text == "ñ" * 120


# ---- what must not be sent ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"model_id": b"short"},
        {"layer": 65_536},
        {"call_index": 256},
        {"call_id": -1},
        {"deadline_ms": 0},
        {"n_out": 0},
        {"x": np.zeros((2, 0), np.float32)},
        {
            "x": np.zeros((0, 4), np.float32),
            "counts": np.zeros(0, np.uint16),
            "experts": np.zeros(0, np.uint16),
            "weights": None,
        },
        {"counts": np.array([1, 1], np.uint16)},
        {"counts": np.array([0, 3], np.uint16)},
        {"counts": np.array([3], np.uint16)},
        {"weights": np.ones(2, np.float32)},
        {"experts": np.array([9, 0, 70_000], np.int32)},
        {"experts": np.array([9, 0, -1], np.int32)},
    ],
)
def test_a_request_of_ours_that_would_be_refused_is_not_encoded(change: dict[str, Any]) -> None:
    with pytest.raises(LocalError):
        encode_message(replace(example_request(), **change))


# ---- an answer to this request ------------------------------------------------------------------


def test_the_fitting_answer_passes() -> None:
    check_answer(example_request(), example_answer())


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"call_id": 8}, "call id 8, asked was 7"),
        ({"layer": 4}, "layer 4 call 0"),
        ({"call_index": 1}, "layer 3 call 1"),
        ({"combine": Combine.ROWS}, "combined as rows, not sum"),
        ({"codec": Codec.F32}, "codec is f32, not f16"),
        ({"y": np.zeros((3, 4), np.float32)}, r"shape is \[3, 4\], not \[2, 4\]"),
        ({"y": np.zeros((2, 5), np.float32)}, r"shape is \[2, 5\], not \[2, 4\]"),
        ({"y": np.zeros((2, 4), np.float64)}, "float64"),
        ({"y": np.full((2, 4), np.nan, np.float32)}, "NaN"),
        ({"y": np.full((2, 4), np.inf, np.float32)}, "infinity"),
    ],
)
def test_another_answer_is_the_peers_fault(change: dict[str, Any], match: str) -> None:
    with pytest.raises(ProtocolError, match=match) as caught:
        check_answer(example_request(), replace(example_answer(), **change), "12D3KooWpeer")
    assert caught.value.peer == "12D3KooWpeer" and "layer 3" in str(caught.value)


def test_a_refusal_as_an_error_names_peer_layer_and_reason() -> None:
    refusal = refusal_to(example_request(), RefusalCode.OVERLOADED, "9 calls wait", load=300)
    error = Refused(refusal, peer="12D3KooWpeer")
    assert isinstance(error, PeerError)
    assert str(error) == "12D3KooWpeer refused layer 3: it is overloaded: 9 calls wait"
    assert (refusal.call_id, refusal.load) == (7, 300)
