"""After `panal init`: what the network says, and what to do next."""

from __future__ import annotations

import errno
import ipaddress
import shlex
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from routing.errors import LocalError, PeerError

if TYPE_CHECKING:
    from node.config import NodeConfig
    from relay.netcheck import Report
    from routing.multiaddr import ListenAddress

CHECK_SECONDS = 15.0
"""For a check while somebody sits there: what is not known by then `panal run` finds out, and tells."""


def check_reach(path: Path) -> None:
    """Ask the network how this node is reached, and print what it says. Ctrl-C leaves it out."""
    import trio

    from node.cli.netcheck import check_network, summary
    from node.cli.progress import Progress
    from node.interrupt import run_interruptible

    async def check() -> Report | None:
        with trio.move_on_after(CHECK_SECONDS):
            return await check_network(path)
        return None

    print()
    try:
        with Progress() as progress:
            progress.report("asking the network; Ctrl-C leaves it out", 0, 0)
            report = run_interruptible(check, progress.stop)
    except KeyboardInterrupt:
        print("The network was not asked; panal netcheck does it.")
        return
    except (LocalError, PeerError) as error:
        print(f"The network could not be asked: {error}")
        return
    if report is None:
        print(f"The network said nothing in {CHECK_SECONDS:g} s; panal netcheck asks it at leisure.")
        return
    for check_done in report.checks:
        if check_done.advice or check_done.status.value == "fail":
            print(check_done)
    print(f"{summary(report)}.")


def _not_here(config: NodeConfig, path: str) -> Iterator[str]:
    """What to do about models of the config that the store does not have yet."""
    from node.model.store import Store

    store = Store(config.store)
    wanted = [(each.model, "panal model import FILE puts it there") for each in config.serve]
    if config.backbone is not None:
        model = config.backbone.model
        wanted.append((model, f"panal model get {model} -c {path} fetches it from peers"))
    for model, advice in wanted:
        if model.model_id is not None:
            try:
                store.get(model.model_id)
            except LocalError:
                yield f"{model} is not in the store yet: {advice}."


def is_taken(listen: ListenAddress) -> bool:
    """Whether something on this machine listens there now."""
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((listen.host, listen.port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def next_step(config: NodeConfig, place: str) -> str:
    """The commands that come next.

    Args:
        place: the flags that say where the config is, for one that writes it again.
    """
    from node.device.which_config import default_config

    path = shlex.quote(str(config.path))
    own = config.path == default_config()
    start = "panal run" if own else f"panal run -c {path}"
    lines = [*_not_here(config, path)]
    relays = config.relay.table.serve
    only_here = ipaddress.ip_address(config.swarm.listen.host).is_loopback and not relays
    if config.serve or relays:
        number = f" {config.swarm.listen.port}" if config.swarm.listen.port else ""
        ports = f"UDP and TCP port{number}" if relays else f"UDP port{number}"
        begun = f"start it, with {ports} open, and put its address into the peers of other nodes"
        if only_here:
            begun = "start it, and put its address into the peers of other nodes on this machine"
        if is_taken(config.swarm.listen):
            lines += [f"UDP port{number} is in use now: if not by this node, choose another one (--listen)."]
        lines += [f"Next: {begun}:", f"  {start}"]
        if own and sys.platform.startswith(("linux", "darwin")):
            lines += ["or have it start by itself:", "  panal service install"]
    if config.backbone is not None:
        lines += [""] if config.serve or relays else []
        lines += ["Next: ask for text:", f'  panal generate -c {path} -p "Once upon a time"']
        if own and not config.serve:
            lines += ["or have a page and an API for it:", f"  {start}"]
        if not config.swarm.peers and not config.swarm.control_peers:
            needed = "Off this network, one address of the swarm"
            if only_here:
                needed = "An address of a node on this machine"
            lines += [f"{needed} in [swarm] peers of {config.path} is needed."]
    if not (config.serve or relays or config.backbone):
        lines = [
            f"Next: fill in [backbone] (to ask), [[serve]] or [relay] in {config.path}, or start over:",
            f"  panal init --force --serve MODEL.gguf{place}",
            f"  panal init --force --relay{place}",
            f"  panal init --force --model MODEL.gguf --peer ADDRESS{place}",
        ]
    return "\n".join(lines)
