"""From a recipe's expression to ggml nodes: one constructor call per operation, equal parts built once."""

from __future__ import annotations

import ctypes as C
import math
from collections.abc import Mapping
from typing import Any

from node.engine.library import EngineError, Library
from node.engine.structs import Tensor
from node.model import recipe as R

GRAPH_NODES = 128  # the longest known recipe needs 14 nodes and 9 leaves; R.MAX_DEPTH bounds strangers'

# ggml's enums by name, as of the pinned build. Manifests carry the names: numbers move between builds.
GLU_KINDS = ("REGLU", "GEGLU", "SWIGLU", "SWIGLU_OAI", "GEGLU_ERF", "GEGLU_QUICK", "SWIGLU_CLAMP")
UNARY_KINDS = (
    "ABS", "SGN", "NEG", "STEP", "TANH", "ELU", "RELU", "SIGMOID", "GELU", "GELU_QUICK", "SILU",
    "HARDSWISH", "HARDSIGMOID", "EXP", "EXPM1", "SOFTPLUS", "GELU_ERF", "XIELU", "FLOOR", "CEIL", "ROUND",
)  # fmt: skip


class ExpressionGraph:
    """Builds nodes in a ggml context.

    Args:
        tensors: role -> address of an expert tensor [.., n_held].
        inputs: "x" [n_in, 1, n_rows], "ids" [slots, n_rows], "weights" and scale roles [1, slots, n_rows].
    """

    def __init__(
        self, library: Library, context: Any, *, tensors: Mapping[str, int], inputs: Mapping[str, int]
    ) -> None:
        self._library = library
        self._context = context
        self._tensors = tensors
        self._inputs = inputs
        self._built: dict[R.Expression, int] = {}

    def build(self, expression: R.Expression) -> int:
        """Address of the node that computes the expression.

        Raises:
            EngineError: a function that this build of ggml does not have, or shapes that do not fit.
        """
        address = self._built.get(expression)
        if address is None:
            address = self._built[expression] = self._node(expression)
            if len(self._built) * 2 > GRAPH_NODES:
                raise EngineError(f"a recipe of more than {GRAPH_NODES // 2} operations")
        return address

    def _node(self, expression: R.Expression) -> int:
        library, context = self._library, self._context
        ids = self._inputs["ids"]
        result: int
        match expression:
            case R.Input():
                return self._inputs["x"]
            case R.Matmul(tensor=role, of=of):
                source, matrix = self.build(of), self._tensor(role)
                if self._ne(matrix)[0] != self._ne(source)[0]:
                    raise EngineError(
                        f"{role} takes rows of {self._ne(matrix)[0]}, not of {self._ne(source)[0]}"
                    )
                result = library.ggml_mul_mat_id(context, matrix, source, ids)
            case R.Bias(tensor=role, of=of):
                source, vector = self.build(of), self._tensor(role)
                if self._ne(vector)[0] != self._ne(source)[0]:
                    raise EngineError(
                        f"{role} has {self._ne(vector)[0]} values for rows of {self._ne(source)[0]}"
                    )
                result = library.ggml_add_id(context, source, vector, ids)
            case R.Scale(tensor=role, of=of):
                result = library.ggml_mul(context, self.build(of), self._input(role))
            case R.Weigh(of=of):
                result = library.ggml_mul(context, self.build(of), self._input("weights"))
            case R.Half(index=index, of=of):
                result = self._half(self.build(of), index)
            case R.Glu():
                result = self._glu(expression)
            case R.Unary(kind=kind, of=of, parameters=parameters):
                result = library.ggml_unary(context, self.build(of), _index(UNARY_KINDS, kind))
                self._set_floats(result, 1, parameters)
            case R.Square(of=of):
                result = library.ggml_sqr(context, self.build(of))
            case R.Affine(factor=factor, of=of, offset=offset):
                source = self.build(of)
                if isinstance(of, R.Half):  # ggml_scale takes whole rows only, and aborts on others
                    source = library.ggml_cont(context, source)
                result = library.ggml_scale_bias(context, source, factor, offset)
            case R.Clamp(low=low, high=high, of=of):
                # ggml_clamp works in place; the source may be wanted elsewhere, so it gets a copy.
                copy = library.ggml_cont(context, self.build(of))
                bounds = (-math.inf if low is None else low, math.inf if high is None else high)
                result = library.ggml_clamp(context, copy, *bounds)
            case R.Norm(kind=kind, epsilon=epsilon, of=of):
                normalise = {
                    "RMS_NORM": library.ggml_rms_norm,
                    "NORM": library.ggml_norm,
                    "L2_NORM": library.ggml_l2_norm,
                }[kind]
                result = normalise(context, self.build(of), epsilon)
            case R.Product(left=left, right=right):
                result = library.ggml_mul(context, *self._same_shape(left, right))
            case R.Total(left=left, right=right):
                result = library.ggml_add(context, *self._same_shape(left, right))
        return result

    def _glu(self, glu: R.Glu) -> int:
        library, kind = self._library, _index(GLU_KINDS, glu.kind)
        result: int
        if glu.up is None:
            whole = self.build(glu.gate)
            if self._ne(whole)[0] % 2:
                raise EngineError(f"{glu.kind} over a row of {self._ne(whole)[0]}, which has no halves")
            result = library.ggml_glu(self._context, whole, kind, glu.swapped)
        else:
            gate, up = self._same_shape(glu.gate, glu.up)
            result = library.ggml_glu_split(self._context, gate, up, kind)
        self._set_floats(result, 2, (glu.alpha, glu.limit))
        return result

    def _half(self, source: int, index: int) -> int:
        tensor = Tensor.from_address(source)
        ne, nb = tuple(tensor.ne), tuple(tensor.nb)
        if ne[0] % 2:
            raise EngineError(f"half of a row of {ne[0]}")
        half = ne[0] // 2
        offset = index * half * nb[0]
        result: int = self._library.ggml_view_3d(
            self._context, source, half, ne[1], ne[2], nb[1], nb[2], offset
        )
        return result

    def _same_shape(self, left: R.Expression, right: R.Expression) -> tuple[int, int]:
        a, b = self.build(left), self.build(right)
        if self._ne(a) != self._ne(b):
            raise EngineError(f"the recipe joins rows of {self._ne(a)[0]} and {self._ne(b)[0]}")
        return a, b

    def _tensor(self, role: str) -> int:
        try:
            return self._tensors[role]
        except KeyError:
            raise EngineError(f"the recipe needs expert tensor {role}, which is not there") from None

    def _input(self, name: str) -> int:
        try:
            return self._inputs[name]
        except KeyError:
            raise EngineError(f"the recipe needs {name}, which is not given") from None

    @staticmethod
    def _ne(address: int) -> tuple[int, ...]:
        return tuple(Tensor.from_address(address).ne)

    @staticmethod
    def _set_floats(address: int, start: int, values: tuple[float, ...]) -> None:
        if values:
            offset = Tensor.op_params.offset + 4 * start
            (C.c_float * len(values)).from_address(address + offset)[:] = values  # type: ignore[call-overload]


def _index(kinds: tuple[str, ...], kind: str) -> int:
    try:
        return kinds.index(kind)
    except ValueError:
        raise EngineError(f"the recipe uses {kind}, which this llama.cpp does not have") from None
