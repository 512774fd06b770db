"""A home plan as it is shown: a table for people, and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.cli.table import format_table

if TYPE_CHECKING:
    from node.home.home_set import HomeSet, Shapes
    from node.home.plan_file import HomePlan

NAMED_LAYERS = 8  # in the list of what is worth most


def report_of(plan: HomePlan, shapes: Shapes, path: Path) -> dict[str, Any]:
    """For programs: the asked budget first."""
    from node.home.home_set import HomeSet

    rows = []
    for budget in plan.budgets:
        found = plan.measured[budget.chosen]
        home = HomeSet.from_ranges(found.experts, shapes)
        whole = home.whole_layers(shapes)
        rows.append(
            {
                "budget": budget.n_bytes,
                "share": round(budget.share, 4),
                "bytes": found.n_bytes,
                "untried_bytes": _untried(budget.n_bytes, home, shapes),
                "layers": whole,
                "other_experts": home.count() - sum(shapes[layer].n_experts for layer in whole),
                "experts": found.experts,
                "tokens_per_pass": round(found.tokens_per_pass, 2),
                "trips_per_layer_token": round(found.trips, 4),
                "trips_without_guesses": round(found.plain, 4),
            }
        )
    return {
        "model_id": plan.model_id,
        "plan": str(path),
        "text": plan.text,
        "tokens": plan.text_tokens,
        "seconds": plan.seconds,
        "sets_tried": len(plan.measured),
        "guesses_a_pass": plan.drafts,
        "budgets": rows,
        "layers": [{"layer": each.layer, "worth": each.worth} for each in plan.layers],
    }


def told(plan: HomePlan, shapes: Shapes, path: Path, next_line: str) -> str:
    """The table and what it means, with what to do next."""
    from node.home.home_set import HomeSet
    from node.sizes import size_text

    report = report_of(plan, shapes, path)
    header = (
        "memory",
        "of all",
        "tried",
        "layers at home",
        "other experts",
        "tokens a pass",
        "trips",
        "no guessing",
    )
    rows = [
        (
            size_text(row["budget"]),
            f"{row['share']:.0%}",
            size_text(row["bytes"]),
            HomeSet.layers_text(row["layers"]) if row["layers"] else "-",
            row["other_experts"],
            f"{row['tokens_per_pass']:.2f}",
            f"{row['trips_per_layer_token']:.3f}",
            f"{row['trips_without_guesses']:.3f}",
        )
        for row in sorted(report["budgets"], key=lambda row: int(row["budget"]))
    ]
    ranked = sorted(plan.layers, key=lambda each: -each.worth)[:NAMED_LAYERS]
    guesses = (
        f"up to {plan.drafts} guesses a pass; worth most for them: layers "
        + ", ".join(str(each.layer) for each in ranked)
        if plan.drafts
        else "this kind of model cannot take guesses back: one token a pass"
    )
    short = [row for row in report["budgets"] if row["untried_bytes"]]
    untried = ""
    if short:
        budgets = ", ".join(size_text(row["budget"]) for row in short)
        untried = (
            f"the best sets tried leave room at {budgets}: a node fills it with the hottest experts,\n"
            "which was not measured; more --seconds try more\n"
        )
    return (
        f"{format_table(header, rows)}\n\n"
        "trips: per layer and token, where 1 is a trip for each layer of each token\n"
        f"measured on {plan.text_tokens:,} tokens after prompts from {plan.text} "
        f"in {plan.seconds:.0f} s, {len(plan.measured)} home sets tried\n{guesses}\n{untried}"
        f"plan     {path}\n\nNext: {next_line}"
    )


def _untried(budget: int, home: HomeSet, shapes: Shapes) -> int:
    """Bytes of a budget for which cells that were not tried are left; 0 if it is full."""
    left = budget - home.n_bytes(shapes)
    others = [
        shape.cell_bytes for layer, shape in shapes.items() if home.held(layer).bit_count() < shape.n_experts
    ]
    return left if others and left >= min(others) else 0
