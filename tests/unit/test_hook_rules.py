"""The hook's rules on graphs made by hand: ggml's tensors in memory, run as its scheduler runs them."""

from __future__ import annotations

import ctypes as C
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from node.engine.expert_holes import ExpertHoles, ExpertInputs
from node.engine.hook import GraphHook, HookError
from node.engine.library import Library
from node.engine.structs import TYPE_F32, TYPE_I32, Tensor
from node.model import recipe as R
from node.model.manifest import ExpertCall, ExpertTensor
from routing.errors import PeerError
from routing.wire.codecs import Float32Array

N_IN, N_USED, N_TOKENS, N_EXPERTS = 4, 2, 3, 5

WEIGHED = R.Recipe(
    "after", R.Weigh(R.Matmul("down.weight", R.Unary("SILU", R.Matmul("up.weight", R.Input()))))
)


def expert_call(recipe: R.Recipe = WEIGHED) -> ExpertCall:
    shape = ExpertTensor("down.weight", 0, (N_IN, N_IN)), ExpertTensor("up.weight", 0, (N_IN, N_IN))
    return ExpertCall(0, "exps", N_EXPERTS, 1, N_IN, N_IN, recipe, shape, "")


@pytest.fixture
def operations(library: Library) -> dict[str, int]:
    """ggml's numbers of operations by name."""
    return {library.op_name(number): number for number in range(95, -1, -1)}


class Node:
    """A tensor in memory; what computing it does is up to the test."""

    def __init__(self, tensor: Tensor, op: int, compute: Callable[[], None]) -> None:
        self.tensor = tensor
        self.op = op
        self.compute = compute

    @property
    def address(self) -> int:
        return C.addressof(self.tensor)


class Graph:
    """Tensors, and a scheduler as ggml's: asks before each node, computes when told to stop."""

    def __init__(self, operations: dict[str, int]) -> None:
        self._operations = operations
        self._kept: list[npt.NDArray[Any]] = []
        self._tensors: list[Tensor] = []
        self.nodes: list[Node] = []
        self.computed: list[Node] = []

    def leaf(self, name: str, values: npt.NDArray[Any]) -> Tensor:
        values = np.ascontiguousarray(values)
        self._kept.append(values)
        tensor = Tensor(type=TYPE_I32 if values.dtype == np.int32 else TYPE_F32, name=name.encode())
        sides = values.shape[::-1]
        stride = values.itemsize
        for dim in range(4):
            tensor.ne[dim] = sides[dim] if dim < len(sides) else 1
            tensor.nb[dim] = stride
            stride *= tensor.ne[dim]
        tensor.data = values.ctypes.data
        self._tensors.append(tensor)
        return tensor

    def node(
        self,
        op: str,
        shape: tuple[int, ...],
        *sources: Tensor | Node,
        name: str = "",
        compute: Callable[[], None] = lambda: None,
    ) -> Node:
        tensor = self.leaf(name or op.lower(), np.zeros(shape, np.float32))
        tensor.op = self._operations[op]
        for number, source in enumerate(sources):
            tensor.src[number] = C.addressof(source.tensor if isinstance(source, Node) else source)
        self.nodes.append(Node(tensor, tensor.op, compute))
        return self.nodes[-1]

    def values(self, of: Tensor | Node) -> npt.NDArray[Any]:
        """The memory of a tensor made here."""
        tensor = of.tensor if isinstance(of, Node) else of
        return next(values for values in self._kept if values.ctypes.data == tensor.data)

    def rebuild(self) -> None:
        """Operations as llama.cpp writes them when it builds the graph anew at the same place."""
        for node in self.nodes:
            node.tensor.op = node.op

    def run(self, hook: GraphHook) -> list[str]:
        """One pass; returns what happened, in order."""
        self.computed = []
        pending: list[Node] = []
        hook.begin()
        for node in self.nodes:
            pending.append(node)
            if not hook.callback(node.address, True, None):
                continue
            self._compute(pending)
            if not hook.callback(node.address, False, None):
                return []
        self._compute(pending)
        return []

    def _compute(self, pending: list[Node]) -> None:
        for node in pending:
            if node.tensor.op != 0:
                node.compute()
                self.computed.append(node)
        pending.clear()


