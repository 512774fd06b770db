"""Commands that measure a swarm: that of a config, or one started here for a model file."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from node.cli.arguments import add_store, integer
from routing.errors import LocalError

if TYPE_CHECKING:
    from node.cli.progress import Progress
    from node.config import NodeConfig

T = TypeVar("T")

MAX_SERVERS = 64  # local processes; more than one a core only costs memory


def add_which(parser: argparse.ArgumentParser, servers: int) -> None:
    """FILE or -c FILE, --servers, --store.

    Args:
        servers: local servers to start where nothing else is said.
    """
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("file", type=Path, nargs="?", metavar="FILE", help="a GGUF file (any part of a split)")
    which.add_argument(
        "-c", "--config", type=Path, metavar="FILE", help="a config with a [backbone] and peers"
    )
    parser.add_argument(
        "--servers",
        type=integer(1, MAX_SERVERS),
        metavar="N",
        help=f"local expert servers to start, with FILE only (default: {servers})",
    )
    add_store(parser)


def on_swarm(
    args: argparse.Namespace,
    servers: int,
    work: Callable[[NodeConfig], Awaitable[T]],
    progress: Progress,
    *,
    whole_runs: bool = False,
) -> T:
    """Do something with the swarm that the arguments name; local servers are gone afterwards.

    Args:
        servers: as for `add_which`.
        whole_runs: local servers get whole runs of experts, as combine stable needs.
    """
    from node.config import load_config
    from node.interrupt import run_interruptible

    if args.config is None:
        with tempfile.TemporaryDirectory(prefix="panal-") as folder:
            return _on_local_swarm(args, servers, work, progress, Path(folder), whole_runs)
    if args.servers is not None:
        raise LocalError("--servers starts local servers for a FILE; with -c the config's peers are used")
    config = load_config(args.config)
    return run_interruptible(lambda: work(config), progress.stop)


def _on_local_swarm(
    args: argparse.Namespace,
    servers: int,
    work: Callable[[NodeConfig], Awaitable[T]],
    progress: Progress,
    folder: Path,
    whole_runs: bool,
) -> T:
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
        swarm.start(args.file, stored.manifest, args.servers or servers, whole_runs=whole_runs)
        text = render_config(
            store=str(Path(store).resolve()),
            identity="identity.key",
            threads=1,
            peers=[str(address) for address in swarm.addresses],
            model=str(args.file.resolve()),
        )
        config = parse_config(text, folder / "node.toml", Path(store))
        return run_interruptible(lambda: work(config), progress.stop)
