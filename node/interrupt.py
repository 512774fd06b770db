"""Ending on Ctrl-C in good order: everything is cancelled, every thread is waited for."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

T = TypeVar("T")


def run_interruptible(main: Callable[[], Awaitable[T]]) -> T:
    """`trio.run(main)`, with SIGINT and SIGTERM cancelling it instead of striking anywhere.

    trio would deliver KeyboardInterrupt only when the main task wakes up, and that may be waiting for a
    thread which itself waits for tasks that nobody cancels.

    Raises:
        KeyboardInterrupt: one of the signals came; `main` has ended by then.
    """
    interrupted = False

    async def outer() -> T | None:
        nonlocal interrupted

        async def watch() -> None:
            nonlocal interrupted
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for _ in signals:
                    interrupted = True
                    nursery.cancel_scope.cancel()

        result: T | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            result = await main()
            nursery.cancel_scope.cancel()
        return result

    try:
        result = trio.run(outer)
    except BaseException:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    if interrupted:
        raise KeyboardInterrupt
    return result  # type: ignore[return-value]
