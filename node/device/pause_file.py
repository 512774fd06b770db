"""The pause by hand, written down: it outlives the process, and `panal pause` reaches a node without HTTP.

    {"since": 1764480000.0, "until": null}      no file: no pause

The running node looks at the file now and then, so that whoever may write it may pause and resume the node.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from node.device.pause_rules import HandPause
from routing.errors import LocalError
from routing.private_file import write_private

MAX_BYTES = 1024

LAST_TIME = float(1 << 36)
"""Unix time, in the year 4147: clocks and calendars go so far; what is later is damaged."""


class _Written(msgspec.Struct, frozen=True):
    since: float
    until: float | None = None


def read_pause(path: Path) -> HandPause | None:
    """The pause that is written down; None if there is none.

    A damaged file counts as a pause without an end: whoever wrote it wanted quiet.

    Raises:
        LocalError: the file cannot be read.
    """
    try:
        # Not blocking: it may be a FIFO, and the event loop waits for it.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            data = file.read(MAX_BYTES) or b""
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LocalError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        written = msgspec.json.decode(data, type=_Written)
    except msgspec.DecodeError:
        return HandPause(0.0, None)
    times = (written.since, 0.0 if written.until is None else written.until)
    if not all(0 <= each < LAST_TIME for each in times):
        return HandPause(0.0, None)
    return HandPause(written.since, written.until)


def write_pause(path: Path, pause: HandPause | None) -> None:
    """Write a pause down, or that there is none.

    Raises:
        LocalError: the file cannot be written.
    """
    if pause is not None:
        data = msgspec.json.encode(_Written(pause.since, pause.until))
        write_private(path, data, "pause", replace=True)
        return
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise LocalError(f"{path}: cannot be removed: {error.strerror}") from None


def stamp(path: Path) -> tuple[int, int] | None:
    """Changes when the file is written; None: there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
