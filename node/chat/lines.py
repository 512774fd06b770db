"""Typed lines: from a terminal, with editing; or from a pipe or file."""

from __future__ import annotations

import contextlib
import os
import sys

import trio

from routing.errors import LocalError

MOST_LINE_BYTES = 8 << 20
"""Past every context."""
READ_BYTES = 1 << 16
PASTE_OFF = "\x1b[?2004l"
"""What readline leaves switched on when it is left in the middle."""


class TerminalLines:
    """What a person types. A context manager: the terminal is left as it was found.

    Reading is on a thread, which may stay behind when the chat ends; so nobody else reads afterwards.
    """

    def __enter__(self) -> TerminalLines:
        self._mode = None
        self._reading = False
        try:
            import readline  # noqa: F401 - input() has editing and a history once it is there
            import termios

            with contextlib.suppress(termios.error):
                self._mode = termios.tcgetattr(0)
        except ImportError:
            pass
        return self

    def __exit__(self, *_: object) -> None:
        if self._mode is not None and self._reading:
            import termios

            with contextlib.suppress(termios.error):
                termios.tcsetattr(0, termios.TCSANOW, self._mode)
            print(PASTE_OFF, flush=True)

    async def next(self, prompt: str) -> str | None:
        """The next line; None at the end (Ctrl-D)."""
        self._reading = True
        line = await trio.to_thread.run_sync(_input, prompt, abandon_on_cancel=True)
        self._reading = False
        return line


class PipedLines:
    """What a program writes, or stands in a file."""

    def __init__(self) -> None:
        self._held = b""
        self._ended = False

    def __enter__(self) -> PipedLines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    async def next(self, prompt: str) -> str | None:
        """The next line; None at the end. The prompt is for people."""
        while b"\n" not in self._held and not self._ended:
            # Not sys.stdin: Python cannot end while a thread holds its lock.
            data = await trio.to_thread.run_sync(os.read, 0, READ_BYTES, abandon_on_cancel=True)
            self._ended = not data
            self._held += data
            if len(self._held) > MOST_LINE_BYTES:
                raise LocalError(f"stdin: a line of more than {MOST_LINE_BYTES} bytes")
        if not self._held:
            return None
        line, _, self._held = self._held.partition(b"\n")
        return line.decode(errors="replace").removesuffix("\r")


def open_lines() -> TerminalLines | PipedLines:
    """The lines of this process's stdin."""
    return TerminalLines() if sys.stdin.isatty() and sys.stdout.isatty() else PipedLines()


def _input(prompt: str) -> str | None:
    try:
        return input(prompt)
    except EOFError:
        return None
