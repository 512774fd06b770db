"""`panal market advise`: which cells this device should hold, for the swarm's need and its own income."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from node.cli.arguments import Subparsers, add_command, add_config, add_json, memory_amount
from routing.errors import LocalError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from market.ground import Floats
    from node.config import ModelRef, NodeConfig
    from node.home.home_set import HomeSet
    from node.market.advice_report import AdviceReport
    from node.model.store import StoredModel
    from node.sizes import MemoryBudget
    from node.status.facts import Status


def add(subparsers: Subparsers) -> None:
    """Declare it."""
    parser = add_command(
        subparsers,
        "advise",
        run,
        "say which experts this device should hold, for the swarm's need and its own income",
        epilog=(
            "Listens to the swarm for some seconds, and asks the servers that it hears of whether they are\n"
            "there; those that do not answer in time count little. Need comes first (cells that fewer than\n"
            "three others hold, the rarest first), then income for each byte; whole layers before parts. A\n"
            "[[serve]] with memory chooses the same way by itself where [market] has prices. Incomes go by\n"
            "what this node has served; before that, by a million tokens a day in the whole swarm."
        ),
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a GGUF file, or 6 or more digits of a stored model's id (default: what the config serves)",
    )
    parser.add_argument(
        "--memory",
        type=memory_amount,
        metavar="SIZE",
        help='that it may hold: "6GiB", "50%%" of all experts (default: the config\'s)',
    )
    parser.add_argument(
        "--uplink",
        type=_uplink,
        metavar="RATE",
        help='what the device can send: "20Mbit" a second (default: the config\'s; without one, no limit)',
    )
    add_config(parser, required=False)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Listen, decide, tell."""
    import functools
    from dataclasses import replace

    from node.cli.progress import Progress
    from node.device.which_config import load
    from node.engine import library as llama
    from node.home.home_set import shapes_of, total_bytes
    from node.interrupt import run_blocking, run_interruptible
    from node.market.advising import Asked, advise_on, hear
    from node.model.store import Store
    from node.serve.opening import open_trunk
    from node.swarm.place import Place

    config = load(args.config, os.environ)
    ref, memory = _what(args, config)
    store = Store(config.store)
    place = Place.of(config)
    with Progress() as progress:
        stored = run_blocking(
            lambda: open_trunk(llama.load(config.engine.library), store, ref, progress.report), progress.stop
        )
        asked = Asked(
            config.market if args.uplink is None else replace(config.market, uplink=args.uplink),
            stored,
            memory.of(total_bytes(shapes_of(stored.manifest))),
            _serving(config, ref, stored),
            _served(config, stored.model_id, place.identity.peer_id),
        )
        heard = run_interruptible(
            lambda: hear(place, stored.model_id, lambda text: progress.report(text, 0, 0)), progress.stop
        )
        heard = replace(heard, answers=heard.answers.without(_barred(config)))
        work = functools.partial(advise_on, asked, heard, place.identity.peer_id, store)
        report = run_blocking(work, progress.stop)
    print(json.dumps(report.as_dict()) if args.json else told(report))
    return 0


def told(report: AdviceReport) -> str:
    """For people."""
    from node.cli.table import format_table
    from node.sizes import size_text

    answered = f" (answered: {report.answered})" if report.servers else ""
    lines = [
        f"model      {report.model_id[:12]}, other servers: {report.servers}{answered}",
        f"hold       {_cells(report.hold)}: {size_text(report.n_bytes)} of {size_text(report.memory)}",
    ]
    if report.take != report.hold:
        lines.append(f"now        {'take ' + _cells(report.take) if report.take else 'nothing to take'}")
    if report.give:
        lines.append(f"           give up {_cells(report.give)}")
    basis = (
        ", by what this node served" if report.is_measured else ", an assumption: no receipts say more yet"
    )
    would, does = _credits(report.income), _credits(report.income_now)
    lines.append(f"income     {would} credits a day, {does} by what is held now")
    lines.append(f"           at {report.tokens_a_day:,.0f} tokens a day in the swarm{basis}")
    if report.lacking:
        lines.append(
            f"scarce     {report.lacking:,} cells with fewer than three other holders, "
            f"{report.uncovered:,} with none; the rarest: {_cells(report.scarce)}"
        )
    else:
        lines.append("scarce     nothing: three others or more hold each cell")
    rows = [
        (
            each.layer,
            f"{each.cells}/{each.of}",
            each.held,
            f"{each.fewest:g}",
            _credits(each.income),
            ", ".join(f"{text} ({cells})" for text, cells in each.reasons.items()) or "-",
        )
        for each in report.layers
        if each.cells or each.held
    ]
    if rows:
        header = ("layer", "hold", "now", "others, at least", "credits/day", "why")
        lines += ["", format_table(header, rows)]
    return "\n".join(lines)


