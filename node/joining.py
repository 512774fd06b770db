"""Joining a private swarm: an invitation becomes a certificate and what a config's [swarm] says."""

from __future__ import annotations

import contextlib
import os
import secrets
import tomllib
from dataclasses import dataclass
from pathlib import Path

from node.config import NodeConfig, parse_config
from node.swarm_files import member_path, write_member
from node.toml_text import Value, set_keys
from routing.errors import LocalError
from routing.identity import PeerId
from routing.invitation import Invitation
from routing.membership import OPEN_SWARM, check_member


@dataclass(frozen=True)
class Joined:
    """What was done.

    Attributes:
        member: the certificate's file.
        added: peers that the config names now and did not before.
    """

    member: Path
    added: list[str]


def join(config: NodeConfig, peer_id: PeerId, invitation: Invitation, now: float, *, replace: bool) -> Joined:
    """Make a config's node a member. All is checked before anything is written.

    Args:
        peer_id: of the config's identity.
        replace: leave the other swarm that the config names, and its peers.

    Raises:
        LocalError: the invitation is for another node or has expired, the config names another swarm or is
            written in a way that cannot be changed, a file cannot be written.
    """
    _check_invitation(invitation, peer_id, config, now)
    swarm, current = invitation.swarm, config.swarm.swarm
    leaves = current not in (OPEN_SWARM, swarm)
    if leaves and not replace:
        raise LocalError(
            f"{config.path}: is in swarm {current.name!r} ({current.id.hex()[:16]}) already; "
            f"--replace leaves it for {swarm.name!r} ({swarm.id.hex()[:16]})"
        )
    text = config.path.read_bytes().decode("utf-8-sig")
    kept: list[str] = [] if leaves else tomllib.loads(text).get("swarm", {}).get("peers", [])
    added = _new_peers(invitation, peer_id, kept)
    member = member_path(config.identity_path)
    assert swarm.public_key is not None
    values: dict[str, Value] = {
        "name": swarm.name,
        "key": swarm.public_key.hex(),
        "member": _as_in_config(member, config.path),
    }
    if added or leaves:
        values["peers"] = kept + added
    try:
        text = set_keys(text, "swarm", values)
    except LocalError as error:
        raise LocalError(f"{config.path}: {error}") from None
    parse_config(text, config.path, config.store)
    write_member(member, invitation.certificate.encode())
    _replace_text(config.path, text)
    return Joined(member, added)


def _check_invitation(invitation: Invitation, peer_id: PeerId, config: NodeConfig, now: float) -> None:
    invited = invitation.certificate.peer_id
    if invited != peer_id:
        raise LocalError(
            f"this invitation is for {invited}, but {config.path} is {peer_id}: ask for one for that"
        )
    reason = check_member(invitation.swarm, invitation.certificate.encode(), peer_id, now)
    if reason:
        raise LocalError(f"with this invitation {peer_id} {reason}")


def _new_peers(invitation: Invitation, own_id: PeerId, written: list[str]) -> list[str]:
    """Addresses that the config lacks. It takes one QUIC address of each peer, and keeps the one it has."""
    known = {_peer_of(each) for each in written if "/udp/" in each}
    new: list[str] = []
    for address in invitation.addresses:
        if _peer_of(address) == own_id or address in written or address in new:
            continue
        if "/udp/" in address:
            if _peer_of(address) in known:
                continue
            known.add(_peer_of(address))
        new.append(address)
    return new


def _peer_of(address: str) -> str:
    return address.rpartition("/")[2]


def _as_in_config(path: Path, config: Path) -> str:
    """A path as it stands in a config: from the config's folder if it lies below that."""
    path, folder = path.absolute(), config.absolute().parent
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


def _replace_text(path: Path, text: str) -> None:
    """Write a file anew: whole or not at all, with the mode it had; a link stays one."""
    target = path.resolve()
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        mode = target.stat().st_mode & 0o777
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        temporary.replace(target)
    except OSError as error:
        raise LocalError(f"{path}: can't be written: {error.strerror}; check its folder") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
