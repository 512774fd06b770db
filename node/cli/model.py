"""`panal model`: look into a GGUF file, or take it into the store."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from node.cli.arguments import Subparsers, add_command, add_json, add_store
from node.cli.table import format_table


def add_arguments(subparsers: Subparsers) -> None:
    """Declare `model inspect` and `model import`."""
    group = subparsers.add_parser(
        "model", help="inspect a model file, or import it into the store", allow_abbrev=False
    )
    verbs = group.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="verb")

    inspect = add_command(
        verbs, "inspect", inspect_model, "show what a GGUF file is: model id, layers, experts, recipe, sizes"
    )
    inspect.add_argument("file", type=Path, metavar="FILE", help="a GGUF file (any part of a split)")
    add_json(inspect)

    take = add_command(
        verbs,
        "import",
        import_model,
        "write a model's trunk and manifest into the store, and prove the trunk",
    )
    take.add_argument("file", type=Path, metavar="FILE", help="a GGUF file (any part of a split)")
    add_store(take)
    add_json(take)


def inspect_model(args: argparse.Namespace) -> int:
    """Print what the file holds. Nothing is kept: the trunk that shows the recipe is temporary."""
    from node.cli.progress import Progress
    from node.engine import library as llama
    from node.inspection import inspect_file
    from node.interrupt import run_blocking

    with tempfile.TemporaryDirectory(prefix="panal-inspect-") as folder, Progress() as progress:
        report = run_blocking(
            lambda: inspect_file(llama.load(), args.file, Path(folder), progress.report), progress.stop
        )
    print(json.dumps(report) if args.json else _inspection(report))
    return 0


def import_model(args: argparse.Namespace) -> int:
    """Fill the store."""
    from node.cli.progress import Progress
    from node.config import default_store
    from node.engine import library as llama
    from node.importing import import_model as take
    from node.interrupt import run_blocking
    from node.model.store import Store

    store = Store(args.store or default_store(os.environ))
    with Progress() as progress:
        stored = run_blocking(
            lambda: take(llama.load(), store, args.file, progress.report, thorough=True), progress.stop
        )
    trunk_bytes = stored.trunk.stat().st_blocks * 512  # what it takes on disk: hollow trunks are sparse
    report = {
        "model_id": stored.model_id,
        "architecture": stored.manifest.architecture,
        "trunk": str(stored.trunk),
        "trunk_bytes": trunk_bytes,
        "expert_bytes": stored.manifest.expert_bytes,
    }
    if args.json:
        print(json.dumps(report))
    else:
        print(f"model id  {stored.model_id}")
        print(
            f"trunk     {stored.trunk} ({megabytes(trunk_bytes)}; "
            f"the experts are {megabytes(stored.manifest.expert_bytes)})"
        )
        print("proven    the trunk with our kernels gives the same bytes as llama.cpp on the whole file")
    return 0


def megabytes(count: int) -> str:
    """A size as people read it."""
    return f"{count / 1e6:,.1f} MB"


def _inspection(report: dict[str, Any]) -> str:
    if report["kind"] == "slice":
        share = report["bytes"] / report["model_expert_bytes"]
        return format_table(
            ("", ""),
            [
                ("slice file", report["file"]),
                ("of model", f"{report['architecture']} {report['model_id']}"),
                ("layers", report["layers"]),
                ("experts", f"{report['experts']} of {report['experts_in_layer']} in a layer"),
                ("size", f"{megabytes(report['bytes'])}, {share:.0%} of the model's experts"),
            ],
        )
    facts = [
        ("file", f"{report['file']}" + (f" ({report['parts']} parts)" if report["parts"] > 1 else "")),
        ("name", report["name"] or "-"),
        ("architecture", report["architecture"]),
        ("model id", report["model_id"]),
        ("experts", megabytes(report["expert_bytes"])),
        ("everything else", megabytes(report["trunk_bytes"])),
        ("expert types", ", ".join(report["expert_types"])),
    ]
    rows = [
        (
            call["layers"], call["experts"], call["run_length"], call["used"],
            f"{call['n_in']} -> {call['n_out']}", f"{call['bytes_per_cell']:,}", call["recipe"],
        )
        for call in report["calls"]
    ]  # fmt: skip
    header = ("layers", "experts", "in runs of", "used", "row", "bytes per cell", "each computes")
    return f"{format_table(('', ''), facts)}\n\n{format_table(header, rows)}"
