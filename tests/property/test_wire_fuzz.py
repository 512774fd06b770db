"""Properties of the wire: round trips, hostile bytes, claimed sizes, and spreading that changes no bit."""

from __future__ import annotations

import struct
import tracemalloc

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routing.dispatch.combine import Part, add_slots, combine_rows
from routing.dispatch.plan import HOME, Holder, LayerHolders, plan
from routing.wire.codecs import Codec, Float32Array, decode, encode, nbytes
from routing.wire.experts import (
    Combine,
    ExpertsAnswer,
    ExpertsRequest,
    Message,
    ProtocolError,
    Refusal,
    RefusalCode,
    message_nbytes,
)
from routing.wire.holdings import (
    Holdings,
    HoldingsError,
    HoldingsRequest,
    Slice,
    compact_cells,
    decode_holdings,
    decode_request,
    encode_holdings,
    encode_request,
)
from routing.wire.messages import decode_message, encode_message
from routing.wire.tensors import (
    DType,
    Tensor,
    TensorError,
    decode_tensors,
    encode_tensors,
    list_nbytes,
    payload_nbytes,
)

quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

u16 = st.integers(0, 0xFFFF)
u32 = st.integers(0, 0xFFFFFFFF)
codecs = st.sampled_from(list(Codec))
combines = st.sampled_from(list(Combine))
seeds = st.integers(0, 2**32 - 1)


