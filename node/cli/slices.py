"""`panal slice`: what a device serves of a model, cut out of its file or fetched from peers."""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.cli.arguments import COMBINES, Subparsers, add_command, add_config, add_json, add_store, ranges
from node.cli.getting import add_get_arguments, get
from routing.errors import LocalError

if TYPE_CHECKING:
    from node.cli.progress import Progress
    from node.home.home_set import Shapes
    from node.ranges import Ranges


def add_arguments(subparsers: Subparsers) -> None:
    """Declare `slice cut`, `get`, `ls`, `rm` and `plan`."""
    group = subparsers.add_parser(
        "slice", help="cut or get a slice file, list or remove them, plan who serves what", allow_abbrev=False
    )
    verbs = group.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="verb")

    cut = add_command(
        verbs, "cut", cut_slice, "write a run of experts of a run of layers to a GGUF file of its own"
    )
    cut.add_argument("model", metavar="MODEL", help="a GGUF file, or a model id of the store")
    cut.add_argument("--layers", type=ranges, metavar="A-B", help='like "0-3" (default: all)')
    cut.add_argument("--experts", type=ranges, metavar="C-D", help='like "0-31" (default: all)')
    cut.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="the slice file to write"
    )
    cut.add_argument("--force", action="store_true", help="overwrite FILE")
    add_store(cut)
    add_json(cut)

    fetch = add_command(
        verbs,
        "get",
        get_slice,
        "fetch experts of a model from peers, as a slice file that can be served at once",
        epilog=(
            "Every chunk is proven by the model id when it comes; ended or killed, the same command goes on\n"
            "where it was. The file has its name only when it is complete. Exit code 1 if nobody gives\n"
            "the rest."
        ),
    )
    add_get_arguments(fetch)

    listing = add_command(
        verbs, "ls", list_slices, "list the slices on this device, and how complete they are"
    )
    listing.add_argument(
        "folders", nargs="*", type=Path, metavar="DIR", help="look there too (default: the working directory)"
    )
    add_config(listing, required=False)
    add_store(listing)
    add_json(listing)

    remove = add_command(
        verbs, "rm", remove_slices, "remove slice files, or what has come of them; nothing that is no slice"
    )
    remove.add_argument("files", nargs="*", type=Path, metavar="FILE", help="as `panal slice ls` shows them")
    remove.add_argument(
        "--home", action="append", default=[], metavar="MODEL-ID", help="the fetched experts of a home set"
    )
    remove.add_argument("--force", action="store_true", help="also what this node's config serves")
    add_config(remove, required=False)
    add_store(remove)
    add_json(remove)

    plan = add_command(
        verbs,
        "plan",
        plan_slices,
        "say which device should serve which experts, for a swarm whose devices you know",
        epilog=(
            "Layers stay whole where they fit (one message, one answer); room that is left takes replicas:\n"
            "whole layers, then the hottest experts, as counted in use and by `panal home plan`."
        ),
    )
    plan.add_argument("model", metavar="MODEL", help="a GGUF file, or a model id of the store")
    plan.add_argument(
        "--device",
        action="append",
        required=True,
        metavar="SIZE",
        help='what a device may hold, like "8GiB", or "50%%" of all experts; once for each device',
    )
    plan.add_argument(
        "--combine",
        choices=COMBINES,
        default="rows",
        help="stable: only whole runs of experts go anywhere (default: rows)",
    )
    add_store(plan)
    add_json(plan)


def plan_slices(args: argparse.Namespace) -> int:
    """Print the [[serve]] tables of each device."""
    from node.cli.progress import Progress
    from node.config import ModelRef
    from node.home.home_set import HomeSet
    from node.interrupt import run_blocking
    from node.sizes import size_text

    with Progress() as progress:
        shapes, placed = run_blocking(lambda: _place(args, progress), progress.stop)
    devices: list[dict[str, Any]] = []
    for size, held in zip(args.device, placed, strict=True):
        home = HomeSet.of_bits(held)
        devices.append(
            {
                "device": size,
                "bytes": home.n_bytes(shapes),
                "cells": home.count(),
                "whole_layers": home.whole_layers(shapes),
                "serve": [
                    {"layers": layers, "experts": experts} for layers, experts in home.as_ranges().items()
                ],
            }
        )
    if args.json:
        print(json.dumps(devices))
        return 0
    # A node.toml takes a relative path from where it lies itself.
    model = str(ModelRef.parse(args.model, Path.cwd().resolve()))
    for number, device in enumerate(devices, 1):
        print(
            f"# device {number} ({device['device']}): {device['cells']} experts, "
            f"{size_text(device['bytes'])}, whole layers: {len(device['whole_layers'])}"
        )
        for table in device["serve"]:
            print(f'[[serve]]\nmodel = {json.dumps(model)}\nlayers = "{table["layers"]}"')
            print(f'experts = "{table["experts"]}"\n')
    return 0


def _place(args: argparse.Namespace, progress: Progress) -> tuple[Shapes, list[dict[int, int]]]:
    from node.config import ModelRef, default_store
    from node.engine import library as llama
    from node.home.choosing import heat_now
    from node.home.home_set import shapes_of, total_bytes
    from node.home.plan_file import read_heat, read_plan
    from node.model.store import Store
    from node.serve.opening import open_trunk
    from node.sizes import MemoryBudget
    from routing.placement import LayerNeed, place

    store = Store(args.store or default_store(os.environ))
    stored = open_trunk(llama.load(), store, ModelRef.parse(args.model, Path.cwd()), progress.report)
    shapes = shapes_of(stored.manifest)
    heat = heat_now(shapes, read_plan(stored), read_heat(stored, shapes))
    runs = {call.layer: call.run_length for call in stored.manifest.calls if call.index == 0}
    needs = {
        layer: LayerNeed(math.ceil(shape.cell_bytes), heat.shares(layer).tolist(), runs[layer])
        for layer, shape in shapes.items()
    }
    whole = total_bytes(shapes)
    rooms = [MemoryBudget.parse(size).of(whole) for size in args.device]
    return shapes, place(needs, rooms, whole_runs=args.combine == "stable")


