"""`panal slice`: cut what a device will serve out of a model, so that it never needs the whole file."""

from __future__ import annotations

import argparse
from pathlib import Path

from node.cli.arguments import Subparsers, add_command, add_json, add_store, ranges


def add_arguments(subparsers: Subparsers) -> None:
    """Declare `slice cut`."""
    group = subparsers.add_parser("slice", help="cut a slice file out of a model", allow_abbrev=False)
    verbs = group.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="verb")

    cut = add_command(
        verbs, "cut", cut_slice, "write a run of experts of a run of layers to a GGUF file of its own"
    )
    cut.add_argument("model", metavar="MODEL", help="a GGUF file, or a model id of the store")
    cut.add_argument("--layers", type=ranges, metavar="A-B", help='like "0-3,8" (default: all)')
    cut.add_argument("--experts", type=ranges, metavar="C-D", help='like "0-31" (default: all)')
    cut.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="the slice file to write"
    )
    cut.add_argument("--force", action="store_true", help="overwrite FILE")
    add_store(cut)
    add_json(cut)


def cut_slice(args: argparse.Namespace) -> int:
    """Write the slice file."""
    raise NotImplementedError
