"""What the experts of a layer compute, as an expression: from the input row and the expert tensors to the
routed row. Read out of llama.cpp's own graph (`node.engine.recognise`), carried in the manifest, turned
back into a ggml graph by `node.engine.kernels`. Nothing here knows an architecture's name.

The form is canonical: it depends on what is computed, not on the order in which a graph lists it, so that
two builds of llama.cpp that compute the same give the same model id.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from routing.errors import LocalError

MAX_DEPTH = 24  # the deepest known recipe (kimi-k3) has 10 levels; a bound for manifests from strangers
ROLES = frozenset(
    f"{part}.{kind}" for part in ("gate", "up", "down", "gate_up") for kind in ("weight", "bias", "scale")
)

MAX_PARAMETERS = 4  # of a UNARY; `recognise` reads no more, and more would overwrite ggml's own fields

_Kind = Annotated[str, msgspec.Meta(pattern=r"^[A-Z0-9_]{1,32}\Z")]
_Role = Annotated[str, msgspec.Meta(pattern=r"^[a-z_]{1,16}\.[a-z]{1,16}\Z")]
_Epsilon = Annotated[float, msgspec.Meta(ge=0)]  # ggml aborts on a negative one


class RecipeError(LocalError):
    """A graph computes something that no recipe can say, or a manifest's recipe is malformed."""


class Input(msgspec.Struct, frozen=True, tag="input", tag_field="op"):
    """The row that enters the experts: [n_in], one per token, or one per (token, slot) if weighted before."""


class Matmul(msgspec.Struct, frozen=True, tag="matmul", tag_field="op"):
    """The expert's matrix `tensor` times a row (MUL_MAT_ID)."""

    tensor: _Role
    of: Expression


class Bias(msgspec.Struct, frozen=True, tag="bias", tag_field="op"):
    """Plus the expert's vector `tensor` (ADD_ID)."""

    tensor: _Role
    of: Expression


class Scale(msgspec.Struct, frozen=True, tag="scale", tag_field="op"):
    """Times the expert's number `tensor`."""

    tensor: _Role
    of: Expression


class Weigh(msgspec.Struct, frozen=True, tag="weigh", tag_field="op"):
    """Times the router's weight of this (token, slot)."""

    of: Expression


class Half(msgspec.Struct, frozen=True, tag="half", tag_field="op"):
    """The first (0) or second (1) half of a row: what a merged gate_up matrix gives."""

    index: Literal[0, 1]
    of: Expression


class Glu(msgspec.Struct, frozen=True, tag="glu", tag_field="op"):
    """A gated activation (GLU). `kind` is ggml's name; without `up` the row holds both halves.

    `alpha` and `limit` are the operation's parameters 2 and 3 as float32; 0 where it has none.
    """

    kind: _Kind
    gate: Expression
    up: Expression | None = None
    swapped: bool = False
    alpha: float = 0.0
    limit: float = 0.0


class Unary(msgspec.Struct, frozen=True, tag="unary", tag_field="op"):
    """An element-wise function by ggml's name, with its parameters, if any, as float32."""

    kind: _Kind
    of: Expression
    parameters: Annotated[tuple[float, ...], msgspec.Meta(max_length=MAX_PARAMETERS)] = ()


class Square(msgspec.Struct, frozen=True, tag="square", tag_field="op"):
    of: Expression


class Affine(msgspec.Struct, frozen=True, tag="affine", tag_field="op"):
    """Times `factor` plus `offset` (SCALE)."""

    factor: float
    of: Expression
    offset: float = 0.0


class Clamp(msgspec.Struct, frozen=True, tag="clamp", tag_field="op"):
    """Kept within bounds; None where there is none (JSON has no infinity)."""

    low: float | None
    high: float | None
    of: Expression


class Norm(msgspec.Struct, frozen=True, tag="norm", tag_field="op"):
    """A row normalised: RMS_NORM, NORM or L2_NORM."""

    kind: Literal["RMS_NORM", "NORM", "L2_NORM"]
    epsilon: _Epsilon
    of: Expression


class Product(msgspec.Struct, frozen=True, tag="product", tag_field="op"):
    left: Expression
    right: Expression


class Total(msgspec.Struct, frozen=True, tag="total", tag_field="op"):
    left: Expression
    right: Expression


Expression = (
    Input
    | Matmul
    | Bias
    | Scale
    | Weigh
    | Half
    | Glu
    | Unary
    | Square
    | Affine
    | Clamp
    | Norm
    | Product
    | Total
)


class Recipe(msgspec.Struct, frozen=True):
    """All that a call's experts compute.

    Attributes:
        weights: where the router's weight goes: "after" the experts (a `Weigh` in `output`), "before"
            them (the trunk has already done it: the input has a row per slot), or nowhere.
        output: the routed row of one expert, before rows are added over slots.
    """

    weights: Literal["after", "before", "none"]
    output: Expression


def children(expression: Expression) -> tuple[Expression, ...]:
    match expression:
        case Input():
            return ()
        case Glu(gate=gate, up=None):
            return (gate,)
        case Glu(gate=gate, up=up) if up is not None:
            return (gate, up)
        case Product(left=left, right=right) | Total(left=left, right=right):
            return (left, right)
        case _:
            return (expression.of,)  # type: ignore[union-attr]


def roles(recipe: Recipe) -> tuple[str, ...]:
    """Names of the expert tensors the recipe reads, sorted: "down.weight", "gate.bias", ..."""
    found: set[str] = set()

    def visit(expression: Expression, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise RecipeError(f"recipe is nested deeper than {MAX_DEPTH}")
        if isinstance(expression, Matmul | Bias | Scale):
            found.add(expression.tensor)
        for child in children(expression):
            visit(child, depth + 1)

    visit(recipe.output, 0)
    return tuple(sorted(found))


def check(recipe: Recipe) -> None:
    """Refuse what a stranger's manifest may not say.

    Raises:
        RecipeError: unknown tensor roles, too deep, or `Weigh` not where `weights` says.
    """
    unknown = [role for role in roles(recipe) if role not in ROLES]
    if unknown:
        raise RecipeError(f"recipe names unknown expert tensors {', '.join(unknown)}")
    weighed = _count_weigh(recipe.output)
    if weighed != (1 if recipe.weights == "after" else 0):
        raise RecipeError(f"recipe weighs {weighed} times, but says weights go {recipe.weights}")


def _count_weigh(expression: Expression) -> int:
    return isinstance(expression, Weigh) + sum(_count_weigh(child) for child in children(expression))
