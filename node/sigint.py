"""SIGINT on the main thread from the first line of our code on: never lost, and never where it does harm.

Python raises KeyboardInterrupt wherever the main thread happens to be. Inside the import system that loses
it (in a callback, whose exceptions are only printed) or leaves a module half made and its lock held, and
the next thread that imports waits for ever. So while the main thread imports, the interrupt waits.

Imports nothing heavy: it is there before everything else.
"""

from __future__ import annotations

import signal
import time
from types import FrameType

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count

RETRY_SECONDS = 0.02  # while the main thread imports; nobody notices

CLEANUP_SECONDS = 3.0
"""For so long after an interrupt further ones are ignored: what is being put in order stays undisturbed.
As every command promises to end within 3 s, one that comes later means that something hangs."""

_IMPORTING = frozenset({"<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>"})

_armed = False
_came: float | None = None


def arm() -> None:
    """Take over SIGINT, unless somebody has it already (a shell ignores it for its background jobs)."""
    global _armed, _came
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    signal.signal(signal.SIGALRM, _retry)
    signal.signal(signal.SIGINT, _strike)
    _armed, _came = True, None


def disarm(*, ending: bool) -> None:
    """Give SIGINT back to Python.

    Args:
        ending: the process ends now, its exit code is decided: ignore SIGINT for the rest.
    """
    global _armed
    if _armed:
        signal.signal(signal.SIGINT, signal.SIG_IGN if ending else signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN if ending else signal.SIG_DFL)
        _armed = False


def came() -> bool:
    """Has an interrupt come since `arm`? Where KeyboardInterrupt got lost after all, this is the proof."""
    return _armed and _came is not None


def note() -> None:
    """Whoever had SIGINT meanwhile got one, and acts on it."""
    global _came
    _came = time.monotonic()


def _strike(_number: int, frame: FrameType | None) -> None:
    if _came is not None and time.monotonic() - _came < CLEANUP_SECONDS:
        return
    if _is_importing(frame):
        # A timer and not a thread: no lock is taken here, whatever was interrupted.
        signal.setitimer(signal.ITIMER_REAL, RETRY_SECONDS)
        return
    note()
    raise KeyboardInterrupt


def _retry(_number: int, _frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)  # for whoever has it by now


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename in _IMPORTING:
            return True
        frame = frame.f_back
    return False
