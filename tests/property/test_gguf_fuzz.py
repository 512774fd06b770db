"""Any bytes give a checked header or the reader's own error, in bounded time and memory."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from node.model.gguf.errors import GGUFError
from node.model.gguf.header import GGUFHeader
from node.model.gguf.reader import read_header
from node.model.gguf.split import open_model
from node.model.gguf.types import TENSOR_TYPES, ValueType, tensor_bytes
from node.model.gguf.values import GGUFValue
from node.model.gguf.writer import TensorToWrite, encode_value, write_gguf
from tests.gguf_files import MAX_BYTES, MAX_SECONDS, array, info, key, raw_file, text

SMALL = raw_file(
    [
        key(b"general.architecture", 8, text(b"test")),
        key(b"general.alignment", 4, struct.pack("<I", 32)),
        key(b"flag", 7, b"\1"),
        key(b"ratio", 12, struct.pack("<d", 0.5)),
        key(b"tokens", 9, array(8, 3, text(b"a") + text(b"") + text("ñ".encode()))),
        key(b"scores", 9, array(6, 3, bytes(12))),
        key(b"flags", 9, array(7, 2, b"\0\1")),
    ],
    [
        info(b"x", [8, 2], 0, 0),
        info(b"blk.0.ffn_up_exps.weight", [32, 2, 2], 8, 64),
        info(b"y", [3], 26, 224),
    ],
    bytes(224 + 12),
)
HEADER_BYTES = len(SMALL) - 236


def check(header: GGUFHeader) -> None:
    """What an accepted header promises."""
    end = 0
    names = set()
    for tensor in sorted(header.tensors, key=lambda tensor: tensor.offset):
        assert tensor.n_bytes == tensor_bytes(tensor.shape, tensor.type) > 0
        assert tensor.offset >= end
        assert tensor.offset % header.alignment == 0
        end = tensor.offset + tensor.n_bytes
        assert header.data_offset + end <= header.file_size
        assert tensor.name
        names.add(tensor.name)
    assert len(names) == len(header.tensors)
    for name, value in header.metadata.items():
        assert name
        encode_value(value)


def read(path: Path, data: bytes) -> GGUFHeader | None:
    """The header in `data`; None where the reader refuses it, whose time is then measured."""
    path.write_bytes(data)
    start = time.process_time()
    try:
        header = read_header(path)
    except GGUFError as error:
        assert time.process_time() - start < MAX_SECONDS
        assert "\n" not in str(error)
        assert str(error).startswith(f"{path}: ")
        return None
    check(header)
    return header


def test_the_small_file_is_right(tmp_path: Path) -> None:
    header = read(tmp_path / "a.gguf", SMALL)
    assert header is not None
    assert header.data_offset == HEADER_BYTES
    assert len(header.tensors) == 3


def test_truncation_at_every_byte_is_refused(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        for size in range(len(SMALL)):
            assert read(tmp_path / "a.gguf", SMALL[:size]) is None, f"cut to {size} bytes"
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()


def test_any_single_byte_changed_gives_a_header_or_an_error(tmp_path: Path) -> None:
    refused = 0
    tracemalloc.start()
    try:
        for position in range(HEADER_BYTES):
            old = SMALL[position]
            for new in {0, 0xFF, 0x80, old ^ 1, (old + 1) & 0xFF, (old - 1) & 0xFF} - {old}:
                data = SMALL[:position] + bytes([new]) + SMALL[position + 1 :]
                refused += read(tmp_path / "a.gguf", data) is None
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()
    assert refused > HEADER_BYTES  # most changes are seen; a changed letter of a name is not


FUZZ = settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(st.binary(max_size=400))
def test_any_bytes_after_the_magic(tmp_path: Path, tail: bytes) -> None:
    read(tmp_path / "a.gguf", b"GGUF\x03\x00\x00\x00" + tail)


@FUZZ
@given(st.data())
def test_words_of_extreme_values_anywhere(tmp_path: Path, data: st.DataObject) -> None:
    changed = bytearray(SMALL)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(4, HEADER_BYTES - 8))
        word = data.draw(
            st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**60, 2**61 + 1, 2**63, 2**64 - 1])
            | st.integers(0, 2**64 - 1)
        )
        changed[position : position + 8] = struct.pack("<Q", word)
    tracemalloc.start()
    try:
        read(tmp_path / "a.gguf", bytes(changed))
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()


@FUZZ
@given(st.data())
def test_pieces_cut_out_doubled_or_moved(tmp_path: Path, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(SMALL)))
    last = data.draw(st.integers(first, len(SMALL)))
    place = data.draw(st.integers(0, len(SMALL)))
    rest = SMALL[:first] + SMALL[last:] if data.draw(st.booleans()) else SMALL
    read(tmp_path / "a.gguf", rest[:place] + SMALL[first:last] + rest[place:])


NUMBERS: dict[ValueType, st.SearchStrategy[int] | st.SearchStrategy[float]] = {
    ValueType.UINT8: st.integers(0, 2**8 - 1),
    ValueType.INT8: st.integers(-(2**7), 2**7 - 1),
    ValueType.UINT16: st.integers(0, 2**16 - 1),
    ValueType.INT16: st.integers(-(2**15), 2**15 - 1),
    ValueType.UINT32: st.integers(0, 2**32 - 1),
    ValueType.INT32: st.integers(-(2**31), 2**31 - 1),
    ValueType.FLOAT32: st.floats(width=32),
    ValueType.BOOL: st.booleans(),
    ValueType.UINT64: st.integers(0, 2**64 - 1),
    ValueType.INT64: st.integers(-(2**63), 2**63 - 1),
    ValueType.FLOAT64: st.floats(),
}
# any bytes at all, as the reader gives those that are no UTF-8
TEXTS = st.binary(max_size=20).map(lambda data: data.decode("utf-8", "surrogateescape"))


@st.composite
def values(draw: st.DrawFn) -> GGUFValue:
    kind = draw(st.sampled_from([ValueType.STRING, *NUMBERS]))
    items: st.SearchStrategy[int | float | str] = NUMBERS.get(kind, TEXTS)
    if draw(st.booleans()):
        return GGUFValue.array(kind, draw(st.lists(items, max_size=5)))
    return GGUFValue(kind, draw(items))


@st.composite
def tensors(draw: st.DrawFn) -> TensorToWrite:
    kind = draw(st.sampled_from(sorted(TENSOR_TYPES.values(), key=lambda kind: kind.id)))
    shape = (draw(st.integers(1, 2)) * kind.block_size, *draw(st.lists(st.integers(1, 3), max_size=3)))
    size = tensor_bytes(shape, kind)
    data = draw(st.sampled_from([None, bytes(size), [b"\xaa"] * size]))
    name = draw(st.text(st.characters(codec="utf-8"), min_size=1, max_size=15))
    return TensorToWrite(name, shape, kind, data)


@FUZZ
@given(
    st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1, max_size=20), values(), max_size=6),
    st.lists(tensors(), max_size=5, unique_by=lambda tensor: tensor.name),
    st.sampled_from([None, 8, 32, 4096]),
)
def test_what_is_written_is_read_back(
    tmp_path: Path, metadata: dict[str, GGUFValue], written: list[TensorToWrite], alignment: int | None
) -> None:
    metadata.pop("general.alignment", None)
    metadata["general.architecture"] = GGUFValue.string("test")
    if alignment is not None:
        metadata["general.alignment"] = GGUFValue.uint32(alignment)
    path = tmp_path / "a.gguf"
    assert write_gguf(path, metadata, written) == path.stat().st_size
    header = read_header(path)
    check(header)
    assert list(header.metadata) == list(metadata)
    for name, value in metadata.items():
        assert (header.metadata[name].type, header.metadata[name].item_type) == (value.type, value.item_type)
        assert encode_value(header.metadata[name]) == encode_value(value)
    assert [(t.name, t.shape, t.type) for t in header.tensors] == [(t.name, t.shape, t.type) for t in written]
    data = path.read_bytes()[header.data_offset :]
    for info_read, tensor in zip(header.tensors, written, strict=True):
        found = data[info_read.offset : info_read.offset + info_read.n_bytes]
        expected = bytes(info_read.n_bytes) if tensor.data is None else b"".join(pieces(tensor.data))
        assert found == expected
    again = tmp_path / "again.gguf"
    write_gguf(again, header.metadata, [TensorToWrite(t.name, t.shape, t.type, t.data) for t in written])
    assert again.read_bytes() == path.read_bytes()


def pieces(data: object) -> list[bytes]:
    assert isinstance(data, bytes | list)
    return [data] if isinstance(data, bytes) else data


@pytest.mark.parametrize("size", [0, 3, 4, 24, HEADER_BYTES - 1, HEADER_BYTES, len(SMALL) - 1])
def test_a_truncated_model_is_refused_by_open_model_too(size: int, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(SMALL[:size])
    with pytest.raises(GGUFError):
        open_model(path)
