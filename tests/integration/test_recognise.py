"""Recipes read from llama.cpp's own graphs, for every model of the zoo."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from node.engine.graph import Node
from node.engine.library import Library
from node.engine.llama_model import LlamaModel
from node.engine.recognise import TracedCall, find_calls
from node.engine.trace import Trace, trace
from node.model import recipe as R
from tests.model_parts import ModelParts
from tests.zoo.make_zoo import zoo
from tests.zoo.names import ZOO

Parts = Callable[..., ModelParts]

NAMES = tuple(zoo())
INPUT = R.Input()


def matmul(part: str, of: R.Expression = INPUT) -> R.Matmul:
    return R.Matmul(f"{part}.weight", of)


PLAIN = R.Recipe("after", R.Weigh(matmul("down", R.Glu("SWIGLU", matmul("gate"), matmul("up")))))
MERGED = R.Glu("SWIGLU", R.Half(0, matmul("gate_up")), R.Half(1, matmul("gate_up")))


def calls_of(library: Library, path: Path) -> list[TracedCall]:
    with LlamaModel(library, [path]) as model:
        return find_calls(trace(model))


def recipes(library: Library, path: Path) -> list[R.Recipe]:
    return [call.recipe for call in calls_of(library, path)]


@pytest.mark.parametrize("name", ZOO)
def test_the_trunk_shows_the_same_recipes_as_the_whole_model(
    library: Library, parts: Parts, name: str
) -> None:
    model = parts(name)
    whole, trunk = calls_of(library, model.path), calls_of(library, model.stored.trunk)
    assert whole == trunk
    kv = zoo()[name]["kv"]
    layers = {int(key.split(".")[1]) for key in zoo()[name]["tensors"] if "exps.weight" in key}
    assert {call.layer for call in whole} <= layers
    assert {call.n_used for call in whole if call.group == "exps"} == {kv["expert_used_count"]}
    assert [(c.layer, c.group) for c in model.manifest.calls] == [(c.layer, c.group) for c in whole]
    for call in whole:
        R.check(call.recipe)
        assert tuple(call.tensors) == R.roles(call.recipe)
        assert set(call.tensors.values()) <= set(zoo()[name]["tensors"])


@pytest.mark.parametrize("name", ["qwen3moe", "llama@used1", "grovemoe", "olmoe", "smallthinker@noswa"])
def test_every_layer_is_found(library: Library, zoo_file: Callable[..., Path], name: str) -> None:
    per_layer = Counter(call.layer for call in calls_of(library, zoo_file(name)))
    assert per_layer == dict.fromkeys(range(3), 2 if name == "grovemoe" else 1)


def test_plain(library: Library, zoo_file: Callable[..., Path]) -> None:
    assert set(recipes(library, zoo_file("qwen3moe"))) == {PLAIN}


def test_weights_before_the_experts(library: Library, zoo_file: Callable[..., Path]) -> None:
    expected = R.Recipe("before", matmul("down", R.Glu("SWIGLU", matmul("gate"), matmul("up"))))
    assert set(recipes(library, zoo_file("llama4"))) == {expected}


def test_biases_and_parameters_of_the_activation(library: Library, zoo_file: Callable[..., Path]) -> None:
    alpha = struct.unpack("f", struct.pack("f", 1.702))[0]
    gate, up = R.Bias("gate.bias", matmul("gate")), R.Bias("up.bias", matmul("up"))
    hidden = R.Glu("SWIGLU_OAI", gate, up, False, alpha, 7.0)
    expected = R.Recipe("after", R.Weigh(R.Bias("down.bias", matmul("down", hidden))))
    assert set(recipes(library, zoo_file("gpt-oss"))) == {expected}


def test_products(library: Library, zoo_file: Callable[..., Path]) -> None:
    def squashed(part: str, limit: float) -> R.Expression:
        inverse = struct.unpack("f", struct.pack("f", 1 / limit))[0]
        return R.Affine(limit, R.Unary("TANH", R.Affine(inverse, matmul(part))))

    product = R.Product(
        R.Product(squashed("gate", 4.0), R.Unary("SIGMOID", matmul("gate"))), squashed("up", 25.0)
    )
    assert set(recipes(library, zoo_file("kimi-k3"))) == {R.Recipe("after", R.Weigh(matmul("down", product)))}


def test_relu_squared_without_a_gate(library: Library, zoo_file: Callable[..., Path]) -> None:
    expected = R.Recipe("after", R.Weigh(matmul("down", R.Square(R.Unary("RELU", matmul("up"))))))
    for name in ("nemotron_h_moe", "nemotron_h_moe@nolatent"):
        assert set(recipes(library, zoo_file(name))) == {expected}


def test_the_latent_width_is_not_the_models(parts: Parts) -> None:
    assert {(c.n_in, c.n_out) for c in parts("nemotron_h_moe").manifest.calls} == {(32, 32)}
    assert {(c.n_in, c.n_out) for c in parts("nemotron_h_moe@nolatent").manifest.calls} == {(64, 64)}


def test_scales(library: Library, zoo_file: Callable[..., Path]) -> None:
    hidden = R.Glu("SWIGLU", R.Scale("gate.scale", matmul("gate")), R.Scale("up.scale", matmul("up")))
    expected = R.Recipe("after", R.Weigh(R.Scale("down.scale", matmul("down", hidden))))
    assert set(recipes(library, zoo_file("qwen3moe@scales"))) == {expected}
    halves = R.Glu("GEGLU", R.Half(0, matmul("gate_up")), R.Half(1, matmul("gate_up")))
    apart = R.Glu("GEGLU", matmul("gate"), matmul("up"))
    gemma = [
        R.Recipe("after", R.Weigh(R.Scale("down.scale", matmul("down", hidden))))
        for hidden in (apart, halves)
    ]
    assert set(recipes(library, zoo_file("gemma4"))) == set(gemma)


def test_two_groups_in_a_layer(library: Library, zoo_file: Callable[..., Path]) -> None:
    calls = calls_of(library, zoo_file("grovemoe"))
    assert [(call.layer, call.group) for call in calls] == [
        (layer, group) for layer in range(3) for group in ("exps", "chexps")
    ]
    assert {call.recipe for call in calls} == {PLAIN}
    assert all(call.group in name for call in calls for name in call.tensors.values())


def test_merged_halves(library: Library, zoo_file: Callable[..., Path]) -> None:
    merged = R.Recipe("after", R.Weigh(matmul("down", MERGED)))
    assert set(recipes(library, zoo_file("deepseek2"))) == {PLAIN, merged}


@pytest.mark.parametrize(("name", "limit"), [("hy_v4", 1.5), ("deepseek4", 1.5)])
def test_clamped_activation(library: Library, zoo_file: Callable[..., Path], name: str, limit: float) -> None:
    hidden = R.Glu("SWIGLU_CLAMP", matmul("gate"), matmul("up"), limit=limit)
    assert R.Recipe("after", R.Weigh(matmul("down", hidden))) in recipes(library, zoo_file(name))


def test_metadata_that_only_the_router_reads_is_no_part_of_it(
    library: Library, zoo_file: Callable[..., Path]
) -> None:
    for name in ("deepseek2", "smallthinker", "glm4moe"):
        variant = next(each for each in NAMES if each.startswith(f"{name}@"))
        assert recipes(library, zoo_file(name)) == recipes(library, zoo_file(variant))


# --- graphs made by hand ---


class Graph:
    """A MoE call of two tokens, three used experts, built node by node."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.leaves: dict[int, Node] = {}
        self._next = 0x1000

    def leaf(self, name: str, *ne: int) -> Node:
        node = self._make("NONE", ne, (), name)
        self.leaves[node.address] = node
        return node

    def node(self, op: str, ne: tuple[int, ...], *sources: Node, **more: object) -> Node:
        node = self._make(op, ne, tuple(source.address for source in sources), f"{op.lower()}-0")
        node = replace(node, **more)  # type: ignore[arg-type]
        self.nodes.append(node)
        return node

    def _make(self, op: str, ne: tuple[int, ...], sources: tuple[int, ...], name: str) -> Node:
        self._next += 0x100
        ne4 = (*ne, *(1,) * (4 - len(ne)))
        nb = (4, 4 * ne4[0], 4 * ne4[0] * ne4[1], 4 * ne4[0] * ne4[1] * ne4[2])
        return Node(self._next, op, "", bytes(64), 0, ne4, nb, sources, 0, name)  # type: ignore[arg-type]

    def expert(self, part: str, what: str = "weight", group: str = "exps", layer: int = 0) -> Node:
        shape = {"weight": (8, 8, 4), "bias": (8, 4), "scale": (4,)}[what]
        return self.leaf(f"blk.{layer}.ffn_{part}_{group}.{what}", *shape)

    def finish(self, rows: Node) -> list[TracedCall]:
        views = [self.node("VIEW", (8, 2), rows) for _ in range(3)]
        total = self.node("ADD", (8, 2), views[0], views[1])
        self.node("ADD", (8, 2), total, views[2])
        return find_calls(Trace(self.nodes, self.leaves))


