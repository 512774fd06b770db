"""From a traced graph to recipes: finds every MoE call by structure and says what its experts compute.

A call is a MUL_MAT_ID over a layer's `ffn_down_(ch)exps.weight`, the same-shaped operations after it
(bias, scale, norm, weights), one VIEW per used expert, and the ADDs of those views (CONT when one expert
is used): `build_moe_ffn` in llama.cpp, whatever the nodes are called. Names of tensors are trusted only
where they come from the file.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from node.engine.graph import Node
from node.engine.trace import Trace
from node.model import recipe as R
from node.model.expert_names import ExpertName, parse_expert_name

NORMS = ("RMS_NORM", "NORM", "L2_NORM")


@dataclass(frozen=True, slots=True)
class TracedCall:
    """One MoE call as found in a graph.

    Attributes:
        layer, group: which expert tensors it uses; group is "exps", or "chexps" for chunk experts.
        n_used: experts per token.
        tensors: role -> name in the file, for all tensors the recipe reads.
    """

    layer: int
    group: str
    n_used: int
    recipe: R.Recipe
    tensors: Mapping[str, str]


def find_calls(trace: Trace) -> list[TracedCall]:
    """All MoE calls of a graph in the order they run.

    Raises:
        RecipeError: experts compute something a recipe cannot express; names layer and operation.
    """
    calls = []
    for node in trace.nodes:
        if node.op != "MUL_MAT_ID":
            continue
        name = _expert(trace, node.sources[0])
        if name is not None and name.role == "down.weight":
            calls.append(_Reader(trace, node, name).call())
    return calls


def _expert(trace: Trace, address: int) -> ExpertName | None:
    leaf = trace.leaves.get(address)
    return parse_expert_name(leaf.name) if leaf else None


def floats(node: Node, start: int, count: int) -> tuple[float, ...]:
    return struct.unpack_from(f"={count}f", node.op_params, start * 4)


def integer(node: Node, index: int) -> int:
    value: int = struct.unpack_from("=i", node.op_params, index * 4)[0]
    return value


class _Reader:
    """Reads one call's expression backwards from its routed rows."""

    def __init__(self, trace: Trace, down: Node, name: ExpertName) -> None:
        self._trace = trace
        self._down = down
        self._name = name
        self._n_used = down.ne[1]
        self._n_tokens = down.ne[2]
        self._ids = down.sources[2]
        self._input: int | None = None
        self._tensors: dict[str, str] = {}
        self._expert_nodes = self._reachable_from_experts()

    def call(self) -> TracedCall:
        output = self._expression(self._rows())
        weights: Literal["after", "before", "none"] = "before" if self._input_is_weighed() else "none"
        if any(isinstance(e, R.Weigh) for e in _walk(output)):
            weights = "after"
        recipe = R.Recipe(weights=weights, output=output)
        R.check(recipe)
        return TracedCall(
            self._name.layer, self._name.group, self._n_used, recipe, dict(sorted(self._tensors.items()))
        )

    def _refuse(self, node: Node, why: str) -> R.RecipeError:
        return R.RecipeError(f"layer {self._name.layer}: experts use {node.op} ({node.name}): {why}")

    def _reachable_from_experts(self) -> frozenset[int]:
        """Nodes up to `down` computed from this layer's expert tensors, directly or not."""
        found: set[int] = set()
        for node in self._trace.nodes:
            mine = any(
                (name := _expert(self._trace, source)) is not None
                and (name.layer, name.group) == (self._name.layer, self._name.group)
                for source in node.sources
            )
            if mine or any(source in found for source in node.sources):
                found.add(node.address)
            if node.address == self._down.address:
                break
        return frozenset(found)

    def _rows(self) -> Node:
        """The last same-shaped node after `down`: what the views of used experts are taken from."""
        last = self._down
        for node in self._trace.nodes[self._trace.nodes.index(self._down) + 1 :]:
            if last.address in node.sources:
                if node.op == "VIEW" or node.ne != last.ne:
                    return last
                last = node
        return last

    def _expression(self, node: Node, depth: int = 0) -> R.Expression:
        if depth > R.MAX_DEPTH:
            raise self._refuse(node, f"deeper than {R.MAX_DEPTH} operations")
        deeper = depth + 1

        def of(index: int) -> R.Expression:
            return self._expression(self._source(node, index), deeper)

        match node.op:
            case "MUL_MAT_ID":
                role = self._tensor(node, 0)
                self._same_ids(node)
                source = self._source(node, 1)
                if source.address in self._expert_nodes:
                    return R.Matmul(role, self._expression(source, deeper))
                self._same_input(node, source)
                return R.Matmul(role, R.Input())
            case "ADD_ID":
                self._same_ids(node)
                return R.Bias(self._tensor(node, 1), of(0))
            case "MUL":
                return self._product(node, deeper)
            case "ADD":
                return R.Total(of(0), of(1))
            case "GLU":
                if any(node.op_params[16:]):
                    raise self._refuse(node, "with parameters that are not known")
                alpha, limit = floats(node, 2, 2)
                up = of(1) if len(node.sources) > 1 else None
                return R.Glu(node.kind, of(0), up, bool(integer(node, 1)), alpha, limit)
            case "UNARY":
                parameters = floats(node, 1, 4)
                while parameters and parameters[-1] == 0.0:
                    parameters = parameters[:-1]
                return R.Unary(node.kind, of(0), parameters)
            case "SQR":
                return R.Square(of(0))
            case "SCALE":
                factor, offset = floats(node, 0, 2)
                return R.Affine(factor, of(0), offset)
            case "CLAMP":
                low, high = floats(node, 0, 2)
                return R.Clamp(None if low == -math.inf else low, None if high == math.inf else high, of(0))
            case "VIEW":
                return self._half(node, deeper)
            case op if op in NORMS:
                return R.Norm(op, floats(node, 0, 1)[0], of(0))  # type: ignore[arg-type]
            case _:
                raise self._refuse(node, "no recipe can express it; please report the model")

    def _source(self, node: Node, index: int) -> Node:
        found = self._trace.find(node.sources[index])
        if found is None:
            raise self._refuse(node, "reads a tensor that the graph does not show")
        return found

    def _tensor(self, node: Node, index: int) -> str:
        """The role of an expert tensor that the node reads; notes its name."""
        leaf = self._source(node, index)
        name = parse_expert_name(leaf.name)
        if name is None or (name.layer, name.group) != (self._name.layer, self._name.group):
            raise self._refuse(node, f"with {leaf.name}, which is no expert tensor of this layer")
        self._tensors[name.role] = leaf.name
        return name.role

    def _same_ids(self, node: Node) -> None:
        if node.sources[2] != self._ids:
            raise self._refuse(node, "with other expert ids than the rest of the call")

    def _same_input(self, node: Node, source: Node) -> None:
        root = self._root(source)
        if self._input is None:
            self._input = root
        elif self._input != root:
            raise self._refuse(node, "with another input than the rest of the call")

    def _root(self, node: Node) -> int:
        """The node whose values a chain of whole-tensor views shows."""
        while node.op == "RESHAPE":
            inner = self._trace.find(node.sources[0])
            if inner is None:
                break
            node = inner
        return node.address

    def _product(self, node: Node, depth: int) -> R.Expression:
        left, right = self._source(node, 0), self._source(node, 1)
        per_slot = (1, self._n_used, self._n_tokens, 1)
        if right.ne == per_slot:
            scale = self._per_expert_scale(right)
            if scale is not None:
                return R.Scale(scale, self._expression(left, depth))
            if right.address not in self._expert_nodes:
                return R.Weigh(self._expression(left, depth))
        if left.address in self._expert_nodes and right.address in self._expert_nodes:
            return R.Product(self._expression(left, depth), self._expression(right, depth))
        raise self._refuse(
            node, f"with {right.name}, which is neither the router's weight nor an expert tensor"
        )

    def _per_expert_scale(self, node: Node) -> str | None:
        """GET_ROWS of a repeated `*.scale` by the call's ids: one number per chosen expert."""
        if node.op != "GET_ROWS" or node.sources[1] != self._ids:
            return None
        inner = self._trace.find(node.sources[0])
        while inner is not None and inner.op in ("REPEAT", "RESHAPE"):
            inner = self._trace.find(inner.sources[0])
        name = parse_expert_name(inner.name) if inner is not None else None
        if inner is None or name is None or (name.layer, name.group) != (self._name.layer, self._name.group):
            return None
        self._tensors[name.role] = inner.name
        return name.role

    def _half(self, node: Node, depth: int) -> R.Expression:
        whole = self._source(node, 0)
        if node.ne[0] * 2 != whole.ne[0] or node.ne[1:] != whole.ne[1:] or node.nb[1:] != whole.nb[1:]:
            raise self._refuse(node, "a part of a row that is not one half")
        # Relative to the source: view_offset counts from the tensor that owns the bytes.
        offset = node.view_offset - whole.view_offset
        if offset not in (0, node.ne[0] * node.nb[0]):
            raise self._refuse(node, f"a half row at byte {offset}")
        return R.Half(1 if offset else 0, self._expression(whole, depth))

    def _input_is_weighed(self) -> bool:
        """Is the input itself a product with a number per slot (llama4)?"""
        node = self._trace.find(self._input) if self._input is not None else None
        if node is None or node.op != "MUL" or len(node.sources) != 2:
            return False
        right = self._trace.find(node.sources[1])
        return right is not None and right.ne == (1, self._n_used, self._n_tokens, 1)


def _walk(expression: R.Expression) -> list[R.Expression]:
    return [expression, *(deeper for child in R.children(expression) for deeper in _walk(child))]
