"""The one place where a node's status is kept: gathered at most once a second, however many ask for it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from node.status.answers import AnswerRing
from node.status.editions import Editions
from node.status.facts import Status
from node.status.gather import Gatherer
from node.status.sources import Sources as Sources
from routing.errors import LocalError

TICK_SECONDS = 1.0
"""Between looks at who is there and at the counters; and between editions."""


class NotYet(LocalError):
    """There is no node yet whose status it would be."""


class StatusBoard:
    """One for a node; `await nursery.start(board.run)`.

    Attributes:
        sources: the parts; set as they come.
        answers: where whoever answers notes it.
        editions: the newest status, as those who follow it get it.
        followers: how many do.
    """

    def __init__(self, sources: Sources, *, wall_clock: Callable[[], float] = time.time) -> None:
        self.sources = sources
        self.answers = AnswerRing()
        self.editions = Editions()
        self._gatherer: Gatherer | None = None
        self._wall_clock = wall_clock
        self._gathered = -math.inf
        self._status: Status | None = None
        self.followers = 0
        self._news = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look once a second, until cancelled."""
        task_status.started()
        while True:
            gatherer = self._made()
            if gatherer is not None:
                gatherer.tick(self._wall_clock(), trio.current_time())
                if self.followers:
                    self._gather(gatherer)
            await trio.sleep(TICK_SECONDS)

    def changed(self) -> None:
        """Something has just been changed: who asks next, or follows, is to see it at once."""
        self._gathered = -math.inf
        gatherer = self._made()
        if self.followers and gatherer is not None:
            self._gather(gatherer)

    def status(self) -> Status:
        """Everything; at most TICK_SECONDS old.

        Raises:
            NotYet: the node has only begun to start.
        """
        if self._status is None or trio.current_time() - self._gathered >= TICK_SECONDS:
            gatherer = self._made()
            if gatherer is None:
                raise NotYet("this node is still starting: ask again in a moment")
            return self._gather(gatherer)
        return self._status

    def body(self) -> bytes:
        """The same as `status`, as JSON."""
        self.status()
        return self.editions.whole()

    @contextmanager
    def following(self) -> Iterator[None]:
        """While somebody follows, there is a new edition each second if anything has changed."""
        self.followers += 1
        try:
            yield
        finally:
            self.followers -= 1

    async def newer(self, number: int) -> None:
        """Wait for an edition other than `number`."""
        while self.editions.number in (0, number):
            await self._news.wait()

    def _made(self) -> Gatherer | None:
        if self._gatherer is None and self.sources.node is not None:
            self._gatherer = Gatherer(self.sources.node, self.sources, self.answers)
        return self._gatherer

    def _gather(self, gatherer: Gatherer) -> Status:
        self._gathered = trio.current_time()
        status = self._status = gatherer.status(self._wall_clock(), self._gathered)
        if self.editions.take(status):
            self._news.set()
            self._news = trio.Event()
        return status
