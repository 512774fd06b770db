"""From `[[serve]]` to cells: whole models, slice files, ranges, and what is refused."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from blake3 import blake3

from node.config import ModelRef, ServeConfig
from node.engine.library import Library
from node.importing import import_model
from node.inspection import inspect_slice
from node.model import recipe as R
from node.model.manifest import Manifest
from node.model.slice_file import cut_slice
from node.model.store import Store
from node.ranges import Ranges
from node.serve.cells import Cells
from node.serve.opening import open_cells, open_trunk, open_whole
from routing.errors import LocalError
from tests.model_parts import ModelParts
from tests.served import request

Parts = Callable[..., ModelParts]


@pytest.fixture
def model(parts: Parts) -> ModelParts:
    return parts("demo")


def entry(model: Path | str, layers: str | None = None, experts: str | None = None) -> ServeConfig:
    ref = ModelRef(path=model) if isinstance(model, Path) else ModelRef(model_id=model)
    return ServeConfig(
        model=ref,
        layers=Ranges.parse(layers) if layers else None,
        experts=Ranges.parse(experts) if experts else None,
    )


def held_in(cells: Cells, model: ModelParts) -> dict[tuple[int, int], list[int]]:
    found = {}
    for call in model.manifest.calls:
        held = cells.find(bytes.fromhex(model.stored.model_id), call.layer, call.index)
        if held is not None:
            found[call.layer, call.index] = held.experts()
    return found


def refused(model: ModelParts, *entries: ServeConfig) -> str:
    with pytest.raises(LocalError) as caught, open_cells(model.library, model.store, entries):
        pass
    assert "\n" not in str(caught.value)
    return str(caught.value)


def cut(
    model: ModelParts, target: Path, layers: range, experts: range, manifest: Manifest | None = None
) -> Path:
    encoded = (manifest or model.manifest).encoded()
    cut_slice(model.file, encoded, model.stored.model_id, layers, experts, target)
    return target


def compute(cells: Cells, model: ModelParts, layer: int, experts: tuple[int, ...]) -> bytes:
    asked = request(model, layer, experts=experts)
    held = cells.find(asked.model_id, layer, 0)
    assert held is not None and held.missing(asked.experts) == ()
    return held.compute(model.kernels, asked.x, asked.counts, asked.experts, asked.weights).tobytes()


def right(model: ModelParts, layer: int, experts: tuple[int, ...]) -> bytes:
    asked = request(model, layer, experts=experts)
    return model.kernels.run(
        model.held[layer, "exps"], asked.x, asked.counts, asked.experts, asked.weights
    ).tobytes()


def test_a_whole_model(model: ModelParts) -> None:
    with open_cells(model.library, model.store, [entry(model.path)]) as opened:
        assert held_in(opened.cells, model) == {(layer, 0): list(range(12)) for layer in range(4)}
        assert opened.cells.count() == 48
        assert compute(opened.cells, model, 2, (0, 11)) == right(model, 2, (0, 11))


def test_ranges_and_a_model_by_its_id(model: ModelParts) -> None:
    by_id = entry(model.stored.model_id[:12], "0,2-3", "1-2,7")
    with open_cells(model.library, model.store, [by_id]) as opened:
        assert held_in(opened.cells, model) == {(layer, 0): [1, 2, 7] for layer in (0, 2, 3)}
        assert compute(opened.cells, model, 3, (7, 2, 1)) == right(model, 3, (7, 2, 1))


def test_several_entries_add_up(model: ModelParts, parts: Parts) -> None:
    other = parts("grovemoe")
    entries = [entry(model.path, "0", "0-3"), entry(model.path, "0-1", "2-5"), entry(other.path, "1", "2-3")]
    with open_cells(model.library, model.store, entries) as opened:
        assert held_in(opened.cells, model) == {(0, 0): [0, 1, 2, 3, 4, 5], (1, 0): [2, 3, 4, 5]}
        assert held_in(opened.cells, other) == {(1, 0): [2, 3], (1, 1): [1]}
        assert [held.architecture for held in opened.cells.slices()] == ["qwen2moe", "grovemoe"]
        assert compute(opened.cells, model, 0, (0, 5, 3)) == right(model, 0, (0, 5, 3))


@pytest.mark.parametrize(
    ("layers", "experts", "message"),
    [
        ("4", None, "layers 4 hold no routed experts"),
        ("0-4", None, "layers"),
        ("0", "12", "layer 0 has experts 0-11, not 12-12"),
        ("1-2", "3-99", "layer 1 has experts 0-11, not 3-99"),
    ],
)
def test_ranges_that_are_not_there(model: ModelParts, layers: str, experts: str | None, message: str) -> None:
    assert message in refused(model, entry(model.path, layers, experts))


def test_layers_without_experts_are_passed_over(parts: Parts) -> None:
    llama4 = parts("llama4")
    with open_cells(llama4.library, llama4.store, [entry(llama4.path)]) as opened:
        assert sorted(held_in(opened.cells, llama4)) == [(1, 0), (3, 0)]
    with open_cells(llama4.library, llama4.store, [entry(llama4.path, "0-1", "2")]) as opened:
        assert held_in(opened.cells, llama4) == {(1, 0): [2]}
    assert "choose among 1-3" in refused(llama4, entry(llama4.path, "0,2"))


# --- slice files ---


def test_a_slice_file_needs_no_model(model: ModelParts, tmp_path: Path) -> None:
    path = cut(model, tmp_path / "slice.gguf", range(1, 3), range(4, 9))
    empty = Store(tmp_path / "store")
    with open_cells(model.library, empty, [entry(path)]) as opened:
        assert held_in(opened.cells, model) == {(layer, 0): [4, 5, 6, 7, 8] for layer in (1, 2)}
        assert compute(opened.cells, model, 2, (4, 8, 6)) == right(model, 2, (4, 8, 6))
    assert not (empty.root / "models").exists()


def test_a_part_of_a_slice_file_and_two_of_them(model: ModelParts, tmp_path: Path) -> None:
    first = cut(model, tmp_path / "a.gguf", range(4), range(5))
    second = cut(model, tmp_path / "b.gguf", range(2, 4), range(3, 12))
    with open_cells(model.library, model.store, [entry(first, "2", "1-4"), entry(second)]) as opened:
        assert held_in(opened.cells, model) == {(2, 0): list(range(1, 12)), (3, 0): list(range(3, 12))}
        assert compute(opened.cells, model, 2, (1, 11, 4, 3)) == right(model, 2, (1, 11, 4, 3))


def test_chunk_experts_come_with_their_experts(parts: Parts, tmp_path: Path) -> None:
    grove = parts("grovemoe")
    path = cut(grove, tmp_path / "slice.gguf", range(2), range(3, 6))
    with open_cells(grove.library, grove.store, [entry(path)]) as opened:
        runs = {(layer, index): [3, 4, 5] if index == 0 else [1, 2] for layer in (0, 1) for index in (0, 1)}
        assert held_in(opened.cells, grove) == runs
        key = bytes.fromhex(grove.stored.model_id)
        held = opened.cells.find(key, 1, 1)
        assert held is not None
        asked = request(grove, 1, experts=(2, 1))
        found = held.compute(grove.kernels, asked.x, asked.counts, asked.experts, asked.weights)
        whole = grove.held[1, "chexps"]
        expected = grove.kernels.run(whole, asked.x, asked.counts, asked.experts, asked.weights)
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("layers", "experts", "message"),
    [
        (None, "3-4", "holds experts 4-8, not 3-4"),
        (None, "9", "holds experts 4-8, not 9-9"),
        ("0", None, "has no tensor blk.0"),
        ("9", None, "hold no routed experts"),
    ],
)
def test_what_a_slice_file_does_not_hold(
    model: ModelParts, tmp_path: Path, layers: str | None, experts: str | None, message: str
) -> None:
    path = cut(model, tmp_path / "slice.gguf", range(1, 3), range(4, 9))
    assert message in refused(model, entry(path, layers, experts))


def test_a_slice_file_with_another_manifest(model: ModelParts, tmp_path: Path) -> None:
    first = model.manifest.calls[0]
    other = msgspec.structs.replace(first, layer=77)
    manifest = msgspec.structs.replace(model.manifest, calls=(other, *model.manifest.calls[1:]))
    path = cut(model, tmp_path / "slice.gguf", range(1, 3), range(4, 9), manifest)
    assert "is the manifest of model" in refused(model, entry(path))


def test_a_slice_file_of_an_older_panal(model: ModelParts, tmp_path: Path) -> None:
    value = json.loads(model.manifest.encoded())
    value["version"] = 1
    for call in value["calls"]:
        del call["run_length"]
    encoded = msgspec.json.encode(value, order="sorted")
    path = tmp_path / "old.gguf"
    cut_slice(model.file, encoded, blake3(encoded).hexdigest(), range(1), range(1), path)
    told = f"{path}: made by an older panal; cut it again with this one"
    assert refused(model, entry(path)) == told
    with pytest.raises(LocalError) as caught:
        inspect_slice(path)
    assert str(caught.value) == told


def test_a_slice_file_whose_manifest_would_abort_ggml(model: ModelParts, tmp_path: Path) -> None:
    call = model.manifest.calls[0]
    recipe = R.Recipe("after", R.Norm("NORM", -1.0, call.recipe.output))
    calls = (msgspec.structs.replace(call, recipe=recipe), *model.manifest.calls[1:])
    manifest = msgspec.structs.replace(model.manifest, calls=calls)
    path = tmp_path / "slice.gguf"
    cut_slice(model.file, manifest.encoded(), manifest.model_id(), range(1), range(1), path)
    message = refused(model, entry(path))
    assert str(path) in message and "epsilon" in message


# --- models by id ---


def test_a_model_whose_file_is_gone(library: Library, tmp_path: Path, model: ModelParts) -> None:
    store = Store(tmp_path / "store")
    copy = tmp_path / "model.gguf"
    copy.write_bytes(model.path.read_bytes())
    stored = import_model(library, store, copy)
    ref = ModelRef(model_id=stored.model_id)
    assert open_whole(library, store, ref)[1].path == copy
    os.utime(copy, ns=(1, 1))
    with pytest.raises(LocalError, match="its file is gone or changed"):
        open_whole(library, store, ref)
    copy.unlink()
    with pytest.raises(LocalError) as caught:
        open_whole(library, store, ref)
    assert str(copy) in str(caught.value) and "give the path of the file" in str(caught.value)
    # The trunk is there all the same: a backbone needs no more.
    assert open_trunk(library, store, ref) == stored
    # Any unchanged file of the model will do.
    second = tmp_path / "second.gguf"
    second.write_bytes(model.path.read_bytes())
    import_model(library, store, second)
    assert open_whole(library, store, ref)[1].path == second


def test_a_model_by_path_is_imported(library: Library, tmp_path: Path, model: ModelParts) -> None:
    store = Store(tmp_path / "store")
    stored = open_trunk(library, store, ModelRef(path=model.path))
    assert stored.model_id == model.stored.model_id
    assert open_trunk(library, store, ModelRef(model_id=stored.model_id[:6])) == stored


def test_no_map_stays_open_after_a_refusal(model: ModelParts, tmp_path: Path) -> None:
    def open_maps() -> int:
        gc.collect()
        return Path("/proc/self/maps").read_text().count(str(tmp_path))

    path = tmp_path / "model.gguf"
    path.write_bytes(model.path.read_bytes())
    refused(model, entry(path, "0", "0-3"), entry(path, "0", "99"))
    assert open_maps() == 0
    with open_cells(model.library, model.store, [entry(path, "0", "0-3")]) as opened:
        assert open_maps() > 0 and opened.cells.count() == 4
    del opened
    assert open_maps() == 0


def test_run_numbers_of_many_runs(model: ModelParts) -> None:
    # Every expert a run of its own, some twice: each is found where it was added first.
    experts = ",".join(str(expert) for expert in range(0, 12, 2))
    entries = [entry(model.path, "1", experts), entry(model.path, "1", "0-11")]
    with open_cells(model.library, model.store, entries) as opened:
        chosen = (0, 1, 6, 11, 4)
        assert compute(opened.cells, model, 1, chosen) == right(model, 1, chosen)
        held = opened.cells.find(bytes.fromhex(model.stored.model_id), 1, 0)
        assert held is not None and len(held.runs) == 7
        assert held.missing(np.arange(14, dtype=np.uint16)) == (12, 13)
