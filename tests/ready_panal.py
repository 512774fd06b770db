"""`panal` in forks of a process that has all of it imported: each begins most of a second sooner.

A process like any other, with its own streams, folder, environment and exit code; only Python's start and the
imports are done already. Tests of those, and of a process's own memory, start one by themselves. One server
for a run of tests, which ends with it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NoReturn, TextIO, TypedDict

ROOT = Path(__file__).resolve().parent.parent

REQUEST_BYTES = 4 << 20
"""Of one request: arguments and environment."""

SECONDS = 120.0

_lock = threading.Lock()
_server: tuple[socket.socket, subprocess.Popen[bytes]] | None = None


class Request(TypedDict):
    """What is to be run; streams come as descriptors."""

    argv: list[str]
    cwd: str
    env: dict[str, str]


class Panal:
    """A `panal` that has begun, as `subprocess.Popen(["panal", *arguments], text=True, ...)` would be.

    Args:
        stderr: None: a pipe.

    Attributes:
        returncode: None while it runs.
    """

    def __init__(self, arguments: Sequence[object], *, stderr: IO[Any] | None = None) -> None:
        self.args = ["panal", *map(str, arguments)]
        self.returncode: int | None = None
        self.stderr: TextIO | None = None
        (their_in, our_in), (our_out, their_out), (our_end, their_end) = (os.pipe() for _ in range(3))
        theirs = [their_in, their_out, their_end]
        if stderr is None:
            our_err, their_err = os.pipe()
            self.stderr = os.fdopen(our_err, encoding="utf-8")
            theirs.append(their_err)
        else:
            their_err = stderr.fileno()
        try:
            _ask(
                {"argv": self.args[1:], "cwd": str(Path.cwd()), "env": dict(os.environ)},
                [their_in, their_out, their_err, their_end],
            )
        finally:
            for each in theirs:
                os.close(each)
        self.stdin = os.fdopen(our_in, "w", encoding="utf-8")
        self.stdout = os.fdopen(our_out, encoding="utf-8")
        self._end = os.fdopen(our_end, encoding="ascii")
        self.pid = int(self._end.readline())
        self._over = threading.Event()
        threading.Thread(target=self._await, daemon=True).start()

    def _await(self) -> None:
        with self._end:
            self.returncode = int(self._end.readline())
        self._over.set()

    def poll(self) -> int | None:
        """Its exit code, or None."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, when it has ended."""
        if not self._over.wait(timeout):
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """While it runs."""
        if self.returncode is None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass

    def kill(self) -> None:
        """At once."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Kill it if it still runs, and be done with it."""
        self.kill()
        self.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()


def popen(
    command: Sequence[str], *, stdin: int, stdout: int, stderr: IO[Any], text: bool
) -> subprocess.Popen[str]:
    """As `subprocess.Popen`, of PYTHON -P -m node.cli.main ARGUMENTS."""
    *python, module = command[:4]
    assert python == [sys.executable, "-P", "-m"] and module == "node.cli.main", command
    assert stdin == stdout == subprocess.PIPE and text
    return Panal(command[4:], stderr=stderr)  # type: ignore[return-value]  # all of it that is used here


def run_panal(
    *arguments: object, stdin: str = "", timeout: float = SECONDS
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run(["panal", *arguments], input=stdin, capture_output=True, text=True, ...)`."""
    panal = Panal(arguments)
    assert panal.stderr is not None
    said = ["", ""]

    def write() -> None:
        try:
            with panal.stdin:
                panal.stdin.write(stdin)
        except BrokenPipeError:
            pass

    def read(number: int, stream: TextIO) -> None:
        with stream:
            said[number] = stream.read()

    threads = [
        threading.Thread(target=write),
        threading.Thread(target=read, args=(0, panal.stdout)),
        threading.Thread(target=read, args=(1, panal.stderr)),
    ]
    for thread in threads:
        thread.start()
    try:
        code = panal.wait(timeout)
    finally:
        panal.kill()
        for thread in threads:
            thread.join()
    return subprocess.CompletedProcess(panal.args, code, *said)


def _ask(request: Request, descriptors: list[int]) -> None:
    global _server
    with _lock:
        if _server is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES)
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-m", "tests.ready_panal", str(theirs.fileno())],
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # threads do not outlive a fork
                )
            _server = ours, process
        socket.send_fds(_server[0], [json.dumps(request).encode()], descriptors)


# --- the server ---


def serve(server: socket.socket) -> None:
    """Fork for each request, until the tests end."""
    import_all()
    while True:
        data, descriptors, _, _ = socket.recv_fds(server, REQUEST_BYTES, 4)
        if not data:
            return
        if os.fork() == 0:
            server.close()
            _watch(json.loads(data), descriptors)
        for each in descriptors:
            os.close(each)
        _reap()


def _reap() -> None:
    """Forget those that have ended meanwhile."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _watch(request: Request, descriptors: list[int]) -> None:
    """Fork again, and tell how that ends."""
    *streams, end = descriptors
    pid = os.fork()
    if pid == 0:
        os.close(end)
        _be_panal(request, streams)
    for each in streams:
        os.close(each)
    os.write(end, f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    os.write(end, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _be_panal(request: Request, streams: list[int]) -> NoReturn:
    from node.cli.main import main

    for number, each in enumerate(streams):
        os.dup2(each, number)
        os.close(each)
    # as Python makes them when it begins
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = ["panal", *request["argv"]]
    sys.exit(main())


def import_all() -> None:
    """All that any command may import, and no more threads than there were."""
    import gc
    import importlib
    import pkgutil

    for package in ("node", "routing", "relay", "market"):
        found = importlib.import_module(package)
        for module in pkgutil.walk_packages(found.__path__, f"{package}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    threads = Path("/proc/self/task")
    assert not threads.is_dir() or len(list(threads.iterdir())) == 1, "a fork has only one"
    gc.freeze()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
