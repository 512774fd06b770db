"""The strict header reader: what it reads, and that it refuses everything else cheaply."""

from __future__ import annotations

import os
import struct
import time
import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from node.model.gguf.reader import MAX_ARRAY_BYTES, MAX_STRING_BYTES, read_header
from node.model.gguf.types import TENSOR_TYPES, ValueType, tensor_bytes
from node.model.gguf.values import StringArray
from tests.gguf_files import DEMO, SHARED_MODELS, array, info, key, raw_file, refusal, text

U8, U32, BOOL, STRING, ARRAY, U64 = 0, 4, 7, 8, 9, 10
HUGE = 1 << 63
Q4_K = 12

ONE = info(b"a", [8], 0, 0)
DATA = bytes(32)


def alignment_key(value: int, kind: int = U32) -> bytes:
    return key(b"general.alignment", kind, struct.pack("<Q", value)[: 8 if kind == U64 else 4])


MALFORMED: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "the magic needs 4 bytes"),
    "another format": (b"PK\x03\x04" + bytes(60), "not a GGUF file"),
    "version 0": (raw_file(version=0), "version 0"),
    "version 1": (raw_file(version=1), "version 1"),
    "version 4": (raw_file(version=4), "version 4"),
    "big-endian": (raw_file(version=3 << 24), "big-endian"),
    "2^63 tensors": (raw_file(n_tensors=HUGE), "tensors claimed"),
    "2^63 keys": (raw_file(n_keys=HUGE), "keys claimed"),
    "2^64-1 of both": (raw_file(n_tensors=2 * HUGE - 1, n_keys=2 * HUGE - 1), "claimed"),
    "more tensors than bytes": (raw_file(n_tensors=8000), "a header of 0 keys and 8000 tensors"),
    "more keys than bytes": (raw_file(n_keys=4000), "a header of 4000 keys"),
    "empty key": (raw_file([key(b"", U8, b"\0")]), "the name of key 0 is empty"),
    "key of 2^63 bytes": (
        raw_file([struct.pack("<Q", HUGE) + bytes(64)]),
        "claims 9223372036854775808 bytes",
    ),
    "key of 2^64-1 bytes": (raw_file([struct.pack("<Q", 2 * HUGE - 1) + bytes(64)]), "bytes, at most"),
    "key longer than the file": (raw_file([struct.pack("<Q", 60000) + bytes(64)]), "the file has"),
    "key is no UTF-8": (raw_file([key(b"a\xff", U8, b"\0")]), "not UTF-8"),
    "key twice": (raw_file([key(b"k", U8, b"\0"), key(b"k", U32, bytes(4))]), "'k' occurs twice"),
    "unknown value type": (raw_file([key(b"k", 13, bytes(64))]), "unknown value type 13"),
    "bool of 2": (raw_file([key(b"k", BOOL, b"\2")]), "neither 0 nor 1"),
    "array of bools of 2": (raw_file([key(b"k", ARRAY, array(BOOL, 3, b"\0\1\2"))]), "neither 0 nor 1"),
    "string of 2^63 bytes": (raw_file([key(b"k", STRING, struct.pack("<Q", HUGE))]), "claims 92233720"),
    "string past the end": (raw_file([key(b"k", STRING, struct.pack("<Q", 5000))]), "the file has"),
    "nested array": (raw_file([key(b"k", ARRAY, array(ARRAY, 1, array(U8, 1, b"\0")))]), "array of arrays"),
    "array of unknown items": (raw_file([key(b"k", ARRAY, array(99, 1, bytes(8)))]), "unknown value type 99"),
    "array of 2^60 bytes": (
        raw_file([key(b"k", ARRAY, array(U8, 1 << 60, b""))]),
        "1152921504606846976 items",
    ),
    "array that wraps 2^64": (raw_file([key(b"k", ARRAY, array(U64, (1 << 61) + 1, b""))]), "items, at most"),
    "array of 2^60 strings": (raw_file([key(b"k", ARRAY, array(STRING, 1 << 60, b""))]), "items, at most"),
    "array past the end": (raw_file([key(b"k", ARRAY, array(U32, 1000, bytes(8)))]), "the file has"),
    "strings past the end": (
        raw_file([key(b"k", ARRAY, array(STRING, 3, text(b"a") + struct.pack("<Q", 1 << 40) + bytes(40)))]),
        "runs past the end of the file after 2 of 3 items",
    ),
    "string item that wraps": (
        raw_file(
            [key(b"k", ARRAY, array(STRING, 3, text(b"a") + struct.pack("<Q", 2 * HUGE - 8) + bytes(40)))]
        ),
        "runs past the end of the file after 2 of 3 items",
    ),
    "alignment 0": (raw_file([alignment_key(0)]), "alignment is 0"),
    "alignment 24": (raw_file([alignment_key(24)]), "alignment is 24"),
    "alignment 4": (raw_file([alignment_key(4)]), "alignment is 4"),
    "alignment 2^31": (raw_file([alignment_key(1 << 31)]), "alignment is 2147483648"),
    "alignment as u64": (raw_file([alignment_key(32, U64)]), "is a UINT64"),
    "empty tensor name": (raw_file([], [info(b"", [8], 0, 0)], DATA), "the name of tensor 0 is empty"),
    "tensor name of 64 bytes": (raw_file([], [info(b"n" * 64, [8], 0, 0)], DATA), "at most 63"),
    "tensor name is no UTF-8": (raw_file([], [info(b"\xc3", [8], 0, 0)], DATA), "not UTF-8"),
    "tensor twice": (raw_file([], [ONE, info(b"a", [8], 0, 32)], bytes(64)), "'a' occurs twice"),
    "0 dimensions": (raw_file([], [info(b"a", [], 0, 0) + bytes(8)], DATA), "0 dimensions"),
    "5 dimensions": (raw_file([], [info(b"a", [1] * 5, 0, 0)], DATA), "5 dimensions"),
    "2^32-1 dimensions": (raw_file([], [info(b"a", [8], 0, 0, n_dims=2**32 - 1)], DATA), "4294967295 dim"),
    "dimension 0": (raw_file([], [info(b"a", [8, 0], 0, 0)], DATA), "a dimension of 0"),
    "product wraps 2^64 to 0": (raw_file([], [info(b"a", [1 << 32, 1 << 32], 0, 0)], DATA), "2^63 elements"),
    "product wraps 2^64 to 8": (raw_file([], [info(b"a", [1 << 63, 2, 4], 0, 0)], DATA), "2^63 elements"),
    "bytes wrap 2^64": (raw_file([], [info(b"a", [(1 << 62) + 2], 0, 0)], DATA), "of which the file has 32"),
    "no whole blocks": (raw_file([], [info(b"a", [255], Q4_K, 0)], DATA * 8), "blocks of 256"),
    "removed tensor type": (raw_file([], [info(b"a", [32], 4, 0)], DATA), "tensor type 4"),
    "unknown tensor type": (raw_file([], [info(b"a", [32], 1000, 0)], DATA), "tensor type 1000"),
    "offset past the end": (raw_file([], [info(b"a", [8], 0, 32)], DATA), "unfinished download?"),
    "offset of 2^64-32": (raw_file([], [info(b"a", [8], 0, 2**64 - 32)], DATA), "unfinished download?"),
    "data one byte short": (raw_file([], [ONE], DATA[:-1]), "unfinished download?"),
    "misaligned": (raw_file([], [info(b"a", [4], 0, 16)], DATA), "no multiple of the alignment"),
    "overlapping": (raw_file([], [info(b"a", [16], 0, 0), info(b"b", [8], 0, 32)], bytes(64)), "overlaps"),
    "same place": (raw_file([], [ONE, info(b"b", [8], 0, 0)], DATA), "overlaps tensor 'a'"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files_are_refused_with_a_clear_and_cheap_error(case: str, tmp_path: Path) -> None:
    data, expected = MALFORMED[case]
    path = tmp_path / "broken.gguf"
    path.write_bytes(data)
    message = refusal(partial(read_header, path))
    assert message.startswith(f"{path}: ")
    assert expected in message


def sparse(path: Path, head: bytes, size: int = 1 << 42) -> Path:
    """A file that really has the bytes it claims, but as a hole: the size of the file is no protection."""
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)
    return path


