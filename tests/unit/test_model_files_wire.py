"""`/panal/model/1` in bytes: the example of docs/protocol.md, and each way to be malformed."""

from __future__ import annotations

import dataclasses
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from routing.errors import LocalError
from routing.wire import model_files
from routing.wire.cells import MAX_CHUNK_BYTES
from routing.wire.experts import MAX_REFUSAL_BYTES, ProtocolError, RefusalCode
from routing.wire.model_files import ModelChunk, ModelFile, ModelRequest

PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol.md"

REQUEST = ModelRequest(bytes(range(32)), ModelFile.TRUNK, 7, 524_288, 262_144)

# docs/protocol.md, "A model": 256 KiB of the trunk, from 512 KiB on
EXAMPLE = bytes.fromhex(
    """
    50 4e 41 4c 01 01 00 00 07 00 00 00 03 00 00 01
    00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f 10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    00 00 08 00 00 00 00 00 00 00 04 00 00 00 00 00
    """
)


def test_the_example() -> None:
    block = re.search(r"```model-request\n(.*?)```", PROTOCOL.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    assert bytes.fromhex(" ".join(line.split("#")[0] for line in block[1].splitlines())) == EXAMPLE
    assert model_files.encode_request(REQUEST) == EXAMPLE and len(EXAMPLE) == model_files.REQUEST_BYTES
    assert model_files.decode_message(EXAMPLE) == REQUEST
    lists = dataclasses.replace(REQUEST, lists=True)
    assert model_files.encode_request(lists) == EXAMPLE[:6] + b"\1" + EXAMPLE[7:]
    assert model_files.decode_message(model_files.encode_request(lists)) == lists


def test_metadata_is_asked_for_by_its_digest() -> None:
    request = ModelRequest(bytes(32), ModelFile.METADATA, 1, 0, 10, metadata=bytes(range(32)))
    assert model_files.decode_message(model_files.encode_request(request)) == request
    for wrong in (
        dataclasses.replace(request, metadata=bytes(32)),
        dataclasses.replace(request, file=ModelFile.TRUNK),
        dataclasses.replace(request, metadata=b"short"),
    ):
        with pytest.raises(LocalError, match="cannot be sent"):
            model_files.encode_request(wrong)


def test_a_chunk_is_a_header_and_its_bytes() -> None:
    header = model_files.encode_chunk_header(REQUEST)
    assert header.hex(" ") == "50 4e 41 4c 01 02 00 00 07 00 00 00 03 00 00 01"
    chunk = model_files.decode_message(header + b"weights")
    assert isinstance(chunk, ModelChunk) and bytes(chunk.data) == b"weights" and chunk.data.readonly
    assert (chunk.call_id, chunk.file) == (7, ModelFile.TRUNK)
    for size in (0, MAX_CHUNK_BYTES + 1):
        with pytest.raises(ProtocolError, match=f"a chunk of {size} bytes"):
            model_files.decode_message(header + bytes(size))


def test_a_refusal_names_the_file() -> None:
    refusal = model_files.refusal_to(REQUEST, RefusalCode.UNKNOWN_CALL, "only cells", load=12)
    assert (refusal.call_id, refusal.layer, refusal.load) == (7, 3, 12)
    from routing.wire.cells import encode_refusal

    assert model_files.decode_message(encode_refusal(refusal)) == refusal


@pytest.mark.parametrize(
    ("offset", "value", "said"),
    [
        (0, b"PNAK", "begins with"),
        (4, b"\2", "version 2"),
        (5, b"\0", "unknown message type 0"),
        (5, b"\4", "unknown message type 4"),
        (6, b"\2", "unknown flags 0x0002"),
        (12, b"\0", "unknown file 0"),
        (12, b"\4", "unknown file 4"),
        (12, b"\2", "the metadata's digest belongs"),
        (14, b"\1", "bytes 1 and 1"),
        (15, b"\2", "bytes 0 and 2"),
        (48, b"\1", "the metadata's digest belongs"),
        (80, b"\xff" * 8, "out of range"),
        (88, struct.pack("<I", 0), "a chunk of 0 bytes"),
        (88, struct.pack("<I", MAX_CHUNK_BYTES + 1), f"a chunk of {MAX_CHUNK_BYTES + 1} bytes"),
        (92, b"\1", "reserved bytes 1"),
    ],
)
def test_malformed_requests(offset: int, value: bytes, said: str) -> None:
    message = EXAMPLE[:offset] + value + EXAMPLE[offset + len(value) :]
    with pytest.raises(ProtocolError, match=said) as caught:
        model_files.decode_message(message, peer="someone")
    assert "someone" in str(caught.value) and caught.value.peer == "someone"


@pytest.mark.parametrize("size", [0, 15, 16, 95, 97])
def test_requests_of_a_wrong_length(size: int) -> None:
    with pytest.raises(ProtocolError, match=f"{size} bytes|too few"):
        model_files.decode_message((EXAMPLE + b"\0")[:size])


@pytest.mark.parametrize("changed", [{"call_id": 8}, {"file": ModelFile.MANIFEST}, {"length": 5}])
def test_an_answer_to_something_else(changed: dict[str, Any]) -> None:
    header = model_files.encode_chunk_header(dataclasses.replace(REQUEST, **changed))
    chunk = model_files.decode_message(header + b"1234")
    assert isinstance(chunk, ModelChunk)
    with pytest.raises(ProtocolError, match="trunk of someone"):
        model_files.check_chunk(dataclasses.replace(REQUEST, length=3), chunk, "someone")


def test_limits_of_replies() -> None:
    assert model_files.max_reply_bytes(dataclasses.replace(REQUEST, length=1)) == MAX_REFUSAL_BYTES
    assert model_files.max_reply_bytes(REQUEST) == 262_144 + 16
