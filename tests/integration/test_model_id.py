"""The model id: the same for the same tensors, whatever the file is called or how it is split."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from node.engine.library import Library
from node.importing import import_model
from node.model.expert_names import parse_expert_name
from node.model.gguf.map import MappedModel
from node.model.gguf.split import open_model
from node.model.gguf.types import ValueType
from node.model.gguf.values import GGUFValue
from node.model.gguf.writer import TensorToWrite, write_gguf
from node.model.manifest import Manifest
from node.model.store import Store

NAME = "qwen3moe@scales"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def original(zoo_file: Callable[..., Path]) -> Path:
    return zoo_file(NAME)


@pytest.fixture
def known(library: Library, original: Path, tmp_path: Path) -> Manifest:
    return import_model(library, Store(tmp_path / "first"), original).manifest


def small(kind: ValueType, value: int) -> GGUFValue:
    return GGUFValue(kind, value)


def write_parts(model: Path, target: Path, count: int, **metadata: GGUFValue) -> list[Path]:
    """The model again, its tensors in `count` files, with other metadata; one file if count is 1."""
    file = open_model(model)
    everything = {**file.metadata, **metadata}
    names = list(file.tensors)
    paths = []
    with MappedModel(file) as mapped:
        for number in range(count):
            mine = names[len(names) * number // count : len(names) * (number + 1) // count]
            head = everything if number == 0 else {}
            if count > 1:
                head = {
                    **head,
                    "split.no": small(ValueType.UINT16, number),
                    "split.count": small(ValueType.UINT16, count),
                    "split.tensors.count": small(ValueType.INT32, len(names)),
                }
            name = (
                f"{target.name}-{number + 1:05d}-of-{count:05d}.gguf" if count > 1 else f"{target.name}.gguf"
            )
            path = target.with_name(name)
            tensors = [
                TensorToWrite(n, file.tensors[n].shape, file.tensors[n].type, bytes(mapped.tensor_view(n)))
                for n in mine
            ]
            write_gguf(path, head, tensors)
            paths.append(path)
    return paths


def flip(path: Path, tensor: str, byte: int) -> None:
    """Turn one bit of a tensor's data around (the sign or a low bit: it stays a number)."""
    found = open_model(path).tensors[tensor]
    assert 0 <= byte < found.n_bytes
    with path.open("r+b") as file:
        file.seek(found.offset + byte)
        old = file.read(1)[0]
        file.seek(found.offset + byte)
        file.write(bytes([old ^ 1]))


def test_another_name(
    library: Library, store: Store, original: Path, known: Manifest, tmp_path: Path
) -> None:
    copy = tmp_path / "elsewhere.gguf"
    copy.write_bytes(original.read_bytes())
    assert import_model(library, store, copy).model_id == known.model_id()


@pytest.mark.parametrize("count", [2, 3])
def test_split_into_parts(
    library: Library, store: Store, original: Path, known: Manifest, tmp_path: Path, count: int
) -> None:
    paths = write_parts(original, tmp_path / "model", count)
    assert len(paths) == count
    # Any part stands for the whole.
    stored = import_model(library, store, paths[-1])
    assert stored.model_id == known.model_id()
    assert stored.manifest == known
    assert len(store.sources(stored.model_id)[0].parts) == count


def test_another_order_in_the_file(
    library: Library, store: Store, original: Path, known: Manifest, tmp_path: Path
) -> None:
    file = open_model(original)
    with MappedModel(file) as mapped:
        tensors = [
            TensorToWrite(name, tensor.shape, tensor.type, bytes(mapped.tensor_view(name)))
            for name, tensor in reversed(file.tensors.items())
        ]
    path = tmp_path / "reversed.gguf"
    write_gguf(path, file.metadata, tensors)
    assert list(open_model(path).tensors) != list(file.tensors)
    assert import_model(library, store, path).manifest == known


def test_other_metadata_is_the_same_model(
    library: Library, store: Store, original: Path, known: Manifest, tmp_path: Path
) -> None:
    first = import_model(library, store, original)
    (path,) = write_parts(
        original,
        tmp_path / "renamed",
        1,
        **{
            "general.name": GGUFValue.string("other"),
            "tokenizer.chat_template": GGUFValue.string("{{ messages }}"),
        },
    )
    second = import_model(library, store, path)
    assert first.model_id == second.model_id == known.model_id()
    assert first.folder == second.folder
    # The backbone reads the metadata, so each file has a trunk of its own.
    assert first.trunk != second.trunk
    assert open_model(second.trunk).find_str("general.name") == "other"
    assert store.get(known.model_id()).trunk == second.trunk
    assert import_model(library, store, original).trunk == first.trunk


@pytest.mark.parametrize("where", ["expert", "scale", "trunk"])
def test_one_changed_bit_is_another_model(
    library: Library, store: Store, original: Path, known: Manifest, tmp_path: Path, where: str
) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(original.read_bytes())
    size = open_model(copy).tensors["blk.1.ffn_up_exps.weight"].n_bytes // 8
    tensor, byte = {
        "expert": ("blk.1.ffn_up_exps.weight", 3 * size),  # the first byte of expert 3
        "scale": ("blk.2.ffn_down_exps.scale", 4 * 7),
        "trunk": ("blk.0.attn_q.weight", 0),
    }[where]
    flip(copy, tensor, byte)
    changed = import_model(library, store, copy).manifest
    assert changed.model_id() != known.model_id()
    differing = [
        (old.layer, expert)
        for old, new in zip(known.calls, changed.calls, strict=True)
        for expert in range(old.n_experts)
        if old.digest(expert) != new.digest(expert)
    ]
    assert differing == {"expert": [(1, 3)], "scale": [(2, 7)], "trunk": []}[where]
    trunk = [old.name for old, new in zip(known.trunk, changed.trunk, strict=True) if old != new]
    assert trunk == (["blk.0.attn_q.weight"] if where == "trunk" else [])


def test_every_tensor_is_digested_once(original: Path, known: Manifest) -> None:
    file = open_model(original)
    experts = {tensor.name(call.layer, call.group) for call in known.calls for tensor in call.tensors}
    trunk = {tensor.name for tensor in known.trunk}
    assert experts.isdisjoint(trunk)
    assert experts | trunk == set(file.tensors)
    assert all(parse_expert_name(name) is not None for name in experts)
    assert known.expert_bytes == sum(file.tensors[name].n_bytes for name in experts)


def test_an_experts_digest_is_that_of_its_bytes(original: Path, known: Manifest) -> None:
    call = known.calls[1]
    with MappedModel(open_model(original)) as mapped:
        for expert in (0, 7):
            hasher = blake3()
            for tensor in sorted(call.tensors, key=lambda each: each.role):
                data = np.frombuffer(mapped.tensor_view(tensor.name(1, "exps")), np.uint8)
                hasher.update(data.reshape(8, -1)[expert].tobytes())
            assert call.digest(expert) == hasher.digest()