class Port:
    """Notes the calls; gives tokens' own numbers back."""

    def __init__(self) -> None:
        self.inputs: list[ExpertInputs] = []
        self.events: list[str] = []
        self.fail: BaseException | None = None

    def leave(self, inputs: ExpertInputs) -> Float32Array:
        self.events.append("leave")
        if self.fail is not None:
            raise self.fail
        self.inputs.append(inputs)
        return np.full((len(inputs.ids), N_IN), len(self.inputs), np.float32)

    def enter(self, ticket: Float32Array) -> Float32Array:
        self.events.append("enter")
        return ticket


class Layer:
    """A layer's experts, a shared expert, and the addition that reads both."""

    def __init__(
        self,
        operations: dict[str, int],
        *,
        weighed: bool = True,
        foreign: bool = False,
        read: bool = True,
        other_ids: bool = False,
        port: Port | None = None,
        call: ExpertCall | None = None,
    ) -> None:
        self.port = port or Port()
        graph = self.graph = Graph(operations)
        rng = np.random.default_rng(0)
        self.x = graph.leaf("x", rng.standard_normal((N_TOKENS, 1, N_IN)).astype(np.float32))
        ids = rng.integers(0, N_EXPERTS, (N_TOKENS, N_USED)).astype(np.int32)
        self.ids = graph.leaf("ids", ids)
        self.weights = graph.leaf("weights", rng.uniform(0, 1, (N_TOKENS, N_USED, 1)).astype(np.float32))
        stack = np.zeros((N_EXPERTS, N_IN, N_IN), np.float32)
        up = graph.leaf("blk.0.ffn_up_exps.weight", stack)
        down = graph.leaf("blk.0.ffn_down_exps.weight", stack)
        rows = (N_TOKENS, N_USED, N_IN)
        self.first = graph.node("MUL_MAT_ID", rows, up, self.x, self.ids)
        if foreign:
            # ggml gives memory that nobody reads any more to others: here the input's.
            graph.node("SQR", rows, self.x, compute=lambda: graph.values(self.x).fill(np.nan))
        self.activation = graph.node("UNARY", rows, self.first)
        last = graph.node(
            "MUL_MAT_ID", rows, down, self.activation, self.first.tensor if other_ids else self.ids
        )
        if weighed:
            last = graph.node("MUL", rows, last, self.weights)
        views = [graph.node("VIEW", (N_TOKENS, N_IN), last) for _ in range(N_USED)]
        self.output = graph.node("ADD", (N_TOKENS, N_IN), *views, name="ffn_moe_out-0")
        self.dead = [node for node in graph.nodes if node.tensor.name.decode() != "sqr"]
        shared = graph.leaf("blk.0.ffn_up_shexp.weight", np.zeros((N_IN, N_IN), np.float32))
        self.shared = graph.node(
            "MUL_MAT", (N_TOKENS, N_IN), shared, self.x, compute=lambda: self.port.events.append("shared")
        )
        self.seen: list[Float32Array] = []
        if read:
            graph.node(
                "ADD",
                (N_TOKENS, N_IN),
                self.output,
                self.shared,
                compute=lambda: self.seen.append(graph.values(self.output).copy()),
            )
        graph.node("SQR", (N_TOKENS, N_IN), self.shared)
        self.original = graph.values(self.x).reshape(N_TOKENS, N_IN).copy()
        self.chosen = ids.copy()
        self.hook_calls = {(0, "exps"): call or expert_call()}

    def hook(self, library: Library) -> GraphHook:
        return GraphHook(library, ExpertHoles(self.hook_calls, self.port))

    def run(self, hook: GraphHook) -> None:
        self.graph.values(self.x)[:] = self.original.reshape(N_TOKENS, 1, N_IN)
        self.graph.run(hook)


