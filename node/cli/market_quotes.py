"""`panal market quotes`: what the swarm's servers ask, by their live adverts."""

from __future__ import annotations

import argparse
import json
import os
import string
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote as escaped

from node.cli.arguments import Subparsers, add_command, add_config, add_json
from routing.errors import LocalError

if TYPE_CHECKING:
    from node.config import NodeConfig
    from node.device.running_node import RunningNode

TEXT_BYTES = 80


def add(subparsers: Subparsers) -> None:
    """Declare it."""
    quotes = add_command(
        subparsers,
        "quotes",
        run,
        "show what servers ask for their cells, of those whose adverts live",
        epilog="Prices are micro-credits a pair: one token through one expert of one layer.",
    )
    quotes.add_argument(
        "model", nargs="?", metavar="MODEL-ID", help="only of this model: the beginning of its id"
    )
    quotes.add_argument(
        "--peer", metavar="PEER", help="only this peer's, cell by cell: its id, or the end of it"
    )
    add_config(quotes, required=False)
    add_json(quotes)


def run(args: argparse.Namespace) -> int:
    """Ask the running node."""
    running = _running(args)
    told = _ask(running)
    if args.peer:
        told = _ask(running, _whole_id(args.peer, told))
    if args.model and not set(args.model.lower()) <= set(string.hexdigits):
        raise LocalError(
            f"{args.model[:80]!r} is no model id, which has hexadecimal digits: panal models shows them"
        )
    wanted = (args.model or "").lower()
    quotes = [each for each in told if str(each.get("model", "")).startswith(wanted)]
    if args.json:
        print(json.dumps(quotes))
        return 0
    if not quotes:
        print("nobody asks anything" + (f" for {args.model}" if args.model else ""))
        return 0
    from node.cli.table import format_table

    print(
        format_table(
            ("peer", "model", "cells", "lowest", "mean", "highest", "for another"),
            [_row(each) for each in quotes],
        )
    )
    print("prices are micro-credits for one token through one cell")
    for each in quotes if args.peer else ():
        for layer, runs in each["layers"]:
            told_runs = ", ".join(f"{first}-{last}: {price:,}" for first, last, price in runs)
            print(f"layer {layer}: {told_runs}")
    return 0


def _ask(running: RunningNode, peer: str = "") -> list[dict[str, Any]]:
    """Quotes as the node tells them; of one peer with all prices."""
    from node.device.running_node import NodeRefused

    path = "/api/market/quotes" + (f"?peer={escaped(peer, safe='')}" if peer else "")
    try:
        told = running.get(path)
    except NodeRefused as error:
        raise LocalError(error.reason) from None
    if not isinstance(told, list):
        raise LocalError(
            "the node that runs here tells of quotes otherwise than this panal reads it: start it again"
        )
    return told


def _whole_id(text: str, told: list[dict[str, Any]]) -> str:
    """The one whose id ends so, of those who quote."""
    found = sorted({str(each["peer"]) for each in told if str(each["peer"]).endswith(text)})
    if len(found) != 1:
        several = f"several peers' ids end in {text[:80]!r}: give more of it"
        raise LocalError(several if found else f"nobody with the id {text[:80]!r} asks anything")
    return found[0]


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    from routing.wire.text import sanitise

    short, name = str(each["peer"])[-8:], sanitise(str(each["name"]), TEXT_BYTES)
    left = max(0, round((each["until"] - time.time()) / 60))
    return (
        f"{name} ({short})" if name else short,
        str(each["model"])[:12],
        f"{each['cells']:,}",
        f"{each['lowest']:,}",
        f"{each['mean']:,.1f}",
        f"{each['highest']:,}",
        "does not answer" if each.get("silent") else f"{left} min",
    )


def _running(args: argparse.Namespace) -> RunningNode:
    from node.device.folder import NodeFolder
    from node.device.running_node import find_running
    from node.device.which_config import load

    config: NodeConfig = load(args.config, os.environ)
    running = find_running(NodeFolder.of(config), config.http.key_file)
    if running is None:
        raise LocalError(
            f"no node runs from {config.path}, and quotes are what a running one hears: panal run starts it"
        )
    return running
