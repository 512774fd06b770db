"""`panal swarm`: make a private swarm, invite nodes into it, join one, and see which one a node is in."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from node.cli.arguments import Subparsers, add_command, add_config, add_json, integer
from routing.errors import LocalError

if TYPE_CHECKING:
    from node.config import NodeConfig
    from routing.identity import PeerId

EXIT_NO_MEMBER = 1
DEFAULT_KEY = Path("swarm.key")
DEFAULT_DAYS = 365
MAX_DAYS = 3650  # as routing.membership has it, which this module does not import to parse arguments

_HELP = """\
In an open swarm anybody may ask and serve. In a private one only members may: nodes whose peer id the
swarm's key has signed. Others are refused before they can send anything.

  1. Somebody makes the swarm, and keeps its key:   panal swarm create NAME
  2. Each node tells its peer id:                   panal swarm show -c node.toml
  3. The keeper of the key invites it:              panal swarm invite PEER-ID
  4. The node joins with the line it was sent:      panal swarm join INVITE -c node.toml

The key never leaves the machine it was made on: only peer ids and invitations travel. An invitation is for
one peer id and useless to anybody else, so that it may be sent over any channel."""


def add_arguments(subparsers: Subparsers) -> None:
    """Declare `swarm create`, `invite`, `join` and `show`."""
    group = subparsers.add_parser(
        "swarm",
        help="make a private swarm, invite nodes into it, join one",
        description=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    verbs = group.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="verb")

    create = add_command(verbs, "create", run_create, "make a private swarm: a name and a key")
    create.add_argument("name", metavar="NAME", help="1 to 40 characters")
    create.add_argument(
        "--dir", type=Path, default=Path(), metavar="DIR", help=f"where {DEFAULT_KEY} goes (default: here)"
    )
    add_json(create)

    invite = add_command(
        verbs,
        "invite",
        run_invite,
        "print a line that makes a node a member",
        epilog="The line holds no secret and is useless to anybody but the node with that peer id. Nothing\n"
        "takes a membership back before its day: give fewer --days to those you are less sure of.",
    )
    invite.add_argument(
        "peer_id", metavar="PEER-ID", type=_peer_id, help="of the node to invite (its panal swarm show)"
    )
    invite.add_argument(
        "--key",
        type=Path,
        default=DEFAULT_KEY,
        metavar="FILE",
        help=f"the swarm's key (default: {DEFAULT_KEY})",
    )
    invite.add_argument(
        "--days",
        type=integer(1, MAX_DAYS),
        default=DEFAULT_DAYS,
        metavar="N",
        help=f"how long the membership lasts (default: {DEFAULT_DAYS})",
    )
    invite.add_argument(
        "--peer",
        action="append",
        default=[],
        type=_address,
        metavar="ADDRESS",
        help="a node of the swarm to dial first; may be repeated",
    )
    add_json(invite)

    join = add_command(
        verbs,
        "join",
        run_join,
        "become a member with an invitation: writes the certificate and [swarm] of the config",
        epilog="A second invitation into the same swarm prolongs the membership.",
    )
    join.add_argument("invite", metavar="INVITE", help="the whole line, panal-invite:...")
    join.add_argument(
        "--replace", action="store_true", help="leave the swarm that the config names, and its peers"
    )
    add_config(join, required=False)
    add_json(join)

    show = add_command(verbs, "show", run_show, "which swarm this node is in, and until when")
    add_config(show, required=False)
    add_json(show)


def run_create(args: argparse.Namespace) -> int:
    """Make swarm.key and say what it stands for."""
    from node.swarm_files import KEY_FILE, SwarmKey

    path: Path = args.dir / KEY_FILE
    swarm = SwarmKey.create(args.name, path).swarm
    assert swarm.public_key is not None
    if args.json:
        print(
            json.dumps(
                {
                    "name": swarm.name,
                    "id": swarm.id.hex(),
                    "key": swarm.public_key.hex(),
                    "key_file": str(path),
                }
            )
        )
        return 0
    print(
        f"swarm       {swarm.name}\n"
        f"id          {swarm.id.hex()}\n"
        f"public key  {swarm.public_key.hex()}\n"
        f"key file    {path}  (whoever has it decides who is a member: keep a copy)\n"
    )
    key = "" if path == DEFAULT_KEY else f" --key {shlex.quote(str(path))}"
    print("Next: invite each node, this one too, by its peer id (panal swarm show -c node.toml):")
    print(f"  panal swarm invite PEER-ID{key}")
    return 0


def run_invite(args: argparse.Namespace) -> int:
    """Print the invitation."""
    from node.swarm_files import SwarmKey
    from routing.invitation import Invitation
    from routing.membership import MemberCertificate, utc

    key = SwarmKey.load(args.key)
    certificate = MemberCertificate.issue(key.private_key, key.swarm, args.peer_id, time.time(), args.days)
    addresses = tuple(dict.fromkeys(args.peer))
    line = Invitation(key.swarm, certificate, addresses).encode(key.private_key)
    if args.json:
        report = {
            "invite": line,
            "name": key.swarm.name,
            "id": key.swarm.id.hex(),
            "peer_id": args.peer_id,
            "valid_until": certificate.not_after,
        }
        print(json.dumps(report))
        return 0
    print(line, flush=True)
    print(
        f"\nFor {args.peer_id}, valid until {utc(certificate.not_after)}. On that node:\n"
        "  panal swarm join INVITE -c node.toml",
        file=sys.stderr,  # so that what is piped on is the line alone
    )
    return 0


def run_join(args: argparse.Namespace) -> int:
    """Check the invitation, write the certificate and the config."""
    from node.device.which_config import load, require_written
    from node.joining import join
    from routing.identity import Identity
    from routing.invitation import Invitation
    from routing.membership import utc

    config = load(args.config)
    require_written(config)
    peer_id = Identity.load(config.identity_path).peer_id
    invitation = Invitation.decode(args.invite)
    joined = join(config, peer_id, invitation, time.time(), replace=args.replace)
    swarm, until = invitation.swarm, invitation.certificate.not_after
    if args.json:
        report = {
            "name": swarm.name,
            "id": swarm.id.hex(),
            "peer_id": peer_id,
            "member": str(joined.member),
            "member_until": until,
            "peers_added": joined.added,
        }
        print(json.dumps(report))
        return 0
    print(
        f"swarm   {swarm.name}\n"
        f"id      {swarm.id.hex()}\n"
        f"member  until {utc(until)}\n"
        f"wrote   {joined.member}, and [swarm] of {config.path}\n\n"
        "A node that is running has to be started again."
    )
    return 0


def run_show(args: argparse.Namespace) -> int:
    """Print the swarm of a config, and whether its node is a member now."""
    from node.device.which_config import load
    from routing.identity import Identity
    from routing.membership import utc

    config = load(args.config)
    swarm = config.swarm.swarm
    peer_id = Identity.load(config.identity_path).peer_id
    until, problem = _membership(config, peer_id)
    if args.json:
        report = {
            "name": swarm.name,
            "id": swarm.id.hex(),
            "private": swarm.is_private,
            "key": None if swarm.public_key is None else swarm.public_key.hex(),
            "peer_id": peer_id,
            "member_until": until,
            "problem": problem,
        }
        print(json.dumps(report))
        return 0 if problem is None else EXIT_NO_MEMBER
    rows = [
        ("swarm", f"{swarm.name}, {'private' if swarm.is_private else 'open'}"),
        ("id", swarm.id.hex()),
        ("peer id", peer_id),
    ]
    if problem is not None:
        rows.append(("member", f"NO: this node {problem}"))
    elif until is not None:
        rows.append(("member", f"until {utc(until)}"))
    print("\n".join(f"{name:<9}{value}" for name, value in rows))
    return 0 if problem is None else EXIT_NO_MEMBER


def _peer_id(text: str) -> str:
    """An argparse type: an Ed25519 peer id."""
    from routing.identity import parse_peer_id

    try:
        return parse_peer_id(text)
    except LocalError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _address(text: str) -> str:
    """An argparse type: whom to dial, of either plane."""
    from routing.invitation import check_address

    try:
        return check_address(text)
    except LocalError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _membership(config: NodeConfig, peer_id: PeerId) -> tuple[int | None, str | None]:
    """Until when the node is a member, and why it is none."""
    from node.swarm_files import read_member
    from routing.membership import BadCertificateBytes, MemberCertificate, check_member

    swarm, path = config.swarm.swarm, config.swarm.member
    if path is None:
        return None, None
    data = read_member(path)
    try:
        until = MemberCertificate.decode(data).not_after
    except BadCertificateBytes:
        until = None
    return until, check_member(swarm, data, peer_id, time.time()) or None
