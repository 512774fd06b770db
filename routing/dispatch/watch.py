"""Looks at waits that are overdue: one task for all of them, at next to no cost to those that end in time.

A timer for each request would cost more than all the rest of a dispatch on a fast network. Here a request
leaves a note; the task sleeps until the earliest of those there were, and finds most of them gone.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio


class Wait(Protocol):
    """Something that should have ended by `due`."""

    due: float

    def overdue(self, now: float) -> None:
        """It has not. May set `due` anew; must not raise."""


class Watch:
    """Starts by itself in the event loop it is used in, and ends with that."""

    def __init__(self) -> None:
        self._waits: set[Wait] = set()
        self._alarm = trio.CancelScope()
        self._loop: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None

    def look_at(self, wait: Wait, due: float) -> None:
        """Call its `overdue` then, unless it is forgotten or put off before."""
        loop = trio.lowlevel.current_trio_token()
        if self._loop is not loop:
            self._loop, self._waits, self._alarm, self._nursery = loop, set(), trio.CancelScope(), None
            trio.lowlevel.spawn_system_task(self._run)
        wait.due = due
        self._waits.add(wait)
        if due < self._alarm.deadline:
            self._alarm.deadline = due

    def forget(self, wait: Wait) -> None:
        """It has ended."""
        self._waits.discard(wait)

    def knows(self, wait: Wait) -> bool:
        """It was not forgotten."""
        return wait in self._waits

    def start_soon(self, function: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Run something beside; it must see to its own errors and its own end. Only out of `overdue`."""
        assert self._nursery is not None
        self._nursery.start_soon(function, *arguments)

    async def _run(self) -> None:
        async with trio.open_nursery() as self._nursery:
            while True:
                earliest = min((wait.due for wait in self._waits), default=math.inf)
                with trio.CancelScope(deadline=earliest) as self._alarm:
                    await trio.sleep_forever()
                now = trio.current_time()
                for wait in [each for each in self._waits if each.due <= now]:
                    wait.overdue(now)
