"""What passes between a node and its confined processes: lengths, then bytes."""

from __future__ import annotations

import os
import select
import struct
import time
from typing import Literal

from routing.errors import LocalError

Failure = Literal["time", "crash", "closed", "start"]

QUESTION = struct.Struct("<Id")  # bytes that follow, CPU seconds it may take
ANSWER = struct.Struct("<IBd")  # bytes that follow, whether it is a refusal, CPU seconds it took
ORDER = struct.Struct("<ci")  # to the origin: FORK, with a socket; or END, with a process id
ORDERED = struct.Struct("<i")  # its reply: the process id; or the status that the process ended with
FORK, END = b"F", b"E"

MOST_ANSWER = 64 << 20
"""More than any answer: what a process gone wrong could make us keep."""


class ConfinedFailed(LocalError):
    """A confined process took too long, died, was closed, or could not be started."""

    def __init__(self, message: str, failure: Failure) -> None:
        super().__init__(message)
        self.failure: Failure = failure


class Refused(LocalError):
    """The process answered that it cannot; says why."""


def write(file: int, data: bytes, deadline: float) -> None:
    """All of it, to a non-blocking file; TimeoutError when it is too late on the monotonic clock."""
    view = memoryview(data)
    while view:
        _await(file, select.POLLOUT, deadline)
        try:
            view = view[os.write(file, view) :]
        except BlockingIOError:
            continue


def read(file: int, count: int, deadline: float) -> bytes:
    """So many bytes from a non-blocking file; EOFError if it ends before, TimeoutError if it is too late."""
    data = bytearray()
    while len(data) < count:
        _await(file, select.POLLIN, deadline)
        try:
            more = os.read(file, min(count - len(data), 1 << 20))
        except BlockingIOError:
            continue
        if not more:
            raise EOFError
        data += more
    return bytes(data)


def _await(file: int, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(file, event)
    left = deadline - time.monotonic()
    if left <= 0 or not poll.poll(left * 1000):
        raise TimeoutError
