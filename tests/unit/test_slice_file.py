"""Slice files: the model's bytes cut to a run of experts, and a reader that believes no claim."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from node.model.expert_names import ExpertName, parse_expert_name
from node.model.gguf.map import MappedModel
from node.model.gguf.reader import read_header
from node.model.gguf.split import ModelFile, open_model
from node.model.gguf.types import ValueType
from node.model.gguf.values import GGUFValue
from node.model.gguf.writer import TensorToWrite, write_gguf
from node.model.slice_file import SliceFile, chunk_run, cut_slice, read_slice
from tests.gguf_files import DEMO, moe_layer, refusal, write_model

MODEL_ID = "ab" * 32
MANIFEST = '{"name":"colmena ñ"}'.encode()


def cut(model: ModelFile, target: Path, layers: range, experts: range) -> SliceFile:
    size = cut_slice(model, MANIFEST, MODEL_ID, layers, experts, target)
    assert size == target.stat().st_size
    return read_slice(target)


def assert_bytes(model: ModelFile, held: SliceFile) -> None:
    """Every tensor of the slice is the run of its experts' bytes in the model."""
    with MappedModel(model) as whole, MappedModel(held.file) as part:
        for name, tensor in held.tensors.items():
            run = held.experts if name.group == "exps" else held.chunk_experts
            assert run is not None
            original = model.tensors[tensor.name]
            rows = np.frombuffer(whole.tensor_view(tensor.name), np.uint8).reshape(original.shape[-1], -1)
            assert part.tensor_view(tensor.name) == rows[run.start : run.stop].tobytes()
            assert tensor.type is original.type
            assert tensor.shape == (*original.shape[:-1], len(run))


@pytest.mark.parametrize(
    ("layers", "experts"),
    [
        (range(4), range(12)),
        (range(1, 3), range(3, 8)),
        (range(3, 4), range(11, 12)),
        (range(1), range(1)),
    ],
)
def test_a_slice_of_the_demo_model(layers: range, experts: range, tmp_path: Path) -> None:
    model = open_model(DEMO)
    held = cut(model, tmp_path / "slice.gguf", layers, experts)
    assert (held.model_id, held.manifest_json) == (MODEL_ID, MANIFEST)
    assert (held.layers, held.experts, held.expert_count, held.chunk_experts) == (layers, experts, 12, None)
    assert held.file.architecture == "qwen2moe"
    expected = {name for name in map(parse_expert_name, model.tensors) if name and name.layer in layers}
    assert set(held.tensors) == expected
    assert_bytes(model, held)


