"""One thread that owns a node's expert kernels, so that the event loop goes on while experts are computed.

Always the same thread for what takes long: OpenMP keeps a team of helper threads for each thread that ever
started one, and teams that wait spin for a while on cores that others need. (Calls that are over sooner than
they could be handed here are computed on the event loop, and only while this thread has nothing to do.)

Callers take turns: a job of each, then the next one of the first. Who asks for a thousand things waits for
them, and who asks for one waits for one of everybody else's.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import outcome
import trio

T = TypeVar("T")

_Job = Callable[[], None]


class ComputeThread:
    """Runs functions one after the other on its own thread.

    Attributes:
        waiting: functions that have not ended, the one that runs included.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True for each job, False to end
        self._by_caller: dict[str, deque[_Job]] = {}  # whose turn is next comes first
        self._lock = threading.Lock()
        self._is_running = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()
        self.waiting = 0

    async def run(self, function: Callable[..., T], *arguments: Any, caller: str = "") -> T:
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
            with self._lock:
                self._by_caller.setdefault(caller, deque()).append(job)
            self._jobs.put(True)
            result: T = await trio.lowlevel.wait_task_rescheduled(abort)
            return result
        finally:
            self.waiting -= 1

    @property
    def is_idle(self) -> bool:
        """Nothing runs and nothing waits: also nothing whose caller has been cancelled meanwhile."""
        return not self._by_caller and not self._is_running

    def has_waiting(self, caller: str) -> bool:
        """Whether a job of this caller has not begun yet."""
        return caller in self._by_caller

    def close(self) -> None:
        """End the thread after what it is at; waits for it."""
        self._jobs.put(False)
        self._thread.join()

    def _work(self) -> None:
        while self._jobs.get():
            self._next()()
            self._is_running = False

    def _next(self) -> _Job:
        with self._lock:
            self._is_running = True  # before the queue can be seen to be empty
            caller = next(iter(self._by_caller))
            jobs = self._by_caller.pop(caller)
            job = jobs.popleft()
            if jobs:
                self._by_caller[caller] = jobs  # and to the end
            return job
