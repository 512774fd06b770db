"""`panal netcheck`: what works between this node and the network, and what to do about the rest."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from node.cli.arguments import Subparsers, add_command, add_json
from routing.errors import LocalError

if TYPE_CHECKING:
    from node.config import NodeConfig, RelayConfig
    from relay.netcheck import Check, Report, Unnamed
    from routing.byte_stream import ByteStream
    from routing.control_address import ControlAddress
    from routing.identity import Identity
    from routing.membership import Membership
    from routing.multiaddr import ListenAddress, PeerAddress
    from routing.quic.endpoint import Endpoint

EXIT_FAILED = 1


def add_arguments(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "netcheck",
        run,
        "check how this node reaches the network and is reached",
        epilog=(
            "One line a check: pass, fail or skip, what was found, what to do. It needs a peer to ask: from\n"
            "--peer or the config; if none of them helps, on this network or of earlier days.\n"
            "Exit code 0 if this node can take part in some way, through a relay if need be; 1 if it can\n"
            "not, or if nobody was there to tell; 2 if its config or its files are wrong."
        ),
    )
    parser.add_argument("-c", "--config", type=Path, metavar="FILE", help="this node's config (panal init)")
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        type=_peer,
        metavar="ADDR",
        help="a peer or relay to ask, besides the config's; may be repeated",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Check, print, and say in the exit code whether the node can take part."""
    from node.cli.progress import Progress
    from node.interrupt import run_interruptible

    with Progress() as progress:
        progress.report("asking the network", 0, 0)
        report = run_interruptible(lambda: check_network(args.config, args.peer), progress.stop)
    if args.json:
        print(json.dumps(dataclasses.asdict(report)))
    else:
        for check in report.checks:
            print(check)
        print(f"\n{summary(report)}.")
    return 0 if report.can_take_part else EXIT_FAILED


def _peer(text: str) -> PeerAddress | ControlAddress:
    """An argparse type: the address of a peer, for QUIC, TCP or WebSocket."""
    from routing.control_address import ControlAddress
    from routing.multiaddr import PeerAddress

    try:
        if "/udp/" in text or "/tcp/" not in text:
            return PeerAddress.parse(text)
        address = ControlAddress.parse(text)
    except LocalError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if address.peer_id is None:
        raise argparse.ArgumentTypeError(f"{text} names no peer: write it with /p2p/PEER-ID at the end")
    return address


async def check_network(path: Path | None, asked: Sequence[PeerAddress | ControlAddress] = ()) -> Report:
    """All checks.

    Args:
        path: of a config; None: as a node without one.
        asked: peers and relays to ask besides the config's.
    """
    import trio

    from node.config import load_config
    from node.config.shape import DEFAULT_LISTEN
    from node.swarm.carrying import Carrying
    from node.swarm.control import Control
    from node.swarm.relay_checks import check_relays, places
    from relay.netcheck import netcheck
    from routing.identity import Identity
    from routing.membership import Membership
    from routing.multiaddr import ListenAddress, PeerAddress

    config = None if path is None else load_config(path)
    listen, backend, ca = ListenAddress.parse(DEFAULT_LISTEN), "qh3", None
    peers = [each for each in asked if isinstance(each, PeerAddress)]
    control_peers = [each for each in asked if not isinstance(each, PeerAddress)]
    identity, membership, forwardable = Identity.generate(), Membership(), True
    if config is not None:
        listen, backend, ca = config.swarm.listen, config.swarm.backend, config.relay.ca
        peers = [*config.swarm.peers, *peers]
        control_peers = [*config.swarm.control_peers, *control_peers]
        identity, membership = _who(config)
        forwardable = bool(config.serve) or config.relay.table.serve
    peers = list(dict.fromkeys(peers))
    control = Control(
        identity,
        membership,
        _only_client(ca),
        listen=None,
        on_stream=_refuse,
        on_reservations=lambda: None,
    )
    endpoint = (
        _endpoint(listen, backend, identity, membership)
        if forwardable
        else _bound(listen.host, 0, backend, identity, membership)
    )
    carrying = Carrying(endpoint)
    unnamed: list[PeerAddress] = []

    async def elsewhere() -> tuple[list[Check], list[Unnamed]]:
        checks, found = await _look_elsewhere(config, endpoint, membership)
        unnamed.extend(address for each in found for address in each.addresses)
        return checks, found

    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(endpoint.run)
            await nursery.start(carrying.run)
            await nursery.start(control.run)
            report = await netcheck(
                endpoint,
                peers,
                elsewhere=elsewhere,
                relay_checks=lambda: check_relays(
                    control, carrying, places(control_peers, [*peers, *unnamed])
                ),
                forwardable=forwardable,
            )
            nursery.cancel_scope.cancel()
    finally:
        endpoint.close()
    return report


