"""Models in several parts, and maps of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from node.model.gguf.errors import GGUFError
from node.model.gguf.map import MappedModel
from node.model.gguf.split import ModelFile, open_model
from node.model.gguf.types import TYPE_BY_NAME, ValueType
from node.model.gguf.values import GGUFValue
from node.model.gguf.writer import TensorToWrite, write_gguf
from tests.gguf_files import DEMO, refusal

I8 = TYPE_BY_NAME["I8"]


def split(directory: Path, parts: int = 3, change: Mapping[tuple[int, str], int] | None = None) -> list[Path]:
    """The demo model in parts, as gguf-split makes them; `change` overrides a part's split keys."""
    model = open_model(DEMO)
    names = list(model.tensors)
    share = -(-len(names) // parts)
    paths = []
    with MappedModel(model) as mapped:
        for number in range(parts):
            metadata = dict(model.metadata) if number == 0 else {}
            for name, value in {"no": number, "count": parts, "tensors.count": len(names)}.items():
                value = (change or {}).get((number, name), value)
                kind = ValueType.INT32 if name == "tensors.count" else ValueType.UINT16
                metadata[f"split.{name}"] = GGUFValue(kind, value)
            tensors = [
                TensorToWrite(
                    name, model.tensors[name].shape, model.tensors[name].type, mapped.tensor_view(name)
                )
                for name in names[number * share : (number + 1) * share]
            ]
            paths.append(directory / f"demo-{number + 1:05d}-of-{parts:05d}.gguf")
            write_gguf(paths[-1], metadata, tensors)
    return paths


def contents(model: ModelFile) -> dict[str, bytes]:
    with MappedModel(model) as mapped:
        return {name: bytes(mapped.tensor_view(name)) for name in model.tensors}


def test_parts_give_the_same_model_as_the_whole_whichever_part_is_named(tmp_path: Path) -> None:
    whole = open_model(DEMO)
    expected = contents(whole)
    for path in split(tmp_path):
        model = open_model(path)
        assert len(model.parts) == 3
        assert model.path == tmp_path / "demo-00001-of-00003.gguf"
        assert list(model.metadata) == list(whole.metadata)
        assert model.architecture == "qwen2moe"
        assert list(model.tensors) == list(whole.tensors)
        assert contents(model) == expected


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    paths = split(tmp_path)
    paths[1].unlink()
    expected = "demo-00002-of-00003.gguf: this part of the model is missing"
    assert expected in refusal(lambda: open_model(paths[0]))
    assert expected in refusal(lambda: open_model(paths[2]))
    paths[2].unlink()
    assert "(and 1 more)" in refusal(lambda: open_model(paths[0]))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({(1, "no"): 2}, "split.no is 2, not 1"),
        ({(0, "no"): 1}, "split.no is 1, not 0"),
        ({(2, "count"): 4}, "split.count is 4, not 3"),
        ({(1, "tensors.count"): 70}, "split.tensors.count is 70, not 71"),
        ({(number, "tensors.count"): 70 for number in range(3)}, "hold 71 tensors, not 70"),
        ({(0, "count"): 4}, "its name says otherwise"),
        ({(0, "count"): 60000}, "at most"),
        ({(0, "count"): 1}, "says it is whole"),
    ],
)
def test_parts_that_do_not_belong_together(
    change: dict[tuple[int, str], int], expected: str, tmp_path: Path
) -> None:
    paths = split(tmp_path, change=change)
    assert expected in refusal(lambda: open_model(paths[0]))


def test_a_part_under_another_name(tmp_path: Path) -> None:
    paths = split(tmp_path)
    renamed = paths[0].rename(tmp_path / "model.gguf")
    assert "not named so" in refusal(lambda: open_model(renamed))


def test_a_tensor_in_two_parts(tmp_path: Path) -> None:
    for number in (0, 1):
        keys = {"split.no": number, "split.count": 2, "split.tensors.count": 2}
        metadata = {"general.architecture": GGUFValue.string("test")}
        metadata |= {name: GGUFValue(ValueType.UINT16, value) for name, value in keys.items()}
        write_gguf(
            tmp_path / f"a-{number + 1:05d}-of-00002.gguf", metadata, [TensorToWrite("same", (1,), I8, b"1")]
        )
    assert "tensor 'same' is also in a-00001" in refusal(
        lambda: open_model(tmp_path / "a-00001-of-00002.gguf")
    )


def test_a_file_without_architecture_is_no_model(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", {}, [])
    assert "no general.architecture" in refusal(lambda: open_model(tmp_path / "a.gguf"))


def small_model(path: Path, size: int = 8) -> ModelFile:
    metadata = {"general.architecture": GGUFValue.string("test")}
    write_gguf(path, metadata, [TensorToWrite("a", (size,), I8, bytes(range(8)) * (size // 8))])
    return open_model(path)


def test_views_are_read_only_and_outlive_the_map(tmp_path: Path) -> None:
    model = small_model(tmp_path / "a.gguf")
    with MappedModel(model) as mapped:
        view = mapped.tensor_view("a")
        assert view.readonly
        with pytest.raises(GGUFError, match="no tensor 'b'"):
            mapped.tensor_view("b")
        mapped.check_unchanged()
    assert bytes(view) == bytes(range(8))


def test_a_file_changed_before_it_is_mapped_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    model = small_model(path)
    small_model(path, 16)
    assert "was changed" in refusal(lambda: MappedModel(model))
    path.unlink()
    assert "cannot map" in refusal(lambda: MappedModel(model))


def test_a_file_changed_while_mapped_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    with MappedModel(small_model(path)) as mapped:
        small_model(path, 16)
        assert "was changed" in refusal(mapped.check_unchanged)
        assert bytes(mapped.tensor_view("a")) == bytes(range(8))  # the old file, as it was
    with MappedModel(open_model(path)) as mapped:
        os.truncate(path, 40)
        assert "was changed" in refusal(mapped.check_unchanged)


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


@pytest.mark.skipif(sys.platform != "linux", reason="RssAnon is Linux's")
def test_mapping_and_reading_a_model_takes_no_memory_of_our_own(tmp_path: Path) -> None:
    size = 128 << 20
    metadata = {"general.architecture": GGUFValue.string("test")}
    write_gguf(tmp_path / "a.gguf", metadata, [TensorToWrite("a", (size,), I8, None)])
    before = anonymous_bytes()
    with MappedModel(open_model(tmp_path / "a.gguf")) as mapped:
        view = mapped.tensor_view("a")
        assert not any(view[::4096])
        assert len(view) == size
        assert anonymous_bytes() - before < 4 << 20