ROWS = (8, 3, 2)


@pytest.fixture
def graph() -> Iterator[Graph]:
    yield Graph()


def up_of(graph: Graph) -> tuple[Node, Node]:
    """(up's rows, ids) of a call whose input is one row a token."""
    x, ids = graph.leaf("x", 8, 1, 2), graph.leaf("ids", 3, 2)
    return graph.node("MUL_MAT_ID", ROWS, graph.expert("up"), x, ids), ids


def test_by_hand_as_by_llama(graph: Graph) -> None:
    up, ids = up_of(graph)
    hidden = graph.node("UNARY", ROWS, up, kind="GELU")
    down = graph.node("MUL_MAT_ID", ROWS, graph.expert("down"), hidden, ids)
    weighed = graph.node("MUL", ROWS, down, graph.leaf("weights", 1, 3, 2))
    (call,) = graph.finish(weighed)
    assert call.recipe == R.Recipe("after", R.Weigh(matmul("down", R.Unary("GELU", matmul("up")))))
    assert (call.layer, call.group, call.n_used) == (0, "exps", 3)


@pytest.mark.parametrize("op", ["SIN", "SOFT_MAX", "CONCAT", "ROPE", "DIV"])
def test_an_operation_no_recipe_has_is_refused_by_name(graph: Graph, op: str) -> None:
    up, ids = up_of(graph)
    odd = graph.node(op, ROWS, up)
    down = graph.node("MUL_MAT_ID", ROWS, graph.expert("down"), odd, ids)
    with pytest.raises(R.RecipeError, match=f"layer 0: experts use {op} \\({op.lower()}-0\\)"):
        graph.finish(down)


