"""Answers to many prompts: a batch in each lane, the next prompt as soon as a place is free."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import trio

from market.budget import Purse
from node.decode.backbone import default_context
from node.decode.batch import Batch
from node.decode.batch_report import BatchAnswer, BatchReport
from node.decode.convictions import Conviction, Convictions
from node.decode.expert_port import nothing_to_settle
from node.decode.held_answers import HOLD_SECONDS, HeldAnswers
from node.decode.lanes import Lane, Lanes
from node.decode.live_backbone import LiveBackbone
from node.decode.members import Made, Member
from node.decode.settled_answer import MOST_TIMES
from node.engine.library import EngineError
from node.engine.llama_model import LlamaModel
from node.engine.sampler import Sampler, SamplingSettings
from node.engine.tokenizer import TextStream, Tokenizer
from node.importing import Progress
from routing.errors import PanalError

MOST_TOGETHER = 16
"""Sequences under way at once, over all lanes: as many rows as a pass may have (node.decode.exactness), and
each wants its part of the cache."""


def places(prompts: int, lanes: int) -> int:
    """Sequences that each lane may have under way."""
    return -(-min(prompts, MOST_TOGETHER) // lanes)


def encode(model: LlamaModel, prompts: Sequence[str], n_ctx: int | None) -> list[list[int]]:
    """The prompts' tokens.

    Args:
        n_ctx: tokens of a sequence at most; None as for `Backbone`.

    Raises:
        EngineError: one has no tokens, or more than the cache; it is named by its number.
    """
    tokenizer = Tokenizer(model)
    n_ctx = n_ctx or default_context(model)
    encoded = [tokenizer.encode(prompt) for prompt in prompts]
    for number, tokens in enumerate(encoded, 1):
        if not tokens:
            raise EngineError(f"prompt {number} is empty, and this model needs at least one token")
        if len(tokens) > n_ctx:
            raise EngineError(
                f"prompt {number}: {len(tokens)} tokens do not fit a context of {n_ctx}; "
                f"raise backbone.context or shorten it"
            )
    return encoded


class _Writing:
    """A prompt that is being answered, since some time of `time.perf_counter`."""

    def __init__(self, number: int, member: Member, tokenizer: Tokenizer, limit: int, begun: float) -> None:
        self.number = number
        self.member = member
        self.tokens: list[int] = []
        self.stopped = ""
        self.budget = ""
        self.cost = 0
        self.begun = begun
        self._tokenizer = tokenizer
        self._prompt_tokens = len(member.tokens)
        self._limit = limit

    def take(self, token: int) -> None:
        if self._tokenizer.is_end(token):
            self.stopped = "end"
            return
        self.tokens.append(token)
        if len(self.tokens) == self._limit:
            self.stopped = "length"
        elif self.member.is_full:
            self.stopped = "context"

    def answer(self, seconds: float) -> BatchAnswer:
        stream = TextStream(self._tokenizer)
        text = stream.feed(self.tokens) + stream.finish()
        return BatchAnswer(
            self.number,
            text,
            self._prompt_tokens,
            self.tokens,
            seconds,
            self.stopped,
            self.cost,
            self.budget,
        )


class BatchRun:
    """Prompts on their way through lanes.

    Args:
        lanes: with `places` sequences each.
        prompts: their tokens.
        limit: tokens of each answer at most.
        sampling: of each; with the same seed, as if it was asked alone.
        on_answer: told of each answer as it is finished, in the prompts' order, on one thread at a time.
        progress: told how many are finished, likewise.
        on_spoiled: told of an answer that was shown before a peer was found out that it rests on.
        purse: says what an answer, and a day, may cost. Each lane ends with its pass under way.
        convictions: who is found out: what rests on such peers and was not shown is done again.
        hold, settle: how long an answer waits at most to be known to be right (`HeldAnswers`), and what waits
            for all that is run again of some peers' calls.
    """

    def __init__(
        self,
        lanes: Lanes,
        prompts: Sequence[Sequence[int]],
        limit: int,
        sampling: SamplingSettings,
        *,
        on_answer: Callable[[BatchAnswer], None] = lambda answer: None,
        on_spoiled: Callable[[int, Conviction], None] = lambda number, conviction: None,
        progress: Progress = lambda what, done, total: None,
        purse: Purse | None = None,
        convictions: Convictions | None = None,
        hold: float = 0.0,
        settle: Callable[[Collection[str]], None] = lambda peers: None,
    ) -> None:
        self._progress = progress
        self._purse = purse or Purse()
        self._convictions = convictions or Convictions()
        self._lanes = lanes
        self._waiting = deque(enumerate(prompts, 1))
        self._limit = limit
        self._sampling = sampling
        self._held = HeldAnswers(self._convictions, hold, on_answer=on_answer, on_spoiled=on_spoiled)
        self._settle = settle
        self._prompt = dict(enumerate(prompts, 1))
        self._times: Counter[int] = Counter()
        slots = places(len(prompts), len(lanes.lanes))
        self._first_ones = min(len(prompts), slots * len(lanes.lanes))
        self._batches = {
            lane: Batch(lane.backbone, slots=slots, on_pass=lane.ledger.count_pass) for lane in lanes.lanes
        }
        self._writing: dict[Member, _Writing] = {}
        self._tokens = 0
        self._prompt_tokens = sum(map(len, prompts))
        self._prompts = len(prompts)
        self._prompt_seconds = 0.0
        self._begun = 0.0

    def run(self) -> BatchReport:
        """Answer them all, on this thread and one more for each further lane.

        Raises:
            PanalError: a pass failed; what was finished before has been told.
            UsedUp: the day has cost as much as it may.
        """
        self._purse.check(time.time())
        self._begun = time.perf_counter()
        try:
            while self._waiting or self._held.left:
                self._lanes.run(self._step)
                self._show_rest()
        except PanalError:
            self._show_rest()
            raise
        finally:
            for member in self._writing:
                member.sampler.close()
        return BatchReport(
            prompts=self._prompts,
            prompt_tokens=self._prompt_tokens,
            tokens=self._tokens,
            prompt_seconds=self._prompt_seconds,
            seconds=time.perf_counter() - self._begun,
            lanes=len(self._lanes.lanes),
            trips=self._lanes.ledger().report(),
            failed=sorted(self._held.failed),
        )

    def _show_rest(self) -> None:
        """Show what is finished, as soon as nothing of it is run again; lanes do not run meanwhile."""
        self._settle(self._held.peers())
        self._give_up_spoiled()
        self._held.show(time.perf_counter(), checked=True)

    def _step(self, lane: Lane) -> bool:
        batch = self._batches[lane]
        while self._waiting and batch.fits(len(self._waiting[0][1]), self._limit):
            self._begin(lane, batch, *self._waiting.popleft())
        if not batch.members:
            return False
        self._progress(f"{self._held.count} of {self._prompts} prompts are answered", 0, 0)
        before = lane.ledger.cost
        made = batch.run(batch.plan())
        self._share(lane.ledger.cost - before, made)
        self._end_spoiled(lane, batch)
        for choice in made.choices:
            member, token = choice.member, choice.token
            writing = self._writing.get(member)
            if writing is None:
                continue  # it was spoiled
            if choice.error is not None:
                raise choice.error
            if not writing.tokens and writing.number <= self._first_ones:
                self._prompt_seconds = time.perf_counter() - self._begun
            writing.take(token)
            self._tokens += writing.stopped != "end"
            if writing.stopped:
                self._finish(lane, batch, writing)
        self._look_at_budgets(lane, batch)
        self._give_up_spoiled()
        self._held.show(time.perf_counter())
        return True

    def _end_spoiled(self, lane: Lane, batch: Batch) -> None:
        """A lane's members that rest on who was found out begin anew."""
        if not self._convictions.count:
            return
        for member in list(batch.members):
            writing = self._writing[member]
            spoiling = self._convictions.against(_used(lane, writing))
            if spoiling is not None:
                self._leave(batch, writing)
                self._again(writing.number, len(writing.tokens), spoiling)

    def _give_up_spoiled(self) -> None:
        """Prompts whose answers rest on who was found out, and were not shown, begin anew."""
        for answer, spoiling in reversed(self._held.spoiled()):
            self._again(answer.prompt, len(answer.tokens), spoiling)

    def _again(self, number: int, tokens: int, spoiling: Conviction) -> None:
        """Answer a prompt again, without who was found out; or say that this was tried often enough."""
        self._tokens -= tokens
        self._times[number] += 1
        prompt = self._prompt[number]
        if self._times[number] < MOST_TIMES:
            self._waiting.appendleft((number, prompt))
            return
        now = time.perf_counter()
        error = str(spoiling.error())
        failed = BatchAnswer(number, "", len(prompt), [], now - self._begun, "failed", error=error)
        self._held.add(failed, {}, now)

    def _share(self, cost: int, made: Made) -> None:
        """What a pass cost, by rows."""
        first, of = 0, made.done.rows
        for member, rows in made.rows:
            self._writing[member].cost += cost * (first + rows) // of - cost * first // of
            first += rows

    def _look_at_budgets(self, lane: Lane, batch: Batch) -> None:
        """End what has cost as much as it may; and all that wait, if the day has."""
        now = time.time()
        for member in list(batch.members):
            writing = self._writing[member]
            if reached := self._purse.reached(writing.cost, now):
                writing.stopped, writing.budget = "budget", self._purse.why(reached)
                self._finish(lane, batch, writing)
        if self._purse.reached(0, now):
            while self._waiting:
                number, tokens = self._waiting.popleft()
                moment = time.perf_counter()
                unbegun = BatchAnswer(number, "", len(tokens), [], moment - self._begun, "budget")
                self._held.add(unbegun, {}, moment)

    def _begin(self, lane: Lane, batch: Batch, number: int, tokens: Sequence[int]) -> None:
        model = lane.backbone.model
        sampler = Sampler(model.library, self._sampling)
        try:
            member = batch.add(tokens, sampler, self._limit)
        except BaseException:
            sampler.close()
            raise
        self._writing[member] = _Writing(number, member, Tokenizer(model), self._limit, time.perf_counter())

    def _finish(self, lane: Lane, batch: Batch, writing: _Writing) -> None:
        self._leave(batch, writing)
        now = time.perf_counter()
        self._held.add(writing.answer(now - self._begun), _used(lane, writing), now)

    def _leave(self, batch: Batch, writing: _Writing) -> None:
        batch.remove(writing.member)
        del self._writing[writing.member]
        writing.member.sampler.close()


