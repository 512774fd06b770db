"""The secret that whoever wants to change something must show: a file for commands, a cookie for the page.

The page gets a value that is derived from the secret: cookies go to every port of a host, and what another
program on this machine might see there does not open the file's way in. Its name holds the node's id, so that
the pages of two nodes on one machine do not take each other's.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from pathlib import Path

from node.status.facts import short_id
from routing.errors import LocalError
from routing.private_file import read_private, write_private

TOKEN_BYTES = 32
HEADER = "X-Panal-Token"

_TEXT = re.compile(r"[0-9a-f]{64}\n?")
_COOKIE_PURPOSE = b"panal page cookie"


class Token:
    """The secret of one node.

    Attributes:
        cookie_name: what the page's cookie is called.
    """

    def __init__(self, secret: str, peer_id: str) -> None:
        self._secret = secret
        self.cookie_name = f"panal-{short_id(peer_id)}"

    def __repr__(self) -> str:
        return f"<Token of {self.cookie_name}>"

    @classmethod
    def load_or_create(cls, path: Path, peer_id: str) -> Token:
        """The one in the file, which only its owner may read; made if there is none.

        Raises:
            LocalError: the file cannot be read or written, others can read it, or it holds something else.
        """
        made = secrets.token_hex(TOKEN_BYTES)
        if not path.exists() and write_private(path, f"{made}\n".encode(), "token file"):
            return cls(made, peer_id)
        return cls(read_token(path), peer_id)

    def is_shown(self, header: str | None) -> bool:
        """Whether a request's header holds the secret."""
        return header is not None and hmac.compare_digest(header.encode(), self._secret.encode())

    def is_in_cookie(self, value: str | None) -> bool:
        """Whether a request's cookie is the page's."""
        return value is not None and hmac.compare_digest(value.encode(), self.cookie_value.encode())

    @property
    def cookie_value(self) -> str:
        """What the page shows in the secret's place."""
        return hmac.new(self._secret.encode(), _COOKIE_PURPOSE, hashlib.sha256).hexdigest()


def read_token(path: Path) -> str:
    """The secret in a file.

    Raises:
        LocalError: there is none, others can read it, or it holds something else.
    """
    data = read_private(path, "token file", 2 * TOKEN_BYTES + 1, missing="a running node makes it")
    text = data.decode("latin-1")
    if _TEXT.fullmatch(text) is None:
        raise LocalError(f"token file {path} holds no token: remove it, and start the node again")
    return text.strip()
