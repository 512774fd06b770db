"""`panal home`: which experts to compute here, so that tokens take few trips."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from node.cli import home_fetch
from node.cli.arguments import (
    MAX_SEED,
    Subparsers,
    add_command,
    add_json,
    add_store,
    integer,
    memory_amount,
    number,
)
from routing.errors import LocalError

if TYPE_CHECKING:
    from node.config import ModelRef, NodeConfig
    from node.engine.library import Library
    from node.home.home_set import Shapes
    from node.home.plan_file import HomePlan
    from node.home.planning import TextSource
    from node.importing import Progress as Report
    from node.model.gguf.split import ModelFile
    from node.model.store import Store, StoredModel

DEFAULT_MEMORY = "50%"
DEFAULT_SECONDS = 120.0
MAX_SECONDS = 86_400.0  # a day: a 48-layer model on a slow machine takes minutes
MAX_TEXT_BYTES = 64 << 20  # of which only excerpts are read; a book is 1 MB
MAX_THREADS = 512  # GGML_MAX_N_THREADS


def add_arguments(subparsers: Subparsers) -> None:
    """Declare `home plan`, `home use` and `home fetch`."""
    group = subparsers.add_parser(
        "home", help="choose the experts to compute here, so that tokens take few trips", allow_abbrev=False
    )
    verbs = group.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="verb")
    plan = add_command(
        verbs,
        "plan",
        plan_home,
        "measure which experts are worth having here, and write the plan into the store",
        epilog=(
            "Runs the model from its file, without any peer, over places of a text, and tries home sets:\n"
            "what passes would wait for, and how many tokens they would yield with guesses by what is at\n"
            "home. Give it text of the kind you will ask for. A config's home_memory then uses the plan.\n"
            "A device that has only the trunk takes a plan that was made where the file is: -o FILE there,\n"
            "`panal home use FILE` here."
        ),
    )
    plan.add_argument(
        "model", nargs="?", metavar="MODEL", help="a GGUF file, or a model id whose file is still here"
    )
    plan.add_argument(
        "-c",
        "--config",
        type=Path,
        metavar="FILE",
        help="a node's config instead: its model, its store, its home_memory",
    )
    plan.add_argument(
        "--memory",
        type=memory_amount,
        metavar="SIZE",
        help='for experts at home: "4GiB", "50%%" of all (default: the config\'s home_memory, or '
        f"{DEFAULT_MEMORY.replace('%', '%%')})",
    )
    plan.add_argument(
        "--text", type=Path, metavar="FILE", help="text to measure on (default: prose and code of our own)"
    )
    plan.add_argument(
        "--seconds",
        type=number(1.0, MAX_SECONDS),
        default=DEFAULT_SECONDS,
        metavar="N",
        help=f"after which nothing more is tried (default: {DEFAULT_SECONDS:g})",
    )
    plan.add_argument(
        "--seed", type=integer(0, MAX_SEED), default=0, metavar="S", help="of the places (default: 0)"
    )
    plan.add_argument(
        "--threads", type=integer(1, MAX_THREADS), metavar="N", help="default: one for each core"
    )
    plan.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write the plan to FILE too, for another device"
    )
    add_store(plan)
    add_json(plan)
    use = add_command(
        verbs,
        "use",
        use_plan,
        "take over a plan that another device has made of the same model",
        epilog="Give the node's config, or the store it is for.",
    )
    use.add_argument("plan", type=Path, metavar="FILE", help="what `panal home plan -o FILE` wrote")
    use.add_argument("-c", "--config", type=Path, metavar="FILE", help="the config of the node that uses it")
    add_store(use)
    add_json(use)
    home_fetch.add_arguments(verbs)


def plan_home(args: argparse.Namespace) -> int:
    """Calibrate, write the plan, show it."""
    from node.cli.home_report import report_of, told
    from node.cli.progress import Progress
    from node.config import ModelRef
    from node.engine import library as llama
    from node.home.home_set import shapes_of, total_bytes
    from node.home.plan_file import carry_plan, write_plan
    from node.home.planning import USUAL_SHARES, make_plan
    from node.interrupt import run_blocking
    from node.sizes import MemoryBudget

    if (args.model is None) == (args.config is None):
        raise LocalError("home plan: give a MODEL, or a node's config with -c")
    if args.output is not None:
        _check_output(args.output)
    config = _config(args)
    memory = args.memory or _home_memory(config)
    asked = MemoryBudget.parse(memory)
    source = _text(args.text)
    store = _store(args, config)
    ref = config.require_backbone().model if config else ModelRef.parse(args.model, Path.cwd())
    threads = args.threads or (config.engine.threads if config else os.cpu_count() or 1)

    def work() -> tuple[HomePlan, Shapes, Path]:
        library = llama.load(config.engine.library if config else None)
        stored, model = _open_whole(library, store, ref, progress.report)
        shapes = shapes_of(stored.manifest)
        whole = total_bytes(shapes)
        budgets = [asked.of(whole), *(round(share * whole) for share in USUAL_SHARES)]
        plan = make_plan(
            library,
            stored,
            model,
            source,
            list(dict.fromkeys(budgets)),
            seconds=args.seconds,
            seed=args.seed,
            threads=threads,
            progress=progress.report,
        )
        path = write_plan(stored, plan)
        if args.output is not None:
            carry_plan(args.output, plan)
        return plan, shapes, path

    with Progress() as progress:
        plan, shapes, path = run_blocking(work, progress.stop)
    if args.json:
        print(json.dumps(report_of(plan, shapes, path)))
    else:
        print(told(plan, shapes, path, _next(args, config, memory)))
    return 0


def use_plan(args: argparse.Namespace) -> int:
    """Check a plan from elsewhere and put it into the store."""
    from node.home.plan_file import carried_plan, planned_model, write_plan
    from node.model.store import StoreError

    config = _config(args)
    store = _store(args, config)
    if config is not None:
        stored = _trunk(config, store)
    else:
        model_id = planned_model(args.plan)
        try:
            stored = store.get(model_id)
        except StoreError as error:
            raise LocalError(f"{args.plan}: is model {model_id[:12]}'s plan ({error})") from None
    plan = carried_plan(args.plan, stored)
    path = write_plan(stored, plan)
    if args.json:
        print(json.dumps({"model_id": plan.model_id, "plan": str(path)}))
    else:
        print(f"plan     {path}\n\nNext: {_after_use(config)}")
    return 0


def _config(args: argparse.Namespace) -> NodeConfig | None:
    from node.config import load_config

    if args.config is None:
        return None
    if args.store is not None:
        raise LocalError("--store goes without -c: the config names its own store")
    return load_config(args.config)


def _store(args: argparse.Namespace, config: NodeConfig | None) -> Store:
    from node.config import default_store
    from node.model.store import Store

    return Store(config.store if config else args.store or default_store(os.environ))


def _home_memory(config: NodeConfig | None) -> str:
    if config is None or (wanted := config.require_backbone().home_memory) is None:
        return DEFAULT_MEMORY
    return f"{wanted.n_bytes} B" if wanted.n_bytes is not None else str(wanted)


def _trunk(config: NodeConfig, store: Store) -> StoredModel:
    from node.engine import library as llama
    from node.serve.opening import open_trunk

    return open_trunk(llama.load(config.engine.library), store, config.require_backbone().model)


def _open_whole(
    library: Library, store: Store, ref: ModelRef, report: Report
) -> tuple[StoredModel, ModelFile]:
    """The model's file. A device that has only the trunk is told how a plan comes to it."""
    from node.model.store import StoreError
    from node.serve.opening import open_whole

    try:
        return open_whole(library, store, ref, report)
    except StoreError:
        raise
    except LocalError as error:
        if ref.path is not None:
            raise
        raise LocalError(
            f"{error}. A plan can come from a device that has it: there `panal home plan MODEL -o FILE`, "
            "here `panal home use FILE -c CONFIG`"
        ) from None


