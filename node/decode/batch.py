"""A batch: several sequences of one backbone, decoded together, so that one trip a layer serves them all.

1. A pass reads a piece of a prompt, or chooses one token of each sequence that takes part. Which of the two
   is next: node.decode.continuous.schedule.
2. Sequences may come and go between any two passes.
3. Exact: a sequence gets the tokens it would get alone. A prompt is computed in passes of its own, as many
   rows as one graph takes; a decoding pass has no more rows than give the same bits (node.decode.exactness).
   Otherwise prompts share passes with each other and with decoding: fewer trips, other last bits.
4. Exactness wants a cache for each sequence (`Backbone.own_caches`, which decides): attention adds up in the
   order of the cache's places, and in a shared one a new token takes the place of one that was forgotten. A
   pass over own caches is one graph, so one trip a layer, only if its sequences have consecutive numbers:
   those in between change places (node.decode.continuous.layout). Sequences with unequal rows in one graph
   need the shared one.
5. Last bits differ all the same in models that cannot rewind (alone they decode one row a pass) and in those
   without flash attention: grok, minimax-m3 (tests/integration/test_batch.py has each kind of model).
6. What a sequence has in common with another, or with one that has ended, is taken from its cache, if the
   batch keeps them (node.decode.continuous.prefix). Prompts that are the same are read once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import count

from node.decode.backbone import Backbone, SequenceLost
from node.decode.continuous.places import Places
from node.decode.continuous.schedule import RoundRobin, Turns, to_swap, window
from node.decode.guessed_pass import GuessedPass
from node.decode.ledger import PassDone
from node.decode.members import CacheFull, Choice, Made, Member, Part, Pass
from node.engine.context import Row
from node.engine.library import EngineError
from node.engine.sampler import Sampler
from routing.errors import PanalError


class Batch:
    """Sequences that are decoded together; exactly if each has a cache of its own.

    Args:
        backbone: used on one thread.
        slots: sequences at once.
        places: sequences that the backbone's context has; None for as many as slots. From three slots on
            there has to be one more, or prompts come first: else nobody could change places.
        on_pass: told of each pass that succeeded.
        reading_share: see `Turns`.
        keep: see `Places`.
        reserve: tokens of an answer for which there must be room in a shared cache before it is begun; None
            for all of them. With less, it may be full in the middle of an answer.
        look: gets each member and row before its token is chosen.
        clock: seconds, by which reading and writing take turns.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        slots: int,
        places: int | None = None,
        on_pass: Callable[[PassDone], None] = lambda done: None,
        reading_share: float = 1.0,
        keep: bool = False,
        reserve: int | None = None,
        look: Callable[[Member, int], None] = lambda member, row: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._backbone = backbone
        self._slots = slots
        self._exact = backbone.own_caches
        self._on_pass = on_pass
        self._reserve = reserve
        self._look = look
        self._clock = clock
        self._turns = Turns(reading_share)
        self._readers = RoundRobin()
        self._numbers = count()
        self._passes = 0  # of those who write, planned
        self._next = 0  # index of the writer who is first in a pass over a shared cache
        self.places = Places(backbone, places or slots, keep=keep)
        self.members: list[Member] = []

    # --- who is in it ---

    def fits(self, tokens: int, limit: int) -> bool:
        """Whether a prompt of so many tokens can be added now and be answered with up to `limit` more."""
        if len(self.members) == self._slots:
            return False
        needed = max(tokens, self._most(tokens, limit) - 1)
        if self._exact:
            return needed <= self._backbone.n_ctx
        taken = sum(max(member.computed, self._reserved(member)) for member in self.members)
        if self._reserve is not None:
            needed = min(needed, tokens + self._reserve)
        return taken + needed <= self._backbone.n_ctx

    def add(self, tokens: Sequence[int], sampler: Sampler, limit: int, *, user: str = "") -> Member:
        """Take a sequence in; `fits` says whether there is room.

        Args:
            sampler: of this sequence alone; the caller closes it.
            limit: tokens chosen at most; fewer if the whole context holds no more.
            user: prompts are read by turns of these.

        Raises:
            EngineError: no tokens, or no room.
        """
        if not tokens:
            raise EngineError(
                "the prompt is empty, and this model needs at least one token: give it some text"
            )
        if not self.fits(len(tokens), limit):
            raise EngineError(
                f"a context of {self._backbone.n_ctx} tokens has no room for a prompt of {len(tokens)}; "
                f"raise backbone.context or shorten the prompt"
            )
        sequence, kept = self.places.take(tokens)
        most = self._most(len(tokens), limit)
        member = Member(next(self._numbers), sequence, tokens, sampler, most, user)
        member.computed = member.cached = kept
        member.missed = min((each.missed for each in self.members), default=0)
        self.members.append(member)
        self.members.sort(key=lambda each: each.sequence)
        return member

    def remove(self, member: Member) -> None:
        """Its place is free for another."""
        self.members.remove(member)
        self.places.leave(member.sequence)

    def _most(self, tokens: int, limit: int) -> int:
        return min(tokens + limit, self._backbone.n_ctx + 1)

    def _reserved(self, member: Member) -> int:
        most = member.most - 1
        return most if self._reserve is None else min(most, member.prompt + self._reserve)

    # --- passes ---

    def step(self) -> list[tuple[Member, int]]:
        """Make one pass; the tokens it chose, each appended to its sequence already.

        Raises:
            PanalError: the pass failed; calling again makes it again.
        """
        choices = self.run(self.plan()).choices
        for choice in choices:
            if choice.error is not None:
                raise choice.error
        return [(choice.member, choice.token) for choice in choices]

    def plan(self) -> Pass:
        """The next pass; empty if there is no member.

        Raises:
            CacheFull: there is no room for it.
        """
        readers = [member for member in self.members if member.is_reading]
        writers = [member for member in self.members if not member.is_reading]
        if not self._exact:
            return self._shared(readers, writers)
        if self._turns.reads(len(readers), len(writers)):
            reader = self._reader(readers)
            assert reader is not None  # they wait for one that is among them
            if reader.is_reading:
                most = self._backbone.context.n_ubatch
                part = Part(reader, min(reader.computed + most, len(reader.tokens)))
                return Pass((part,), reads=True)
            writers.append(reader)  # all but its last token lay in a cache
        return Pass(tuple(self._window(writers)), reads=False)

    def run(self, planned: Pass) -> Made:
        """Make a pass.

        Raises:
            PanalError: it failed; everything is as before, or sequences are lost and read anew.
        """
        rows = [
            Row(part.member.tokens[i], i, part.member.sequence, wanted=i == len(part.member.tokens) - 1)
            for part in planned.parts
            for i in range(part.member.computed, part.end)
        ]
        decoding = not any(part.member.is_reading for part in planned.parts)
        begun = self._clock()
        try:
            (self._backbone.compute_in_company if self._exact else self._backbone.compute)(rows)
        except SequenceLost:
            for part in planned.parts:
                self._lose(part.member)
            raise
        seconds = self._clock() - begun
        self._turns.spent(seconds, reading=planned.reads)
        shares: list[tuple[Member, int]] = []
        choices: list[Choice] = []
        last = -1
        for part in planned.parts:
            member, number = part.member, part.end - part.member.computed
            last += number
            shares.append((member, number))
            self._advance(member, part.end)
            if part.end == len(member.tokens):
                alike = self._alike(member)
                choices += [self._choose(each, last) for each in (member, *alike)]
                shares += [(each, 0) for each in alike]
        tokens = sum(choice.error is None for choice in choices)
        done = PassDone(len(rows), tokens=tokens, decoding=decoding, seconds=seconds)
        self._on_pass(done)
        return Made(choices, shares, done)

    def run_guessing(
        self, member: Member, guessed: GuessedPass, limit: int, is_end: Callable[[int], bool]
    ) -> Made:
        """A pass over the only member, which writes, and guesses; raises as `run`.

        Args:
            limit, is_end: see `GuessedPass`.
        """

        def choose(row: int) -> int:
            self._look(member, row)
            return member.sampler.sample(self._backbone.context, row)

        try:
            found = guessed.run(
                member.tokens, member.sequence, member.sampler, limit, is_end=is_end, choose=choose
            )
        except SequenceLost:
            self._lose(member)
            raise
        member.tokens += found.tokens
        self._advance(member, len(member.tokens) - 1)
        self._turns.spent(found.done.seconds, reading=False)
        self._on_pass(found.done)
        choices = [Choice(member, token) for token in found.tokens]
        return Made(choices, [(member, found.done.rows)], found.done)

    def _choose(self, member: Member, row: int) -> Choice:
        self._look(member, row)
        try:
            token = member.sampler.sample(self._backbone.context, row)
        except PanalError as error:
            return Choice(member, -1, error)
        member.tokens.append(token)
        return Choice(member, token)

    def _advance(self, member: Member, end: int) -> None:
        """Its tokens up to here are computed."""
        read = member.tokens[member.computed : min(end, member.prompt)]
        written = member.tokens[max(member.computed, member.prompt) : end]
        if read:
            self.places.read(member.sequence, read)
        if written:
            self.places.wrote(member.sequence, written)
        member.computed = end
        member.begun = True

    def _lose(self, member: Member) -> None:
        self.places.lost(member.sequence)
        member.computed = member.cached = 0

    def _alike(self, member: Member) -> list[Member]:
        """Members with the same prompt of which nothing is read yet: they have it all now."""
        if len(member.tokens) != member.prompt or not self.places.keep:
            return []
        waiting = [each for each in self.members if not each.begun and each.tokens == member.tokens]
        for each in waiting:
            self.places.share(member.sequence, each.sequence)
            each.computed = each.cached = member.computed
            each.begun = True
        return waiting

    # --- who takes part ---

    def _reader(self, readers: list[Member]) -> Member | None:
        """Whose prompt is read on, what it may take from others taken; None if these wait for others."""
        ready = [member for member in readers if not self._waits(member)]
        if not ready:
            return None
        user = self._readers.next(dict.fromkeys(member.user for member in ready))
        self._readers.took(user)
        reader = min(
            (member for member in ready if member.user == user),
            key=lambda member: (not member.begun, member.number),
        )
        if not reader.begun:
            reader.begun = True
            reader.computed = reader.cached = self.places.improve(reader.sequence, reader.tokens)
        return reader

    def _waits(self, member: Member) -> bool:
        """Whether another is reading just now what this one may take from it."""
        if member.begun:
            return False
        others = [each.tokens for each in self.members if each.begun and each.is_reading]
        return self.places.promised(member.tokens, others) > member.computed

    def _window(self, writers: list[Member]) -> list[Part]:
        """Those of the next pass who write, with consecutive numbers."""
        moved = self.places.bring_together({member.sequence for member in writers})
        for member in self.members:
            member.sequence = moved.get(member.sequence, member.sequence)
        self.members.sort(key=lambda each: each.sequence)
        writers.sort(key=lambda each: each.sequence)
        self._change_ends(writers)
        self._passes += 1
        taken = window([self._passes - each.written for each in writers], self._backbone.most_rows)
        for index, member in enumerate(writers):
            if index in taken:
                member.written = self._passes
            else:
                member.missed += 1
        return [Part(writers[index], len(writers[index].tokens)) for index in taken]

    def _change_ends(self, writers: list[Member]) -> None:
        """Those at the ends are in fewer passes than those in the middle: now and then they change places."""
        pair = to_swap([member.missed for member in writers], self._backbone.most_rows)
        if pair is None:
            return
        one, other = (writers[index] for index in pair)
        if self.places.swap(one.sequence, other.sequence):
            one.sequence, other.sequence = other.sequence, one.sequence
            for members in (self.members, writers):
                members.sort(key=lambda each: each.sequence)

    def _shared(self, readers: list[Member], writers: list[Member]) -> Pass:
        """A pass of up to a graph's rows: one of each who writes, in turn, then of those who read."""
        left = most = self._backbone.context.n_ubatch
        start = self._next if self._next < len(writers) else 0
        parts = [Part(each, len(each.tokens)) for each in (writers[start:] + writers[:start])[:most]]
        self._next = (start + len(parts)) % max(len(writers), 1)
        left -= len(parts)
        while left and (reader := self._reader(readers)) is not None:
            readers.remove(reader)
            end = min(reader.computed + left, len(reader.tokens))
            left -= end - reader.computed
            parts.append(Part(reader, end))
        needed = sum(part.end - part.member.computed for part in parts)
        if not self.places.make_room(needed, self._backbone.n_ctx):
            last = max(self.members, key=lambda member: member.number)
            taken = self.places.cells({member.sequence for member in self.members})
            raise CacheFull(last, len(self.members), taken, self._backbone.n_ctx)
        reads = any(part.member.is_reading for part in parts)
        return Pass(tuple(sorted(parts, key=lambda part: part.member.sequence)), reads)
