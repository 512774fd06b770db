"""Recipes as data: what `check` refuses, the JSON form, and the widths that flow through them."""

from __future__ import annotations

import msgspec
import pytest

from node.model import recipe as R
from node.model.manifest import ManifestError, output_width

UP = R.Matmul("up.weight", R.Input())
GATE = R.Matmul("gate.weight", R.Input())
HIDDEN = R.Glu("SWIGLU", GATE, UP)
DOWN = R.Matmul("down.weight", HIDDEN)
SHAPES: dict[str, tuple[int, ...]] = {
    "gate.weight": (8, 12),
    "up.weight": (8, 12),
    "down.weight": (12, 6),
    "gate_up.weight": (8, 24),
    "up.bias": (12,),
    "down.bias": (6,),
    "down.scale": (),
}

EVERY_KIND: list[R.Expression] = [
    R.Input(),
    UP,
    R.Bias("up.bias", UP),
    R.Scale("down.scale", UP),
    R.Weigh(UP),
    R.Half(1, UP),
    HIDDEN,
    R.Glu("SWIGLU_OAI", UP, None, True, 1.7020000219345093, 7.0),
    R.Unary("SILU", UP, (0.5, -1.0)),
    R.Square(UP),
    R.Affine(0.1, UP, -2.0),
    R.Clamp(-7.0, 7.0, UP),
    R.Clamp(None, 7.0, UP),
    R.Norm("L2_NORM", 1e-6, UP),
    R.Product(UP, GATE),
    R.Total(UP, GATE),
]


def test_every_kind_of_expression_is_covered() -> None:
    assert {type(each) for each in EVERY_KIND} == set(R.Expression.__args__)


@pytest.mark.parametrize("expression", EVERY_KIND, ids=lambda each: type(each).__name__)
def test_json_gives_the_recipe_back(expression: R.Expression) -> None:
    recipe = R.Recipe("none", expression)
    encoded = msgspec.json.encode(recipe)
    assert msgspec.json.decode(encoded, type=R.Recipe) == recipe
    assert msgspec.json.encode(msgspec.json.decode(encoded, type=R.Recipe)) == encoded


@pytest.mark.parametrize(
    "broken",
    [
        R.Unary("SILU", UP, (1.0,) * 5),
        R.Unary("SILU\n", UP),
        R.Unary("", UP),
        R.Glu("A" * 33, UP),
        R.Norm("NORM", -1e-6, UP),
        R.Norm("ABS", 1e-6, UP),  # type: ignore[arg-type]
        R.Half(2, UP),  # type: ignore[arg-type]
        R.Matmul("up.weight\n", R.Input()),
        R.Matmul("weight", R.Input()),
    ],
    ids=repr,
)
def test_json_that_ggml_must_not_see_is_refused(broken: R.Expression) -> None:
    # More parameters than 4 would be written over ggml's own fields; a negative epsilon aborts the process.
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(R.Recipe("none", broken)), type=R.Recipe)


def test_roles_are_those_read_sorted_once() -> None:
    recipe = R.Recipe("after", R.Weigh(R.Scale("down.scale", R.Bias("down.bias", R.Product(DOWN, DOWN)))))
    assert R.roles(recipe) == ("down.bias", "down.scale", "down.weight", "gate.weight", "up.weight")


@pytest.mark.parametrize(
    ("weights", "output", "message"),
    [
        ("after", DOWN, "weighs 0 times, but says weights go after"),
        ("after", R.Weigh(R.Weigh(DOWN)), "weighs 2 times"),
        ("after", R.Total(R.Weigh(DOWN), R.Weigh(DOWN)), "weighs 2 times"),
        ("before", R.Weigh(DOWN), "weighs 1 times, but says weights go before"),
        ("none", R.Weigh(DOWN), "weighs 1 times, but says weights go none"),
        ("none", R.Matmul("side.weight", R.Input()), "unknown expert tensors side.weight"),
        ("none", R.Bias("up.norm", UP), "unknown expert tensors up.norm"),
    ],
)
def test_check_refuses(weights: str, output: R.Expression, message: str) -> None:
    with pytest.raises(R.RecipeError, match=message):
        R.check(R.Recipe(weights, output))  # type: ignore[arg-type]


