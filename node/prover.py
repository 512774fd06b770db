"""The asking side of `node.proving`: llama.cpp at work in a child process that may crash."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import msgspec

from node.engine.library import EngineError, Library
from node.engine.recognise import TracedCall
from node.model.manifest import Manifest
from node.proving import ERRORS, Answer, Calls, Compare, Compared, Job, ReadCalls, Refused

Progress = Callable[[str, int, int], None]
"""What is being done, bytes done, bytes in all (0 if unknown)."""

BEAT_SECONDS = 0.1  # between two looks at whether to go on, while the child works
DYING_SECONDS = 10.0  # for the system to take back the memory of a child that has closed its stdout
TAIL_BYTES = 4096  # of the child's stderr: the last line is llama.cpp's reason
MAX_REASON = 240  # characters of that line
MAX_ANSWER_BYTES = 64 << 20  # as of a manifest; the calls of 60 layers take some 50 KB


class Crashed(EngineError):
    """llama.cpp ended its process on a file."""


class Prover:
    """A child that does jobs one after another, started anew after a crash; a context manager.

    Args:
        say: told what is done, again and again while it is; what it raises ends the child and passes on.

    Every job raises the LocalErrors that the child met, as themselves, and `Crashed` if it died.
    """

    def __init__(self, library: Library, say: Progress) -> None:
        self._library = library
        self._say = say
        self._child: subprocess.Popen[bytes] | None = None
        self._tail = b""
        self._start()

    def read_calls(self, trunk: Path) -> list[TracedCall]:
        """See `node.proving.read_calls`."""
        found = self._ask(ReadCalls(os.fsencode(trunk)), "reading the graph")
        assert isinstance(found, Calls)
        return found.calls

    def compare(self, model: Path, trunk: Path, manifest: Manifest) -> str:
        """Why the trunk may not be used; "" if it may. See `node.engine.gate`."""
        job = Compare(os.fsencode(model), os.fsencode(trunk), manifest)
        found = self._ask(job, "comparing with llama.cpp on the whole file")
        assert isinstance(found, Compared)
        return found.reason

    def _start(self) -> subprocess.Popen[bytes]:
        self._tail = b""
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "node.proving", os.fspath(self._library.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Without it ggml starts gdb on itself when it aborts, and prints pages.
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},
            # Ctrl-C in our terminal is ours to handle: the child ends when we let go of it.
            start_new_session=True,
        )
        return self._child

    def _ask(self, job: Job, what: str) -> Calls | Compared:
        child = self._child or self._start()
        assert child.stdin is not None
        try:
            child.stdin.write(msgspec.json.encode(job) + b"\n")
            child.stdin.flush()
        except BrokenPipeError:
            pass  # it is dead: reading tells
        line = self._read_line(child, what)
        if line is None:
            raise self._death(child)
        try:
            found = msgspec.json.decode(line, type=Answer)
        except msgspec.DecodeError as error:  # an infinite constant, which JSON does not have
            raise EngineError(f"its graph has what no recipe can say: {error}") from None
        if isinstance(found, Refused):
            raise ERRORS[found.kind](found.text)
        return found

    def _read_line(self, child: subprocess.Popen[bytes], what: str) -> bytes | None:
        """The child's next line; None if it ended before."""
        assert child.stdout is not None and child.stderr is not None
        line = bytearray()
        with selectors.DefaultSelector() as selector:
            for pipe in (child.stdout, child.stderr):
                selector.register(pipe, selectors.EVENT_READ)
            self._say(what, 0, 0)
            while not line.endswith(b"\n"):
                ready = selector.select(BEAT_SECONDS)
                if not ready:
                    self._say(what, 0, 0)
                for key, _ in ready:
                    piece = os.read(key.fd, 1 << 16)
                    if key.fileobj is child.stdout:
                        if not piece:
                            return None
                        line += piece
                    elif piece:
                        self._tail = (self._tail + piece)[-TAIL_BYTES:]
                    else:
                        selector.unregister(child.stderr)
                if len(line) > MAX_ANSWER_BYTES:
                    raise EngineError(f"llama.cpp shows a graph of more than {MAX_ANSWER_BYTES} bytes")
        return bytes(line)

    def _death(self, child: subprocess.Popen[bytes]) -> Exception:
        """What the child died of, as an error to raise; the next job starts another."""
        assert child.stderr is not None
        try:
            code = child.wait(DYING_SECONDS)
            self._tail = (self._tail + child.stderr.read())[-TAIL_BYTES:]
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        finally:
            self._end()
        tail = self._tail.decode(errors="replace").strip()
        if code >= 0:  # not llama.cpp but Python: a bug of ours, and worth its traceback
            return RuntimeError(f"node.proving ended with exit code {code}:\n{tail}")
        if code == -signal.SIGKILL:
            return Crashed("llama.cpp was killed while it tried the file, perhaps for want of memory")
        last = tail.splitlines()[-1].strip() if tail else ""
        words = (signal.strsignal(-code) or f"signal {-code}").lower()
        reason = re.sub(r"^\S*/", "", last)[:MAX_REASON]  # without the folders of whoever built it
        return Crashed(f"llama.cpp crashed on it ({words}{f': {reason}' if reason else ''})")

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()  # it has nothing to put in order
        child.wait()
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # a job that it never read
                    pass

    def __enter__(self) -> Prover:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
