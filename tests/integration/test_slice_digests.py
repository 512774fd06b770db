"""A slice file's experts must have the digests of its manifest; the store remembers that they had."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.config import ModelRef, ServeConfig
from node.engine import library as llama
from node.importing import import_model
from node.model.gguf.split import open_model
from node.model.manifest import ManifestError
from node.model.slice_file import cut_slice
from node.model.store import Store
from node.serve.opening import open_cells


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def piece(tmp_path: Path, store: Store, demo_model: Path) -> Path:
    manifest = import_model(llama.load(), store, demo_model).manifest
    target = tmp_path / "piece.gguf"
    cut_slice(
        open_model(demo_model), manifest.encoded(), manifest.model_id(), range(1, 3), range(4, 9), target
    )
    return target


def serve(store: Store, path: Path) -> int:
    entry = ServeConfig(model=ModelRef(path=path), layers=None, experts=None)
    with open_cells(llama.load(), store, [entry]) as opened:
        return opened.cells.count()


def flip(path: Path, tensor: str, position: int) -> None:
    found = open_model(path).tensors[tensor]
    with path.open("r+b") as file:
        file.seek(found.offset + position)
        byte = file.read(1)[0]
        file.seek(found.offset + position)
        file.write(bytes([byte ^ 1]))


def test_an_honest_slice_is_read_through_once(store: Store, piece: Path) -> None:
    assert not store.is_checked(open_model(piece))
    assert serve(store, piece) == 2 * 5
    assert store.is_checked(open_model(piece))
    assert serve(store, piece) == 2 * 5


@pytest.mark.parametrize("tensor", ["blk.1.ffn_down_exps.weight", "blk.2.ffn_gate_exps.weight"])
def test_one_bit_is_noticed(store: Store, piece: Path, tensor: str) -> None:
    size = open_model(piece).tensors[tensor].n_bytes
    flip(piece, tensor, size - 1)
    with pytest.raises(ManifestError, match=rf"layer {tensor[4]}: expert 8 does not have the bytes"):
        serve(store, piece)
    assert not store.is_checked(open_model(piece))


def test_a_file_changed_after_it_was_checked_is_read_again(store: Store, piece: Path) -> None:
    serve(store, piece)
    flip(piece, "blk.1.ffn_up_exps.weight", 0)
    with pytest.raises(ManifestError, match="expert 4 "):
        serve(store, piece)