async def _look_elsewhere(
    config: NodeConfig | None, endpoint: Endpoint, membership: Membership
) -> tuple[list[Check], list[Unnamed]]:
    """Peers on this network, as a running node would look for them, and those its memory holds."""
    from node.swarm.place import Place
    from node.swarm.unnamed_peers import lan_peers, remembered_peers
    from relay.netcheck import Check, Status
    from relay.targets import plain_host
    from routing.remembered import RememberedPeers

    swarm = membership.swarm
    found: list[Unnamed] = []
    loopback = plain_host(endpoint.local_address[0]) in ("127.0.0.1", "::1")
    if loopback or (config is not None and not config.swarm.lan):
        why = "this node listens on loopback only" if loopback else "[swarm] lan = false"
        lan = Check("LAN", Status.SKIP, f"not looked for: {why}")
    else:
        lan, found = await lan_peers(endpoint, swarm)
    if config is not None and config.identity_path.exists():
        memory = Place.of(config).memory
        if memory is not None and memory.exists():
            remembered = RememberedPeers(memory)
            try:
                heard = [str(each.addresses[0].peer_id) for each in found]
                named = [str(each.peer_id) for each in config.swarm.peers]
                found = [*found, *remembered_peers(remembered, swarm, endpoint, [*heard, *named])]
            finally:
                remembered.close()
    return [*_network(), lan], found


def _network() -> list[Check]:
    """The obvious, where it is all there is to say."""
    from relay.netcheck import Check, Status
    from routing.lan import is_off_every_network

    if not is_off_every_network():
        return []
    detail = "no interface of this machine but loopback has an address"
    return [Check("network", Status.FAIL, detail, "connect it to a network")]


async def _refuse(stream: ByteStream, _: object) -> None:
    """Nobody is served by a check."""
    stream.abort()


def _only_client(ca: Path | None) -> RelayConfig:
    """Relays are used, and nothing is relayed."""
    from node.config import RelayConfig
    from node.config.shape import RelayTable

    return RelayConfig(
        table=RelayTable(), websocket=None, certificate=None, certificate_key=None, ca=ca, announce=()
    )


def _who(config: NodeConfig) -> tuple[Identity, Membership]:
    """The config's node in a private swarm; else nobody, whom peers can't take for a running node.

    Raises:
        LocalError: the key file or the member certificate cannot be used, as `panal run` would say.
    """
    from routing.identity import Identity
    from routing.membership import Membership

    if not config.swarm.swarm.is_private:
        if config.identity_path.exists():
            Identity.load(config.identity_path)
        return Identity.generate(), Membership(config.swarm.swarm)
    from node.swarm.own_membership import load_membership
    from node.swarm.place import Place

    place = Place.of(config)
    return place.identity, load_membership(place)


def _endpoint(listen: ListenAddress, backend: str, identity: Identity, membership: Membership) -> Endpoint:
    """On the node's own port, or, if the node is running, on another: what the router does is the same."""
    try:
        return _bound(listen.host, listen.port, backend, identity, membership)
    except LocalError:
        endpoint = _bound(listen.host, 0, backend, identity, membership)
    port = endpoint.local_address[1]
    print(
        f"panal: port {listen.port} is in use (by this node?), checking with port {port}: "
        "a forwarding in the router does not count",
        file=sys.stderr,
    )
    return endpoint


def _bound(host: str, port: int, backend: str, identity: Identity, membership: Membership) -> Endpoint:
    from routing.quic.endpoint import Endpoint

    return Endpoint(identity, listen=(host, port), backend=backend, accept=False, membership=membership)


def summary(report: Report) -> str:
    """The verdict, for people."""
    from relay.netcheck import Verdict

    if report.verdict is Verdict.UNKNOWN:
        return f"Whether this node can take part is unknown: {report.reason}"
    return f"This node {'can' if report.can_take_part else 'can NOT'} take part: {report.reason}"
