"""The other side: the origin, and the processes forked from it, which answer within limits."""

from __future__ import annotations

import math
import os
import resource
import select
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from node.confined.frames import ANSWER, END, FORK, ORDER, ORDERED, QUESTION, Refused
from routing.errors import LocalError

Answerer = Callable[[bytes], bytes]


class Work(Protocol):
    """A module that says what confined processes do.

    Attributes:
        MEMORY: bytes that one may take beyond what the origin has.
        MAY_OPEN: whether they may open files.
    """

    MEMORY: int
    MAY_OPEN: bool

    def prepare(self, setup: bytes) -> Answerer:
        """In the origin, which must have one thread afterwards. Raises LocalError where it cannot."""


def serve(work: Work) -> None:
    """Be the origin until the parent is gone."""
    control = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _be_ended_first()
    setup, _ = _question(control.fileno())
    try:
        answer = work.prepare(setup)
    except (LocalError, OSError, ImportError) as error:
        _reply(control.fileno(), str(error).encode(errors="replace"), refused=True, seconds=0.0)
        return
    _limit_memory(work.MEMORY)
    _reply(control.fileno(), b"", refused=False, seconds=0.0)
    while True:
        order, files, _, _ = socket.recv_fds(control, ORDER.size, 1)
        while 0 < len(order) < ORDER.size:
            order += control.recv(ORDER.size - len(order))
        if not order:
            return
        kind, pid = ORDER.unpack(order)
        if kind == FORK and files:
            pid = os.fork()
            if pid == 0:
                control.close()
                _work(files[0], answer, may_open=work.MAY_OPEN)
            os.close(files[0])
            control.sendall(ORDERED.pack(pid))
        elif kind == END:
            os.kill(pid, signal.SIGKILL)  # our own child, not waited for yet: the number is still its
            control.sendall(ORDERED.pack(os.waitpid(pid, 0)[1]))


def _work(channel: int, answer: Answerer, *, may_open: bool) -> None:
    threading.Thread(target=_end_with_parent, args=(channel,), daemon=True).start()
    if not may_open:
        _limit_files()
    while True:
        question, cpu = _question(channel)
        before = _cpu_seconds()
        _limit_cpu(before + cpu)
        refused = False
        try:
            reply = answer(question)
        except Refused as refusal:
            reply, refused = str(refusal).encode(errors="replace"), True
        except MemoryError:
            reply, refused = b"needs too much memory", True
        except RecursionError:
            reply, refused = b"nests too deeply", True
        except:  # noqa: E722 - whatever it is, this process has no caller
            os._exit(1)
        _reply(channel, reply, refused=refused, seconds=_cpu_seconds() - before)


def _question(file: int) -> tuple[bytes, float]:
    size, cpu = QUESTION.unpack(_read(file, QUESTION.size))
    return _read(file, size), cpu


def _read(file: int, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        more = os.read(file, count - len(data))
        if not more:
            os._exit(0)
        data += more
    return bytes(data)


def _reply(file: int, data: bytes, *, refused: bool, seconds: float) -> None:
    view = memoryview(ANSWER.pack(len(data), refused, seconds) + data)
    while view:
        view = view[os.write(file, view) :]


def _end_with_parent(channel: int) -> None:
    """Wait until nobody holds the other end.

    This ends whatever lets go of the interpreter meanwhile; the CPU limit ends the rest.
    """
    poll = select.poll()
    poll.register(channel, 0)  # hang-ups are always told
    while not any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll()):
        pass
    os._exit(0)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _limit_cpu(seconds: float) -> None:
    """End the process (SIGXCPU) once it has used so many; the kernel counts whole ones."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), hard))


def _limit_memory(more: int) -> None:
    """Let the address space grow by so many bytes; where it cannot be read (macOS), only time limits."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[0])
    except OSError:
        return
    limit = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _be_ended_first() -> None:
    """Where the machine's memory is full, these processes go before the node does."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        return  # no Linux


def _limit_files() -> None:
    """No file, socket or process from here on: who breaks out of a sandbox finds nothing to read or to call.

    `poll` wants the limit on descriptors to be no lower than how many it watches, which is one; that one is
    taken, by /dev/null.
    """
    for limit, value in ((resource.RLIMIT_NOFILE, 1), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NPROC, 0)):
        resource.setrlimit(limit, (value, value))
