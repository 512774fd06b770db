"""`panal chat`: talk with the config's model in the terminal."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from node.cli.arguments import (
    MAX_SEED,
    MAX_TOKENS,
    Subparsers,
    add_command,
    add_config,
    add_json,
    integer,
    number,
)

if TYPE_CHECKING:
    from node.app.running import Running
    from node.chat.partner import Partner
    from node.cli.progress import Progress
    from node.config import NodeConfig

TEMPERATURE, TOP_K, TOP_P, MIN_P = 0.8, 40, 0.95, 0.05
"""llama.cpp's own for a chat."""


def add_arguments(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "chat",
        run,
        "talk with the backbone's model in the terminal",
        epilog="Each line is a turn; what was said before is kept. /help tells the commands. Ctrl-C stops\n"
        "an answer, once more ends the chat, as Ctrl-D does.\n"
        "If the config's node runs, it answers; else one runs here for as long as the chat.\n"
        'With --json each answer is a line: {"text", "finish_reason", "usage"} or {"error"}; a line of\n'
        'input may be {"content": TEXT}.',
    )
    add_config(parser, required=False)
    parser.add_argument("--system", metavar="TEXT", default="", help="who the model is to be")
    parser.add_argument(
        "-n",
        "--tokens",
        type=integer(1, MAX_TOKENS),
        metavar="N",
        help="tokens of an answer at most (default: what the context holds)",
    )
    parser.add_argument(
        "--seed",
        type=integer(0, MAX_SEED),
        metavar="S",
        help="seed of the sampler (default: another each time)",
    )
    parser.add_argument(
        "--temp",
        type=number(0.0, 2.0),
        default=TEMPERATURE,
        metavar="T",
        help=f"temperature; 0 always takes the likeliest token (default: {TEMPERATURE})",
    )
    parser.add_argument("--stats", action="store_true", help="after each answer, what it took, on stderr")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Talk until the lines end; 1 if a turn was not answered."""
    from node.chat.lines import open_lines
    from node.cli.progress import Progress
    from node.device.which_config import load
    from node.interrupt import run_interruptible

    config = load(args.config, os.environ)
    with open_lines() as lines, Progress() as progress:

        async def chat() -> bool:
            from node.chat.conversation import Conversation
            from node.chat.screen import JsonScreen, TextScreen
            from node.chat.talking import Talk

            async def talk(partner: Partner) -> bool:
                progress.clear()
                if sys.stdin.isatty() and not args.json:
                    print(
                        f"panal: {partner.model}, by {partner.where}; /help tells the commands, Ctrl-D ends",
                        file=sys.stderr,
                    )
                screen = JsonScreen() if args.json else TextScreen(always_stats=args.stats)
                conversation = Conversation(system=args.system)
                return await Talk(partner, screen, conversation, _options(args), as_json=args.json).run(lines)

            return await _with_partner(config, progress, talk)

        return 0 if run_interruptible(chat, on_interrupt=progress.stop) else 1


def _options(args: argparse.Namespace) -> dict[str, Any]:
    options = {"temperature": args.temp, "top_k": TOP_K, "top_p": TOP_P, "min_p": MIN_P}
    if args.tokens is not None:
        options["max_tokens"] = args.tokens
    if args.seed is not None:
        options["seed"] = args.seed
    return options


async def _with_partner(config: NodeConfig, progress: Progress, talk: Any) -> bool:
    """Talk with the node that runs, or with one that is run for it."""
    import dataclasses

    import trio

    from node.app.running import run_node
    from node.chat.inside import InsidePartner
    from node.chat.through_http import HttpPartner
    from node.device.folder import NodeFolder
    from node.device.running_node import find_running
    from node.device.which_config import require_written

    running = find_running(NodeFolder.of(config), key_file=config.http.key_file)
    if running is not None:
        partner = HttpPartner(running)
        await partner.ready(lambda why: progress.report(why, 0, 0))
        return bool(await talk(partner))
    require_written(config)
    config.require_backbone()
    answered = True

    async def on_ready(opened: Running) -> None:
        nonlocal answered

        async def tell() -> None:
            while True:
                progress.report(opened.answering.why_not() or "looking for experts", 0, 0)
                await trio.sleep(0.2)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell)
            await opened.answering.ready()
            nursery.cancel_scope.cancel()
        answered = await talk(InsidePartner(opened.answering))

    alone = dataclasses.replace(config, http=dataclasses.replace(config.http, listen=None))
    await run_node(alone, on_ready=on_ready, progress=progress.report)
    return answered
