"""`panal verify`: does this model work? The swarm against plain llama.cpp on the whole file."""

from __future__ import annotations

import argparse
from pathlib import Path

from node.cli.arguments import (
    COMBINES,
    MAX_BATCH,
    WIRES,
    Subparsers,
    add_command,
    add_json,
    add_store,
    integer,
    integers,
    number,
)

MAX_SERVERS = 64  # local processes; more than one a core only costs memory


def add_arguments(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "verify",
        run,
        "compare a model over a swarm with plain llama.cpp on the whole file",
        epilog=(
            "With FILE it starts local expert servers itself; with -c it uses the config's peers.\n"
            "Exit code 0 only if what the mode promises holds: rows and f32 byte-identical logits,\n"
            "any other mode the two bounds above."
        ),
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("file", type=Path, nargs="?", metavar="FILE", help="a GGUF file (any part of a split)")
    which.add_argument(
        "-c", "--config", type=Path, metavar="FILE", help="a config with a [backbone] and peers"
    )
    parser.add_argument(
        "--servers",
        type=integer(1, MAX_SERVERS),
        metavar="N",
        help="local expert servers to start, with FILE only (default: 2)",
    )
    parser.add_argument("--combine", choices=COMBINES, help="default: rows, or the config's")
    parser.add_argument("--wire", choices=WIRES, help="default: f32, or the config's")
    parser.add_argument(
        "--batch",
        type=integers(1, MAX_BATCH),
        default=(1, 5, 64),
        metavar="N,...",
        help="tokens in a pass, one run for each (default: 1,5,64)",
    )
    parser.add_argument(
        "--min-cosine",
        type=number(-1.0, 1.0),
        default=0.998,
        metavar="C",
        help="worst cosine of logits that passes (default: 0.998)",
    )
    parser.add_argument(
        "--min-argmax",
        type=number(0.0, 1.0),
        default=0.98,
        metavar="A",
        help="share of equal likeliest tokens that passes (default: 0.98)",
    )
    add_store(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Compare; 0 if the promise of the mode holds, 1 if not."""
    raise NotImplementedError