def _used(lane: Lane, writing: _Writing) -> dict[str, float]:
    """Whom an answer rests on: who was asked by its lane since it began."""
    return {peer_id: at for peer_id, at in lane.ledger.used.items() if at >= writing.begun}


def answer_all(
    live: LiveBackbone,
    prompts: Sequence[Sequence[int]],
    n_ctx: int | None,
    lanes: int,
    limit: int,
    sampling: SamplingSettings,
    on_answer: Callable[[BatchAnswer], None],
    progress: Progress = lambda what, done, total: None,
    on_spoiled: Callable[[int, Conviction], None] = lambda number, conviction: None,
) -> BatchReport:
    """Answer prompts, on the calling thread, one of trio's, and others.

    Args:
        prompts: their tokens (`encode`).
        n_ctx: tokens of a sequence at most, and of a lane's cache where its sequences share one.
        lanes: at most; no more than there are prompts.
        limit: tokens of each answer at most.
        on_answer, on_spoiled: see `BatchRun`.
        progress: told how many are finished.
    """
    count = min(lanes, len(prompts))
    exact = live.settings.exact
    if exact:  # a cache for each sequence: no larger than the longest of them needs
        n_ctx = min(n_ctx or default_context(live.backbone.model), max(map(len, prompts)) + limit)
    opened = Lanes(
        live.backbone,
        live.port,
        count=count,
        n_ctx=n_ctx,
        n_ubatch=live.settings.ubatch,
        threads=live.settings.threads,
        n_sequences=places(len(prompts), count),
        own_caches=exact,
    )
    try:
        run = BatchRun(
            opened,
            prompts,
            limit,
            sampling,
            on_answer=on_answer,
            on_spoiled=on_spoiled,
            progress=progress,
            purse=live.port.purse,
            convictions=live.port.convictions,
            hold=0.0 if live.port.settle is nothing_to_settle else HOLD_SECONDS,
            settle=lambda peers: trio.from_thread.run(live.port.settle, peers),
        )
        return replace(
            run.run(),
            model_id=live.backbone.stored.model_id,
            wire=live.port.settings.codec.name.lower(),
            home=live.home_report(),
            routes=live.routes(),
        )
    finally:
        opened.close()
