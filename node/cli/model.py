"""`panal model`: look into a GGUF file, take it into the store, give it to others, or fetch one of theirs."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.cli.arguments import Subparsers, add_command, add_config, add_json, add_store
from node.cli.getting import add_get_arguments, get
from node.cli.table import format_table
from node.sizes import size_text
from routing.errors import LocalError

if TYPE_CHECKING:
    from node.share.share_list import Share


def add_arguments(subparsers: Subparsers) -> None:
    """Declare `model inspect`, `import`, `share` and `get`."""
    group = subparsers.add_parser(
        "model", help="inspect a model file, import it, share it, or get one from peers", allow_abbrev=False
    )
    verbs = group.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="verb")

    inspect = add_command(
        verbs, "inspect", inspect_model, "show what a GGUF file is: model id, layers, experts, recipe, sizes"
    )
    inspect.add_argument("file", type=Path, metavar="FILE", help="a GGUF file (any part of a split)")
    add_json(inspect)

    take = add_command(
        verbs,
        "import",
        import_model,
        "write a model's trunk and manifest into the store, and prove the trunk",
    )
    take.add_argument("file", type=Path, metavar="FILE", help="a GGUF file (any part of a split)")
    add_store(take)
    add_json(take)

    share = add_command(
        verbs,
        "share",
        share_model,
        "offer a model to peers, or show what is offered",
        epilog=(
            "What is on the list is given by this device's node while `panal run` runs, also if it runs\n"
            "already: the trunk from the store, experts from FILE. Others: panal model get NAME."
        ),
    )
    share.add_argument(
        "model",
        nargs="?",
        metavar="FILE",
        help="a GGUF file (any part of a split), or a model id of the store",
    )
    share.add_argument("--name", metavar="NAME", help="under which others find it (default: the file's name)")
    share.add_argument(
        "--remove", metavar="MODEL", help="offer it no more: its name, or the beginning of its id"
    )
    add_config(share, required=False)
    add_store(share)
    add_json(share)

    fetch = add_command(
        verbs,
        "get",
        get_model,
        "fetch a model's trunk from peers, and the experts that are chosen",
        epilog=(
            "Every chunk is proven by the model id when it comes; ended or killed, the same command goes on\n"
            "where it was. Exit code 1 if nobody gives the rest."
        ),
    )
    add_get_arguments(fetch)
    fetch.add_argument(
        "--metadata",
        type=_digest,
        metavar="DIGEST",
        help="where sources differ in tokenizer or chat template: the beginning of the digest to take",
    )


def _digest(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{6,64}", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not the beginning of a digest: 6 to 64 hexadecimal digits"
        )
    return text


def inspect_model(args: argparse.Namespace) -> int:
    """Print what the file holds. Nothing is kept: the trunk that shows the recipe is temporary."""
    from node.cli.progress import Progress
    from node.engine import library as llama
    from node.inspection import inspect_file
    from node.interrupt import run_blocking

    with tempfile.TemporaryDirectory(prefix="panal-inspect-") as folder, Progress() as progress:
        report = run_blocking(
            lambda: inspect_file(llama.load(), args.file, Path(folder), progress.report), progress.stop
        )
    print(json.dumps(report) if args.json else _inspection(report))
    return 0


def import_model(args: argparse.Namespace) -> int:
    """Fill the store."""
    from node.cli.progress import Progress
    from node.config import default_store
    from node.engine import library as llama
    from node.importing import import_model as take
    from node.interrupt import run_blocking
    from node.model.store import Store

    store = Store(args.store or default_store(os.environ))
    with Progress() as progress:
        stored = run_blocking(
            lambda: take(llama.load(), store, args.file, progress.report, thorough=True), progress.stop
        )
    trunk_bytes = stored.trunk.stat().st_blocks * 512  # what it takes on disk: hollow trunks are sparse
    report = {
        "model_id": stored.model_id,
        "architecture": stored.manifest.architecture,
        "trunk": str(stored.trunk),
        "trunk_bytes": trunk_bytes,
        "expert_bytes": stored.manifest.expert_bytes,
    }
    if args.json:
        print(json.dumps(report))
    else:
        print(f"model id  {stored.model_id}")
        print(
            f"trunk     {stored.trunk} ({size_text(trunk_bytes)}; "
            f"the experts are {size_text(stored.manifest.expert_bytes)})"
        )
        print("proven    the trunk with our kernels gives the same bytes as llama.cpp on the whole file")
    return 0


def get_model(args: argparse.Namespace) -> int:
    """Fetch the trunk, and cells if any are chosen."""
    cells = args.all or args.layers is not None or args.experts is not None
    return get(args, trunk=True, cells=cells)


def share_model(args: argparse.Namespace) -> int:
    """Put a model on the share list, take one off, or show it."""
    from node.cli.progress import Progress
    from node.config import ModelRef
    from node.device.which_config import load
    from node.engine import library as llama
    from node.interrupt import run_blocking
    from node.model.store import Store
    from node.share.giving import share_model as give
    from node.share.share_list import read_shares, remove_share

    config = load(args.config)
    store = Store(args.store or config.store)
    if args.remove is not None:
        if args.model is not None or args.name is not None:
            raise LocalError("--remove ends what is shared; give FILE without it")
        gone = remove_share(store, args.remove)
        print(json.dumps({"removed": gone.model_id}) if args.json else f"{gone.name} is offered no more")
        return 0
    if args.model is None:
        if args.name is not None:
            raise LocalError("--name is for a FILE that is to be shared")
        return _show_shares(read_shares(store), as_json=args.json)
    ref = ModelRef.parse(args.model, Path.cwd())
    with Progress() as progress:
        share = run_blocking(
            lambda: give(llama.load(config.engine.library), store, ref, args.name, progress.report),
            progress.stop,
        )
    if args.json:
        print(json.dumps(_share(share)))
        return 0
    given = f"trunk, and all experts from {share.path}" if share.path else "trunk"
    print(f"model id  {share.model_id}\nname      {share.name}")
    print(f"metadata  {share.metadata[:12]}\noffered   {given}")
    off = "" if config.swarm.share_cells else f"; but {config.path} has share_cells = false"
    print(
        f"This device's node gives it while it runs (panal run){off}. Others:\n"
        f"  panal model get {shlex.quote(share.name)}"
    )
    return 0


def _show_shares(shares: Sequence[Share], *, as_json: bool) -> int:
    if as_json:
        print(json.dumps([_share(each) for each in shares]))
    elif shares:
        rows = [
            (each.name, each.model_id[:12], each.metadata[:12], each.path or "trunk only") for each in shares
        ]
        print(format_table(("name", "model", "metadata", "from"), rows))
    else:
        print("Nothing is shared; `panal model share FILE` offers a model.")
    return 0


def _share(share: Share) -> dict[str, Any]:
    return {
        "model_id": share.model_id,
        "name": share.name,
        "metadata": share.metadata,
        "file": share.path or None,
    }


def _inspection(report: dict[str, Any]) -> str:
    if report["kind"] == "slice":
        share = report["bytes"] / report["model_expert_bytes"]
        return format_table(
            ("", ""),
            [
                ("slice file", report["file"]),
                ("of model", f"{report['architecture']} {report['model_id']}"),
                ("layers", report["layers"]),
                ("experts", f"{report['experts']} of {report['experts_in_layer']} in a layer"),
                ("size", f"{size_text(report['bytes'])}, {share:.0%} of the model's experts"),
            ],
        )
    facts = [
        ("file", f"{report['file']}" + (f" ({report['parts']} parts)" if report["parts"] > 1 else "")),
        ("name", report["name"] or "-"),
        ("architecture", report["architecture"]),
        ("model id", report["model_id"]),
        ("metadata", f"{report['metadata'][:12]} (tokenizer, chat template: not of the model id)"),
        ("experts", size_text(report["expert_bytes"])),
        ("everything else", size_text(report["trunk_bytes"])),
        ("expert types", ", ".join(report["expert_types"])),
    ]
    rows = [
        (
            call["layers"], call["experts"], call["run_length"], call["used"],
            f"{call['n_in']} -> {call['n_out']}", f"{call['bytes_per_cell']:,}", call["recipe"],
        )
        for call in report["calls"]
    ]  # fmt: skip
    header = ("layers", "experts", "in runs of", "used", "row", "bytes per cell", "each computes")
    return f"{format_table(('', ''), facts)}\n\n{format_table(header, rows)}"
