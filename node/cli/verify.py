"""`panal verify`: does this model work? The swarm against plain llama.cpp on the whole file."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from node.cli.arguments import (
    COMBINES,
    MAX_BATCH,
    WIRES,
    Subparsers,
    add_command,
    add_json,
    integers,
    number,
)
from node.cli.which_swarm import add_which, on_swarm

if TYPE_CHECKING:
    from node.cli.progress import Progress
    from node.config import NodeConfig
    from node.verify.comparison import Verdict

EXIT_FAILED = 1  # a check did not hold
DEFAULT_SERVERS = 2


def add_arguments(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "verify",
        run,
        "compare a model over a swarm with plain llama.cpp on the whole file",
        epilog=(
            "With FILE it starts local expert servers itself; with -c it uses the config's peers.\n"
            "Exit code 0 only if what the mode promises holds: rows and f32 byte-identical logits,\n"
            "any other mode the two bounds above. A verdict on f16 or int8 is kept in the store: it is what\n"
            'wire = "auto" in a config goes by.'
        ),
    )
    add_which(parser, DEFAULT_SERVERS)
    parser.add_argument("--combine", choices=COMBINES, help="default: rows, or the config's")
    parser.add_argument("--wire", choices=WIRES, help="default: f32, or the config's")
    parser.add_argument(
        "--batch",
        type=integers(1, MAX_BATCH),
        default=(1, 5, 64),
        metavar="N,...",
        help="tokens in a pass, one run for each (default: 1,5,64)",
    )
    parser.add_argument(
        "--min-cosine",
        type=number(-1.0, 1.0),
        default=0.998,
        metavar="C",
        help="mean cosine of logits that passes (default: 0.998)",
    )
    parser.add_argument(
        "--min-argmax",
        type=number(0.0, 1.0),
        default=0.98,
        metavar="A",
        help="share of equal likeliest tokens that passes (default: 0.98)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Compare; 0 if the promise of the mode holds, 1 if not."""
    import msgspec

    from node.cli.progress import Progress

    with Progress() as progress:
        verdict = on_swarm(
            args,
            DEFAULT_SERVERS,
            lambda config: _verify(args, config, progress),
            progress,
            whole_runs=args.combine == "stable",
        )
    if args.json:
        print(msgspec.json.encode(verdict).decode())
    else:
        print(_report(verdict))
    return 0 if verdict.passed else EXIT_FAILED


async def _verify(args: argparse.Namespace, config: NodeConfig, progress: Progress) -> Verdict:
    from node.verify.comparison import Bounds
    from node.verify.swarm_check import check_swarm

    verdict = await check_swarm(
        config,
        combine=args.combine,
        wire=args.wire,
        batches=args.batch,
        bounds=Bounds(args.min_cosine, args.min_argmax),
        progress=progress.report,
    )
    progress.clear()
    return verdict


def _report(verdict: Verdict) -> str:
    from node.cli.table import format_table

    rows = [
        ("model", f"{verdict.architecture} {verdict.model_id[:12]}"),
        ("servers", str(verdict.servers)),
        ("mode", f"{verdict.combine}, {verdict.wire}"),
        ("byte-identical", "yes" if verdict.byte_identical else "no"),
        ("worst cosine", f"{verdict.cosine_min:.7f}"),
        ("mean cosine", f"{verdict.cosine_mean:.7f}"),
        ("likeliest token agrees", f"{verdict.argmax_agreement:.1%}"),
        ("worst layer", "none" if verdict.worst_layer is None else str(verdict.worst_layer)),
        ("trips", str(verdict.trips)),
        ("bytes out", f"{verdict.bytes_out:,}"),
        ("bytes back", f"{verdict.bytes_back:,}"),
    ]
    for route in verdict.routes:
        who = route["name"] or str(route["peer"])[-8:]
        rows.append((f"route to {who}", f"{route['route']} ({route['reason']})"))
    if verdict.gate:
        rows.append(("for wire auto", verdict.gate))
    table = format_table(("", ""), rows)
    return f"{table}\n\n{'passed' if verdict.passed else 'FAILED'}: {verdict.reason}"