def _what(args: argparse.Namespace, config: NodeConfig) -> tuple[ModelRef, MemoryBudget]:
    """The model, and the memory for it.

    Raises:
        LocalError: one of them was not said.
    """
    from node.config import ModelRef
    from node.sizes import MemoryBudget

    entry = next((each for each in config.serve if each.memory is not None), None)
    if args.model is not None:
        ref = ModelRef.parse(args.model, Path.cwd())
        if entry is not None and entry.model != ref:
            entry = None
    elif entry is not None:
        ref = entry.model
    elif config.serve:
        ref = config.serve[0].model
    else:
        raise LocalError(f"advise on which model? give MODEL: {config.path} serves none")
    if args.memory is not None:
        return ref, MemoryBudget.parse(args.memory)
    if entry is None or entry.memory is None:
        raise LocalError('how much may this device hold of it? give --memory, like "6GiB" or "50%"')
    return ref, entry.memory


def _serving(config: NodeConfig, ref: ModelRef, stored: StoredModel) -> HomeSet:
    """What the node that runs here serves; else what it would: by its config, and by its own choice as it has
    written that down."""
    from node.device.folder import NodeFolder
    from node.device.running_node import find_running
    from node.device.serving_note import read_note
    from node.home.home_set import HomeSet, shapes_of

    running = find_running(NodeFolder.of(config), config.http.key_file)
    if running is not None:
        from node.cli.status import facts_of

        return HomeSet.of_bits(_bits(facts_of(running.get("/api/status")), stored.model_id))
    shapes = shapes_of(stored.manifest)
    named = HomeSet.of_bits(
        _named_bits(config, ref, {layer: each.n_experts for layer, each in shapes.items()})
    )
    note = read_note(NodeFolder.of(config).serving).get(stored.model_id, {})
    try:
        return named | HomeSet.from_ranges(note, shapes)
    except LocalError:  # of another version of the model: it is chosen anew as well
        return named


def _named_bits(config: NodeConfig, ref: ModelRef, experts: Mapping[int, int]) -> dict[int, int]:
    """What a config names to be served of a model, experts as bits by layer.

    Args:
        experts: how many each layer has.
    """
    bits: dict[int, int] = {}
    for entry in config.serve:
        if entry.model != ref or entry.memory is not None:
            continue
        for layer, count in experts.items():
            if entry.layers is None or layer in entry.layers:
                named = range(count) if entry.experts is None else entry.experts
                for expert in named:
                    if expert < count:
                        bits[layer] = bits.get(layer, 0) | 1 << expert
    return bits


def _bits(told: Status, model_id: str) -> dict[int, int]:
    """What a status says that its node serves of a model, experts as bits by layer."""
    bits: dict[int, int] = {}
    for held in told.node.serves:
        if held.model == model_id:
            for first, last, runs in held.experts:
                for layer in range(first, last + 1):
                    for start, end in runs:
                        bits[layer] = bits.get(layer, 0) | (1 << (end + 1)) - (1 << start)
    return bits


def _served(config: NodeConfig, model_id: str, peer_id: str) -> dict[int, Floats]:
    """What the node that runs here has been signed for, a day; else what it has written down of that."""
    import time

    import numpy as np

    from node.device.folder import NodeFolder
    from node.device.running_node import find_running
    from node.market.served_memory import ServedMemory

    if config.market.is_free:
        return {}
    folder = NodeFolder.of(config)
    running = find_running(folder, key_file=config.http.key_file)
    if running is None:
        try:
            rate = ServedMemory(folder.served, peer_id).read(time.time()).get(model_id)
        except LocalError as error:
            print(f"panal: what this node served is not known: {error}", file=sys.stderr)
            return {}
        return {} if rate is None else rate.a_day()
    told = running.get(f"/api/market/served?model={model_id}")
    try:
        return {int(layer): np.array(pairs, np.float64) for layer, pairs in told.items()}
    except (AttributeError, TypeError, ValueError):
        raise LocalError(
            "the node that runs here tells of its work otherwise than this panal reads it: start it again"
        ) from None


def _barred(config: NodeConfig) -> Collection[str]:
    """Peers that this node does not ask for their false answers."""
    import time

    from node.device.folder import NodeFolder
    from node.market.findings import found_earlier

    try:
        with found_earlier(NodeFolder.of(config)) as findings:
            return () if findings is None else findings.quarantine.barred(time.time())
    except LocalError as error:
        print(f"panal: who gave false answers is not known: {error}", file=sys.stderr)
        return ()


def _cells(ranges: object) -> str:
    assert isinstance(ranges, dict)
    return "; ".join(f"layers {layers}: experts {experts}" for layers, experts in ranges.items()) or "nothing"


def _credits(micro: int) -> str:
    from market.credits import MICRO

    return f"{micro / MICRO:,.2f}"


def _uplink(text: str) -> float:
    """An argparse type: bits a second."""
    from node.line_rate import RateError, parse_rate

    try:
        return parse_rate(text)
    except RateError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