def get_slice(args: argparse.Namespace) -> int:
    """Fetch cells alone."""
    if not (args.all or args.layers is not None or args.experts is not None):
        raise LocalError("which experts? --layers 0-11, --experts 0-31, both, or --all")
    return get(args, trunk=False, cells=True)


def list_slices(args: argparse.Namespace) -> int:
    """Print what is here."""
    from node.cli.table import format_table
    from node.device.which_config import load
    from node.model.store import Store
    from node.share.slice_files import find_slices
    from node.sizes import size_text

    config = load(args.config)
    served = [entry.model.path for entry in config.serve if entry.model.path is not None]
    found = find_slices(Store(args.store or config.store), args.folders or [Path()], served)
    if args.json:
        print(json.dumps([each.as_dict() for each in found]))
    elif found:
        rows = [
            (
                each.model_id[:12],
                "home set" if each.kind == "home" else each.layers,
                each.experts or None,
                each.cells,
                size_text(each.n_bytes),
                "complete" if each.share >= 1 else f"about {each.share:.0%}",
                each.path,
            )
            for each in found
        ]
        print(format_table(("model", "layers", "experts", "cells", "size", "state", "file"), rows))
    else:
        print("No slices here; `panal slice get` fetches one, `panal slice cut` cuts one.")
    return 0


def remove_slices(args: argparse.Namespace) -> int:
    """Remove them."""
    from node.device.which_config import load
    from node.model.store import Store
    from node.share.slice_files import remove_home, remove_slice
    from node.sizes import size_text

    if not args.files and not args.home:
        raise LocalError("which? FILE as `panal slice ls` shows it, or --home MODEL-ID")
    config = load(args.config)
    store = Store(args.store or config.store)
    served = {entry.model.path.resolve() for entry in config.serve if entry.model.path is not None}
    for path in args.files:
        if path.resolve() in served and not args.force:
            raise LocalError(f"{path}: {config.path} serves it; take it out of [[serve]] first, or --force")
    freed = {str(path): remove_slice(path) for path in args.files}
    freed |= {model_id: remove_home(store, model_id) for model_id in args.home}
    if args.json:
        print(json.dumps([{"removed": name, "bytes": n_bytes} for name, n_bytes in freed.items()]))
    else:
        for name, n_bytes in freed.items():
            print(f"{name}: removed, {size_text(n_bytes)} are free again")
    return 0


def cut_slice(args: argparse.Namespace) -> int:
    """Write the slice file."""
    from node.cli.progress import Progress
    from node.interrupt import run_blocking
    from node.sizes import size_text

    if args.output.exists() and not args.force:
        raise LocalError(f"{args.output}: exists already; --force overwrites it, -o FILE writes another")
    with Progress() as progress:
        report = run_blocking(lambda: _cut(args, progress), progress.stop)
    if args.json:
        print(json.dumps(report))
    else:
        print(
            f"{report['file']}: {size_text(report['bytes'])}, {report['cells']} cells "
            f"(layers x experts) of model {report['model_id'][:12]}"
        )
        print(f"serve it: panal init --serve {shlex.quote(report['file'])}")
    return 0


def _cut(args: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    from node.config import ModelRef, default_store
    from node.engine import library as llama
    from node.model.slice_file import cut_slice as cut
    from node.model.store import Store
    from node.serve.opening import open_whole
    from node.share.slice_files import note_slices
    from node.sizes import size_text

    store = Store(args.store or default_store(os.environ))
    ref = ModelRef.parse(args.model, Path.cwd())
    stored, model = open_whole(llama.load(), store, ref, progress.report)
    manifest = stored.manifest
    layers = _one_run(args.layers, "--layers") or range(max(manifest.layers()) + 1)
    count = max(call.n_experts for call in manifest.calls if call.index == 0)
    experts = _one_run(args.experts, "--experts") or range(count)
    if args.output.exists():
        _refuse_target(args.output, [part.path for part in model.parts])
    written = 0

    def count_up(more: int) -> None:
        nonlocal written
        written += more
        progress.report(f"cutting ({size_text(written)})", 0, 0)

    size = cut(model, manifest.encoded(), stored.model_id, layers, experts, args.output, count_up)
    note_slices(store, [args.output])
    held = [layer for layer in manifest.layers() if layer in layers]
    return {
        "file": str(args.output),
        "bytes": size,
        "model_id": stored.model_id,
        "layers": [held[0], held[-1]],
        "experts": [experts.start, experts.stop - 1],
        "cells": len(held) * len(experts),
    }


def _refuse_target(target: Path, model: list[Path]) -> None:
    """--force overwrites an old slice, never the model itself, and nothing that is no file."""
    if any(target.samefile(part) for part in model):
        raise LocalError(f"{target}: is the model that is to be cut; give another -o FILE")
    if not target.is_file():
        raise LocalError(f"{target}: is not a file; give another -o FILE")


def _one_run(chosen: Ranges | None, flag: str) -> range | None:
    """A slice file holds one run; several runs are several files."""
    if chosen is None:
        return None
    if len(chosen.runs) > 1:
        raise LocalError(f"{flag} {chosen}: a slice file holds one run; cut one file for each")
    return range(chosen.runs[0][0], chosen.runs[0][1] + 1)
