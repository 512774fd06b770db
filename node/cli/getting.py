"""What `panal model get` and `panal slice get` have in common."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from node.cli.arguments import add_config, add_json, add_store, ranges
from routing.errors import LocalError

if TYPE_CHECKING:
    from node.share.getting import Got
    from node.swarm.place import Place

PEER_DIGITS = 8
"""Of a peer id, where it is shown beside others."""


def add_get_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of both."""
    parser.add_argument(
        "what", metavar="MODEL", help="the model's name, as its sources call it, or the beginning of its id"
    )
    parser.add_argument("--layers", type=ranges, metavar="A-B", help='experts of these layers, like "0-11"')
    parser.add_argument("--experts", type=ranges, metavar="C-D", help='these experts of each, like "0-31"')
    parser.add_argument("--all", action="store_true", help="all experts of all layers")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="where slice files go (default: here)",
    )
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="ask this node too, as `panal run` there prints it; may be given again",
    )
    add_config(parser, required=False)
    add_store(parser)
    add_json(parser)


def get(args: argparse.Namespace, *, trunk: bool, cells: bool) -> int:
    """Fetch, with progress; 1 if something is still lacking."""
    from node.cli.home_fetch import Rate
    from node.cli.progress import Progress
    from node.device.which_config import load
    from node.interrupt import run_interruptible
    from node.model.store import Store
    from node.share.getting import Wanted, get_model
    from node.share.slice_files import note_slices

    if args.all and (args.layers is not None or args.experts is not None):
        raise LocalError("--all is all experts of all layers; leave --layers and --experts out")
    config = load(args.config)
    store = Store(args.store or config.store)
    wanted = Wanted(
        args.what,
        trunk=trunk,
        cells=cells,
        layers=args.layers,
        experts=args.experts,
        folder=args.output,
        metadata=getattr(args, "metadata", None) or "",
    )
    with Progress() as progress:
        rate = Rate()

        def on_progress(done: int, total: int, peers: Sequence[str]) -> None:
            if total:
                told = rate.told(time.monotonic(), done, total - done)
                sources = f" from {len(peers)} peer{'s' if len(peers) != 1 else ''}" if peers else ""
                progress.report(f"fetching{sources}{told}:", done, total)
            else:
                progress.report("fetching the manifest and what goes with it", 0, 0)

        got = run_interruptible(
            lambda: get_model(
                _place(args, config),
                store,
                config.engine.library,
                wanted,
                progress=progress.report,
                on_progress=on_progress,
            ),
            progress.stop,
        )
    note_slices(store, got.slices)
    if args.json:
        print(json.dumps(got.as_dict()))
    else:
        print(_told(got, config.path))
    for peer, what in got.dropped.items():
        print(f"panal: {peer} {what}; it is not asked any more", file=sys.stderr)
    if got.lacking:
        print(f"panal: {_lacking(got)}", file=sys.stderr)
        return 1
    return 0


def _place(args: argparse.Namespace, config: object) -> Place:
    from node.config import NodeConfig
    from node.swarm.place import Place
    from routing.multiaddr import PeerAddress

    assert isinstance(config, NodeConfig)
    place = Place.of(config)
    more = tuple(PeerAddress.parse(text) for text in args.peer)
    return replace(place, swarm=replace(place.swarm, peers=(*place.swarm.peers, *more)))


def _told(got: Got, config: Path) -> str:
    from node.sizes import size_text

    lines = [f"model     {got.name} ({got.architecture}) {got.model_id}"]
    if got.metadata:
        vouching = ", ".join(got.metadata_from)
        lines.append(
            f"metadata  {got.metadata[:12]} (tokenizer, chat template: the model id does not cover it), "
            f"from {vouching}"
        )
    if got.trunk is not None:
        lines.append(f"trunk     {got.trunk}")
    lines += [f"slice     {path}" for path in got.slices]
    if got.n_bytes:
        took = (
            f" in {got.seconds:.1f} s ({got.n_bytes * 8 / 1e6 / got.seconds:.1f} Mbit/s)"
            if got.seconds
            else ""
        )
        sources = ", ".join(
            f"{size_text(n)} from ...{peer[-PEER_DIGITS:]}" for peer, n in got.by_peer.items()
        )
        lines.append(f"fetched   {size_text(got.n_bytes)}{took}: {sources}")
    if got.was_there:
        lines.append(f"before    {size_text(got.was_there)} were there already")
    if got.lacking:
        return "\n".join(lines)
    said = []
    if got.trunk is not None:
        said.append(f'[backbone]\nmodel = "{got.model_id}"')
    said += [f"[[serve]]\nmodel = {json.dumps(str(path.resolve()))}" for path in got.slices]
    if said:
        lines.append(f"\nInto {config}, as far as it is to be used:\n\n" + "\n\n".join(said))
    return "\n".join(lines)


def _lacking(got: Got) -> str:
    from node.sizes import size_text

    reasons = got.dropped | got.reasons
    why = "; ".join(f"...{peer[-PEER_DIGITS:]}: {reason}" for peer, reason in reasons.items())
    return (
        f"{size_text(got.lacking)} came from nobody: {why or 'no connected peer gives them'}; "
        "the same command goes on where it was"
    )
