"""The node that runs in a folder, asked over HTTP by commands on the same machine."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from node.device.folder import NodeFolder
from node.device.lock import holder
from routing.errors import LocalError
from routing.private_file import read_private

PATIENCE = 5.0
"""Seconds for an answer from this machine; the event loop may be busy for one or two."""

MAX_ANSWER_BYTES = 64 << 20
"""Status of a thousand peers with their slices is some MB."""

TOKEN_HEADER = "X-Panal-Token"
"""What shows that a command may change something; Authorization is for API keys."""

MAX_TOKEN_BYTES = 256
MAX_KEY_FILE_BYTES = 128 << 10
MAX_NOTE_BYTES = 4096


class NodeSilent(LocalError):
    """A node runs, but its HTTP does not answer."""


class NodeRefused(LocalError):
    """The node that runs does not do what was asked.

    Attributes:
        reason: as it says it.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class HttpNote(msgspec.Struct, frozen=True):
    """http.json: where a running node answers.

    Attributes:
        address: "http://127.0.0.1:4190".
    """

    address: str
    pid: int
    version: str = ""


@dataclass(frozen=True)
class RunningNode:
    """A node that runs, as its folder tells."""

    folder: NodeFolder
    address: str
    pid: int
    version: str
    key_file: Path | None = None

    def get(self, path: str) -> Any:
        """The JSON at a path.

        Raises:
            LocalError: no answer, or not what was asked for; one line.
        """
        return self._ask("GET", path, None)

    def post(self, path: str, body: object) -> Any:
        """Change something; the JSON that is answered.

        Raises:
            LocalError: as for `get`, or the node's token cannot be read.
        """
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: object) -> Any:
        host, port = self.place()
        headers = {"Accept": "application/json"} | self.key_headers()
        data = None
        if method != "GET":
            data = json.dumps(body)
            headers |= {"Content-Type": "application/json", TOKEN_HEADER: self._token()}
        connection = http.client.HTTPConnection(host, port, timeout=PATIENCE)
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            content = answer.read(MAX_ANSWER_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise self.silent(error) from None
        finally:
            connection.close()
        if answer.status >= 400:
            reason = _reason(content)
            raise NodeRefused(
                f"the node at {self.address} refuses {method} {path}: {answer.status} {reason}", reason
            )
        try:
            if len(content) > MAX_ANSWER_BYTES:
                raise ValueError
            return json.loads(content)
        except (ValueError, RecursionError):
            raise LocalError(f"what the node at {self.address} answers to {path} is no JSON") from None

    def place(self) -> tuple[str, int]:
        """IP address and port.

        Raises:
            LocalError: the node's note says neither. Names are no address: the token goes to no host that
                somebody else may have.
        """
        try:
            parts = urlsplit(self.address)
            if parts.scheme == "http" and parts.hostname is not None and parts.port is not None:
                return str(ip_address(parts.hostname)), parts.port
        except ValueError:
            pass
        raise LocalError(f"{self.folder.http}: {self.address[:80]!r} is no address; start the node again")

    def silent(self, error: Exception) -> NodeSilent:
        """What is told of a connection that failed."""
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return NodeSilent(f"the node at {self.address} (pid {self.pid}) does not answer: {why}")

    def key_headers(self) -> dict[str, str]:
        """What shows the first API key of a node that wants one."""
        if self.key_file is None:
            return {}
        data = read_private(self.key_file, "API key file", MAX_KEY_FILE_BYTES)
        lines = (line.split() for line in data.decode("latin-1").splitlines())
        keys = [words[-1] for words in lines if words and not words[0].startswith("#")]
        return {"Authorization": f"Bearer {keys[0]}"} if keys else {}

    def _token(self) -> str:
        data = read_private(self.folder.http_token, "token", MAX_TOKEN_BYTES, "the running node makes one")
        token = data.decode("ascii", "replace").strip()
        if not token.isprintable() or not token:
            raise LocalError(f"{self.folder.http_token}: is no token; start the node again")
        return token


def find_running(folder: NodeFolder, key_file: Path | None = None) -> RunningNode | None:
    """The node that runs in a folder and has an address for HTTP; None if there is none.

    Args:
        key_file: of its config, where every request must show a key.
    """
    owner = holder(folder)
    if owner is None:
        return None
    try:
        with folder.http.open("rb") as file:
            note = msgspec.json.decode(file.read(MAX_NOTE_BYTES), type=HttpNote)
    except (OSError, msgspec.DecodeError):
        return None
    if owner.pid and note.pid != owner.pid:
        return None  # a killed node's: the one that runs now has not begun to answer, or never will
    return RunningNode(folder, note.address, note.pid, note.version, key_file)


def _reason(content: bytes) -> str:
    """What an error's body says, in a line."""
    try:
        told = json.loads(content)
        error = told.get("error", told) if isinstance(told, dict) else told
        text = error.get("message", "") if isinstance(error, dict) else str(error)
    except (ValueError, RecursionError):
        text = content[:200].decode("utf-8", "replace")
    return " ".join(str(text).split())[:200]
