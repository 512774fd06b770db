"""`/panal/cells/1` in bytes: the example of docs/protocol.md, and each way to be malformed."""

from __future__ import annotations

import dataclasses
import struct

import pytest

from routing.errors import LocalError
from routing.wire import cells
from routing.wire.cells import MAX_CELLS, MAX_CHUNK_BYTES, CellsChunk, CellsRequest
from routing.wire.experts import MAX_REFUSAL_BYTES, ProtocolError, Refusal, RefusalCode

REQUEST = CellsRequest(bytes(range(32)), 3, 0, 7, 9, 2, 524_288, 262_144)

# docs/protocol.md, "Cells": layer 3, experts 9 and 10, 256 KiB from the middle of their first MiB
EXAMPLE = bytes.fromhex(
    """
    50 4e 41 4c 01 01 00 00 07 00 00 00 03 00 00 01
    00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f 10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f
    09 00 02 00 00 00 04 00 00 00 08 00 00 00 00 00
    """
)


def test_lists_are_a_flag() -> None:
    lists = dataclasses.replace(REQUEST, lists=True)
    assert cells.encode_request(lists) == EXAMPLE[:6] + b"\1\0" + EXAMPLE[8:]
    assert cells.decode_message(cells.encode_request(lists)) == lists
    with pytest.raises(ProtocolError, match="unknown flags 0x0001"):  # a chunk has none
        cells.decode_message(EXAMPLE[:5] + b"\2\1\0" + EXAMPLE[8:17])


def test_the_example() -> None:
    assert cells.encode_request(REQUEST) == EXAMPLE and len(EXAMPLE) == cells.REQUEST_BYTES
    assert cells.decode_message(EXAMPLE) == REQUEST


def test_a_chunk_is_a_header_and_its_bytes() -> None:
    header = cells.encode_chunk_header(REQUEST)
    assert header.hex(" ") == "50 4e 41 4c 01 02 00 00 07 00 00 00 03 00 00 01"
    chunk = cells.decode_message(header + b"weights")
    assert isinstance(chunk, CellsChunk) and bytes(chunk.data) == b"weights" and chunk.data.readonly
    assert (chunk.call_id, chunk.layer, chunk.call_index) == (7, 3, 0)


def test_a_refusal_is_that_of_experts() -> None:
    refusal = cells.refusal_to(REQUEST, RefusalCode.NOT_HELD, "serves experts 0-7", missing=(9, 10), load=12)
    assert cells.decode_message(cells.encode_refusal(refusal)) == refusal
    assert isinstance(refusal, Refusal) and refusal.call_id == 7


@pytest.mark.parametrize(
    ("offset", "value", "said"),
    [
        (0, b"PNAK", "begins with"),
        (4, b"\2", "version 2"),
        (5, b"\0", "unknown message type 0"),
        (5, b"\4", "unknown message type 4"),
        (6, b"\2", "unknown flags 0x0002"),
        (15, b"\2", "slice kind 2"),
        (50, b"\0\0", "0 experts"),
        (50, struct.pack("<H", MAX_CELLS + 1), f"{MAX_CELLS + 1} experts"),
        (48, b"\xff\xff", "the last possible is 65535"),
        (52, struct.pack("<I", 0), "a chunk of 0 bytes"),
        (52, struct.pack("<I", MAX_CHUNK_BYTES + 1), f"a chunk of {MAX_CHUNK_BYTES + 1} bytes"),
        (56, b"\xff" * 8, "out of range"),
    ],
)
def test_malformed_requests(offset: int, value: bytes, said: str) -> None:
    message = EXAMPLE[:offset] + value + EXAMPLE[offset + len(value) :]
    with pytest.raises(ProtocolError, match=said) as caught:
        cells.decode_message(message, peer="someone")
    assert "someone" in str(caught.value) and caught.value.peer == "someone"
    assert caught.value.call_id == (7 if offset > 5 else caught.value.call_id)


@pytest.mark.parametrize("size", [0, 15, 16, 63, 65])
def test_requests_of_a_wrong_length(size: int) -> None:
    with pytest.raises(ProtocolError, match=f"{size} bytes|too few"):
        cells.decode_message((EXAMPLE + b"\0")[:size])


def test_empty_and_oversized_chunks() -> None:
    header = cells.encode_chunk_header(REQUEST)
    for size in (0, MAX_CHUNK_BYTES + 1):
        with pytest.raises(ProtocolError, match=f"a chunk of {size} bytes"):
            cells.decode_message(header + bytes(size))
    assert len(header) == cells.CHUNK_HEADER_BYTES


@pytest.mark.parametrize(
    "changed",
    [
        {"model_id": b"short"},
        {"layer": 1 << 16},
        {"call_index": 256},
        {"call_id": -1},
        {"first": -1},
        {"first": 65_535},
        {"count": 0},
        {"offset": -1},
        {"offset": 1 << 63},
        {"length": 0},
    ],
)
def test_what_would_be_refused_is_not_sent(changed: dict[str, int]) -> None:
    with pytest.raises(LocalError, match="cannot be sent"):
        cells.encode_request(dataclasses.replace(REQUEST, **changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"call_id": 8}, "call 8"),
        ({"layer": 2}, "layer 2"),
        ({"call_index": 1}, "call 7"),
        ({"data": memoryview(bytes(1000))}, "1000 bytes"),
    ],
)
def test_a_chunk_that_was_not_asked_for(changed: dict[str, object], said: str) -> None:
    chunk = CellsChunk(7, 3, 0, memoryview(bytes(262_144)))
    cells.check_chunk(REQUEST, chunk)
    with pytest.raises(ProtocolError, match=said):
        cells.check_chunk(REQUEST, dataclasses.replace(chunk, **changed), "someone")  # type: ignore[arg-type]


def test_the_largest_reply() -> None:
    assert cells.max_reply_bytes(REQUEST) == 16 + 262_144
    assert cells.max_reply_bytes(dataclasses.replace(REQUEST, length=1)) == MAX_REFUSAL_BYTES
