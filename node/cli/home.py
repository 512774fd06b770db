"""`panal home`: which experts to compute here, so that tokens take few trips."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.cli.arguments import MAX_SEED, Subparsers, add_command, add_json, add_store, integer, number
from node.cli.table import format_table
from routing.errors import LocalError

if TYPE_CHECKING:
    from node.home.home_set import Shapes
    from node.home.plan_file import HomePlan
    from node.home.planning import TextSource

DEFAULT_MEMORY = "50%"
DEFAULT_SECONDS = 120.0
MAX_SECONDS = 86_400.0  # a day: a 48-layer model on a slow machine takes minutes
MAX_TEXT_BYTES = 64 << 20  # of which only excerpts are read; a book is 1 MB
MAX_THREADS = 512  # GGML_MAX_N_THREADS
NAMED_LAYERS = 8  # in the list of what is worth most


def add_arguments(subparsers: Subparsers) -> None:
    """Declare `home plan`."""
    group = subparsers.add_parser(
        "home", help="choose the experts to compute here, so that tokens take few trips", allow_abbrev=False
    )
    verbs = group.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="verb")
    plan = add_command(
        verbs,
        "plan",
        plan_home,
        "measure which experts are worth having here, and write the plan into the store",
        epilog=(
            "Runs the model from its file, without any peer, over places of a text, and tries home sets:\n"
            "what passes would wait for, and how many tokens they would yield with guesses by what is at\n"
            "home. Give it text of the kind you will ask for. A config's home_memory then uses the plan."
        ),
    )
    plan.add_argument("model", metavar="MODEL", help="a GGUF file, or a model id whose file is still here")
    plan.add_argument(
        "--memory",
        type=_memory,
        default=DEFAULT_MEMORY,
        metavar="SIZE",
        help=f'for experts at home: "4GiB", "50%%" of all (default: {DEFAULT_MEMORY.replace("%", "%%")})',
    )
    plan.add_argument(
        "--text", type=Path, metavar="FILE", help="text to measure on (default: prose and code of our own)"
    )
    plan.add_argument(
        "--seconds",
        type=number(1.0, MAX_SECONDS),
        default=DEFAULT_SECONDS,
        metavar="N",
        help=f"after which nothing more is tried (default: {DEFAULT_SECONDS:g})",
    )
    plan.add_argument(
        "--seed", type=integer(0, MAX_SEED), default=0, metavar="S", help="of the places (default: 0)"
    )
    plan.add_argument(
        "--threads", type=integer(1, MAX_THREADS), metavar="N", help="default: one for each core"
    )
    add_store(plan)
    add_json(plan)


def plan_home(args: argparse.Namespace) -> int:
    """Calibrate, write the plan, show it."""
    from node.cli.progress import Progress
    from node.config import ModelRef, default_store
    from node.engine import library as llama
    from node.home.home_set import shapes_of, total_bytes
    from node.home.plan_file import write_plan
    from node.home.planning import USUAL_SHARES, make_plan
    from node.interrupt import run_blocking
    from node.model.store import Store
    from node.serve.opening import open_whole
    from node.sizes import MemoryBudget

    asked = MemoryBudget.parse(args.memory)
    source = _text(args.text)
    store = Store(args.store or default_store(os.environ))

    def work() -> tuple[HomePlan, Shapes, Path]:
        library = llama.load()
        ref = ModelRef.parse(args.model, Path.cwd())
        stored, model = open_whole(library, store, ref, progress.report)
        shapes = shapes_of(stored.manifest)
        whole = total_bytes(shapes)
        budgets = [asked.of(whole), *(round(share * whole) for share in USUAL_SHARES)]
        plan = make_plan(
            library,
            stored,
            model,
            source,
            list(dict.fromkeys(budgets)),
            seconds=args.seconds,
            seed=args.seed,
            threads=args.threads or os.cpu_count() or 1,
            progress=progress.report,
        )
        return plan, shapes, write_plan(stored, plan)

    with Progress() as progress:
        plan, shapes, path = run_blocking(work, progress.stop)
    if args.json:
        print(json.dumps(_report(plan, shapes, path)))
    else:
        print(_told(plan, shapes, path, args.memory))
    return 0


def _memory(text: str) -> str:
    """An argparse type: an amount of memory, as it is written into a config."""
    from node.sizes import MemoryBudget

    try:
        MemoryBudget.parse(text)
    except LocalError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text.strip()


def _text(path: Path | None) -> TextSource:
    from node.home.planning import TextSource
    from node.verify.passages import PASSAGES

    if path is None:
        return TextSource("panal's own text", "\n".join(PASSAGES))
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise LocalError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_TEXT_BYTES:
        raise LocalError(f"{path}: is over {MAX_TEXT_BYTES >> 20} MiB; a part of it does as well")
    return TextSource(path.name, data.decode(errors="replace"))


def _report(plan: HomePlan, shapes: Shapes, path: Path) -> dict[str, Any]:
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


def _told(plan: HomePlan, shapes: Shapes, path: Path, memory: str) -> str:
    from node.home.home_set import HomeSet
    from node.sizes import size_text

    report = _report(plan, shapes, path)
    header = ("memory", "of all", "layers at home", "other experts", "tokens a pass", "trips", "no guessing")
    rows = [
        (
            size_text(row["budget"]),
            f"{row['share']:.0%}",
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
    return (
        f"{format_table(header, rows)}\n\n"
        "trips: per layer and token, where 1 is a trip for each layer of each token\n"
        f"measured on {plan.text_tokens:,} tokens after prompts from {plan.text} "
        f"in {plan.seconds:.0f} s, {len(plan.measured)} home sets tried\n{guesses}\n"
        f"plan     {path}\n\n"
        f'Next: home_memory = "{memory}" in [backbone] of the config '
        f"(panal init --model MODEL --home-memory {memory.replace(' ', '')})"
    )
