"""Files that only their owner may read: keys and certificates. They appear whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import shlex
import stat
from pathlib import Path

from routing.errors import LocalError


def read_private(path: Path, what: str, max_bytes: int, missing: str = "") -> bytes:
    """Read a file that must be closed to other users; at most one byte more than `max_bytes`.

    Args:
        what: what it is, for errors: "swarm key".
        missing: what to do where there is none, for the error.

    Raises:
        LocalError: the file is missing, can't be read, is no regular file or open to others.
    """
    # O_NONBLOCK: a pipe put in the file's place must not hang the start
    flags = (
        os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    )
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        advice = f": {missing}" if missing else ""
        raise LocalError(f"{what} {path} does not exist{advice}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = getattr(error, "strerror", error)
        raise LocalError(f"{what} {path} can't be read: {why}; check its owner and mode") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise LocalError(f"{what} {path} is not a regular file")
        if os.name == "posix" and status.st_mode & 0o077:
            mode = stat.S_IMODE(status.st_mode)
            mend = f"chmod 600 {shlex.quote(str(path))}"
            raise LocalError(f"{what} {path} is open to other users (mode {mode:04o}): {mend}")
        return os.read(descriptor, max_bytes + 1)
    except OSError as error:
        raise LocalError(f"{what} {path} can't be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


def write_private(path: Path, data: bytes, what: str, *, replace: bool = False) -> bool:
    """Put a new file of mode 0600 in place; False if there is one already, which stays unless `replace`.

    Folders are made with mode 0700 where they are missing.

    Raises:
        LocalError: it can't be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if not replace:
                return _put_in_place(temporary, path)
            temporary.replace(path)
            return True
        finally:
            temporary.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", error)
        raise LocalError(f"{what} {path} can't be written: {why}; check its folder") from None


def _put_in_place(temporary: Path, path: Path) -> bool:
    # A link, unlike a rename, never replaces the file another process has just put there.
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        if os.path.lexists(path):  # a file system without hard links
            return False
        temporary.rename(path)
    return True


def make_private(path: Path) -> bool:
    """An empty file of mode 0600, unless there is one; False if what is there is no regular file.

    Folders are made with mode 0700 where they are missing.

    Raises:
        OSError: it can't be made.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600))
        return True
    except FileExistsError:
        return stat.S_ISREG(path.stat().st_mode)


def close_to_others(path: Path) -> None:
    """Take from other users what they may do with a file of ours."""
    if os.name == "posix" and path.stat().st_mode & 0o077:
        path.chmod(0o600)
