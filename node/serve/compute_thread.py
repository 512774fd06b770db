"""One thread that owns a node's expert kernels, so that the event loop goes on while experts are computed.

Always the same thread: OpenMP keeps a team of helper threads for each thread that ever started one, and
teams that wait spin for a while on cores that others need.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import outcome
import trio

T = TypeVar("T")


class ComputeThread:
    """Runs functions one after the other on its own thread."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()
        self.waiting = 0

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Wait for `function(*arguments)` on the thread. Once begun it is not interrupted by cancellation."""
        task = trio.lowlevel.current_task()
        token = trio.lowlevel.current_trio_token()
        abandoned = False

        def deliver(result: outcome.Outcome[T]) -> None:
            if not abandoned:
                trio.lowlevel.reschedule(task, result)

        def job() -> None:
            if abandoned:
                return  # nobody waits any more
            result = outcome.capture(function, *arguments)
            try:
                token.run_sync_soon(deliver, result)
            except trio.RunFinishedError:
                pass

        def abort(_: object) -> trio.lowlevel.Abort:
            nonlocal abandoned
            abandoned = True
            return trio.lowlevel.Abort.SUCCEEDED

        self.waiting += 1
        try:
            self._jobs.put(job)
            result: T = await trio.lowlevel.wait_task_rescheduled(abort)
            return result
        finally:
            self.waiting -= 1

    def close(self) -> None:
        """End the thread after what it is at; waits for it."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
