"""The files of a private swarm: the key of who made it, and the certificate of each member."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.toml_text import quote
from routing.errors import LocalError
from routing.membership import CERTIFICATE_BYTES, KEY_BYTES, Swarm
from routing.private_file import read_private, write_private

KEY_FILE = "swarm.key"
MAX_KEY_FILE_BYTES = 4096  # it is some 300 bytes long

_KEY_TEXT = """\
# The key of a panal swarm. Whoever has it decides who is a member: keep it secret, and keep a copy.
name = {name}
key = "{key}"
"""


@dataclass(frozen=True)
class SwarmKey:
    """What makes a node the one that invites.

    Attributes:
        swarm: private.
        private_key: its key.
    """

    swarm: Swarm
    private_key: Ed25519PrivateKey

    @classmethod
    def create(cls, name: str, path: Path) -> SwarmKey:
        """A new swarm, whose key is then in the file.

        Raises:
            LocalError: the name cannot be one; there is such a file already; it can't be written.
        """
        private_key = Ed25519PrivateKey.generate()
        made = cls(Swarm(name, private_key.public_key().public_bytes_raw()), private_key)
        text = _KEY_TEXT.format(name=quote(name), key=private_key.private_bytes_raw().hex())
        if not write_private(path, text.encode(), "swarm key"):
            raise LocalError(
                f"{path}: exists already, and is never overwritten; --dir DIR makes one elsewhere"
            )
        return made

    @classmethod
    def load(cls, path: Path) -> SwarmKey:
        """Read the file.

        Raises:
            LocalError: it is missing, open to others, or no swarm key.
        """
        data = read_private(path, "swarm key", MAX_KEY_FILE_BYTES, "panal swarm create makes one")
        try:
            said = tomllib.loads(data.decode())
            name, key = said["name"], bytes.fromhex(said["key"])
            if len(data) > MAX_KEY_FILE_BYTES or len(key) != KEY_BYTES:
                raise ValueError
            private_key = Ed25519PrivateKey.from_private_bytes(key)
        except (ValueError, KeyError, TypeError):  # TOML and UTF-8 errors are ValueErrors
            raise LocalError(f"{path} is not a swarm key: panal swarm create makes one") from None
        return cls(Swarm(str(name), private_key.public_key().public_bytes_raw()), private_key)


def member_path(identity_path: Path) -> Path:
    """Where a node keeps its member certificate: beside its identity, which it is worth nothing without."""
    return identity_path.with_suffix(".member")


def read_member(path: Path) -> bytes:
    """A member certificate as it is in its file; whether it is any good, `check_member` says.

    Raises:
        LocalError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(CERTIFICATE_BYTES + 1)
    except OSError as error:
        raise LocalError(
            f"member certificate {path} can't be read: {error.strerror}; panal swarm join writes it"
        ) from None


def write_member(path: Path, certificate: bytes) -> None:
    """Put a member certificate in place of an older one, if any; mode 0600.

    Raises:
        LocalError: it can't be written.
    """
    write_private(path, certificate, "member certificate", replace=True)
