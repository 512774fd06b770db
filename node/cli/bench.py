"""`panal bench`: what a user can measure of their own model and peers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from node.cli.arguments import Subparsers, add_command, add_json, add_sampling, integer
from node.cli.which_swarm import add_which, on_swarm
from routing.errors import LocalError

if TYPE_CHECKING:
    from node.bench.trips import TripsRow

DEFAULT_SERVERS = 3
DEFAULT_HOMES = "0,50%,75%"
DRAFTS = ("off", "ngram", "self", "auto", "model")
MAX_PROMPTS = 10_000
MAX_TEXT_BYTES = 64 << 20  # of a text that prompts are cut from


def add_arguments(subparsers: Subparsers) -> None:
    """Declare the command and its subcommand."""
    group = subparsers.add_parser("bench", help="measure a model over its swarm", allow_abbrev=False)
    inner = group.add_subparsers(title="measurements", metavar="WHAT", required=True, dest="what")
    trips = add_command(
        inner,
        "trips",
        run_trips,
        "how many trips a token takes, by what is at home and who guesses",
        epilog=(
            "Prompts are cut from a text at even distances and continued in every way, side by side. The\n"
            "first row decodes plainly with nothing at home; `differ` counts the tokens of the others that\n"
            "are not its tokens. With FILE it starts local servers; with -c it uses the config's peers.\n"
            "Cells at home are those that `panal home plan` chose, and must be in a file here. `self` with\n"
            "nothing at home has nothing to guess with, and no row. Only tokens after each prompt's first\n"
            "count, as that one comes with the prompt."
        ),
    )
    add_which(trips, DEFAULT_SERVERS)
    trips.add_argument(
        "--text", type=Path, metavar="FILE", help="what prompts are cut from (default: our own)"
    )
    trips.add_argument(
        "--prompts", type=integer(1, MAX_PROMPTS), default=8, metavar="N", help="how many (default: 8)"
    )
    trips.add_argument(
        "--prompt-tokens", type=integer(1, 1 << 20), default=128, metavar="N", help="of each (default: 128)"
    )
    trips.add_argument(
        "--home",
        default=DEFAULT_HOMES,
        metavar="SIZE,...",
        help="what is at home, as shares or sizes; hot:50%% takes the hottest of every layer "
        f"(default: {DEFAULT_HOMES.replace('%', '%%')})",
    )
    trips.add_argument(
        "--draft",
        default="off,auto",
        metavar="WHO,...",
        help=f"who guesses: {', '.join(DRAFTS)} (default: off,auto); self3 always guesses three",
    )
    trips.add_argument("--draft-model", type=Path, metavar="FILE", help="for model: a small whole GGUF")
    add_sampling(trips)
    add_json(trips)


def run_trips(args: argparse.Namespace) -> int:
    """Measure and print the table."""
    import msgspec

    from node.bench.swarm_trips import TripsBench
    from node.cli.progress import Progress
    from node.engine.sampler import SamplingSettings

    bench = TripsBench(
        homes=tuple(args.home.split(",")),
        drafts=tuple(args.draft.split(",")),
        draft_model=args.draft_model,
        text=_text(args.text),
        prompts=args.prompts,
        prompt_tokens=args.prompt_tokens,
        tokens=args.tokens,
        sampling=SamplingSettings(args.temp, args.seed, args.top_k, args.top_p, args.min_p),
    )
    bench.check()
    with Progress() as progress:
        rows = on_swarm(args, DEFAULT_SERVERS, lambda config: bench.run(config, progress.report), progress)
        progress.clear()
    print(msgspec.json.encode(rows).decode() if args.json else _table(rows))
    return 0


def _table(rows: list[TripsRow]) -> str:
    from node.cli.table import format_table

    names = ("at home", "draft", "tokens", "passes", "trips", "per layer and token", "tokens/pass")
    more = ("right/guessed", "tokens/s", "x plain", "bytes/token", "waited s", "drafting s", "differ")
    return format_table(
        names + more,
        [
            (
                f"{row.home} ({row.share:.0%})",
                row.draft,
                str(row.tokens),
                str(row.passes),
                str(row.trips),
                f"{row.trips_per_layer_token:.3f}",
                f"{row.tokens_per_pass:.2f}",
                f"{row.accepted}/{row.drafted}",
                f"{row.tokens_per_second:.1f}",
                f"{row.speedup:.2f}",
                f"{row.bytes_per_token:,.0f}",
                f"{row.waited:.2f}",
                f"{row.drafting:.2f}",
                str(row.differ),
            )
            for row in rows
        ],
    )


def _text(path: Path | None) -> str:
    if path is None:
        from node.verify.passages import PASSAGES

        return "\n".join(PASSAGES)
    with path.open("rb") as file:
        data = file.read(MAX_TEXT_BYTES + 1)
    if len(data) > MAX_TEXT_BYTES:
        raise LocalError(f"{path}: more than {MAX_TEXT_BYTES >> 20} MiB of text; give a piece of it")
    return data.decode(errors="replace")
