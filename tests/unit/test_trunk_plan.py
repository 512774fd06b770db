"""The trunk's plan from what a file says, and its files. That llama.cpp takes them is the gate's to prove."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from node.model.expert_names import ExpertName, layer_of, parse_expert_name
from node.model.gguf.map import MappedModel
from node.model.gguf.split import ModelFile, open_model
from node.model.gguf.values import GGUFValue
from node.model.trunk import TrunkPlan, plan_trunk, write_trunk
from tests.gguf_files import DEMO, moe_layer, refusal, write_model

WIDTH = 12
MOE = {**moe_layer(1, WIDTH), **moe_layer(2, WIDTH)}


def dense(layer: int, width: int, suffix: str = "") -> dict[str, tuple[int, ...]]:
    prefix = f"blk.{layer}.ffn_"
    return {f"{prefix}up{suffix}.weight": (8, width), f"{prefix}down{suffix}.weight": (width, 8)}


def plan(
    tmp_path: Path, shapes: Mapping[str, Sequence[int]], numbers: Mapping[str, int | Sequence[int]]
) -> tuple[TrunkPlan, dict[str, object]]:
    """The plan, and its overrides below "test." as plain numbers and lists."""
    made = plan_trunk(open_model(write_model(tmp_path / "model.gguf", shapes, numbers)))
    overrides: dict[str, object] = {}
    for key, entry in made.overrides.items():
        value = entry.value
        overrides[key.removeprefix("test.")] = value.tolist() if isinstance(value, np.ndarray) else value
    return made, overrides


CUTS: dict[str, tuple[dict[str, tuple[int, ...]], dict[str, int | Sequence[int]], dict[str, object]]] = {
    "own key": (MOE, {"expert_feed_forward_length": WIDTH}, {"expert_feed_forward_length": 1}),
    "own key, dense layers of another width": (
        {**MOE, **dense(0, 20)},
        {"expert_feed_forward_length": WIDTH, "feed_forward_length": 20},
        {"expert_feed_forward_length": 1},
    ),
    "own key, dense layers of the same width": (
        {**MOE, **dense(0, WIDTH)},
        {"expert_feed_forward_length": WIDTH, "feed_forward_length": WIDTH},
        {"expert_feed_forward_length": 1},
    ),
    "general key": (MOE, {"feed_forward_length": WIDTH}, {"feed_forward_length": 1}),
    "both keys": (
        MOE,
        {"expert_feed_forward_length": WIDTH, "feed_forward_length": WIDTH},
        {"expert_feed_forward_length": 1, "feed_forward_length": 1},
    ),
    "general key per layer": (
        {**MOE, **dense(0, 20)},
        {"feed_forward_length": [20, WIDTH, WIDTH]},
        {"feed_forward_length": [20, 1, 1]},
    ),
    "general key per layer, a dense layer of the experts' width": (
        {**MOE, **dense(0, WIDTH)},
        {"feed_forward_length": [WIDTH, WIDTH, WIDTH]},
        {"feed_forward_length": [WIDTH, 1, 1]},
    ),
    "own key per layer, widths differ": (
        {**moe_layer(0, 4), **moe_layer(1, 6)},
        {"expert_feed_forward_length": [4, 6]},
        {"expert_feed_forward_length": [1, 1]},
    ),
    "general key says another width per layer": (
        MOE,
        {"expert_feed_forward_length": WIDTH, "feed_forward_length": [0, 0, 20]},
        {"expert_feed_forward_length": 1},
    ),
    "width shared out among the used experts": (
        MOE,
        {"feed_forward_length": 3 * WIDTH, "expert_used_count": 3},
        {"expert_feed_forward_length": 1},
    ),
    "shared experts as a multiple": (
        {**MOE, **dense(1, 2 * WIDTH, "_shexp")},
        {"expert_feed_forward_length": WIDTH, "expert_shared_count": 2},
        {"expert_feed_forward_length": 1, "expert_shared_count": 2 * WIDTH},
    ),
    "shared experts of their own width": (
        {**MOE, **dense(1, 10, "_shexp")},
        {
            "expert_feed_forward_length": WIDTH,
            "expert_shared_count": 1,
            "expert_shared_feed_forward_length": 10,
        },
        {"expert_feed_forward_length": 1},
    ),
    "shared expert as wide as the experts, by its own key": (
        {**MOE, **dense(1, WIDTH, "_shexp")},
        {"expert_feed_forward_length": WIDTH, "expert_shared_feed_forward_length": WIDTH},
        {"expert_feed_forward_length": 1},
    ),
    "chunk experts": (
        {**MOE, **moe_layer(1, 5, experts=3, group="chexps")},
        {"expert_feed_forward_length": WIDTH, "expert_chunk_feed_forward_length": 5},
        {"expert_feed_forward_length": 1, "expert_chunk_feed_forward_length": 1},
    ),
}


@pytest.mark.parametrize("case", CUTS)
def test_metadata_of_a_cut_trunk(case: str, tmp_path: Path) -> None:
    shapes, numbers, expected = CUTS[case]
    made, overrides = plan(tmp_path, shapes, numbers)
    assert (made.cut_possible, made.reason, made.kind) == (True, "", "cut")
    assert overrides == expected


TIES: dict[str, tuple[dict[str, tuple[int, ...]], dict[str, int | Sequence[int]], str]] = {
    "dense layers read the same key": (
        {**MOE, **dense(0, WIDTH)},
        {"feed_forward_length": WIDTH},
        "layer 0 has a dense FFN",
    ),
    "dense FFN beside the experts, per layer": (
        {**MOE, **dense(2, WIDTH)},
        {"feed_forward_length": [20, WIDTH, WIDTH]},
        "layer 2 has a dense FFN",
    ),
    "shared expert follows the experts": (
        {**MOE, **dense(1, WIDTH, "_shexp")},
        {"expert_feed_forward_length": WIDTH},
        "the shared expert's width",
    ),
    "no key": (MOE, {"feed_forward_length": 99}, "no key says the expert width [12]"),
    "no chunk key": (
        {**MOE, **moe_layer(1, 5, experts=3, group="chexps")},
        {"expert_feed_forward_length": WIDTH},
        "chunk experts",
    ),
}


@pytest.mark.parametrize("case", TIES)
def test_where_cutting_is_impossible_the_plan_says_why(case: str, tmp_path: Path) -> None:
    shapes, numbers, reason = TIES[case]
    made, overrides = plan(tmp_path, shapes, numbers)
    assert (made.cut_possible, made.kind, overrides) == (False, "hollow", {})
    assert reason in made.reason
    model = open_model(tmp_path / "model.gguf")
    message = refusal(lambda: write_trunk(made, model, tmp_path / "trunk.gguf", "cut"))
    assert "use a hollow one" in message


def test_broken_and_dense_models_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"

    def planned(shapes: Mapping[str, Sequence[int]]) -> str:
        write_model(path, shapes, {"feed_forward_length": WIDTH})
        return refusal(lambda: plan_trunk(open_model(path)))

    assert "no routed experts" in planned(dense(0, WIDTH))
    down = MOE["blk.1.ffn_down_exps.weight"]
    assert "is 12 wide" in planned({**MOE, "blk.1.ffn_down_exps.weight": (11, *down[1:])})
    assert "without its ffn_down_exps" in planned({"blk.1.ffn_up_exps.weight": (8, 12, 6)})
    assert "3 are expected" in planned({**MOE, "blk.1.ffn_up_exps.weight": (8, 12)})


def test_a_cut_trunk_has_every_tensor_and_experts_one_wide(tmp_path: Path) -> None:
    shapes = {
        "token_embd.weight": (8, 5),
        "blk.0.ffn_gate_up_exps.weight": (4, 2 * WIDTH, 6),  # latent: narrower than n_embd
        "blk.0.ffn_down_exps.weight": (WIDTH, 4, 6),
        "blk.0.ffn_gate_up_exps.bias": (2 * WIDTH, 6),
        "blk.0.ffn_down_exps.bias": (4, 6),
        "blk.0.ffn_down_exps.scale": (6,),
        "blk.0.ffn_gate_inp.weight": (8, 6),
    }
    path = write_model(tmp_path / "model.gguf", shapes, {"expert_feed_forward_length": WIDTH, "other": 3})
    model = open_model(path)
    made = plan_trunk(model)
    write_trunk(made, model, tmp_path / "trunk.gguf", extra={"panal.model_id": GGUFValue.string("x")})
    trunk = open_model(tmp_path / "trunk.gguf")
    assert {name: (t.shape, t.type.name) for name, t in trunk.tensors.items()} == {
        "token_embd.weight": ((8, 5), "F32"),
        "blk.0.ffn_gate_up_exps.weight": ((4, 2, 6), "F16"),
        "blk.0.ffn_down_exps.weight": ((1, 4, 6), "F16"),
        "blk.0.ffn_gate_up_exps.bias": ((2, 6), "F32"),
        "blk.0.ffn_down_exps.bias": ((4, 6), "F32"),
        "blk.0.ffn_down_exps.scale": ((6,), "F32"),
        "blk.0.ffn_gate_inp.weight": ((8, 6), "F32"),
    }
    kept = ("token_embd.weight", "blk.0.ffn_down_exps.scale", "blk.0.ffn_gate_inp.weight")
    assert_data(model, trunk, kept)
    assert trunk.find_int("test.expert_feed_forward_length") == 1
    assert trunk.find_int("test.other") == 3
    assert trunk.find_str("panal.trunk.kind") == "cut"
    assert trunk.find_str("panal.model_id") == "x"


def assert_data(model: ModelFile, trunk: ModelFile, kept: Sequence[str]) -> None:
    with MappedModel(model) as whole, MappedModel(trunk) as stub:
        for name in trunk.tensors:
            if name in kept:
                assert whole.tensor_view(name) == stub.tensor_view(name)
            else:
                assert not any(stub.tensor_view(name))


def test_a_hollow_trunk_keeps_shapes_and_takes_no_space(tmp_path: Path) -> None:
    shapes = {"token_embd.weight": (8, 5), **moe_layer(0, 4096, n_embd=1024, experts=8)}
    path = write_model(tmp_path / "model.gguf", shapes, {"expert_feed_forward_length": 4096})
    model = open_model(path)
    size = write_trunk(plan_trunk(model), model, tmp_path / "trunk.gguf", "hollow")
    trunk = open_model(tmp_path / "trunk.gguf")
    assert {name: (t.shape, t.type) for name, t in trunk.tensors.items()} == {
        name: (t.shape, t.type) for name, t in model.tensors.items()
    }
    assert trunk.find_int("test.expert_feed_forward_length") == 4096
    assert size > 192 << 20
    assert (tmp_path / "trunk.gguf").stat().st_blocks * 512 < 1 << 20


def test_the_demo_model(tmp_path: Path) -> None:
    model = open_model(DEMO)
    made = plan_trunk(model)
    assert made.cut_possible
    assert len(made.holes) == 12
    write_trunk(made, model, tmp_path / "trunk.gguf")
    trunk = open_model(tmp_path / "trunk.gguf")
    assert list(trunk.metadata) == [*model.metadata, "panal.trunk.kind"]
    assert_data(model, trunk, [name for name in model.tensors if name not in made.holes])


def test_expert_names() -> None:
    assert parse_expert_name("blk.47.ffn_gate_up_chexps.bias") == ExpertName(47, "chexps", "gate_up", "bias")
    for name in ("blk.0.ffn_gate_exps.weight", "blk.12.ffn_up_chexps.scale", "blk.3.ffn_down_exps.bias"):
        parsed = parse_expert_name(name)
        assert parsed is not None
        assert parsed.tensor_name == name
        assert f"ffn_{parsed.role.replace('.', f'_{parsed.group}.')}" in name
    for name in (
        "blk.0.ffn_gate_shexp.weight",
        "blk.0.ffn_gate_inp.weight",
        "blk.0.ffn_norm_exps.weight",
        "blk.00.ffn_up_exps.weight",
        "blk.-1.ffn_up_exps.weight",
        "blk.1.ffn_up_exps.weight\n",
        "xblk.1.ffn_up_exps.weight",
        "blk.1.ffn_up_exps.weights",
        "blk.²٣.ffn_up_exps.weight",
    ):
        assert parse_expert_name(name) is None
    assert layer_of("blk.12.attn_q.weight") == 12
    assert layer_of("output.weight") is None
