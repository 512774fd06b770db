"""The thread that decodes: it lets asks in and out between passes, makes the passes, and tells what came.

1. Before each pass those who left are taken out and those who wait let in. A pass of which all have left is
   given up where it stands.
2. A pass that fails ends only the sequences that it concerns: those with a row that chose an expert nobody
   has now, or, if that cannot be told, those that fail when the pass is made again in halves. The others go
   on. Models that cannot go back lose the sequences of a failed pass: they are read again.
3. The lock is held between passes only for as long as it takes to look: whoever asks never waits for a pass.
4. What has cost as much as it may (market.budget) ends with the pass under way.
5. When a peer is found out (node.decode.convictions), the answers that rest on what it computed end, and what
   lies in places that nobody has is given up: nobody knows which of it does.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from market.budget import Purse, UsedUp
from node.decode.backbone import SequenceLost
from node.decode.batch import Batch
from node.decode.continuous.accounts import Accounts, Shares
from node.decode.continuous.admission import WaitingRoom
from node.decode.continuous.ask import Chosen, QueueFull, Stopping
from node.decode.continuous.asked import Asked, Ended
from node.decode.continuous.pass_port import PassPort
from node.decode.continuous.report import AnswerReport, DecoderStats
from node.decode.convictions import Conviction, Convictions
from node.decode.guessed_pass import GuessedPass
from node.decode.members import CacheFull, Choice, Made, Member, Pass
from node.engine.context import Context
from node.engine.logprobs import logprob_of
from node.engine.sampler import Sampler
from routing.dispatch.errors import ExpertsUnavailable
from routing.errors import PanalError

MOST_LOSSES = 2
"""Passes that may fail with a sequence in them, of a model that cannot go back, before it is ended: it is
read anew after each, and its own prompt is read in passes of its own, where its fault would show."""

TOGETHER_SECONDS = 0.005
"""What an idle worker waits for asks that come with the first: the answers that one request wants have the
same prompt, and read it once if they begin together. A pass with trips takes longer than that."""

News = tuple[Asked, Chosen | Ended]


class Worker:
    """Decodes what is asked, on the thread that calls `run`.

    Args:
        batch: of this worker alone.
        slots: sequences at once; queue: how many may wait for a place.
        guessed: guesses while there is only one sequence; None: nobody guesses.
        is_end: tokens that end a text.
        tell: hands news to the event loop; called on the thread.
        purse: says what an answer, and a day, may cost; None: whatever it takes.
        convictions: of peers that computed falsely; None: nobody looks.
    """

    def __init__(
        self,
        batch: Batch,
        context: Context,
        port: PassPort,
        *,
        slots: int,
        queue: int,
        guessed: GuessedPass | None,
        is_end: Callable[[int], bool],
        tell: Callable[[Sequence[News]], None],
        purse: Purse | None = None,
        convictions: Convictions | None = None,
    ) -> None:
        self._batch = batch
        self._context = context
        self._port = port
        self._slots = slots
        self._guessed = guessed
        self._is_end = is_end
        self._tell = tell
        self._purse = purse or Purse()
        self._convictions = convictions or Convictions()
        self._convicted = self._convictions.count
        self._changed = threading.Condition()
        # Under the lock:
        self._waiting: WaitingRoom[Asked] = WaitingRoom(queue)
        self._stopped = False
        self._in_pass: list[Asked] = []
        self._accounts = Accounts()
        self._reading = self._kept = 0
        # The thread's own, read by others under the lock:
        self._asked: dict[Member, Asked] = {}
        # The thread's own:
        self._news: list[News] = []
        self._outputs: dict[Member, deque[Any]] = {}
        self._losses: dict[Member, int] = {}

    # --- from any thread ---

    def ask(self, asked: Asked) -> None:
        """Let it wait for a place.

        Raises:
            QueueFull: too many do.
            Stopping: there will be none.
            UsedUp: the day has cost as much as it may.
        """
        with self._changed:
            self.check()
            self._accounts.count("asked")
            self._waiting.add(asked.ask.user, asked)
            self._changed.notify()

    def check(self) -> None:
        """Whether one more may wait; raises as `ask`."""
        with self._changed:
            if self._stopped:
                raise Stopping("the decoder is stopping")
            try:
                self._purse.check(time.time())
            except UsedUp:
                self._accounts.count("refused")
                raise
            if self._waiting.is_full(self._slots - len(self._asked)):
                self._accounts.count("refused")
                raise QueueFull(len(self._waiting), self._waiting.retry_after(self._slots))

    def leave(self, asked: Asked) -> None:
        """Nobody wants the rest of an answer."""
        with self._changed:
            if asked.stopped or asked.left:
                return
            asked.left = True
            self._accounts.count("left")
            if self._waiting.remove(asked.ask.user, asked):
                asked.close()
            elif self._in_pass and all(each.left for each in self._in_pass):
                self._port.let_go()
            self._changed.notify()

    def stop(self) -> None:
        """End `run`, soon."""
        with self._changed:
            self._stopped = True
            self._port.let_go(for_good=True)
            self._changed.notify()

    def report(self, asked: Asked) -> AnswerReport:
        with self._changed:
            return asked.report(time.perf_counter())

    def used(self, asked: Asked) -> dict[str, float]:
        """Whom its tokens rest on, with the time at which each has answered last."""
        with self._changed:
            # What it took from others' caches rests on whoever has computed that.
            taken = asked.cached or (asked.member is not None and asked.member.cached)
            return dict(self._accounts.used if taken else asked.ledger.used)

    def spoiling(self, asked: Asked) -> Conviction | None:
        """What makes its tokens worthless: a peer that they rest on was found out."""
        return self._convictions.against(self.used(asked))

    def stats(self) -> DecoderStats:
        with self._changed:
            return self._accounts.stats(
                time.perf_counter(),
                slots=self._slots,
                active=len(self._asked),
                reading=self._reading,
                waiting=len(self._waiting),
                queue=self._waiting.bound,
                cached=self._kept,
            )

    # --- on the thread ---

    def run(self) -> None:
        """Until `stop`; whoever still waits for tokens is told."""
        try:
            while self._prepare():
                self._pass()
        finally:
            with self._changed:
                self._stopped = True
                for asked in [*self._asked.values(), *self._waiting.drain()]:
                    asked.stopped = asked.stopped or "failed"
                    asked.close()
                    self._news.append((asked, Ended(Stopping("the decoder is stopping"))))
                self._asked.clear()
            self._hand_over()

    def _prepare(self) -> bool:
        """Let in and out, and wait until there is something to do; False: no more."""
        idle = False
        while True:
            if idle:
                time.sleep(TOGETHER_SECONDS)
            if self._convicted != self._convictions.count:
                self._convicted = self._convictions.count
                self._end_spoiled()
            for member, asked in list(self._asked.items()):
                if asked.left:
                    self._end(member, "closed")
            while (following := self._next_one()) is not None:
                self._begin(following)
            self._hand_over()
            with self._changed:
                self._reading = sum(member.is_reading for member in self._asked)
                self._kept = self._batch.places.kept
                if self._stopped:
                    return False
                if self._asked:
                    return True
                idle = self._first_fits() is None
                if idle:
                    self._changed.wait()

    def _end_spoiled(self) -> None:
        """A peer was found out: end what rests on its answers."""
        for member, asked in list(self._asked.items()):
            spoiling = self.spoiling(asked)
            if spoiling is not None:
                self._end(member, "failed", spoiling.error())
        self._batch.places.empty()

    def _first_fits(self) -> str | None:
        """The user whose ask is next, if there is room for it."""
        following = self._waiting.peek(asked.ask.user for asked in self._asked.values())
        if following is None:
            return None
        user, asked = following
        return user if self._batch.fits(len(asked.ask.tokens), asked.ask.limit) else None

    def _next_one(self) -> Asked | None:
        with self._changed:
            user = None if self._stopped else self._first_fits()
            return None if user is None else self._waiting.take(user)

    def _begin(self, asked: Asked) -> None:
        """Give it a place."""
        ask, model = asked.ask, self._context.model
        try:
            self._purse.check(time.time())
            if asked.sampler is None:
                asked.sampler = Sampler(model.library, ask.sampling, model)
            asked.sampler.accept_prompt(ask.tokens)
            member = self._batch.add(ask.tokens, asked.sampler, ask.limit, user=ask.user)
        except PanalError as error:
            with self._changed:
                asked.stopped = "failed"
                self._accounts.count("failed")
                asked.close()
            self._news.append((asked, Ended(error)))
            return
        with self._changed:
            asked.member = member
            asked.begun_at = time.perf_counter()
            self._asked[member] = asked
            self._accounts.count("prompt_tokens", len(ask.tokens))

    def look(self, member: Member, row: int) -> None:
        """A token is about to be chosen after this row: note its output if that is asked for."""
        if self._asked[member].ask.top_logprobs is not None:
            self._outputs.setdefault(member, deque()).append(self._context.outputs([row])[0])

    def _pass(self) -> None:
        try:
            planned = self._batch.plan()
        except CacheFull as full:
            self._end(full.member, "failed", full)
        else:
            self._try(planned)
            now = time.time()
            for member, asked in list(self._asked.items()):
                if self._purse.reached(asked.ledger.cost, now):
                    self._end(member, "budget")

    def _try(self, planned: Pass) -> bool:
        """Make a pass and take what it gives, or see to its failure; False: it was given up."""
        shares = [(part.member, part.end - part.member.computed) for part in planned.parts]
        self._outputs.clear()
        with self._changed:
            self._port.begin()
            self._in_pass = [self._asked[member] for member, _ in shares]
        try:
            made = self._make(planned)
        except PanalError as error:
            with self._changed:
                given_up = self._stopped or all(asked.left for asked in self._in_pass)
                self._in_pass = []
                self._accounts.failed(self._port.ledger, shares, self._asked)
            if not given_up:
                self._failed(planned, shares, error)
            return not given_up
        with self._changed:
            self._in_pass = []
            self._accounts.made(self._port.ledger, made, self._asked)
        for choice in made.choices:
            self._take(choice)
        return True

    def _make(self, planned: Pass) -> Made:
        first = planned.parts[0].member
        if self._guessed is None or planned.reads or len(self._batch.members) > 1 or first.is_reading:
            return self._batch.run(planned)
        asked = self._asked[first]
        return self._batch.run_guessing(first, self._guessed, asked.ask.limit - asked.tokens, self._is_end)

    def _take(self, choice: Choice) -> None:
        member, asked = choice.member, self._asked.get(choice.member)
        if asked is None:
            return  # it ended with a guess before this one
        if choice.error is not None:
            self._end(member, "failed", choice.error)
            return
        if self._is_end(choice.token):
            self._end(member, "end")
            return
        logprob = None
        if asked.ask.top_logprobs is not None:
            output = self._outputs[member].popleft()
            logprob = logprob_of(output, choice.token, asked.ask.top_logprobs)
        with self._changed:
            now = time.perf_counter()
            asked.took(now)
            self._accounts.token(now)
        self._news.append((asked, Chosen(choice.token, logprob)))
        if asked.tokens == asked.ask.limit:
            self._end(member, "length")
        elif member.prompt + asked.tokens >= member.most:  # not is_full: it holds all of a guessed pass
            self._end(member, "context")

    def _end(self, member: Member, stopped: str, error: PanalError | None = None) -> None:
        """A sequence is done; what it left in its cache stays there."""
        self._batch.remove(member)
        self._losses.pop(member, None)
        with self._changed:
            asked = self._asked.pop(member)
            now = time.perf_counter()
            asked.stopped = stopped
            asked.close()
            if asked.begun_at is not None:
                self._waiting.answered(now - asked.begun_at)
            if stopped == "failed":
                self._accounts.count("failed")
            elif stopped != "closed":
                self._accounts.count("answered")
        self._news.append((asked, Ended(error)))

    def _hand_over(self) -> None:
        if self._news:
            news, self._news = self._news, []
            self._tell(news)

    # --- passes that failed ---

    def _failed(self, planned: Pass, shares: Shares, error: PanalError) -> None:
        members = [member for member, _ in shares]
        cause = error.__cause__ if isinstance(error, SequenceLost) else error
        if isinstance(cause, PanalError):
            error = cause
        concerned = members if len(members) == 1 else self._concerned(shares, error)
        if concerned:
            for member in concerned:
                self._end(member, "failed", error)
        elif all(member.computed for member in members):
            half = len(planned.parts) // 2
            for parts in (planned.parts[:half], planned.parts[half:]):
                if not self._try(Pass(parts, planned.reads)):
                    return
        else:
            for member in members:
                self._losses[member] = self._losses.get(member, 0) + 1
                if self._losses[member] >= MOST_LOSSES:
                    self._end(member, "failed", error)

    def _concerned(self, shares: Shares, error: PanalError) -> list[Member]:
        """Whose rows need what could not be had; none if that cannot be told."""
        if not isinstance(error, ExpertsUnavailable):
            return []
        owners = [member for member, rows in shares for _ in range(rows)]
        rows = self._port.rows_in_need(error, len(owners))
        return list(dict.fromkeys(owners[row] for row in rows or ()))
