"""The writer: byte-true, sparse where asked, and complete or absent."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from node.model.gguf.errors import GGUFError
from node.model.gguf.map import MappedModel
from node.model.gguf.reader import read_header
from node.model.gguf.split import open_model
from node.model.gguf.types import TYPE_BY_NAME, ValueType
from node.model.gguf.values import GGUFValue
from node.model.gguf.writer import TensorToWrite, write_gguf
from tests.gguf_files import DEMO, F32, SHARED_MODELS, refusal

I8 = TYPE_BY_NAME["I8"]


def rewrite(source: Path, target: Path) -> None:
    model = open_model(source)
    with MappedModel(model) as mapped:
        tensors = [
            TensorToWrite(t.name, t.shape, t.type, mapped.tensor_view(t.name)) for t in model.tensors.values()
        ]
        assert write_gguf(target, model.metadata, tensors) == target.stat().st_size


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_demo_model_written_again_is_the_same_file(tmp_path: Path) -> None:
    rewrite(DEMO, tmp_path / "again.gguf")
    assert digest(tmp_path / "again.gguf") == digest(DEMO)
    assert [path.name for path in tmp_path.iterdir()] == ["again.gguf"]


@pytest.mark.parametrize("number", range(5))
def test_the_shared_models_written_again_are_the_same_files(number: int, tmp_path: Path) -> None:
    paths = sorted(SHARED_MODELS.glob("*.gguf"))
    if number >= len(paths):
        pytest.skip(f"no model {number} in {SHARED_MODELS}")
    rewrite(paths[number], tmp_path / "again.gguf")
    assert digest(tmp_path / "again.gguf") == digest(paths[number])


def test_the_gguf_package_reads_what_we_write(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "written.gguf"
    values: dict[str, GGUFValue] = {
        "general.architecture": GGUFValue.string("ñ"),
        "general.alignment": GGUFValue.uint32(64),
        "flag": GGUFValue(ValueType.BOOL, True),
        "pi": GGUFValue(ValueType.FLOAT64, math.pi),
        "small": GGUFValue(ValueType.INT8, -128),
        "words": GGUFValue.array(ValueType.STRING, ["one", "", "three"]),
        "numbers": GGUFValue.array(ValueType.INT16, [-1, 0, 1]),
        "flags": GGUFValue.array(ValueType.BOOL, [True, False]),
    }
    numbers = np.arange(6, dtype=np.float32)
    tensors = [
        TensorToWrite("a", (3, 2), F32, numbers.tobytes()),
        TensorToWrite("b", (5,), I8, (piece for piece in (b"12", b"", b"345"))),
        TensorToWrite("hole", (100,), I8, None),
    ]
    write_gguf(path, values, tensors)
    theirs = gguf.GGUFReader(path)
    assert theirs.fields["words"].contents() == ["one", "", "three"]
    assert theirs.fields["numbers"].contents() == [-1, 0, 1]
    assert theirs.fields["pi"].contents() == math.pi
    a, b, hole = theirs.tensors
    assert a.data.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert b.data.tobytes() == b"12345"
    assert not hole.data.any()
    assert all(tensor.data_offset % 64 == 0 for tensor in theirs.tensors)
    ours = read_header(path)
    assert ours.metadata["flag"].value is True
    assert ours.metadata["small"].value == -128


def test_holes_take_no_space(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    tensors = [
        TensorToWrite("before", (4,), I8, b"abcd"),
        TensorToWrite("hole", (1 << 30,), I8, None),
        TensorToWrite("after", (4,), I8, b"efgh"),
    ]
    size = write_gguf(path, {}, tensors)
    assert size == path.stat().st_size > 1 << 30
    assert path.stat().st_blocks * 512 < 1 << 20
    after = read_header(path).tensors[2]
    with path.open("rb") as file:
        file.seek(read_header(path).data_offset + after.offset)
        assert file.read(4) == b"efgh"


def failing_data() -> Iterator[bytes]:
    yield bytes(8)
    raise RuntimeError("the source broke")


@pytest.mark.parametrize("data", [b"1234567", b"123456789", [b"1234", b"56789"], [], failing_data()])
def test_no_half_file_is_left_and_an_old_one_stays(data: bytes, tmp_path: Path) -> None:
    target = tmp_path / "model.gguf"
    target.write_bytes(b"the old one")
    with pytest.raises((GGUFError, RuntimeError)):
        write_gguf(target, {}, [TensorToWrite("a", (8,), I8, bytes(8)), TensorToWrite("b", (8,), I8, data)])
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]
    assert target.read_bytes() == b"the old one"


def test_too_little_space_is_seen_before_anything_is_written(tmp_path: Path) -> None:
    def never() -> Iterator[bytes]:
        raise AssertionError("data was asked for")
        yield b""

    message = refusal(
        lambda: write_gguf(tmp_path / "big.gguf", {}, [TensorToWrite("a", (1 << 55,), I8, never())])
    )
    assert "make room" in message
    assert not list(tmp_path.iterdir())


def test_a_missing_directory_is_one_clear_error(tmp_path: Path) -> None:
    assert "No such file" in refusal(lambda: write_gguf(tmp_path / "none" / "a.gguf", {}, []))


WRONG_TENSORS = {
    "twice": [TensorToWrite("a", (1,), I8, b"a"), TensorToWrite("a", (1,), I8, b"a")],
    "a name of 1 to 63 bytes": [TensorToWrite("n" * 64, (1,), I8, b"a")],
    "needs a name": [TensorToWrite("", (1,), I8, b"a")],
    "a dimension of 0": [TensorToWrite("a", (1, 0), I8, b"")],
    "5 dimensions": [TensorToWrite("a", (1,) * 5, I8, b"a")],
    "blocks of 256": [TensorToWrite("a", (32,), TYPE_BY_NAME["Q4_K"], b"a")],
}


@pytest.mark.parametrize("expected", WRONG_TENSORS)
def test_tensors_no_reader_would_take_are_refused(expected: str, tmp_path: Path) -> None:
    tensors = WRONG_TENSORS[expected]
    assert expected in refusal(lambda: write_gguf(tmp_path / "a.gguf", {}, tensors))
    assert not list(tmp_path.iterdir())


WRONG_VALUES = {
    "too big": GGUFValue(ValueType.UINT8, 256),
    "negative": GGUFValue(ValueType.UINT32, -1),
    "not a number": GGUFValue(ValueType.UINT32, "1"),
    "not a string": GGUFValue(ValueType.STRING, 1),
    "number as bool": GGUFValue(ValueType.BOOL, 1),
    "bool as number": GGUFValue(ValueType.UINT8, True),
    "array without item type": GGUFValue(ValueType.ARRAY, np.zeros(1, np.uint8)),
    "array of other items": GGUFValue(ValueType.ARRAY, np.zeros(1, np.uint8), ValueType.UINT16),
}


@pytest.mark.parametrize("case", WRONG_VALUES)
def test_values_that_do_not_fit_their_type_are_refused(case: str, tmp_path: Path) -> None:
    assert "'k'" in refusal(lambda: write_gguf(tmp_path / "a.gguf", {"k": WRONG_VALUES[case]}, []))


def test_bad_alignment_is_refused(tmp_path: Path) -> None:
    for value in (GGUFValue.uint32(0), GGUFValue.uint32(48), GGUFValue(ValueType.UINT64, 32)):
        message = refusal(partial(write_gguf, tmp_path / "a.gguf", {"general.alignment": value}, []))
        assert "power of two" in message