def test_check_takes_a_weight_in_each_place() -> None:
    R.check(R.Recipe("after", R.Weigh(DOWN)))
    R.check(R.Recipe("after", R.Matmul("down.weight", R.Weigh(HIDDEN))))
    R.check(R.Recipe("before", DOWN))
    R.check(R.Recipe("none", DOWN))


def test_depth_is_bounded() -> None:
    def nested(levels: int) -> R.Recipe:
        expression: R.Expression = R.Input()
        for _ in range(levels):
            expression = R.Square(expression)
        return R.Recipe("none", expression)

    R.check(nested(R.MAX_DEPTH))
    with pytest.raises(R.RecipeError, match="deeper than 24"):
        R.check(nested(R.MAX_DEPTH + 1))


@pytest.mark.parametrize(
    ("output", "width"),
    [
        (UP, 12),
        (DOWN, 6),
        (R.Weigh(R.Scale("down.scale", R.Bias("down.bias", DOWN))), 6),
        (R.Square(R.Half(0, DOWN)), 3),
        (R.Glu("SWIGLU", R.Matmul("gate_up.weight", R.Input())), 12),
        (R.Product(GATE, R.Affine(2.0, R.Unary("TANH", UP))), 12),
        (R.Norm("NORM", 0.0, R.Clamp(-1.0, 1.0, R.Square(R.Total(UP, GATE)))), 12),
        (R.Matmul("up.weight", R.Square(R.Input())), 12),
    ],
)
def test_output_width(output: R.Expression, width: int) -> None:
    assert output_width(R.Recipe("none", output), 8, SHAPES) == width


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (R.Matmul("down.weight", R.Input()), "down.weight takes rows of 12, not of 8"),
        (R.Matmul("up.bias", R.Input()), "up.bias takes rows of 0"),
        (R.Bias("down.bias", UP), "down.bias does not fit rows of 12"),
        (R.Bias("down.scale", UP), "down.scale does not fit"),
        (R.Scale("down.bias", DOWN), "down.bias is not one number an expert"),
        (R.Scale("down.weight", DOWN), "down.weight is not one number"),
        (R.Half(0, R.Half(0, DOWN)), "half of a row of 3"),
        (R.Glu("SWIGLU", R.Half(0, DOWN)), "a gated activation of a row of 3"),
        (R.Glu("SWIGLU", UP, DOWN), "rows of 12 and 6 are joined"),
        (R.Product(UP, DOWN), "rows of 12 and 6 are joined"),
        (R.Total(DOWN, UP), "rows of 6 and 12 are joined"),
        # One row a token, where ggml wants one for each used expert: it would abort.
        (R.Weigh(R.Input()), "the input itself"),
        (R.Scale("down.scale", R.Square(R.Input())), "the input itself"),
        (R.Bias("up.bias", R.Input()), "the input itself"),
        (R.Product(R.Matmul("up.weight", R.Input()), R.Input()), "rows of 12 and 8"),
        (
            R.Glu("SWIGLU", R.Input(), R.Half(0, R.Matmul("wide.weight", R.Input()))),
            "the input itself is joined",
        ),
        (R.Square(R.Input()), "no expert matrix"),
        # Kernels read a result as one piece of memory.
        (R.Half(0, UP), "half of a row"),
    ],
)
def test_output_width_refuses_each_misfit(output: R.Expression, message: str) -> None:
    shapes = {**SHAPES, "wide.weight": (8, 16)}
    with pytest.raises(ManifestError, match=message):
        output_width(R.Recipe("none", output), 8, shapes)