def _check_output(path: Path) -> None:
    """Before minutes are spent. Only a plan is overwritten."""
    from node.home.plan_file import planned_model

    if not path.absolute().parent.is_dir():
        raise LocalError(f"{path}: {path.absolute().parent} is no folder")
    if path.exists():
        try:
            planned_model(path)
        except LocalError:
            raise LocalError(f"{path}: exists and is no home plan; -o writes another file") from None


def _next(args: argparse.Namespace, config: NodeConfig | None, memory: str) -> str:
    """What to do with a plan that was made."""
    if args.output is not None:
        there = f"panal home use {args.output.name} -c node.toml"
        return f"copy {args.output} to the device that asks; there: {there}"
    if config is not None:
        return _after_use(config)
    if args.store is not None:
        return f'home_memory = "{memory}" in [backbone] of a config with store = "{args.store.absolute()}"'
    return (
        f'home_memory = "{memory}" in [backbone] of the config '
        f"(panal init --model MODEL --home-memory {memory.replace(' ', '')});\n"
        "a node with a store of its own, as panal init --dir makes it: panal home plan -c node.toml"
    )


def _after_use(config: NodeConfig | None) -> str:
    if config is None:
        return "home_memory in [backbone] of a config with this store"
    if config.require_backbone().home_memory is None:
        return f'home_memory = "{DEFAULT_MEMORY}" in [backbone] of {config.path}'
    return (
        f"panal generate -c {shlex.quote(str(config.path))} takes it; a node that runs does within a minute"
    )


def _text(path: Path | None) -> TextSource:
    from node.home.planning import TextSource
    from node.verify.passages import PASSAGES

    if path is None:
        return TextSource("panal's own text", "\n".join(PASSAGES))
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise LocalError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_TEXT_BYTES:
        raise LocalError(f"{path}: is over {MAX_TEXT_BYTES >> 20} MiB; a part of it does as well")
    return TextSource(path.name, data.decode(errors="replace"))
