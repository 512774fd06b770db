"""`panal run`: be a node, as its config says, until interrupted."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from node.cli.arguments import Subparsers, add_command, add_config, add_json

if TYPE_CHECKING:
    from node.app.running import Running
    from node.cli.run_screen import Screen
    from node.config import NodeConfig


def add_arguments(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "run",
        run,
        "be a node: serve its slices, answer on its page and its API, relay if the config says so",
        epilog=(
            "Ends on Ctrl-C. Prints what it does, and the address that others put into their [swarm] peers.\n"
            "Without -c it is this device's own node; where that has no config yet it serves nothing and\n"
            "asks nothing, but is found, and can share and get models."
        ),
    )
    add_config(parser, required=False)
    add_json(parser)
    parser.add_argument(
        "--events",
        action="store_true",
        help="print lines of JSON as things happen: listening, heard, refreshed, left, gone, connected, "
        "lost, route, reachability, clone",
    )
    parser.add_argument(
        "--log",
        choices=("text", "json"),
        help="how the log on stderr is written (default: text on a terminal, else json)",
    )
    # For processes that are somebody's helpers (demo, verify): end when the one who started them is gone.
    parser.add_argument("--until-eof", action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Be a node until SIGINT or SIGTERM."""
    import trio

    from node.app.running import run_node
    from node.cli.events import event_printer
    from node.cli.progress import Progress
    from node.cli.run_screen import listening_event, screen_text
    from node.device import logs
    from node.device.folder import NodeFolder
    from node.device.which_config import load
    from node.interrupt import run_interruptible
    from node.swarm.watching import NOBODY

    logs.set_up(args.log)
    config = load(args.config)

    async def on_ready(running: Running) -> None:
        logs.keep(NodeFolder.of(config).log)
        progress.clear()
        screen = _screen(running)
        print(json.dumps(listening_event(screen)) if args.json or args.events else screen_text(screen))
        sys.stdout.flush()
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


def _screen(running: Running) -> Screen:
    from importlib.metadata import version

    from node.cli.run_screen import Screen
    from node.device.which_config import is_bare

    config, swarm = running.config, running.config.swarm.swarm
    state = running.pausing.state
    return Screen(
        name=config.name or "",
        peer_id=running.node.identity.peer_id,
        address=running.address,
        swarm=swarm.name,
        private=swarm.is_private,
        slices=running.slices,
        cells=running.cells,
        only_here=running.node.whereabouts.is_loopback,
        on_lan=config.swarm.lan,
        chooses=[f"{entry.memory} of {entry.model}" for entry in config.serve if entry.memory is not None],
        relay=running.relay,
        url=running.url,
        model=running.model,
        paused=f"{state.text}; panal resume ends it" if state.by_hand else state.text,
        market=_market(config),
        config=None if is_bare(config) else config.path,
        version=version("panal"),
    )


_ASKS = {
    "fixed": "asks {market.price} % of base prices",
    "scarcity": "asks {market.floor} to {market.cap} % of base prices, by need",
}
_PAYS = {
    "fast": "pays servers, the quickest first",
    "cheap": "pays servers, the cheapest first",
    "balanced": "pays servers, by price and time",
}


def _market(config: NodeConfig) -> str:
    """What the node asks and pays by; "" where everything is free."""
    market = config.market
    if market.is_free:
        return ""
    parts = [_ASKS[market.mode].format(market=market)] if config.serve else []
    if config.backbone is not None:
        parts.append(_PAYS[market.prefer])
    return "; ".join(parts) or "keeps accounts"
