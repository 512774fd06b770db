"""`panal demo`: a local swarm on the demo model, one backbone and three expert servers."""

from __future__ import annotations

import argparse

from node.cli.arguments import MAX_TOKENS, Subparsers, add_command, add_json, integer


def add_arguments(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "demo",
        run,
        "run a local swarm on the model that ships with panal: one backbone, three expert servers",
    )
    parser.add_argument("-p", "--prompt", metavar="TEXT", help="another prompt than the demo's own")
    parser.add_argument(
        "-n",
        "--tokens",
        type=integer(1, MAX_TOKENS),
        default=96,
        metavar="N",
        help="tokens to generate at most (default: 96)",
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep the nodes' folders (configs, keys, logs) and say where they are",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Start the swarm, generate, print the table, stop the swarm."""
    raise NotImplementedError
