"""Properties of `/panal/cells/1`: round trips, one encoding, and any bytes give a message or one error."""

from __future__ import annotations

import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from routing.wire import cells
from routing.wire.cells import MAX_CELLS, MAX_CHUNK_BYTES, MAX_OFFSET, CellsChunk, CellsRequest
from routing.wire.experts import ProtocolError, Refusal, RefusalCode

quick = settings(max_examples=200, deadline=None)
u16 = st.integers(0, 0xFFFF)
u32 = st.integers(0, 0xFFFFFFFF)


@st.composite
def requests(draw: st.DrawFn) -> CellsRequest:
    count = draw(st.integers(1, MAX_CELLS))
    return CellsRequest(
        model_id=draw(st.binary(min_size=32, max_size=32)),
        layer=draw(u16),
        call_index=draw(st.integers(0, 255)),
        call_id=draw(u32),
        first=draw(st.integers(0, 0xFFFF - count + 1)),
        count=count,
        offset=draw(st.integers(0, MAX_OFFSET)),
        length=draw(st.integers(1, MAX_CHUNK_BYTES)),
        lists=draw(st.booleans()),
    )


refusals = st.builds(
    Refusal,
    call_id=u32,
    layer=u16,
    call_index=st.integers(0, 255),
    code=st.sampled_from(list(RefusalCode)),
    text=st.text("abc ", max_size=20).map(lambda text: " ".join(text.split())),
    missing=st.lists(u16, max_size=20).map(tuple),
    load=u16,
)


@quick
@given(requests())
def test_a_request_comes_back(request: CellsRequest) -> None:
    encoded = cells.encode_request(request)
    assert len(encoded) == cells.REQUEST_BYTES
    assert cells.decode_message(encoded) == request


@quick
@given(requests(), st.binary(min_size=1, max_size=200))
def test_a_chunk_comes_back(request: CellsRequest, data: bytes) -> None:
    chunk = cells.decode_message(cells.encode_chunk_header(request) + data)
    assert isinstance(chunk, CellsChunk) and chunk.data == data
    assert (chunk.call_id, chunk.layer, chunk.call_index) == (
        request.call_id,
        request.layer,
        request.call_index,
    )


@quick
@given(refusals)
def test_a_refusal_comes_back(refusal: Refusal) -> None:
    assert cells.decode_message(cells.encode_refusal(refusal)) == refusal


def encoded(message: cells.Message) -> bytes:
    if isinstance(message, CellsRequest):
        return cells.encode_request(message)
    if isinstance(message, Refusal):
        return cells.encode_refusal(message)
    request = CellsRequest(bytes(32), message.layer, message.call_index, message.call_id, 0, 1, 0, 1)
    return cells.encode_chunk_header(request) + message.data


def check(data: bytes) -> None:
    """Any bytes: one error, or a message with this very encoding (a refusal's text may be made printable)."""
    try:
        message = cells.decode_message(data, peer="p")
    except ProtocolError as error:
        assert "\n" not in str(error)
        return
    if not isinstance(message, Refusal):
        assert encoded(message) == data


@quick
@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    check(data)


@quick
@given(st.binary(max_size=200))
def test_any_bytes_behind_a_right_beginning(data: bytes) -> None:
    check(b"PNAL\1" + data)


@quick
@given(st.one_of(requests().map(cells.encode_request), refusals.map(cells.encode_refusal)), st.data())
def test_changed_bytes(message: bytes, data: st.DataObject) -> None:
    changed = bytearray(message)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    check(bytes(changed[: data.draw(st.integers(0, len(changed)))]))
    check(bytes(changed))


def test_a_claimed_length_costs_nothing() -> None:
    largest = CellsRequest(bytes(32), 0, 0, 0, 0, MAX_CELLS, MAX_OFFSET, MAX_CHUNK_BYTES)
    message = cells.encode_request(largest)
    tracemalloc.start()
    try:
        for _ in range(100):
            cells.decode_message(message)
        assert tracemalloc.get_traced_memory()[1] < 64 << 10
    finally:
        tracemalloc.stop()
