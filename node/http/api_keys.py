"""API keys: who shows one may use what this node offers by HTTP.

The file holds one key a line, `NAME KEY` or `KEY` alone; empty lines and those with `#` are left out. Names
tell users apart where turns are shared out; they may be logged, keys never are.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path

from routing.errors import LocalError
from routing.private_file import read_private

MIN_KEY_CHARS = 16
"""Of hex digits that is 64 bits: past guessing over a network."""

MAX_KEY_CHARS = 256
"""It travels in every request's head."""

MAX_KEYS = 256
"""All are compared with, every time."""

MAX_FILE_BYTES = MAX_KEYS * (MAX_KEY_CHARS + 64)


class ApiKeys:
    """The keys of a file, by name. Holds their digests only, so that no dump or repr shows one."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        """
        Args:
            keys: key by name.
        """
        self._digests = {name: _digest(key) for name, key in keys.items()}

    @classmethod
    def read(cls, path: Path) -> ApiKeys:
        """The keys of a file.

        Raises:
            LocalError: it cannot be read, others can read it too, or a line is no key.
        """
        advice = f"(umask 077; openssl rand -hex 24 > {path}) makes one"
        data = read_private(path, "API key file", MAX_FILE_BYTES, missing=advice)
        if len(data) > MAX_FILE_BYTES:
            raise LocalError(f"API key file {path}: over {MAX_FILE_BYTES} bytes, too large for keys")
        keys: dict[str, str] = {}
        for number, line in enumerate(data.decode("latin-1").splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            name, key = (words[0], words[1]) if len(words) == 2 else (f"key {number}", words[0])
            if len(words) > 2 or name in keys:
                raise LocalError(
                    f"API key file {path}, line {number}: a line is KEY, or NAME KEY with a name of its own"
                )
            if not MIN_KEY_CHARS <= len(key) <= MAX_KEY_CHARS or not key.isascii():
                raise LocalError(
                    f"API key file {path}, line {number}: a key has {MIN_KEY_CHARS} to {MAX_KEY_CHARS} ASCII "
                    "characters; openssl rand -hex 24 makes one"
                )
            keys[name] = key
        if not 0 < len(keys) <= MAX_KEYS:
            raise LocalError(f"API key file {path}: holds {len(keys)} keys, 1 to {MAX_KEYS} make sense")
        return cls(keys)

    def name_of(self, shown: str) -> str | None:
        """The name of the key that was shown; None: it is none of them. Takes as long whatever is shown."""
        digest, found = _digest(shown), None
        for name, known in self._digests.items():
            if hmac.compare_digest(digest, known):
                found = name
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