def test_other_ids_are_refused(graph: Graph) -> None:
    up, _ = up_of(graph)
    down = graph.node("MUL_MAT_ID", ROWS, graph.expert("down"), up, graph.leaf("other ids", 3, 2))
    with pytest.raises(R.RecipeError, match="other expert ids"):
        graph.finish(down)


def test_another_input_is_refused(graph: Graph) -> None:
    up, ids = up_of(graph)
    gate = graph.node("MUL_MAT_ID", ROWS, graph.expert("gate"), graph.leaf("y", 8, 1, 2), ids)
    hidden = graph.node("GLU", ROWS, gate, up, kind="SWIGLU")
    down = graph.node("MUL_MAT_ID", ROWS, graph.expert("down"), hidden, ids)
    with pytest.raises(R.RecipeError, match="another input"):
        graph.finish(down)


def test_a_reshaped_input_is_the_same_input(graph: Graph) -> None:
    x, ids = graph.leaf("x", 8, 2), graph.leaf("ids", 3, 2)
    first, second = graph.node("RESHAPE", (8, 1, 2), x), graph.node("RESHAPE", (8, 1, 2), x)
    gate = graph.node("MUL_MAT_ID", ROWS, graph.expert("gate"), first, ids)
    up = graph.node("MUL_MAT_ID", ROWS, graph.expert("up"), second, ids)
    hidden = graph.node("GLU", ROWS, gate, up, kind="GEGLU")
    (call,) = graph.finish(graph.node("MUL_MAT_ID", ROWS, graph.expert("down"), hidden, ids))
    assert call.recipe.output == matmul("down", R.Glu("GEGLU", matmul("gate"), matmul("up")))


def test_a_factor_from_elsewhere_is_refused(graph: Graph) -> None:
    up, ids = up_of(graph)
    scaled = graph.node("MUL", ROWS, up, graph.leaf("mystery", 8))
    down = graph.node("MUL_MAT_ID", ROWS, graph.expert("down"), scaled, ids)
    with pytest.raises(R.RecipeError, match="mystery"):
        graph.finish(down)


def test_another_layers_tensor_is_refused(graph: Graph) -> None:
    up, ids = up_of(graph)
    biased = graph.node("ADD_ID", ROWS, up, graph.expert("up", "bias", layer=1), ids)
    down = graph.node("MUL_MAT_ID", ROWS, graph.expert("down"), biased, ids)
    with pytest.raises(R.RecipeError, match=r"blk\.1\.ffn_up_exps\.bias"):
        graph.finish(down)


