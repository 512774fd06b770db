"""What a node chose to serve, written down, so that it serves the same when it is started again.

{"<model id>": {"0-3": "0-127", "7": "0-63"}}      layers -> experts
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from node.model.store import replace_file

log = logging.getLogger("panal.device")

MAX_BYTES = 1 << 20
"""Ranges of all layers of some models."""

Note = Mapping[str, Mapping[str, str]]


def read_note(path: Path) -> Note:
    """What is written down; nothing if that cannot be read: it is only a shortcut."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(MAX_BYTES), type=dict[str, dict[str, str]])
    except (OSError, msgspec.DecodeError):
        return {}


def write_note(path: Path, note: Note) -> None:
    """Write it down; that it cannot be is only logged."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, msgspec.json.encode(note))
    except OSError as error:
        log.warning("%s: cannot be written: %s", path, error.strerror)