def test_claims_covered_by_a_huge_sparse_file_are_refused(tmp_path: Path) -> None:
    heads = (
        raw_file([key(b"k", STRING, struct.pack("<Q", 1 << 40))], alignment=1),
        raw_file([key(b"k", STRING, struct.pack("<Q", MAX_STRING_BYTES + 1))], alignment=1),
        raw_file([key(b"k", ARRAY, array(U8, 1 << 40, b""))], alignment=1),
        raw_file([key(b"k", ARRAY, array(U64, MAX_ARRAY_BYTES // 8 + 1, b""))], alignment=1),
        raw_file([key(b"k", ARRAY, array(STRING, 1 << 30, b""))], alignment=1),
        raw_file([key(b"k", STRING, struct.pack("<Q", MAX_STRING_BYTES))], n_keys=2, alignment=1),
        raw_file(n_keys=4000, alignment=1),
        raw_file(n_tensors=8000, alignment=1),
    )
    for number, head in enumerate(heads):
        path = sparse(tmp_path / f"{number}.gguf", head)
        message = refusal(partial(read_header, path))
        assert "accepted" in message or "empty" in message


def test_many_long_arrays_are_refused_together(tmp_path: Path) -> None:
    body = array(U8, 1 << 20, bytes(1 << 20))
    path = tmp_path / "long.gguf"
    path.write_bytes(raw_file([key(b"k%d" % number, ARRAY, body) for number in range(32)]))
    assert "claims 1048576 bytes, at most" in refusal(partial(read_header, path))


def test_long_texts_are_charged_by_the_memory_they_take(tmp_path: Path) -> None:
    """A str with one character outside the basic plane takes 4 bytes for each of its characters."""
    bee = "\N{HONEYBEE}".encode()
    path = tmp_path / "wide.gguf"
    for number, count in ((1 << 20, 9), (5 << 20, 1), (11 << 20, 1)):
        value = text(b"x" * (number - 4) + bee)
        path.write_bytes(raw_file([key(b"k%d" % index, STRING, value) for index in range(count)]))
        assert "accepted" in refusal(partial(read_header, path))
    value = text(b"x" * (9 << 20))
    path.write_bytes(raw_file([key(b"k%d" % index, STRING, value) for index in range(3)]))
    assert "accepted" in refusal(partial(read_header, path))
    path.write_bytes(raw_file([key(b"k", STRING, text(b"x" * MAX_STRING_BYTES))]))
    assert len(str(read_header(path).metadata["k"].value)) == MAX_STRING_BYTES


def test_many_long_keys_are_refused_together(tmp_path: Path) -> None:
    for filler in (b"k" * 65000, b"k" * 65000 + "\N{HONEYBEE}".encode()):
        path = tmp_path / "keys.gguf"
        path.write_bytes(raw_file([key(filler + b"%03d" % number, U8, b"\0") for number in range(450)]))
        assert "metadata takes more than" in refusal(partial(read_header, path))


def test_as_many_tensors_and_strings_as_are_accepted_stay_within_bounds(tmp_path: Path) -> None:
    filler = "\N{HONEYBEE}".encode() * 14
    infos = [info(filler + b"%04d" % number, [1 << 12] * 4, 0, 0) for number in range(8192)]
    keys = [key(b"k", ARRAY, array(STRING, 1 << 19, bytes(8 << 19)))]
    path = tmp_path / "many.gguf"
    # 75 ms on the machine this was written on: the largest headers accepted may miss 100 ms on slower ones
    path.write_bytes(raw_file(keys, infos))
    assert "unfinished download?" in refusal(partial(read_header, path), max_seconds=0.3)


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "not a regular file" in refusal(lambda: read_header(tmp_path / "pipe.gguf"))
    assert "not a regular file" in refusal(lambda: read_header(tmp_path))
    assert "No such file" in refusal(lambda: read_header(tmp_path / "none.gguf"))


def test_every_value_type_comes_back_as_it_was(tmp_path: Path) -> None:
    forms = {
        0: "<B",
        1: "<b",
        2: "<H",
        3: "<h",
        4: "<I",
        5: "<i",
        6: "<f",
        7: "<?",
        10: "<Q",
        11: "<q",
        12: "<d",
    }
    keys = [key(f"one.{kind}".encode(), kind, struct.pack(form, 1)) for kind, form in forms.items()]
    keys += [
        key(f"many.{kind}".encode(), ARRAY, array(kind, 3, struct.pack(f"<3{form[1]}", 1, 0, 1)))
        for kind, form in forms.items()
    ]
    keys += [key(b"text", STRING, text("panal ñ".encode())), key(b"raw", STRING, text(b"\xff\xfe"))]
    keys += [key(b"texts", ARRAY, array(STRING, 3, text(b"a") + text(b"") + text(b"\xff")))]
    keys += [key(b"none", ARRAY, array(STRING, 0, b"")), key(b"zero", ARRAY, array(U32, 0, b""))]
    path = tmp_path / "values.gguf"
    path.write_bytes(raw_file(keys))
    metadata = read_header(path).metadata
    assert len(metadata) == len(keys)
    for kind in forms:
        assert metadata[f"one.{kind}"].type == kind
        assert metadata[f"one.{kind}"].value == 1
        many = metadata[f"many.{kind}"]
        assert many.item_type == kind
        assert isinstance(many.value, np.ndarray)
        assert many.value.tolist() == [1, 0, 1]
        assert not many.value.flags.writeable
    assert metadata["text"].value == "panal ñ"
    assert str(metadata["raw"].value).encode("utf-8", "surrogateescape") == b"\xff\xfe"
    texts = metadata["texts"].value
    assert isinstance(texts, StringArray)
    assert list(texts) == ["a", "", "\udcff"] == texts[:]
    assert texts[-1] == "\udcff"
    for empty in (metadata["none"].value, metadata["zero"].value):
        assert isinstance(empty, StringArray | np.ndarray)
        assert len(empty) == 0


@pytest.mark.parametrize("version", [2, 3])
def test_tensors_alignment_and_data_offset(version: int, tmp_path: Path) -> None:
    infos = [info(b"a", [256, 3], Q4_K, 0), info(b"b", [2, 3, 4, 5], 1, 512)]
    path = tmp_path / "tensors.gguf"
    path.write_bytes(raw_file([alignment_key(64)], infos, bytes(752), version=version, alignment=64))
    header = read_header(path)
    assert (header.version, header.alignment, header.file_size) == (version, 64, path.stat().st_size)
    assert header.data_offset == header.file_size - 752
    assert [(t.name, t.shape, t.type.name, t.offset, t.n_bytes) for t in header.tensors] == [
        ("a", (256, 3), "Q4_K", 0, 432),
        ("b", (2, 3, 4, 5), "F16", 512, 240),
    ]


def test_a_tokenizer_of_300_000_strings_is_read_fast_and_kept_small(tmp_path: Path) -> None:
    count = 300_000
    tokens = b"".join(text(b"token%d" % number) for number in range(count))
    merges = b"".join(text(b"le ft%d" % number) for number in range(count))
    keys = [
        key(b"tokens", ARRAY, array(STRING, count, tokens)),
        key(b"merges", ARRAY, array(STRING, count, merges)),
        key(b"scores", ARRAY, array(6, count, bytes(4 * count))),
    ]
    path = tmp_path / "tokenizer.gguf"
    path.write_bytes(raw_file(keys))
    start = time.process_time()
    header = read_header(path)
    assert time.process_time() - start < 1.5
    value = header.metadata["merges"].value
    assert isinstance(value, StringArray)
    assert (len(value), value[0], value[count - 1]) == (count, "le ft0", f"le ft{count - 1}")
    tracemalloc.start()
    try:
        read_header(path)
        assert tracemalloc.get_traced_memory()[1] < (32 << 20)
    finally:
        tracemalloc.stop()


def test_a_broken_tail_after_a_big_tokenizer_is_still_cheap(tmp_path: Path) -> None:
    count = 100_000
    tokens = b"".join(text(b"token%d" % number) for number in range(count))
    path = tmp_path / "tail.gguf"
    path.write_bytes(raw_file([key(b"tokens", ARRAY, array(STRING, count, tokens)), key(b"k", 13, b"")]))
    assert "unknown value type 13" in refusal(partial(read_header, path))
    path.write_bytes(raw_file([key(b"tokens", ARRAY, array(STRING, count, tokens[:-9]))], alignment=1))
    assert f"after {count} of {count} items" in refusal(partial(read_header, path))


def compare_with_gguf_package(path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    theirs = gguf.GGUFReader(path)
    ours = read_header(path)
    assert ours.data_offset == theirs.data_offset
    assert ours.alignment == theirs.alignment
    fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert list(ours.metadata) == list(fields)
    for name, field in fields.items():
        entry = ours.metadata[name]
        assert entry.type == field.types[0]
        assert entry.item_type == (field.types[-1] if entry.type is ValueType.ARRAY else None)
        value = entry.value.tolist() if isinstance(entry.value, np.ndarray) else entry.value
        assert (list(value) if isinstance(value, StringArray) else value) == field.contents()
    assert [
        (t.name, list(t.shape), t.type.id, t.n_bytes, ours.data_offset + t.offset) for t in ours.tensors
    ] == [
        (t.name, t.shape.tolist(), int(t.tensor_type), int(t.n_bytes), int(t.data_offset))
        for t in theirs.tensors
    ]


def test_agrees_with_the_gguf_package_on_the_demo_model() -> None:
    compare_with_gguf_package(DEMO)


@pytest.mark.parametrize("number", range(5))
def test_agrees_with_the_gguf_package_on_the_shared_models(number: int) -> None:
    paths = sorted(SHARED_MODELS.glob("*.gguf"))
    if number >= len(paths):
        pytest.skip(f"no model {number} in {SHARED_MODELS}")
    compare_with_gguf_package(paths[number])


def test_tensor_types_agree_with_the_gguf_package() -> None:
    constants = pytest.importorskip("gguf.constants")
    for kind, size in constants.GGML_QUANT_SIZES.items():
        if kind.name == "Q8_1":  # ggml's own is 36 bytes, see types.py
            continue
        assert (TENSOR_TYPES[int(kind)].block_size, TENSOR_TYPES[int(kind)].block_bytes) == size
        assert TENSOR_TYPES[int(kind)].name == kind.name


def test_tensor_bytes() -> None:
    assert tensor_bytes((256, 2, 3), TENSOR_TYPES[Q4_K]) == 864
    with pytest.raises(ValueError, match="dimensions"):
        tensor_bytes((), TENSOR_TYPES[0])
