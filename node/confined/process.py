"""Processes that answer one question at a time, within limits.

1. One process, the origin, prepares what all need (imports, a vocabulary). It is started when first needed,
   and again after it died.
2. It forks others, which answer: a new one is there in milliseconds, shares the memory of the origin, and
   knows nothing of what the others were asked.
3. They inherit one socket and nothing else: no files, no environment that could hold a secret. A terminal's
   Ctrl-C does not reach them. They end when their parent does, however that ends.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time

from node.confined.frames import (
    ANSWER,
    END,
    FORK,
    MOST_ANSWER,
    ORDER,
    ORDERED,
    QUESTION,
    ConfinedFailed,
    Failure,
    Refused,
    read,
    write,
)

START_SECONDS = 60.0
"""For the interpreter, the imports and the vocabulary: 0.2 s for a small one, some 5 s for 150,000 tokens."""
ORDER_SECONDS = 10.0
"""For a fork, or the end of a process: milliseconds, where not all memory is being swapped."""
KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TZ")
"""All they see of the environment: where libraries are, and what time it is."""
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # to fork, there must be no others
BOOT = (
    "import importlib, sys; sys.path[:] = sys.argv[2:]; "
    "from node.confined.serving import serve; serve(importlib.import_module(sys.argv[1]))"
)


class Confinement:
    """Where confined processes come from. Any thread may call.

    Args:
        module: what they do (`serving.Work`).
        setup: what the module's `prepare` is given.
    """

    def __init__(self, module: str, setup: bytes = b"") -> None:
        self._module = module
        self._setup = setup
        self._lock = threading.Lock()
        self._origin: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._closed = False
        self.pids: set[int] = set()  # of the origin and of all that answer

    def start(self) -> None:
        """Have the origin ready, so that nobody waits for it later.

        Raises:
            ConfinedFailed: it cannot be started; says why.
        """
        with self._lock:
            self._ready()

    def fork(self) -> Confined:
        """A process that has not been asked anything.

        Raises:
            ConfinedFailed: there can be none; says why.
        """
        ours, theirs = socket.socketpair()
        try:
            with self._lock:
                is_new = self._origin is None
                try:
                    origin, pid = self._fork(theirs)
                except (OSError, EOFError):
                    self._drop()
                    if is_new or self._closed:
                        raise self._failed("has ended") from None
                    origin, pid = self._fork(theirs)  # somebody ended the old one, such as a full memory
                self.pids.add(pid)
        except (OSError, EOFError):
            ours.close()
            raise self._failed("has ended") from None
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        return Confined(self, origin, pid, ours)

    def _fork(self, channel: socket.socket) -> tuple[int, int]:
        process, control = self._ready()
        deadline = time.monotonic() + ORDER_SECONDS
        socket.send_fds(control, [ORDER.pack(FORK, 0)], [channel.fileno()])
        (pid,) = ORDERED.unpack(read(control.fileno(), ORDERED.size, deadline))
        return process.pid, pid

    def end(self, origin: int, pid: int) -> int:
        """End a process and give the status it ended with, negative for a signal; 0 if that is not known."""
        with self._lock:
            self.pids.discard(pid)
            if self._origin is None or self._origin[0].pid != origin:
                return 0  # it has lost its parent too, and ends by itself
            control = self._origin[1].fileno()
            try:
                deadline = time.monotonic() + ORDER_SECONDS
                write(control, ORDER.pack(END, pid), deadline)
                (status,) = ORDERED.unpack(read(control, ORDERED.size, deadline))
            except (OSError, EOFError):
                self._drop()
                return 0
        code: int = os.waitstatus_to_exitcode(status)
        return code

    def close(self) -> None:
        """End the origin; what it forked ends when its socket is closed."""
        self._closed = True
        origin = self._origin
        if origin is not None:
            origin[0].kill()  # whoever waits for it now need not any more
        with self._lock:
            self._drop()

    def _ready(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        if self._closed:
            raise ConfinedFailed("closed", "closed")
        if self._origin is not None:
            return self._origin
        environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        control, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-I", "-c", BOOT, self._module, *map(os.path.abspath, sys.path)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=environment | ONE_THREAD,
                start_new_session=True,
            )
        control.setblocking(False)
        self._origin = process, control
        self.pids.add(process.pid)
        try:
            _ask(control.fileno(), self._setup, START_SECONDS, time.monotonic() + START_SECONDS)
        except (OSError, EOFError):
            self._drop()
            raise self._failed("ended, or took too long") from None
        except Refused as refused:
            self._drop()
            raise self._failed(str(refused)) from None
        except BaseException:
            self._drop()
            raise
        return self._origin

    def _failed(self, reason: str) -> ConfinedFailed:
        if self._closed:
            return ConfinedFailed("closed", "closed")
        return ConfinedFailed(f"the process for it: {reason}", "start")

    def _drop(self) -> None:
        origin, self._origin = self._origin, None
        if origin is not None:
            process, control = origin
            process.kill()
            control.close()
            process.wait()
            self.pids.discard(process.pid)


class Confined:
    """A process that answers. One thread at a time asks; any may close.

    Attributes:
        seconds: CPU seconds that its last answer took.
    """

    def __init__(self, confinement: Confinement, origin: int, pid: int, channel: socket.socket) -> None:
        self._confinement = confinement
        self._origin = origin
        self.pid = pid
        self._channel = channel
        self._lock = threading.RLock()
        self._ended = False
        self.seconds = 0.0

    def ask(self, question: bytes, *, cpu: float, wall: float) -> bytes:
        """The answer.

        Args:
            cpu, wall: seconds it may take, of the processor and of the clock.

        Raises:
            Refused: the process says why not; it can be asked on.
            ConfinedFailed: it took too long, died, or was closed; it has ended.
        """
        with self._lock:
            if self._ended:
                raise ConfinedFailed("has ended", "closed")
            try:
                deadline = time.monotonic() + wall
                refused, self.seconds, answer = _ask_any(self._channel.fileno(), question, cpu, deadline)
            except TimeoutError:
                self.close()
                raise ConfinedFailed(FAILED["time"], "time") from None
            except (EOFError, OSError):
                closed, status = self._ended, self.close()
                failure: Failure = "closed" if closed else "time" if status == -signal.SIGXCPU else "crash"
                raise ConfinedFailed(FAILED[failure], failure) from None
            except BaseException:  # a signal's: what it will answer is nobody's
                self.close()
                raise
        if refused:
            raise Refused(answer.decode(errors="replace"))
        return answer

    def close(self) -> int:
        """End it; a question under way fails. Gives the status it ended with, 0 if that is not known."""
        if self._ended:
            return 0
        self._ended = True
        status = self._confinement.end(self._origin, self.pid)
        with self._lock:
            self._channel.close()
        return status


FAILED: dict[Failure, str] = {
    "time": "took too long",
    "crash": "needed too much memory, or nested too deeply",
    "closed": "closed",
    "start": "could not be started",
}


def _ask(file: int, question: bytes, cpu: float, deadline: float) -> bytes:
    refused, _, answer = _ask_any(file, question, cpu, deadline)
    if refused:
        raise Refused(answer.decode(errors="replace"))
    return answer


def _ask_any(file: int, question: bytes, cpu: float, deadline: float) -> tuple[bool, float, bytes]:
    write(file, QUESTION.pack(len(question), cpu) + question, deadline)
    size, refused, seconds = ANSWER.unpack(read(file, ANSWER.size, deadline))
    if size > MOST_ANSWER:
        raise EOFError
    return bool(refused), seconds, read(file, size, deadline)
