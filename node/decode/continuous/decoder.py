"""The decoder as the event loop sees it: ask, and tokens come."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from time import perf_counter

import trio

from node.decode.backbone import default_context
from node.decode.continuous.ask import Ask, Chosen, Stopping
from node.decode.continuous.asked import Asked, Ended
from node.decode.continuous.opening import DecoderSettings, Opened
from node.decode.continuous.report import AnswerReport, DecoderStats
from node.decode.continuous.worker import News, Worker
from node.decode.expert_port import Settle
from node.decode.live_backbone import LiveBackbone
from node.engine.sampler import Sampler


class Answering:
    """The tokens of an answer, as they come; an async iterator.

    Iteration raises the `PanalError` that ended it, if one did.
    """

    def __init__(self, worker: Worker, asked: Asked, settle: Settle) -> None:
        self._settle = settle
        self._worker = worker
        self._asked = asked
        self._ready: deque[Chosen] = deque()
        self._ended: Ended | None = None
        self._news = trio.Event()

    @property
    def report(self) -> AnswerReport:
        """What it took so far; all of it once iteration has ended or the context is left."""
        return self._worker.report(self._asked)

    async def settled(self) -> None:
        """Wait until those of its calls that are run again have been (node.market.auditor), for a while.

        Raises:
            Spoiled: it rests on answers that were false.
        """
        await self._settle(self._worker.used(self._asked))
        spoiling = self._worker.spoiling(self._asked)
        if spoiling is not None:
            raise spoiling.error()

    def __aiter__(self) -> Answering:
        return self

    async def __anext__(self) -> Chosen:
        while True:
            if self._ready:
                await trio.lowlevel.checkpoint()
                return self._ready.popleft()
            if self._ended is not None:
                await trio.lowlevel.checkpoint()
                if self._ended.error is not None:
                    raise self._ended.error
                raise StopAsyncIteration
            await self._news.wait()
            self._news = trio.Event()

    def _hear(self, news: Chosen | Ended) -> None:
        if isinstance(news, Chosen):
            self._ready.append(news)
        else:
            self._ended = news
        self._news.set()


class Decoder:
    """Decodes for many at once over a live backbone's model and swarm, while `run` runs.

    Attributes:
        n_ctx: tokens of a session, prompt and answer together; the last token chosen needs no room.
        slots: sessions at once.
    """

    def __init__(self, live: LiveBackbone, settings: DecoderSettings) -> None:
        self._live = live
        self._settings = settings
        self._model = live.backbone.model
        self._worker: Worker | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self.slots = settings.sessions
        self.n_ctx = settings.context or live.settings.context or default_context(self._model)

    @property
    def is_running(self) -> bool:
        """Whether asks are taken in."""
        return self._worker is not None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Make the caches and decode until cancelled; open answers then end with `Stopping`.

        Raises:
            EngineError: llama.cpp makes no such context (too little memory for the caches).
            LocalError: the small model that should guess does not fit.
        """
        thread = trio.CapacityLimiter(1)
        self._token = trio.lowlevel.current_trio_token()
        opened = await trio.to_thread.run_sync(
            Opened, self._live, self._settings, self.n_ctx, self._tell, limiter=thread
        )
        try:
            async with trio.open_nursery() as nursery:

                async def work() -> None:
                    await trio.to_thread.run_sync(opened.worker.run, limiter=thread)

                nursery.start_soon(work)
                self._worker = opened.worker
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    self._worker = None
                    opened.worker.stop()
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(opened.close, limiter=thread)

    @asynccontextmanager
    async def ask(self, ask: Ask) -> AsyncIterator[Answering]:
        """Have a prompt answered; leaving the context ends it with the pass under way.

        Raises:
            QueueFull: too many are waiting.
            EngineError: no pass can be made of it.
            LocalError: its sampling does not go with this model.
            Stopping: the decoder does not run.
            UsedUp: the day has cost as much as it may.
        """
        ask.check(self.n_ctx, self._model.n_vocab)
        worker = self._worker
        if worker is None:
            raise Stopping("the decoder is not running")
        asked = Asked(ask, lambda news: answering._hear(news), perf_counter())
        answering = Answering(worker, asked, self._live.port.settle)
        if ask.sampling.grammar:
            worker.check()
            asked.sampler = await trio.to_thread.run_sync(
                Sampler, self._model.library, ask.sampling, self._model
            )
        try:
            worker.ask(asked)
        except BaseException:
            asked.close()
            raise
        try:
            yield answering
        finally:
            worker.leave(asked)

    def stats(self) -> DecoderStats:
        """How it is doing; from the event loop.

        Raises:
            Stopping: it does not run.
        """
        if self._worker is None:
            raise Stopping("the decoder is not running")
        return self._worker.stats()

    def _tell(self, news: Sequence[News]) -> None:
        def hear() -> None:
            for asked, each in news:
                asked.tell(each)

        try:
            assert self._token is not None  # `run` has set it before there is a worker
            self._token.run_sync_soon(hear)
        except trio.RunFinishedError:
            pass  # nobody listens any more