def test_a_part_of_a_row_that_is_no_half_is_refused(graph: Graph) -> None:
    x, ids = graph.leaf("x", 8, 1, 2), graph.leaf("ids", 3, 2)
    both = graph.node("MUL_MAT_ID", (16, 3, 2), graph.expert("gate_up"), x, ids)
    inner = {"nb": both.nb}
    for offset, ok in ((0, True), (32, True), (16, False)):
        part = graph.node("VIEW", ROWS, both, view_offset=offset, **inner)
        down = graph.node("MUL_MAT_ID", ROWS, graph.expert("down"), part, ids)
        if ok:
            assert graph.finish(down)[-1].recipe.output == matmul(
                "down", R.Half(1 if offset else 0, matmul("gate_up"))
            )
            graph.nodes = graph.nodes[:1]
        else:
            with pytest.raises(R.RecipeError, match="a half row at byte 16"):
                graph.finish(down)


def test_a_half_of_a_half(graph: Graph) -> None:
    x, ids = graph.leaf("x", 8, 1, 2), graph.leaf("ids", 3, 2)
    both = graph.node("MUL_MAT_ID", (32, 3, 2), graph.expert("gate_up"), x, ids)
    # view_offset counts from the tensor that owns the bytes, also in a view of a view.
    second = graph.node("VIEW", (16, 3, 2), both, nb=both.nb, view_offset=64)
    part = graph.node("VIEW", ROWS, second, nb=both.nb, view_offset=64 + 32)
    (call,) = graph.finish(graph.node("MUL_MAT_ID", ROWS, graph.expert("down"), part, ids))
    assert call.recipe.output == matmul("down", R.Half(1, R.Half(1, matmul("gate_up"))))


def test_unknown_parameters_of_an_activation_are_refused(graph: Graph) -> None:
    up, ids = up_of(graph)
    odd = graph.node(
        "GLU", ROWS, up, up, kind="SWIGLU", op_params=struct.pack("=16i", 2, 0, 0, 0, 9, *[0] * 11)
    )
    down = graph.node("MUL_MAT_ID", ROWS, graph.expert("down"), odd, ids)
    with pytest.raises(R.RecipeError, match="parameters that are not known"):
        graph.finish(down)


def test_depth_is_bounded(graph: Graph) -> None:
    row, ids = up_of(graph)
    for _ in range(R.MAX_DEPTH + 1):
        row = graph.node("SQR", ROWS, row)
    down = graph.node("MUL_MAT_ID", ROWS, graph.expert("down"), row, ids)
    with pytest.raises(R.RecipeError, match="deeper than"):
        graph.finish(down)


def test_parameters_are_read_where_ggml_keeps_them(graph: Graph) -> None:
    up, ids = up_of(graph)
    clamped = graph.node("CLAMP", ROWS, up, op_params=struct.pack("=2f56x", -3.0, 4.0))
    scaled = graph.node("SCALE", ROWS, clamped, op_params=struct.pack("=2f56x", 0.5, 1.5))
    normed = graph.node("RMS_NORM", ROWS, scaled, op_params=struct.pack("=f60x", 0.25))
    shaped = graph.node(
        "UNARY", ROWS, normed, kind="XIELU", op_params=struct.pack("=i4f44x", 17, 1.0, 2.0, 0.0, 4.0)
    )
    (call,) = graph.finish(graph.node("MUL_MAT_ID", ROWS, graph.expert("down"), shaped, ids))
    inner = R.Affine(0.5, R.Clamp(-3.0, 4.0, matmul("up")), 1.5)
    assert call.recipe.output == matmul(
        "down", R.Unary("XIELU", R.Norm("RMS_NORM", 0.25, inner), (1.0, 2.0, 0.0, 4.0))
    )


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [(-math.inf, 7.0, (None, 7.0)), (-7.0, math.inf, (-7.0, None)), (-3.0, 3.0, (-3.0, 3.0))],
)
def test_a_clamp_may_have_one_bound_only(
    graph: Graph, low: float, high: float, found: tuple[float | None, float | None]
) -> None:
    up, ids = up_of(graph)
    clamped = graph.node("CLAMP", ROWS, up, op_params=struct.pack("=2f56x", low, high))
    (call,) = graph.finish(graph.node("MUL_MAT_ID", ROWS, graph.expert("down"), clamped, ids))
    assert call.recipe.output == matmul("down", R.Clamp(*found, matmul("up")))
    encoded = msgspec.json.encode(call.recipe)
    assert msgspec.json.decode(encoded, type=R.Recipe) == call.recipe


def test_a_model_without_experts_has_no_calls(graph: Graph) -> None:
    graph.node("MUL_MAT", (8, 2), graph.leaf("blk.0.ffn_down.weight", 8, 8), graph.leaf("x", 8, 2))
    assert find_calls(Trace(graph.nodes, graph.leaves)) == []
