"""`panal run`: be a node; serve the config's slices until interrupted."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from typing import TYPE_CHECKING

from node.cli.arguments import Subparsers, add_command, add_config, add_json
from node.log_flood import FloodGuard

if TYPE_CHECKING:
    from node.app.running import Running


def add_arguments(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "run",
        run,
        "be a node: serve its slices, relay if the config says so, until interrupted",
        epilog="Prints the address that others put into their [swarm] peers.",
    )
    add_config(parser)
    add_json(parser)
    parser.add_argument(
        "--events",
        action="store_true",
        help="print lines of JSON as things happen: listening, heard, refreshed, left, gone, connected, "
        "lost, route, reachability, clone",
    )
    # For processes that are somebody's helpers (demo, verify): end when the one who started them is gone.
    parser.add_argument("--until-eof", action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM."""
    import trio

    from node.app.running import run_node
    from node.cli.events import event_printer
    from node.cli.progress import Progress
    from node.config import load_config
    from node.interrupt import run_interruptible
    from node.swarm.watching import NOBODY

    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(FloodGuard())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", handlers=[handler])
    config = load_config(args.config)

    async def on_ready(serving: Running) -> None:
        _announce(serving, config.name, as_json=args.json or args.events)
        if args.until_eof:
            await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        else:
            await trio.sleep_forever()

    watching = event_printer() if args.events else NOBODY
    with Progress() as progress:
        try:
            run_interruptible(
                lambda: run_node(config, on_ready=on_ready, progress=progress.report, watching=watching),
                progress.stop,
            )
        except KeyboardInterrupt:
            # Ending on a signal is how a server ends.
            return 0
    return 0


def _announce(serving: Running, name: str | None, *, as_json: bool) -> None:
    slices = [
        {
            "model_id": held.model_id,
            "architecture": held.architecture,
            "kind": held.kind,
            "experts": held.experts,
        }
        for held in serving.slices
    ]
    if as_json:
        said = {
            "event": "listening",
            "address": serving.address,
            "name": name,
            "cells": serving.cells,
            "slices": slices,
            "relay": serving.relay,
            "url": serving.url,
            "model": serving.model,
        }
        print(json.dumps(said))
    else:
        for held in serving.slices:
            print(f"serving  {held.architecture} {held.model_id[:12]}: {_describe(held.experts)}")
        print(f"cells    {serving.cells}\naddress  {serving.address}")
        for place in serving.relay:
            print(f"relay    {place}")
        if serving.url:
            print(f"page     {serving.url}")
        print("Put the address into [swarm] peers of other nodes. Ctrl-C ends this one.")
    sys.stdout.flush()


def _describe(runs: list[tuple[int, int, list[tuple[int, int]]]]) -> str:
    """ "layers 0-3: experts 0-7; layer 4: experts 0-3, 8"."""

    def span(first: int, last: int) -> str:
        return str(first) if first == last else f"{first}-{last}"

    parts = [
        f"layer{'' if first == last else 's'} {span(first, last)}: "
        f"experts {', '.join(span(*run) for run in experts)}"
        for first, last, experts in runs
    ]
    return "; ".join(parts)
