"""`panal generate`: text from the config's backbone, token by token; of many prompts together."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from typing import TYPE_CHECKING

from node.cli.arguments import Subparsers, add_command, add_config, add_json, add_sampling, integer
from node.cli.generate_batch import DEFAULT_LANES, MOST_LANES, read_prompts, run_batch
from routing.errors import LocalError

if TYPE_CHECKING:
    from node.cli.progress import Progress
    from node.config import NodeConfig
    from node.config.shape import Draft
    from node.decode.answer import Answer
    from node.engine.sampler import SamplingSettings

DRAFTS = ("auto", "off", "self", "ngram", "model")
MAX_PROMPT_BYTES = 16 << 20  # of stdin: past every context there is


def add_arguments(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "generate",
        run,
        "generate text with the backbone's trunk here and its experts on the peers",
        epilog="Only the answer goes to stdout, as it comes; the prompt is not repeated.",
    )
    add_config(parser, required=False)
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument(
        "-p", "--prompt", metavar="TEXT", help="the prompt; - reads stdin, less one newline at its end"
    )
    asked.add_argument(
        "--prompts",
        metavar="FILE",
        help="many prompts, one a line (- reads stdin), decoded together: a trip serves all of them; prints "
        "each answer below a line with its number, in the file's order; with --json one object a line and "
        "one for the whole at the end",
    )
    parser.add_argument(
        "--lanes",
        type=integer(1, MOST_LANES),
        metavar="N",
        help=f"with --prompts: contexts, of which one computes while others wait, each with its own cache "
        f"(default: {DEFAULT_LANES})",
    )
    parser.add_argument(
        "--draft", choices=DRAFTS, help="who guesses tokens ahead, instead of the config's backbone.draft"
    )
    add_sampling(parser)
    add_json(parser)
    parser.add_argument("--stats", action="store_true", help="trips, bytes and tokens/s on stderr at the end")


def run(args: argparse.Namespace) -> int:
    """Stream one answer, or give many."""
    from node.cli.progress import Progress
    from node.cli.table import format_table
    from node.decode.answer import summary_rows
    from node.device.which_config import load, require_written
    from node.engine.sampler import SamplingSettings
    from node.interrupt import run_interruptible
    from node.sizes import size_text

    config = load(args.config)
    require_written(config)
    sampling = SamplingSettings(args.temp, args.seed, args.top_k, args.top_p, args.min_p)
    if args.prompts is not None:
        if args.draft is not None:
            raise LocalError("--draft goes with --prompt: a batch guesses nothing ahead")
        return run_batch(
            config,
            read_prompts(args.prompts),
            args.tokens,
            sampling,
            lanes=args.lanes or DEFAULT_LANES,
            as_json=args.json,
            stats=args.stats,
        )
    if args.lanes is not None:
        raise LocalError("--lanes goes with --prompts: one sequence cannot be split over contexts")
    prompt = _prompt(args.prompt)
    with Progress() as progress:
        answer = run_interruptible(
            lambda: generate(
                config,
                prompt,
                args.tokens,
                sampling,
                quiet=args.json,
                draft=args.draft,
                progress=progress,
            ),
            on_interrupt=progress.stop,
        )
    print(json.dumps(answer.as_dict()) if args.json else "")
    if answer.stopped == "context" and not args.json:
        print("panal: the context is full, the text ends here (backbone.context)", file=sys.stderr)
    if answer.budget and not args.json:
        print(f"panal: {answer.budget}", file=sys.stderr)
    if lacking := answer.home.get("lacking_bytes"):
        print(
            f"panal: {size_text(lacking)} of the home set is in no file here yet: "
            f"panal home fetch -c {shlex.quote(str(config.path))} gets it",
            file=sys.stderr,
        )
    if args.stats:
        print(format_table(("", ""), summary_rows(answer)), file=sys.stderr)
    return 0


async def generate(
    config: NodeConfig,
    prompt: str,
    tokens: int,
    sampling: SamplingSettings,
    *,
    quiet: bool,
    draft: Draft | None = None,
    progress: Progress | None = None,
) -> Answer:
    """Open the config's backbone and stream one answer to stdout (nowhere if quiet).

    Args:
        draft: who guesses, if not whom the config names.
    """
    from node.cli.progress import Progress
    from node.decode.configured import configured_backbone
    from node.decode.settled_answer import settled_answer

    say = progress or Progress()

    streaming, kept = False, list[str]()

    def show(text: str) -> None:
        say.clear()
        if not quiet:
            print(text, end="", flush=True)

    def tell(line: str) -> None:
        if streaming:  # on a terminal it would stand in the middle of the text
            kept.append(line)
            return
        say.clear()
        print(f"panal: {line}", file=sys.stderr)

    async with configured_backbone(config, say.report, prompt=prompt, draft=draft, tell=tell) as live:
        say.clear()
        streaming = not quiet
        try:
            return await settled_answer(live, prompt, tokens, sampling, show, say.report, held=quiet)
        finally:
            streaming = False
            if kept:
                print(flush=True)
            for line in kept:
                tell(line)


def _prompt(text: str) -> str:
    if text != "-":
        return text
    data = sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)
    if len(data) > MAX_PROMPT_BYTES:
        raise LocalError(f"stdin: a prompt of more than {MAX_PROMPT_BYTES} bytes")
    # `echo` ends its text with a newline that nobody meant as part of the prompt.
    return data.decode(errors="replace").removesuffix("\n")
