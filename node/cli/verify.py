"""`panal verify`: does this model work? The swarm against plain llama.cpp on the whole file."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from node.cli.arguments import (
    COMBINES,
    MAX_BATCH,
    WIRES,
    Subparsers,
    add_command,
    add_json,
    add_store,
    integer,
    integers,
    number,
)
from routing.errors import LocalError

if TYPE_CHECKING:
    from node.cli.progress import Progress
    from node.config import NodeConfig
    from node.verify.comparison import Verdict

EXIT_FAILED = 1  # a check did not hold
DEFAULT_SERVERS = 2

MAX_SERVERS = 64  # local processes; more than one a core only costs memory


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
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("file", type=Path, nargs="?", metavar="FILE", help="a GGUF file (any part of a split)")
    which.add_argument(
        "-c", "--config", type=Path, metavar="FILE", help="a config with a [backbone] and peers"
    )
    parser.add_argument(
        "--servers",
        type=integer(1, MAX_SERVERS),
        metavar="N",
        help="local expert servers to start, with FILE only (default: 2)",
    )
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
    add_store(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Compare; 0 if the promise of the mode holds, 1 if not."""
    from node.cli.progress import Progress
    from node.interrupt import run_interruptible

    with Progress() as progress:
        if args.config is not None:
            if args.servers is not None:
                raise LocalError(
                    "--servers starts local servers for a FILE; with -c the config's peers are used"
                )
            verdict = run_interruptible(lambda: _verify_config(args, progress), progress.stop)
        else:
            with tempfile.TemporaryDirectory(prefix="panal-verify-") as folder:
                verdict = _verify_file(args, Path(folder), progress)
    import msgspec

    if args.json:
        print(msgspec.json.encode(verdict).decode())
    else:
        print(_report(verdict))
    return 0 if verdict.passed else EXIT_FAILED


def _verify_file(args: argparse.Namespace, folder: Path, progress: Progress) -> Verdict:
    """Start local servers with a share of every layer each."""
    from node.config import default_store, parse_config, render_config
    from node.engine import library as llama
    from node.importing import import_model
    from node.interrupt import run_blocking, run_interruptible
    from node.local_swarm import LocalSwarm
    from node.model.store import Store

    store = args.store or default_store(os.environ)
    stored = run_blocking(
        lambda: import_model(llama.load(), Store(store), args.file, progress.report), progress.stop
    )
    with LocalSwarm(folder, store, threads=1) as swarm:
        progress.report("starting servers", 0, 0)
        swarm.start(
            args.file,
            stored.manifest,
            args.servers or DEFAULT_SERVERS,
            whole_runs=args.combine == "stable",
        )
        text = render_config(
            store=str(Path(store).resolve()),
            identity="identity.key",
            threads=1,
            peers=[str(address) for address in swarm.addresses],
            model=str(args.file.resolve()),
        )
        config = parse_config(text, folder / "node.toml", Path(store))
        return run_interruptible(lambda: _verify(args, config, progress), progress.stop)


async def _verify_config(args: argparse.Namespace, progress: Progress) -> Verdict:
    from node.config import load_config

    return await _verify(args, load_config(args.config), progress)


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
