"""One process keeps a node's books: two that sign as one payer would sign twice for the same hour.

`panal run` holds it for as long as it runs, a command that asks for itself (panal generate) while it does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from node.device.folder import NodeFolder
from routing.errors import LocalError

MAX_PID_DIGITS = 20


class BooksInUse(LocalError):
    """Another process keeps the books of this folder."""


@contextmanager
def books_lock(folder: NodeFolder) -> Iterator[None]:
    """Keep the books of a node meanwhile.

    Raises:
        BooksInUse: another process does; names it.
        LocalError: the lock cannot be written.
    """
    path = folder.market_lock
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise LocalError(f"{path}: cannot be written: {error.strerror}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(descriptor, MAX_PID_DIGITS, 0).decode("ascii", "replace")
            who = f"pid {pid}" if pid.isdecimal() else "another process"
            raise BooksInUse(
                f"{who} keeps the accounts of {folder.root}, and one can at a time: ask the running node "
                "(panal chat, or its API), or stop it first"
            ) from None
        except OSError as error:
            raise LocalError(f"{path}: cannot be locked: {error.strerror}") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)
