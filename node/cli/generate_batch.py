"""`panal generate --prompts FILE`: many prompts at once, answered in the file's order."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from routing.errors import LocalError

if TYPE_CHECKING:
    from node.cli.progress import Progress
    from node.config import NodeConfig
    from node.decode.batch_report import BatchAnswer, BatchReport
    from node.decode.convictions import Conviction
    from node.decode.live_backbone import LiveBackbone
    from node.engine.sampler import SamplingSettings

MAX_PROMPTS_BYTES = 64 << 20  # of the file; each line is bounded by the context besides

MOST_LANES = 8
"""Contexts on one model, each with caches of its own."""

DEFAULT_LANES = 2
"""One computes while the other waits. Four read prompts quicker, decode no faster, and take more memory."""

IDLE_CONTEXT = 256
"""Tokens of the cache that nobody uses here: the lanes have their own."""

SHOWN_CHARACTERS = 60
"""Of a prompt, in the line above its answer."""


def read_prompts(path: str) -> list[str]:
    """The lines of a file ("-": stdin) that are not blank.

    Raises:
        LocalError: it cannot be read, is too large, or has no such line.
    """
    name = "stdin" if path == "-" else path
    try:
        if path == "-":
            data = sys.stdin.buffer.read(MAX_PROMPTS_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(MAX_PROMPTS_BYTES + 1)
    except OSError as error:
        raise LocalError(f"{name}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_PROMPTS_BYTES:
        raise LocalError(f"{name}: more than {MAX_PROMPTS_BYTES} bytes of prompts")
    prompts = [line for line in data.decode(errors="replace").splitlines() if line.strip()]
    if not prompts:
        raise LocalError(f"{name}: no prompts; one a line is wanted")
    return prompts


def run_batch(
    config: NodeConfig,
    prompts: Sequence[str],
    tokens: int,
    sampling: SamplingSettings,
    *,
    lanes: int,
    as_json: bool,
    stats: bool,
) -> int:
    """Answer the prompts and print each answer when it and all before it are finished, and known to be right;
    1 if there is one that is not."""
    from node.cli.progress import Progress
    from node.cli.table import format_table
    from node.decode.batch_report import summary_rows
    from node.interrupt import run_interruptible

    with Progress() as progress:
        unanswered: list[int] = []

        def show(answer: BatchAnswer) -> None:
            progress.clear()
            if as_json:
                print(json.dumps(answer.as_dict()), flush=True)
                return
            prompt = prompts[answer.prompt - 1]
            shown = prompt if len(prompt) <= SHOWN_CHARACTERS else prompt[:SHOWN_CHARACTERS] + "…"
            print(f"[{answer.prompt}] {shown}\n{answer.text}\n", flush=True)
            if answer.stopped == "context":
                full = f"panal: prompt {answer.prompt}: the context is full, its text ends here"
                print(f"{full} (backbone.context)", file=sys.stderr)
            if answer.budget:
                print(f"panal: prompt {answer.prompt}: {answer.budget}", file=sys.stderr)
            if answer.error:
                print(f"panal: prompt {answer.prompt}: {answer.error}", file=sys.stderr)
            if answer.stopped == "budget" and not answer.budget:
                unanswered.append(answer.prompt)

        def take_back(number: int, conviction: Conviction) -> None:
            progress.clear()
            error = f"its answer was shown before this was known: {conviction.error()}"
            if as_json:
                print(json.dumps({"prompt": number, "error": error}), flush=True)
            else:
                print(f"panal: prompt {number}: {error}", file=sys.stderr)

        report = run_interruptible(
            lambda: _answer(config, prompts, tokens, sampling, lanes, show, take_back, progress),
            on_interrupt=progress.stop,
        )
    if unanswered:
        many = f"{len(unanswered)} prompts were" if len(unanswered) > 1 else "1 prompt was"
        print(f"panal: {many} not begun: today's budget is spent (market.budget_day)", file=sys.stderr)
    if as_json:
        print(json.dumps(report.as_dict()))
    if stats:
        print(format_table(("", ""), summary_rows(report)), file=sys.stderr)
    return 1 if report.failed else 0


async def _answer(
    config: NodeConfig,
    prompts: Sequence[str],
    tokens: int,
    sampling: SamplingSettings,
    lanes: int,
    show: Callable[[BatchAnswer], None],
    take_back: Callable[[int, Conviction], None],
    progress: Progress,
) -> BatchReport:
    from node.decode.batch_answers import answer_all, encode
    from node.decode.configured import configured_backbone

    wanted = config.require_backbone()
    encoded: list[list[int]] = []

    def look(live: LiveBackbone) -> None:
        encoded.extend(encode(live.backbone.model, prompts, wanted.context))

    def tell(line: str) -> None:
        progress.clear()
        print(f"panal: {line}", file=sys.stderr)

    async with configured_backbone(
        config, progress.report, tell=tell, context=IDLE_CONTEXT, look=look
    ) as live:
        progress.clear()
        return await live.in_thread(
            answer_all,
            live,
            encoded,
            wanted.context,
            lanes,
            tokens,
            sampling,
            show,
            progress.report,
            take_back,
        )
