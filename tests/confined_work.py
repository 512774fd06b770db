"""What test_confined.py asks of confined processes."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

from node.confined.frames import Refused
from node.confined.serving import Answerer

MEMORY = 200 << 20
MAY_OPEN = False
asked = 0


def prepare(setup: bytes) -> Answerer:
    if setup == b"cannot":
        raise Refused("it cannot be prepared")
    return answer


def answer(question: bytes) -> bytes:
    global asked
    asked += 1
    what, _, rest = question.partition(b" ")
    if what == b"refuse":
        raise Refused(rest.decode())
    if what == b"sleep":
        time.sleep(float(rest))
    if what == b"spin":
        while True:
            pass
    if what == b"hold":  # C code that keeps the interpreter's lock
        10 ** (10**9)
    if what == b"eat":
        bytearray(int(rest))
    if what == b"recurse":
        return answer(question)
    if what == b"crash":
        ctypes.string_at(0)
    if what == b"raise":
        raise ValueError
    if what == b"files":
        return os.fsencode(",".join(sorted(os.listdir("/proc/self/fd"))))  # noqa: PTH208
    if what == b"open":
        return Path(rest.decode()).read_bytes()
    if what == b"environment":
        return repr(dict(os.environ)).encode()
    if what == b"print":
        print("what a library prints")
        os.write(1, b"\0" * 100)
    if what == b"count":
        return str(asked).encode()
    if what == b"long":
        return b"x" * int(rest)
    return question
