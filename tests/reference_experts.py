"""What a recipe says, computed row by row in float64: slow, plain, and independent of ggml."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from node.model import recipe as R
from node.model.held import HeldExperts

Row = npt.NDArray[np.float64]


def sigmoid(x: Row) -> Row:
    result: Row = 1 / (1 + np.exp(-x))
    return result


def gelu(x: Row) -> Row:
    result: Row = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return result


UNARY: dict[str, Callable[[Row], Row]] = {
    "RELU": lambda x: np.maximum(x, 0),
    "SILU": lambda x: x * sigmoid(x),
    "SIGMOID": sigmoid,
    "TANH": np.tanh,
    "GELU": gelu,
}


def gated(kind: str, gate: Row, up: Row, alpha: float, limit: float) -> Row:
    """ggml's GLU operations (`ggml_compute_forward_glu`)."""
    result: Row
    match kind:
        case "SWIGLU":
            result = gate * sigmoid(gate) * up
        case "GEGLU":
            result = gelu(gate) * up
        case "REGLU":
            result = np.maximum(gate, 0) * up
        case "SWIGLU_OAI":
            gate = np.minimum(gate, limit)
            result = gate * sigmoid(alpha * gate) * (np.clip(up, -limit, limit) + 1)
        case "SWIGLU_CLAMP":
            gate = np.minimum(gate, limit)
            result = gate * sigmoid(gate) * np.clip(up, -limit, limit)
        case _:
            raise NotImplementedError(kind)
    return result


def expert_row(held: HeldExperts, x: npt.NDArray[np.float32], expert: int, weight: float) -> Row:
    """The routed row of one expert (numbered in the model); its tensors are f32."""

    def tensor(role: str) -> Row:
        found = held.tensors[role]
        assert found.type == 0
        values = np.frombuffer(found.data.tobytes(), np.float32).reshape(found.ne[::-1])
        return np.asarray(values[expert - held.first], np.float64)

    def value(expression: R.Expression) -> Row:
        result: Any
        match expression:
            case R.Input():
                result = x.astype(np.float64)
            case R.Matmul(tensor=role, of=of):
                result = tensor(role) @ value(of)
            case R.Bias(tensor=role, of=of):
                result = value(of) + tensor(role)
            case R.Scale(tensor=role, of=of):
                result = value(of) * tensor(role)
            case R.Weigh(of=of):
                result = value(of) * weight
            case R.Half(index=index, of=of):
                result = np.split(value(of), 2)[index]
            case R.Glu(gate=gate, up=None):
                first, second = np.split(value(gate), 2)
                if expression.swapped:
                    first, second = second, first
                result = gated(expression.kind, first, second, expression.alpha, expression.limit)
            case R.Glu(gate=gate, up=up):
                assert up is not None
                result = gated(expression.kind, value(gate), value(up), expression.alpha, expression.limit)
            case R.Unary(kind=kind, of=of):
                result = UNARY[kind](value(of))
            case R.Square(of=of):
                result = value(of) ** 2
            case R.Affine(factor=factor, of=of, offset=offset):
                result = factor * value(of) + offset
            case R.Clamp(low=low, high=high, of=of):
                result = np.clip(value(of), low, high)
            case R.Norm(kind=kind, epsilon=epsilon, of=of):
                row = value(of)
                if kind == "NORM":
                    row = row - row.mean()
                if kind == "L2_NORM":
                    result = row / max(math.sqrt((row**2).sum()), epsilon)
                else:
                    result = row / math.sqrt((row**2).mean() + epsilon)
            case R.Product(left=left, right=right):
                result = value(left) * value(right)
            case R.Total(left=left, right=right):
                result = value(left) + value(right)
        return np.asarray(result, np.float64)

    return value(held.recipe.output)