def values(seed: int, *shape: int) -> Float32Array:
    """Values of many magnitudes, within f16."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)).astype(np.float32)


@st.composite
def requests(draw: st.DrawFn) -> ExpertsRequest:
    counts = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    pairs = sum(counts)
    seed = draw(seeds)
    combine = draw(combines)
    return ExpertsRequest(
        model_id=draw(st.binary(min_size=32, max_size=32)),
        layer=draw(u16),
        call_index=draw(st.integers(0, 255)),
        call_id=draw(u32),
        x=values(seed, len(counts), draw(st.integers(1, 70))),
        counts=np.array(counts, np.uint16),
        experts=np.random.default_rng(seed).integers(0, 65_536, pairs).astype(np.uint16),
        weights=values(seed + 1, pairs) if draw(st.booleans()) else None,
        n_out=draw(st.integers(1, 65_536)),
        codec=draw(codecs),
        codec_back=draw(codecs),
        combine=combine,
        deadline_ms=draw(st.integers(1, 0xFFFFFFFF)),
        run_length=draw(st.integers(1, 65_535)) if combine is Combine.STABLE else 0,
    )


@st.composite
def answers(draw: st.DrawFn) -> ExpertsAnswer:
    y = values(draw(seeds), draw(st.integers(1, 8)), draw(st.integers(1, 70)))
    return ExpertsAnswer(
        draw(u32),
        draw(u16),
        draw(st.integers(0, 255)),
        y,
        draw(codecs),
        draw(combines),
        draw(u32),
        draw(u16),
    )


refusals = st.builds(
    Refusal,
    call_id=u32,
    layer=u16,
    call_index=st.integers(0, 255),
    code=st.sampled_from(list(RefusalCode)),
    text=st.text(max_size=300),
    missing=st.lists(u16, max_size=20).map(tuple),
    load=u16,
)
messages = st.one_of(requests(), answers(), refusals)


# ---- round trips --------------------------------------------------------------------------------


def coded(codec: Codec, matrix: Float32Array) -> bytes:
    """What the other side sees of a matrix."""
    return decode(codec, encode(codec, matrix), *matrix.shape).tobytes()


@quick
@given(requests())
def test_a_request_comes_back(request: ExpertsRequest) -> None:
    encoded = encode_message(request)
    assert len(encoded) == message_nbytes(request)
    back = decode_message(encoded)
    assert isinstance(back, ExpertsRequest)
    assert back.x.tobytes() == coded(request.codec, request.x)
    assert back.counts.tolist() == request.counts.tolist()
    assert back.experts.tolist() == request.experts.tolist()
    assert (back.weights is None) == (request.weights is None)
    if back.weights is not None and request.weights is not None:
        assert back.weights.tobytes() == request.weights.tobytes()
    for name in ("model_id", "layer", "call_index", "call_id", "n_out", "codec", "codec_back", "combine"):
        assert getattr(back, name) == getattr(request, name)
    assert back.deadline_ms == request.deadline_ms
    assert back.run_length == request.run_length
    if request.combine is Combine.STABLE:
        rows = np.repeat(np.arange(request.rows), request.counts).tolist()
        runs = (request.experts // request.run_length).tolist()
        assert back.vectors == len(set(zip(rows, runs, strict=True)))
    if request.codec is not Codec.INT8:
        assert encode_message(back) == encoded


@quick
@given(answers())
def test_an_answer_comes_back(answer: ExpertsAnswer) -> None:
    back = decode_message(encode_message(answer))
    assert isinstance(back, ExpertsAnswer)
    assert back.y.tobytes() == coded(answer.codec, answer.y)
    for name in ("call_id", "layer", "call_index", "codec", "combine", "compute_us", "load"):
        assert getattr(back, name) == getattr(answer, name)


@quick
@given(refusals)
def test_a_refusal_comes_back_printable(refusal: Refusal) -> None:
    back = decode_message(encode_message(refusal))
    assert isinstance(back, Refusal)
    assert back.text.isprintable() and len(back.text.encode()) <= 240
    assert (back.code, back.missing, back.load) == (refusal.code, refusal.missing, refusal.load)
    assert decode_message(encode_message(back)) == back


@quick
@given(
    st.lists(
        st.tuples(st.sampled_from(list(DType)), st.lists(st.integers(1, 5), min_size=1, max_size=4)),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 40),
    seeds,
)
def test_any_tensor_list_comes_back(shapes: list[tuple[DType, list[int]]], offset: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tensors = []
    for dtype, shape in shapes:
        tensors.append(Tensor(dtype, tuple(shape), rng.bytes(payload_nbytes(dtype, shape))))
    buffer = bytes(offset) + b"".join(encode_tensors(tensors, offset))
    assert len(buffer) == offset + list_nbytes(shapes, offset)
    back = decode_tensors(memoryview(buffer), offset)
    assert [(t.dtype, t.shape, bytes(t.data)) for t in back] == [(t.dtype, t.shape, t.data) for t in tensors]


# ---- hostile bytes ------------------------------------------------------------------------------


def message_or_protocol_error(buffer: bytes) -> Message | None:
    try:
        return decode_message(buffer)
    except ProtocolError as error:
        assert "\n" not in str(error)
        return None


@quick
@given(st.binary(max_size=300))
def test_arbitrary_bytes_give_a_message_or_the_protocols_error(buffer: bytes) -> None:
    message_or_protocol_error(buffer)
    for message_type in (1, 2, 3):
        prefix = struct.pack("<4sBBHIHBB", b"PNAL", 1, message_type, message_type == 1, 0, 0, 0, 1)
        message_or_protocol_error(prefix + buffer)


@quick
@given(messages, st.data())
def test_perturbed_bytes_give_a_message_or_the_protocols_error(message: Message, data: st.DataObject) -> None:
    buffer = bytearray(encode_message(message))
    for _ in range(data.draw(st.integers(1, 4))):
        # The front is where sizes and types stand.
        end = data.draw(st.sampled_from([len(buffer), min(len(buffer), 110)]))
        buffer[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([len(buffer), data.draw(st.integers(0, len(buffer)))]))
    got = message_or_protocol_error(bytes(buffer[:cut]))
    # What still decodes decodes to something whole: its size is that of the bytes.
    if isinstance(got, ExpertsRequest | ExpertsAnswer):
        assert message_nbytes(got) == cut
        floats = [got.x] if isinstance(got, ExpertsRequest) else [got.y]
        if isinstance(got, ExpertsRequest):
            assert int(got.counts.sum()) == got.pairs and got.counts.all()
            floats += [] if got.weights is None else [got.weights]
        assert all(np.isfinite(array).all() for array in floats)


@quick
@given(requests(), st.integers(0, 3), st.sampled_from([2**16, 2**24, 2**31, 2**32 - 1]))
def test_a_claimed_size_is_refused_without_allocating(
    request: ExpertsRequest, which: int, claim: int
) -> None:
    buffer = bytearray(encode_message(request))
    # The last dimension of tensor `which`: x is [rows, n_in], the rest are vectors.
    offset = 76 if which == 0 else 80 + 8 * (min(which, 2 if request.weights is None else 3)) - 4
    struct.pack_into("<I", buffer, offset, claim)
    hostile = bytes(buffer)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decode_message(hostile)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200_000


@quick
@given(st.binary(max_size=200), st.integers(0, 20))
def test_arbitrary_bytes_are_a_tensor_list_or_its_error(buffer: bytes, offset: int) -> None:
    try:
        decode_tensors(memoryview(buffer), offset)
    except TensorError:
        pass


# ---- codecs -------------------------------------------------------------------------------------


@quick
@given(codecs, st.integers(1, 5), st.integers(1, 100), st.data())
def test_any_payload_of_the_right_size_decodes_to_the_right_shape(
    codec: Codec, rows: int, width: int, data: st.DataObject
) -> None:
    size = nbytes(codec, rows, width)
    payload = np.random.default_rng(data.draw(seeds)).bytes(size)
    decoded = decode(codec, payload, rows, width)
    assert decoded.shape == (rows, width) and decoded.dtype == np.float32


@quick
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=70), codecs)
def test_finite_values_stay_finite_and_keep_their_sign(row: list[float], codec: Codec) -> None:
    matrix = np.array([row], np.float32)
    decoded = decode(codec, encode(codec, matrix), *matrix.shape)
    assert np.isfinite(decoded).all()
    assert ((decoded == 0) | (np.signbit(decoded) == np.signbit(matrix))).all()


# ---- spreading changes no bit -------------------------------------------------------------------


@st.composite
def spreads(draw: st.DrawFn) -> tuple[npt.NDArray[np.int32], LayerHolders]:
    """A router's choice and holders that between them have every expert, some of them twice."""
    n_experts = draw(st.integers(1, 24))
    n_tokens, n_used = draw(st.integers(1, 9)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(seeds))
    ids = rng.integers(0, n_experts, (n_tokens, n_used)).astype(np.int32)
    names = [HOME, "a", "b", "c", "d"][draw(st.integers(0, 1)) :][: draw(st.integers(1, 4))]
    held: dict[str, set[int]] = {name: set() for name in names}
    for number in range(n_experts):
        for _ in range(draw(st.integers(1, 2))):
            held[names[int(rng.integers(len(names)))]].add(number)
    return ids, LayerHolders(0, tuple(Holder.of(name, experts) for name, experts in held.items()))


