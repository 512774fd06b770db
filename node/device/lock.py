"""One node in a folder: a lock that ends with the process, however it ends.

`flock` on a file that stays: the kernel lets go of it when the last descriptor is closed, so that a killed
node is in nobody's way. Who holds it is written into the file, for the refusal. `panal run` takes it;
commands that only ask do not, since they announce nothing and so are no second node to the swarm.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import msgspec

from node.device.folder import NodeFolder
from routing.errors import LocalError

log = logging.getLogger("panal.device")

MAX_HOLDER_BYTES = 8192
"""Of what a holder writes: a path and a name."""

TRIES, TRY_SECONDS = 5, 0.02
"""Whoever looks who the holder is holds the lock himself for some microseconds."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""File systems without locks: there two nodes are noticed by their peers, as clones."""


class FolderInUse(LocalError):
    """Another process is the node of this folder."""


class Holder(msgspec.Struct, frozen=True):
    """Who holds a lock, by its own account.

    Attributes:
        pid: 0 if it has not said yet.
        name: of the node; "" if it has none.
        config: the file it was started with.
        version: of panal.
    """

    pid: int = 0
    name: str = ""
    config: str = ""
    version: str = ""

    def __str__(self) -> str:
        what = f"the node '{self.name}'" if self.name else "another node"
        return f"{what} (pid {self.pid})" if self.pid else what


class NodeLock:
    """What makes a process the only node of a folder."""

    @staticmethod
    @contextmanager
    def take(folder: NodeFolder, *, name: str = "", config: Path | None = None) -> Iterator[None]:
        """Be the node of a folder meanwhile; the folder is made (mode 0700) if need be.

        Raises:
            FolderInUse: another process is; names it.
            LocalError: the lock cannot be written.
        """
        descriptor = _open(folder)
        try:
            _take(descriptor, folder)
            where = "" if config is None else str(config.absolute())
            told = Holder(os.getpid(), name, where, version("panal"))
            with _unusable_named(folder):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, msgspec.json.encode(told), 0)
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, 0)  # while it is ours: nobody is named any more
        finally:
            os.close(descriptor)


def holder(folder: NodeFolder) -> Holder | None:
    """Who is the node of a folder now; None: nobody."""
    try:
        descriptor = os.open(folder.lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(descriptor)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None


def _open(folder: NodeFolder) -> int:
    with _unusable_named(folder):
        folder.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)


def _take(descriptor: int, folder: NodeFolder) -> None:
    for left in reversed(range(TRIES)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if left:
                time.sleep(TRY_SECONDS)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                log.warning(
                    "%s: its file system knows no locks, so a second node would not be refused", folder.root
                )
                return
            raise LocalError(f"{folder.lock}: cannot be locked: {error.strerror}") from None
    raise FolderInUse(
        f"{_read(descriptor)} already uses {folder.root}; stop it or give this one a directory of its own: "
        "panal init --dir DIR"
    )


def _read(descriptor: int) -> Holder:
    try:
        return msgspec.json.decode(os.pread(descriptor, MAX_HOLDER_BYTES, 0), type=Holder)
    except (OSError, msgspec.DecodeError):
        return Holder()


@contextmanager
def _unusable_named(folder: NodeFolder) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LocalError(
            f"{folder.lock}: cannot be written: {error.strerror}; a node keeps its lock beside its identity "
            "key: choose another place (identity in the config)"
        ) from None
