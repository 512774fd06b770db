"""`panal generate`: text from the config's backbone, token by token."""

from __future__ import annotations

import argparse

from node.cli.arguments import Subparsers, add_command, add_config, add_json, add_sampling


def add_arguments(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "generate",
        run,
        "generate text with the backbone's trunk here and its experts on the peers",
        epilog='Text goes to stdout as it comes. "-p -" reads the prompt from stdin.',
    )
    add_config(parser)
    parser.add_argument("-p", "--prompt", required=True, metavar="TEXT", help="the prompt; - reads stdin")
    add_sampling(parser)
    add_json(parser)
    parser.add_argument("--stats", action="store_true", help="trips, bytes and tokens/s on stderr at the end")


def run(args: argparse.Namespace) -> int:
    """Stream one answer."""
    raise NotImplementedError
