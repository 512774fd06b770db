"""`panal status`, `panal peers`, `panal models`: what the node that runs here knows, by its own HTTP."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from node.cli.arguments import Subparsers, add_command, add_config, add_json
from routing.errors import LocalError

if TYPE_CHECKING:
    from node.cli.status_tables import Table
    from node.config import NodeConfig
    from node.device.running_node import RunningNode
    from node.status.facts import Status

WATCH_SECONDS = 2.0
"""Between looks with --watch; the node itself looks once a second."""

STATUS_PATH = "/api/status"


def add_arguments(subparsers: Subparsers) -> None:
    """Declare `status`, `peers` and `models`."""
    status = add_command(
        subparsers,
        "status",
        run_status,
        "show the node that runs here: how it is reached, what it serves, what it needs",
        epilog="The same, and more, is on its page; panal run prints its address. --json prints what\n"
        "GET /api/status gives (docs/status-api.md).",
    )
    _add_flags(status)
    peers = add_command(
        subparsers, "peers", run_peers, "show the peers of the node that runs here, and how each is reached"
    )
    _add_flags(peers)
    models = add_command(
        subparsers,
        "models",
        run_models,
        "show the models of the swarm and on how many nodes their experts are",
        epilog="Where no node runs, the models in the store.",
    )
    _add_flags(models)


def run_status(args: argparse.Namespace) -> int:
    """The overview."""
    from node.cli.status_tables import overview

    return _run(args, overview, lambda told: told)


def run_peers(args: argparse.Namespace) -> int:
    """The peers."""
    from node.cli.status_tables import peers_table

    return _run(args, peers_table, lambda told: told["peers"])


def run_models(args: argparse.Namespace) -> int:
    """The models; those of the store where no node runs."""
    from node.cli.status_tables import models_table
    from node.cli.stored_models import show_store

    config = _config(args)
    if _find(config) is None and not args.watch:
        return show_store(config.store, as_json=args.json)
    return _run(args, models_table, lambda told: told["models"])


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add_config(parser, required=False)
    add_json(parser)
    parser.add_argument("--watch", action="store_true", help="show it again every 2 s, until Ctrl-C")


def _run(
    args: argparse.Namespace, tables: Callable[[Status], list[Table]], part: Callable[[Any], object]
) -> int:
    config = _config(args)
    if args.watch:
        try:
            _watch(config, tables, part, as_json=args.json)
        except KeyboardInterrupt:
            pass  # this is how watching ends
        return 0
    told = _ask(config)
    if args.json:
        print(json.dumps(part(told)))
    else:
        from node.cli.terminal import show

        show(tables(facts_of(told)))
    return 0


def _watch(
    config: NodeConfig,
    tables: Callable[[Status], list[Table]],
    part: Callable[[Any], object],
    *,
    as_json: bool,
) -> None:
    """Show it again and again; a node that ends and is started anew is waited for."""
    if as_json or not sys.stdout.isatty():
        while True:
            told = _ask(config)
            if as_json:
                print(json.dumps(part(told)), flush=True)
            else:
                from node.cli.terminal import plain

                print(plain(tables(facts_of(told))), end="\n\n", flush=True)
            time.sleep(WATCH_SECONDS)
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from node.cli.terminal import renderable

    console = Console(highlight=False, markup=False, emoji=False)
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            try:
                live.update(renderable(tables(facts_of(_ask(config))), console.width), refresh=True)
            except LocalError as error:
                live.update(Text(str(error)), refresh=True)
            time.sleep(WATCH_SECONDS)


def _config(args: argparse.Namespace) -> NodeConfig:
    from node.device.which_config import load

    return load(args.config, os.environ)


def _find(config: NodeConfig) -> RunningNode | None:
    from node.device.folder import NodeFolder
    from node.device.running_node import find_running

    return find_running(NodeFolder.of(config), key_file=config.http.key_file)


def _ask(config: NodeConfig) -> Any:
    """The running node's status, as it tells it.

    Raises:
        LocalError: none runs, or it does not answer.
    """
    running = _find(config)
    if running is None:
        from node.device.which_config import is_bare

        if is_bare(config):
            raise LocalError(
                f"no node runs from {config.path.parent}: panal run starts one, -c names another's config"
            )
        path = shlex.quote(str(config.path))
        raise LocalError(f"no node runs from {config.path}: panal run -c {path} starts it")
    return running.get(STATUS_PATH)


def facts_of(told: Any) -> Status:
    """Checked: whatever listens there may have answered.

    Raises:
        LocalError: this is no status that this version can read.
    """
    import msgspec

    from node.status.facts import Status

    try:
        return msgspec.convert(told, Status)
    except msgspec.ValidationError as error:
        raise LocalError(
            f"the node that runs here tells its status otherwise than this panal reads it ({error}): start "
            "it again after an update, or use --json"
        ) from None