def check(layer: Layer, passes: int) -> None:
    """The port got what the graph had, and the graph got what the port gave."""
    assert len(layer.port.inputs) == len(layer.seen) == passes
    for number, (inputs, seen) in enumerate(zip(layer.port.inputs, layer.seen, strict=True), 1):
        assert (inputs.x == layer.original).all()
        assert (inputs.ids == layer.chosen).all()
        assert inputs.weights is not None
        assert (inputs.weights == layer.graph.values(layer.weights).reshape(N_TOKENS, N_USED)).all()
        assert (seen == number).all()


@pytest.mark.parametrize("reused", [True, False])
def test_experts_are_left_out_and_their_result_put_in(
    library: Library, operations: dict[str, int], reused: bool
) -> None:
    layer = Layer(operations)
    hook = layer.hook(library)
    for number in range(1, 5):
        if not reused:
            layer.graph.rebuild()
        layer.run(hook)
        hook.finish()
        check(layer, number)
        computed = {id(node) for node in layer.graph.computed}
        assert not any(id(node) in computed for node in layer.dead)
        assert len(layer.graph.computed) == len(layer.graph.nodes) - len(layer.dead)
    assert hook.counts.classified == len(layer.graph.nodes)
    assert hook.counts.asks == 4 * len(layer.graph.nodes)


def test_what_stands_between_is_computed_during_the_trip(
    library: Library, operations: dict[str, int]
) -> None:
    layer = Layer(operations)
    hook = layer.hook(library)
    layer.run(hook)
    hook.finish()
    layer.port.events.clear()
    layer.run(hook)
    hook.finish()
    assert layer.port.events == ["leave", "shared", "enter"]


def test_inputs_are_taken_before_their_memory_is_given_away(
    library: Library, operations: dict[str, int]
) -> None:
    layer = Layer(operations, foreign=True)
    hook = layer.hook(library)
    for number in range(1, 4):
        layer.run(hook)
        hook.finish()
        check(layer, number)


def test_one_stop_serves_a_call_that_nothing_stands_in(library: Library, operations: dict[str, int]) -> None:
    stops = {}
    for foreign in (False, True):
        layer = Layer(operations, foreign=foreign)
        hook = layer.hook(library)
        layer.run(hook)
        hook.finish()
        count = 0
        hook.begin()
        for node in layer.graph.nodes:
            if hook.callback(node.address, True, None):
                count += 1
                hook.callback(node.address, False, None)
        hook.finish()
        stops[foreign] = count
    assert stops == {False: 2, True: 3}


def test_a_graph_that_departs_within_a_call(library: Library, operations: dict[str, int]) -> None:
    layer = Layer(operations)
    hook = layer.hook(library)
    layer.run(hook)
    hook.finish()
    for op in ("SQR", "UNARY"):
        # Built anew at the same addresses, with another activation.
        layer.activation.op = operations[op]
        layer.graph.rebuild()
        layer.run(hook)
        hook.finish()
        layer.run(hook)
        hook.finish()
    check(layer, 5)
    computed = {id(node) for node in layer.graph.computed}
    assert not any(id(node) in computed for node in layer.dead)


def test_another_graph_in_between(library: Library, operations: dict[str, int]) -> None:
    first, second = Layer(operations), Layer(operations, foreign=True)
    second.port = first.port
    hook = first.hook(library)
    shared_port = first.port
    for layer in (first, second, first, first, second):
        before = len(shared_port.inputs)
        layer.run(hook)
        hook.finish()
        assert len(shared_port.inputs) == before + 1
        assert (shared_port.inputs[-1].x == layer.original).all()
        assert (layer.seen[-1] == before + 1).all()


def test_two_layers_in_a_graph(library: Library, operations: dict[str, int]) -> None:
    layer = Layer(operations)
    again = Layer(operations, port=layer.port)
    layer.graph.nodes += again.graph.nodes
    hook = layer.hook(library)
    for number in range(1, 4):
        again.graph.values(again.x)[:] = again.original.reshape(N_TOKENS, 1, N_IN)
        layer.run(hook)
        hook.finish()
        assert (layer.seen[-1] == 2 * number - 1).all() and (again.seen[-1] == 2 * number).all()


# --- what is refused ---


