"""Ending on Ctrl-C: in good order where that is quick, and within `GRACE` seconds in any case.

Whatever is written is complete or not there at all (store, slices, identity), so leaving hard loses nothing
that was acknowledged; workspaces of imports that were left so are swept by the next one.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

import outcome
import trio

from node import sigint

T = TypeVar("T")

GRACE = 2.5
"""Seconds for an orderly end; llama.cpp may be in the middle of reading a model, which nothing interrupts.
With the 0.1 s it takes to notice, below the 3 s that every command promises."""

POLL_SECONDS = 0.1


def run_interruptible(main: Callable[[], Awaitable[T]], on_interrupt: Callable[[], None] | None = None) -> T:
    """`trio.run(main)`, with SIGINT and SIGTERM cancelling it instead of striking anywhere.

    trio would deliver KeyboardInterrupt only when the main task wakes up, and that may be waiting for a
    thread which itself waits for tasks that nobody cancels.

    Args:
        on_interrupt: called once when a signal comes; for threads that look at a flag now and then.

    Raises:
        KeyboardInterrupt: one of the signals came; `main` has ended by then.
    """
    interrupted = False
    hard_end: threading.Timer | None = None

    async def outer() -> T | None:
        async def watch() -> None:
            nonlocal interrupted, hard_end
            with trio.open_signal_receiver(*_ends()) as signals:
                if not noted:
                    async for _ in signals:
                        break
                interrupted = True
                hard_end = threading.Timer(GRACE, _leave)
                hard_end.daemon = True
                hard_end.start()
                if on_interrupt is not None:
                    on_interrupt()
                nursery.cancel_scope.cancel()
                async for _ in signals:
                    pass

        result: T | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            result = await main()
            nursery.cancel_scope.cancel()
        return result

    # `watch` has the signals once it runs; until then, and afterwards, they must not strike inside trio.
    with _noted() as noted:
        try:
            result = trio.run(outer)
        except BaseException:
            if interrupted:
                raise KeyboardInterrupt from None
            raise
        finally:
            if interrupted:
                sigint.note()
            if hard_end is not None:
                hard_end.cancel()
    if interrupted or noted:
        raise KeyboardInterrupt
    return result  # type: ignore[return-value]


def run_blocking(work: Callable[[], T], on_interrupt: Callable[[], None] | None = None) -> T:
    """`work()` on a thread of its own, so that Ctrl-C strikes here and not inside a callback from C.

    ctypes swallows a KeyboardInterrupt that is raised in a callback: the work would go on, and nobody know.

    Args:
        on_interrupt: as in `run_interruptible`.

    Raises:
        KeyboardInterrupt: SIGINT came; `work` has ended by then.
    """
    results: list[outcome.Outcome[T]] = []
    # Not Thread.join: interrupted, it takes the thread for ended (CPython 3.11, bpo-45274).
    done = threading.Event()

    def run() -> None:
        results.append(outcome.capture(work))
        done.set()

    with _noted() as noted:
        threading.Thread(target=run, daemon=True).start()
        while not (done.wait(POLL_SECONDS) or noted):
            pass
        if noted:
            if on_interrupt is not None:
                on_interrupt()
            if not done.wait(GRACE):
                _leave()
    if noted:
        raise KeyboardInterrupt
    return results[0].unwrap()


def _ends() -> list[signal.Signals]:
    """Signals that end a command in good order: Ctrl-C, `kill`, and that its terminal was closed, unless who
    started it wants it to outlive that (nohup)."""
    found = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        found.append(signal.SIGHUP)
    return found


@contextmanager
def _noted() -> Iterator[list[int]]:
    """The interrupts that come meanwhile, in a list: none of them strikes. All of `_ends` are such.

    Raises:
        KeyboardInterrupt: one came before, and was lost on its way.
    """
    if sigint.came():
        raise KeyboardInterrupt
    noted: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        noted.append(number)
        sigint.note()

    # SIGINT first and given back last, so that nothing strikes between two of these.
    ours = _ends()
    striking = [n for n in signal.valid_signals() if signal.getsignal(n) is signal.default_int_handler]
    before = {number: signal.getsignal(number) for number in (*striking, *ours)}
    try:
        for number in before:
            signal.signal(number, note)
        yield noted
    finally:
        for number, handler in reversed(before.items()):
            signal.signal(number, handler)


def _leave() -> None:
    """End the process now, whatever its threads are doing."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(sigint.EXIT_INTERRUPTED)
