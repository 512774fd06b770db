"""`panal init`: a commented config, a store, an identity, and what to do next."""

from __future__ import annotations

import argparse
import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from node.cli.arguments import DEFAULT_CONFIG, Subparsers, add_command, add_json
from routing.errors import LocalError

if TYPE_CHECKING:
    from node.config import NodeConfig


def add_arguments(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "init",
        run,
        "write this node's config and make its identity",
        epilog="The identity key stays as it is if the store has one, with --force too.",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "-o",
        "--output",
        type=Path,
        default=DEFAULT_CONFIG,
        metavar="FILE",
        help=f"the config to write (default: {DEFAULT_CONFIG})",
    )
    where.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help=f"keep the whole node in DIR: {DEFAULT_CONFIG} and its own store (for several on a machine)",
    )
    parser.add_argument("--name", metavar="NAME", help="what the node calls itself")
    parser.add_argument(
        "--listen", metavar="ADDR", help="where to listen (default: UDP port 4190, all interfaces)"
    )
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="ADDR",
        help="an expert server's address; may be repeated",
    )
    parser.add_argument(
        "--serve",
        action="append",
        default=[],
        type=_split_serve,
        metavar="MODEL[:LAYERS[:EXPERTS]]",
        help='experts to serve, like "m.gguf:0-15:0-31"; may be repeated',
    )
    parser.add_argument(
        "--model", metavar="MODEL", help="the model to run from here: a GGUF file or model id"
    )
    parser.add_argument("--force", action="store_true", help="overwrite the config")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Write the config, make or load the identity, say what comes next."""
    from node.config import default_store, parse_config, render_config
    from node.config.shape import DEFAULT_LISTEN, ServeTable
    from routing.identity import Identity

    path: Path = args.output if args.dir is None else args.dir / DEFAULT_CONFIG
    text = render_config(
        name=args.name,
        store=None if args.dir is None else "store",
        listen=args.listen or DEFAULT_LISTEN,
        peers=args.peer,
        model=None if args.model is None else _model_from(args.model, path),
        serve=[
            ServeTable(model=_model_from(model, path), layers=layers, experts=experts)
            for model, layers, experts in args.serve
        ],
    )
    config = parse_config(text, path, default_store(os.environ))
    if path.exists() and not args.force:
        raise LocalError(f"{path}: exists already; --force overwrites it, -o FILE writes another")
    identity = Identity.load_or_create(config.identity_path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")

    address = f"{_reachable(config)}/p2p/{identity.peer_id}"
    if args.json:
        report = {
            "config": str(path),
            "store": str(config.store),
            "peer_id": identity.peer_id,
            "address": address,
        }
        print(json.dumps(report))
    else:
        print(f"config   {path}\nstore    {config.store}\npeer id  {identity.peer_id}\naddress  {address}\n")
        print(_next_step(config))
    return 0


def _split_serve(text: str) -> tuple[str, str | None, str | None]:
    """MODEL[:LAYERS[:EXPERTS]]; an empty part means all. A path with a colon goes into the config by hand."""
    model, *ranges = text.split(":")
    if not model or len(ranges) > 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not MODEL[:LAYERS[:EXPERTS]]")
    layers, experts = [part or None for part in [*ranges, "", ""][:2]]
    return model, layers, experts


def _model_from(text: str, config: Path) -> str:
    """A path given on the command line, as it must stand in the config; a model id as it is."""
    from node.config import ModelRef

    ref = ModelRef.parse(text, Path.cwd())
    if ref.path is None:
        return text
    if not ref.path.is_file():
        raise LocalError(f"{text}: no such file; give a GGUF or slice file, or a model id of the store")
    path, folder = ref.path.resolve(), config.absolute().parent.resolve()
    return f"./{path.relative_to(folder)}" if path.is_relative_to(folder) else str(path)


def _reachable(config: NodeConfig) -> str:
    """The listen address with, for "all interfaces", the one the system would use to leave: most likely
    what others on the network reach this machine by. Connecting a UDP socket sends nothing."""
    from routing.multiaddr import ListenAddress

    listen = config.swarm.listen
    outside = {"0.0.0.0": "192.0.2.1", "::": "2001:db8::1"}.get(listen.host)  # addresses for examples
    if outside is None:
        return str(listen)
    family = socket.AF_INET6 if ":" in outside else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((outside, 9))
        except OSError:  # no network: then only this machine can be meant
            return str(ListenAddress("127.0.0.1" if family == socket.AF_INET else "::1", listen.port))
        return str(ListenAddress(probe.getsockname()[0], listen.port))


def _next_step(config: NodeConfig) -> str:
    lines = []
    if config.serve:
        lines += [
            "Next: start it, and put its address into the peers of the node that asks:",
            f"  panal run -c {config.path}",
        ]
    if config.backbone is not None and config.swarm.peers:
        lines += ["Next: ask for text:", f'  panal generate -c {config.path} -p "Once upon a time"']
    elif config.backbone is not None:
        lines += [f"Next: put the addresses of expert servers into [swarm] peers of {config.path}."]
    if not lines:
        lines = [
            f"Next: fill in [backbone] (to ask) or [[serve]] (to serve) in {config.path}, or start over:",
            "  panal init --force --serve MODEL.gguf",
            "  panal init --force --model MODEL.gguf --peer ADDRESS",
        ]
    return "\n".join(lines)