def fails(library: Library, layer: Layer) -> str:
    hook = layer.hook(library)
    layer.run(hook)
    with pytest.raises(HookError) as caught:
        hook.finish()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_result_nobody_reads(library: Library, operations: dict[str, int]) -> None:
    assert "layer 0: its result was never read" in fails(library, Layer(operations, read=False))


def test_two_sets_of_ids(library: Library, operations: dict[str, int]) -> None:
    assert "two sets of expert ids" in fails(library, Layer(operations, other_ids=True))


def test_weights_in_another_place_than_the_recipe_has_them(
    library: Library, operations: dict[str, int]
) -> None:
    assert "its weights are not where" in fails(library, Layer(operations, weighed=False))
    unweighed = expert_call(R.Recipe("none", R.Matmul("down.weight", R.Matmul("up.weight", R.Input()))))
    assert "its weights are not where" in fails(library, Layer(operations, call=unweighed))


def test_a_layer_the_manifest_does_not_have(library: Library, operations: dict[str, int]) -> None:
    layer = Layer(operations)
    layer.hook_calls = {(1, "exps"): expert_call()}
    assert "blk.0.ffn_up_exps.weight, which the manifest does not have" in fails(library, layer)


def test_experts_read_outside_of_a_call(library: Library, operations: dict[str, int]) -> None:
    layer = Layer(operations)
    stack = layer.graph.leaf("blk.0.ffn_up_exps.weight", np.zeros((N_EXPERTS, N_IN, N_IN), np.float32))
    odd = layer.graph.node("MUL_MAT", (N_TOKENS, N_IN), stack, layer.x, name="odd")
    layer.graph.nodes.insert(0, layer.graph.nodes.pop())
    assert odd is layer.graph.nodes[0]
    assert "odd (MUL_MAT) reads experts outside of a call" in fails(library, layer)


def test_a_call_that_starts_before_the_last_was_read(library: Library, operations: dict[str, int]) -> None:
    layer = Layer(operations, read=False)
    layer.graph.nodes += Layer(operations, port=layer.port).graph.nodes
    assert "starts before the call before it was read" in fails(library, layer)


def test_used_experts_that_are_not_added(library: Library, operations: dict[str, int]) -> None:
    layer = Layer(operations)
    layer.output.op = operations["MUL"]
    layer.graph.rebuild()
    assert "MUL where the used experts should be added" in fails(library, layer)


# --- errors ---


@pytest.mark.parametrize("error", [PeerError("gone"), ZeroDivisionError("bug"), SystemExit(3)], ids=repr)
def test_an_error_ends_the_pass_and_is_told_once(
    library: Library, operations: dict[str, int], error: BaseException
) -> None:
    layer = Layer(operations)
    hook = layer.hook(library)
    layer.run(hook)
    hook.finish()
    layer.port.fail = error
    layer.run(hook)
    assert len(layer.graph.computed) == 0  # nothing after the fault
    with pytest.raises(type(error)) as caught:
        hook.finish()
    assert caught.value is error
    hook.finish()
    layer.port.fail = None
    layer.run(hook)
    hook.finish()
    check(layer, 2)


def test_an_error_while_learning(library: Library, operations: dict[str, int]) -> None:
    layer = Layer(operations)
    hook = layer.hook(library)
    layer.port.fail = PeerError("gone")
    layer.run(hook)
    with pytest.raises(PeerError):
        hook.finish()
    layer.port.fail = None
    for number in (1, 2):
        layer.run(hook)
        hook.finish()
        check(layer, number)


def test_a_pass_abandoned_in_flight_is_forgotten(library: Library, operations: dict[str, int]) -> None:
    """llama.cpp gives up (no memory) after the request has left: no trace of it in the next pass."""
    layer, other = Layer(operations), Layer(operations)
    other.port = layer.port
    hook = layer.hook(library)
    hook.begin()
    for node in layer.graph.nodes[: layer.graph.nodes.index(layer.output) + 1]:
        if hook.callback(node.address, True, None):
            hook.callback(node.address, False, None)
    assert layer.port.events == ["leave"]
    other.run(hook)  # a graph elsewhere: the old one is never read again
    hook.finish()
    assert layer.port.events == ["leave", "leave", "enter", "shared"]
    assert (other.seen[0] == 2).all()