@quick
@given(spreads(), st.booleans(), st.booleans(), seeds)
def test_splitting_and_combining_is_the_direct_computation_bit_for_bit(
    spread: tuple[npt.NDArray[np.int32], LayerHolders], row_per_pair: bool, weighted: bool, seed: int
) -> None:
    ids, holders = spread
    n_tokens, n_used = ids.shape
    width = 9
    gates = values(seed, 24, width)
    x = values(seed + 1, n_tokens * n_used if row_per_pair else n_tokens, width)
    weights = values(seed + 2, ids.size)

    def outputs(
        rows: Float32Array, counts: npt.NDArray[np.uint16], experts: npt.NDArray[np.uint16]
    ) -> Float32Array:
        repeated = np.repeat(rows, counts, axis=0)
        result: Float32Array = np.maximum(repeated * gates[experts], 0) * gates[experts] + repeated
        return result

    every = np.full(x.shape[0], 1 if row_per_pair else n_used, np.uint16)
    laid = outputs(x, every, ids.reshape(-1).astype(np.uint16))
    if weighted:
        laid = laid * weights[:, None]
    expected = add_slots(laid.reshape(n_tokens, n_used, width))

    parts = []
    for call in plan(ids, holders, row_per_pair=row_per_pair):
        sent = ExpertsRequest(
            model_id=bytes(32),
            layer=0,
            call_index=0,
            call_id=1,
            x=x[call.rows],
            counts=call.counts,
            experts=call.experts,
            weights=weights[call.pairs] if weighted else None,
            n_out=width,
            codec=Codec.F32,
            codec_back=Codec.F32,
            combine=Combine.ROWS,
            deadline_ms=1000,
        )
        seen = decode_message(encode_message(sent))
        assert isinstance(seen, ExpertsRequest)
        y = outputs(seen.x, seen.counts, seen.experts)
        if seen.weights is not None:
            y = y * seen.weights[:, None]
        answer = decode_message(encode_message(ExpertsAnswer(1, 0, 0, y, Codec.F32, Combine.ROWS)))
        assert isinstance(answer, ExpertsAnswer)
        parts.append(Part(call, answer.y))
    assert combine_rows(parts, n_tokens, n_used, width).tobytes() == expected.tobytes()


# ---- /panal/slices/1 ----------------------------------------------------------------------------


cells = st.dictionaries(
    st.integers(0, 80), st.sets(st.integers(0, 130), min_size=1, max_size=40), min_size=1, max_size=12
)


@quick
@given(cells)
def test_holdings_come_back_with_the_same_cells(held: dict[int, set[int]]) -> None:
    holdings = Holdings(
        versions=[1],
        name="casa de Ana",
        slices=[
            Slice(kind="experts", model_id="ab" * 32, architecture="qwen3moe", experts=compact_cells(held))
        ],
        codecs=["f32", "f16", "int8"],
        combines=["rows", "sum"],
        max_rows=512,
    )
    back = decode_holdings(encode_holdings(holdings))
    assert back == holdings
    (only,) = back.slices
    assert list(only.layer_numbers()) == sorted(held)
    for layer in range(82):
        found = Holder.of_runs("p", only.expert_runs(layer))
        assert found == Holder.of("p", held.get(layer, ()))


@quick
@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_holdings_or_their_error(buffer: bytes) -> None:
    for decoder in (decode_request, decode_holdings):
        try:
            decoder(buffer)
        except HoldingsError as error:
            assert str(error).isprintable()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@quick
@given(json_values, st.sampled_from(["versions", "name", "slices", "codecs", "combines", "max_rows", "more"]))
def test_any_json_in_any_field_is_holdings_or_their_error(value: object, name: str) -> None:
    fields: dict[str, object] = {
        "versions": [1],
        "name": "n",
        "slices": [],
        "codecs": ["f32"],
        "combines": ["rows"],
        "max_rows": 512,
        name: value,
    }
    try:
        holdings = decode_holdings(msgspec.json.encode(fields))
    except HoldingsError:
        return
    assert holdings.name.isprintable()
    assert 1 <= holdings.max_rows <= 16_384


def test_a_holdings_request_comes_back() -> None:
    assert decode_request(encode_request(HoldingsRequest([1, 2]))) == HoldingsRequest([1, 2])
