"""`panal run`: be a node; serve the config's slices until interrupted."""

from __future__ import annotations

import argparse

from node.cli.arguments import Subparsers, add_command, add_config, add_json


def add_arguments(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "run",
        run,
        "serve this node's slices until interrupted",
        epilog="Prints the address that others put into their [swarm] peers.",
    )
    add_config(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM."""
    raise NotImplementedError
