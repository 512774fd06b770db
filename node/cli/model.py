"""`panal model`: look into a GGUF file, or take it into the store."""

from __future__ import annotations

import argparse
from pathlib import Path

from node.cli.arguments import Subparsers, add_command, add_json, add_store


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
    """Print what the file holds."""
    raise NotImplementedError


def import_model(args: argparse.Namespace) -> int:
    """Fill the store."""
    raise NotImplementedError
