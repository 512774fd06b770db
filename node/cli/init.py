"""`panal init`: a commented config, a store, an identity, and what to do next."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from node.cli.arguments import DEFAULT_CONFIG, Subparsers, add_command, add_json, memory_amount
from routing.errors import LocalError

if TYPE_CHECKING:
    from node.config.shape import ServeTable


@dataclass(frozen=True)
class Serve:
    """What one --serve says, its ranges as they were written; None means all."""

    text: str
    model: str
    layers: str | None
    experts: str | None


def add_arguments(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "init",
        run,
        "write this node's config and make its identity",
        epilog=(
            "On a terminal, without a flag that says what the node is to do, it asks; what it then writes\n"
            "is this device's own config, which panal run finds by itself. The identity key stays as it is\n"
            "if there is one, with --force too."
        ),
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
        "--listen",
        type=_listen,
        metavar="ADDR",
        help="where to listen (default: UDP port 4190, all interfaces)",
    )
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        type=_peer,
        metavar="ADDR",
        help="the address of a node to begin with, or of any libp2p relay or DHT server; may be repeated",
    )
    parser.add_argument(
        "--serve",
        action="append",
        default=[],
        type=_serve,
        metavar="MODEL[:LAYERS[:EXPERTS]]",
        help='experts to serve, like "m.gguf:0-15:0-31"; may be repeated',
    )
    parser.add_argument(
        "--model", metavar="MODEL", help="the model to run from here: a GGUF file or model id"
    )
    parser.add_argument(
        "--relay", action="store_true", help="be a relay for nodes that cannot be reached; needs no model"
    )
    parser.add_argument(
        "--home-memory",
        type=memory_amount,
        metavar="SIZE",
        help='with --model: memory for experts computed here, to save trips, like "4GiB" or "50%%"',
    )
    parser.add_argument(
        "--memory",
        type=memory_amount,
        metavar="SIZE",
        help="with one --serve MODEL: the node chooses within so much memory what the swarm lacks most",
    )
    parser.add_argument(
        "--idle-only", action="store_true", help="serve only while nobody else uses this device"
    )
    parser.add_argument(
        "--schedule",
        action="append",
        default=[],
        type=_window,
        metavar="TIMES",
        help='serve only at these times, like "mon-fri 22:00-07:00"; may be repeated',
    )
    parser.add_argument("--force", action="store_true", help="overwrite the config")
    parser.add_argument("--yes", action="store_true", help="ask nothing, on a terminal too")
    parser.add_argument(
        "--check", action="store_true", help="ask the network too how this node is reached, as netcheck does"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Ask if need be, write the config, make or load the identity, say what comes next."""
    from node.cli.init_next import check_reach, next_step
    from node.config import default_store, parse_config, render_config
    from node.config.models import check_models
    from node.config.own_address import dialable
    from node.config.shape import DEFAULT_LISTEN
    from routing.identity import Identity

    is_asked = _says_nothing(args) and not (args.yes or args.json) and _is_terminal()
    if is_asked:
        _ask(args)
    if args.home_memory is not None and args.model is None:
        raise LocalError("--home-memory is for the model that runs from here: give it with --model")
    path: Path = args.output if args.dir is None else args.dir / DEFAULT_CONFIG
    text = render_config(
        name=args.name,
        store=None if args.dir is None else "store",
        listen=args.listen or DEFAULT_LISTEN,
        peers=args.peer,
        model=None if args.model is None else model_from(args.model, path),
        home_memory=args.home_memory,
        serve=_tables(args, path),
        relay=args.relay,
        idle_only=args.idle_only,
        schedule=args.schedule,
    )
    config = parse_config(text, path, default_store(os.environ))
    if path.exists() and not args.force:
        elsewhere = "-o FILE writes another" if args.dir is None else "another --dir keeps another node"
        raise LocalError(f"{path}: exists already; --force overwrites it, {elsewhere}")
    check_models(config)
    identity = Identity.load_or_create(config.identity_path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")

    address = None
    if config.swarm.listen.port != 0:
        address = f"{dialable(config.swarm.listen)}/p2p/{identity.peer_id}"
    if args.json:
        report = {
            "config": str(path),
            "store": str(config.store),
            "peer_id": identity.peer_id,
            "address": address,
        }
        print(json.dumps(report))
        return 0
    print(f"config   {path}\nstore    {config.store}\npeer id  {identity.peer_id}")
    if config.serve or args.relay:  # others dial these; one that only asks listens nowhere
        chosen_later = "its port is chosen at each start (the config says port 0); panal run prints it"
        print(f"address  {address or chosen_later}")
    if args.check or is_asked:
        check_reach(path)
    print(f"\n{next_step(config, _place(args))}")
    return 0


def _says_nothing(args: argparse.Namespace) -> bool:
    """Whether no flag says what the node is to be."""
    said = (args.name, args.listen, args.model, args.home_memory, args.memory)
    several = (args.peer, args.serve, args.schedule)
    return (
        not any(each is not None for each in said) and not any(several) and not (args.relay or args.idle_only)
    )


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _ask(args: argparse.Namespace) -> None:
    """Have the terminal say what no flag says."""
    from node.cli.init_questions import Terminal, ask
    from node.config import default_store
    from node.device.which_config import default_config

    if args.dir is None and args.output == DEFAULT_CONFIG:
        args.output = default_config(os.environ)
    path: Path = args.output if args.dir is None else args.dir / DEFAULT_CONFIG
    store = default_store(os.environ) if args.dir is None else args.dir / "store"
    answers = ask(Terminal(), path, store, overwrites=path.exists() and not args.force)
    args.force = True
    args.name, args.peer, args.relay = answers.name, answers.peers, answers.relay
    args.model, args.home_memory = answers.model, answers.home_memory
    args.idle_only, args.memory = answers.idle_only, answers.memory
    if answers.serve is not None:
        args.serve = [Serve(answers.serve, answers.serve, None, None)]


def _listen(text: str) -> str:
    """An argparse type: where to listen, as it is written into the config."""
    from routing.multiaddr import ListenAddress

    try:
        return str(ListenAddress.parse(text))
    except LocalError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def peer_address(text: str) -> str:
    """Whom to dial, as it is written into the config.

    Raises:
        LocalError: no address, or it does not say who must answer.
    """
    from routing.control_address import ControlAddress
    from routing.multiaddr import PeerAddress

    peer = ControlAddress.parse(text) if "/tcp/" in text else PeerAddress.parse(text)
    if peer.peer_id is None:
        raise LocalError(f"{text!r} does not say who must answer; add /p2p/PEER-ID")
    return str(peer)


def _peer(text: str) -> str:
    """An argparse type: whom to dial, as it is written into the config."""
    try:
        return peer_address(text)
    except LocalError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _window(text: str) -> str:
    """An argparse type: when the node serves, as it is written into the config."""
    from node.device.schedule import Window

    try:
        Window.parse(text)
    except LocalError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text.strip()


def _serve(text: str) -> Serve:
    """An argparse type: MODEL[:LAYERS[:EXPERTS]], an empty part meaning all.

    The longest beginning that is a file is the model, so that its name may have colons in it.
    """
    for colons in range(3):
        model, *ranges = text.rsplit(":", colons)
        if Path(model).is_file():
            break
    else:
        model, *ranges = text.split(":")
    if not model or len(ranges) > 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not MODEL[:LAYERS[:EXPERTS]]")
    layers, experts = [part or None for part in [*ranges, "", ""][:2]]
    return Serve(text, model, layers, experts)


def _tables(args: argparse.Namespace, config: Path) -> list[ServeTable]:
    """The [[serve]] tables of all --serve.

    Raises:
        LocalError: a model or a range that cannot be served, or --memory with what it does not go with.
    """
    if args.memory is None:
        return [_table(serve, config, None) for serve in args.serve]
    if len(args.serve) != 1 or args.serve[0].layers or args.serve[0].experts:
        raise LocalError(
            "--memory lets the node choose what it serves of a model: give it with one --serve MODEL, "
            "without layers and experts (several: memory in each [[serve]] of the config)"
        )
    return [_table(args.serve[0], config, args.memory)]


def _table(serve: Serve, config: Path, memory: str | None) -> ServeTable:
    """The [[serve]] of a --serve."""
    from node.config.shape import ServeTable
    from node.ranges import Ranges

    model = model_from(serve.model, config, serve.text)
    for part in (serve.layers, serve.experts):
        if part is not None:
            try:
                Ranges.parse(part)
            except LocalError as error:
                raise LocalError(f"--serve {serve.text}: {error}") from None
    return ServeTable(model=model, layers=serve.layers, experts=serve.experts, memory=memory)


def model_from(text: str, config: Path, argument: str = "") -> str:
    """A path given on the command line, as it must stand in the config; a model id as it is.

    Args:
        argument: the whole MODEL[:LAYERS[:EXPERTS]], where `text` is a part of one.
    """
    from node.config import ModelRef

    ref = ModelRef.parse(text, Path.cwd())
    if ref.path is None:
        return text
    if not ref.path.is_file():
        rule = f" ({argument}: after a colon come layers, then experts)" if ":" in argument else ""
        raise LocalError(f"{text}: no such file; give a GGUF or slice file, or a model id of the store{rule}")
    path, folder = ref.path.resolve(), config.absolute().parent.resolve()
    return f"./{path.relative_to(folder)}" if path.is_relative_to(folder) else str(path)


def _place(args: argparse.Namespace) -> str:
    """The flags that say where the config goes, for a command that is to write it again."""
    if args.dir is not None:
        return f" --dir {shlex.quote(str(args.dir))}"
    return "" if args.output == DEFAULT_CONFIG else f" -o {shlex.quote(str(args.output))}"
