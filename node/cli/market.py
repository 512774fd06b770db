"""`panal market`: what cells cost, who owes whom, what this device should hold, and who answered falsely."""

from __future__ import annotations

import argparse

from node.cli import market_advise, market_audits, market_books, market_quotes, market_receipts
from node.cli.arguments import Subparsers

_HELP = """\
With [market] mode = "fixed" or "scarcity" in the config, cells have prices, and nodes that ask owe nodes
that compute: credits, counted by receipts that both sides sign. There is no coin and no chain; what a peer
owes is worth what it computes in return, or what the two of you agree on.

Amounts are in credits. A token of a model the size of Qwen3-30B-A3B costs about one."""

_PARTS = (market_books, market_receipts, market_quotes, market_advise, market_audits)


def add_arguments(subparsers: Subparsers) -> None:
    """Declare the group and what is in it."""
    group = subparsers.add_parser(
        "market",
        help="prices of cells, receipts and who owes whom, what this device should hold",
        description=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    verbs: Subparsers = group.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="verb")
    for part in _PARTS:
        part.add(verbs)