def test_the_gguf_package_reads_a_slice(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    cut(open_model(DEMO), tmp_path / "slice.gguf", range(1, 2), range(2, 5))
    theirs = gguf.GGUFReader(tmp_path / "slice.gguf")
    assert theirs.fields["panal.slice.expert_last"].contents() == 4
    assert {tensor.name for tensor in theirs.tensors} == {
        f"blk.1.ffn_{part}_exps.weight" for part in ("gate", "up", "down")
    }


def rich_model(path: Path) -> ModelFile:
    """Layer 0 dense; experts with biases and scales, chunk experts for every two of them (grovemoe)."""
    shapes: dict[str, tuple[int, ...]] = {"blk.0.ffn_up.weight": (8, 20), "blk.0.ffn_down.weight": (20, 8)}
    for layer in (1, 2):
        shapes |= moe_layer(layer, 12) | moe_layer(layer, 5, experts=3, group="chexps")
        shapes |= {f"blk.{layer}.ffn_down_exps.bias": (8, 6), f"blk.{layer}.ffn_down_exps.scale": (6,)}
    return open_model(write_model(path, shapes, {"expert_feed_forward_length": 12}))


def test_biases_scales_and_chunk_experts_are_cut_too(tmp_path: Path) -> None:
    model = rich_model(tmp_path / "model.gguf")
    held = cut(model, tmp_path / "slice.gguf", range(3), range(3, 5))
    assert held.chunk_experts == range(1, 3)
    assert held.tensors[ExpertName(1, "exps", "down", "bias")].shape == (8, 2)
    assert held.tensors[ExpertName(2, "exps", "down", "scale")].shape == (2,)
    assert {name.layer for name in held.tensors} == {1, 2}
    assert_bytes(model, held)


@pytest.mark.parametrize(
    ("experts", "expected"),
    [
        (range(6), range(3)),
        (range(1), range(1)),
        (range(1, 2), range(1)),
        (range(1, 3), range(2)),
        (range(5, 6), range(2, 3)),
    ],
)
def test_chunk_run(experts: range, expected: range) -> None:
    assert chunk_run(experts, 6, 3) == expected


@pytest.mark.parametrize(
    ("layers", "experts", "expected"),
    [
        (range(1), range(1), "hold no routed experts"),
        (range(4), range(1), "layers 0-3 are not in the model: choose from 0 to 2"),
        (range(-1, 2), range(1), "not in the model"),
        (range(2, 2), range(1), "not in the model"),
        (range(1, 3), range(7), "experts 0-6 are not in the model: choose from 0-5"),
        (range(1, 3), range(-1, 2), "not in the model"),
        (range(1, 3), range(4, 4), "not in the model"),
    ],
)
def test_ranges_outside_the_model(layers: range, experts: range, expected: str, tmp_path: Path) -> None:
    model = rich_model(tmp_path / "model.gguf")
    target = tmp_path / "slice.gguf"
    assert expected in refusal(lambda: cut_slice(model, MANIFEST, MODEL_ID, layers, experts, target))
    assert not target.exists()


def test_layers_with_different_numbers_of_experts_do_not_fit_one_slice(tmp_path: Path) -> None:
    shapes = moe_layer(0, 12) | moe_layer(1, 12, experts=4)
    model = open_model(write_model(tmp_path / "model.gguf", shapes, {}))
    target = tmp_path / "slice.gguf"
    assert "no stack of 6 experts" in refusal(
        lambda: cut_slice(model, MANIFEST, MODEL_ID, range(2), range(2), target)
    )
    cut(model, target, range(1, 2), range(4))


def test_progress_adds_up_and_no_tensor_is_held_in_memory(tmp_path: Path) -> None:
    shapes = moe_layer(0, 1024, n_embd=1024, experts=32)  # 64 MiB a tensor
    model = open_model(write_model(tmp_path / "model.gguf", shapes, {}))
    steps: list[int] = []
    tracemalloc.start()
    try:
        cut_slice(
            model, MANIFEST, MODEL_ID, range(1), range(1, 17), tmp_path / "slice.gguf", progress=steps.append
        )
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert sum(steps) == 3 * 16 * 1024 * 1024 * 2
    assert max(steps) <= 4 << 20


def rewritten(
    path: Path,
    keys: Mapping[str, GGUFValue | None] | None = None,
    rename: Mapping[str, str | None] | None = None,
) -> Path:
    """The rich model's slice of layers 0-2, experts 2-4, with keys changed or dropped (None), tensors too."""
    source = path.with_name("good.gguf")
    cut(rich_model(path.with_name("model.gguf")), source, range(3), range(2, 5))
    header = read_header(source)
    changed = {**header.metadata, **(keys or {})}
    metadata = {name: value for name, value in changed.items() if value is not None}
    tensors = []
    for tensor in header.tensors:
        name = (rename or {}).get(tensor.name, tensor.name)
        if name is not None:
            tensors.append(TensorToWrite(name, tensor.shape, tensor.type, bytes(tensor.n_bytes)))
    write_gguf(path, metadata, tensors)
    return path


def slice_key(name: str, value: int | None) -> dict[str, GGUFValue | None]:
    return {f"panal.slice.{name}": None if value is None else GGUFValue.uint32(value)}


LIES: dict[str, tuple[dict[str, GGUFValue | None], dict[str, str | None], str]] = {
    "another type": ({"general.type": GGUFValue.string("model")}, {}, "not a slice file"),
    "no type": ({"general.type": None}, {}, "not a slice file"),
    "version 2": (slice_key("version", 2), {}, "slice version 2"),
    "kind layers": ({"panal.slice.kind": GGUFValue.string("layers")}, {}, "a slice of kind 'layers'"),
    "no model id": ({"panal.slice.model_id": None}, {}, "not a model id"),
    "model id of two lines": ({"panal.slice.model_id": GGUFValue.string("a\nb")}, {}, "not a model id"),
    "endless model id": ({"panal.slice.model_id": GGUFValue.string("a" * 129)}, {}, "not a model id"),
    "no manifest": ({"panal.manifest": None}, {}, "no panal.manifest"),
    "no layers": (slice_key("layer_first", None), {}, "layer_first is missing"),
    "layers as u64": ({"panal.slice.layer_last": GGUFValue(ValueType.UINT64, 2)}, {}, "not a UINT32"),
    "layers backwards": (slice_key("layer_first", 3), {}, "layer 3-2"),
    "fewer layers than tensors": (slice_key("layer_last", 1), {}, "does not belong in it"),
    "more experts than held": (slice_key("expert_last", 5), {}, "for 4 experts"),
    "other chunk experts": (
        slice_key("expert_first", 1) | slice_key("expert_last", 3),
        {},
        "chunk experts 1-2",
    ),
    "experts past their number": (slice_key("expert_count", 4), {}, "expert 2-4 of 4"),
    "2^32-1 experts": (slice_key("expert_last", 2**32 - 1), {}, "is not a run"),
    "no chunk key": (slice_key("chexps_first", None), {}, "does not belong in it"),
    "wrong chunk run": (slice_key("chexps_first", 2), {}, "don't go with"),
    "foreign tensor": ({}, {"blk.1.ffn_up_exps.weight": "output.weight"}, "'output.weight' does not belong"),
    "tensor of another layer": (
        {},
        {"blk.1.ffn_up_exps.weight": "blk.7.ffn_up_exps.weight"},
        "does not belong",
    ),
    "bias in place of weight": ({}, {"blk.1.ffn_up_exps.weight": "blk.1.ffn_up_exps.bias"}, "has the shape"),
    "no down tensor": ({}, {"blk.2.ffn_down_exps.weight": None}, "stands without its down tensor"),
}


@pytest.mark.parametrize("case", LIES)
def test_a_slice_file_that_contradicts_itself_is_refused(case: str, tmp_path: Path) -> None:
    keys, rename, expected = LIES[case]
    path = rewritten(tmp_path / "bad.gguf", keys, rename)
    assert expected in refusal(lambda: read_slice(path))


def test_the_unchanged_rewrite_is_accepted(tmp_path: Path) -> None:
    assert read_slice(rewritten(tmp_path / "bad.gguf")).experts == range(2, 5)


def test_a_slice_without_tensors_or_with_chunks_alone_is_refused(tmp_path: Path) -> None:
    names = [t.name for t in read_header(rewritten(tmp_path / "bad.gguf")).tensors]
    none: dict[str, str | None] = dict.fromkeys(names)
    assert "holds no experts" in refusal(lambda: read_slice(rewritten(tmp_path / "bad.gguf", rename=none)))
    chunks_only: dict[str, str | None] = {name: None for name in names if "chexps" not in name}
    assert "chunk experts and no experts" in refusal(
        lambda: read_slice(rewritten(tmp_path / "bad.gguf", rename=chunks_only))
    )
    no_chunks: dict[str, str | None] = {name: None for name in names if "chexps" in name}
    assert "holds none" in refusal(lambda: read_slice(rewritten(tmp_path / "bad.gguf", rename=no_chunks)))


def test_a_whole_model_is_no_slice() -> None:
    assert "not a slice file" in refusal(lambda: read_slice(DEMO))
