"""One fetch at a time into a folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from node.share.growing import cannot
from routing.errors import LocalError


def lock_folder(
    folder: Path,
    held: str = "another panal is fetching this; wait until it is done",
    cannot: Callable[[Path, str, OSError], LocalError] = cannot,
) -> int:
    """Make a folder if need be; an open file in it that no other process has, until it is closed.

    Args:
        held: what to say where another has it; cannot: where the folder cannot be made.

    Raises:
        LocalError: another has it, or the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise cannot(folder, "used", error) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise LocalError(f"{folder}: {held}") from None
    return lock
