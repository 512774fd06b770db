"""A batch: several sequences of one backbone, decoded together, so that one trip a layer serves them all.

1. A step is one pass. Prompts come first; then each pass chooses one token of each sequence that takes part.
2. Sequences may come and go between any two steps.
3. Exact: a sequence gets the tokens it would get alone. A prompt is computed in passes of its own, as many
   rows as one graph takes; a decoding pass has no more rows than give the same bits (node.decode.exactness).
   Otherwise prompts share passes with each other and with decoding: fewer trips, other last bits.
4. Exactness wants a cache for each sequence (`Backbone.own_caches`, which decides): attention adds up in the
   order of the cache's places, and in a shared one a new token takes the place of one that was forgotten. A
   pass over own caches is one graph, so one trip a layer, only if its sequences have consecutive numbers:
   the last ones are moved into gaps. Sequences with unequal rows in one graph need the shared one.
5. Last bits differ all the same in models that cannot rewind (alone they decode one row a pass) and in those
   without flash attention: grok, minimax-m3 (tests/integration/test_batch.py has each kind of model).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from node.decode.backbone import Backbone, SequenceLost
from node.decode.ledger import PassDone
from node.engine.context import Row
from node.engine.library import EngineError
from node.engine.sampler import Sampler


class Member:
    """One sequence of a batch.

    Attributes:
        tokens: the prompt, and what was chosen after it.
        most: tokens it may come to. The last one is never computed: the batch keeps room for one less.
        sequence: its number in the cache.
    """

    def __init__(self, sequence: int, tokens: Sequence[int], sampler: Sampler, most: int) -> None:
        self.sequence = sequence
        self.tokens = list(tokens)
        self.most = most
        self.sampler = sampler
        self.computed = 0  # tokens whose keys and values are in the cache

    @property
    def is_full(self) -> bool:
        """It may not become longer."""
        return len(self.tokens) >= self.most

    @property
    def is_reading(self) -> bool:
        """Its prompt is not computed yet."""
        return self.computed == 0 or len(self.tokens) - self.computed > 1


class Batch:
    """Sequences that are decoded together; exactly if each has a cache of its own.

    Args:
        backbone: with as many sequences as `slots`; used on one thread.
        slots: sequences at once.
        on_pass: told of each pass that succeeded.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        slots: int,
        on_pass: Callable[[PassDone], None] = lambda done: None,
    ) -> None:
        self._backbone = backbone
        self._slots = slots
        self._exact = backbone.own_caches
        self._on_pass = on_pass
        self._next = 0  # index of the member whose turn is next
        self.members: list[Member] = []

    def fits(self, tokens: int, limit: int) -> bool:
        """Whether a prompt of so many tokens can be added now and be answered with up to `limit` more."""
        taken = 0 if self._exact else sum(member.most - 1 for member in self.members)
        needed = max(tokens, self._most(tokens, limit) - 1)
        return len(self.members) < self._slots and taken + needed <= self._backbone.n_ctx

    def add(self, tokens: Sequence[int], sampler: Sampler, limit: int) -> Member:
        """Take a sequence in; `fits` says whether there is room.

        Args:
            sampler: of this sequence alone; the caller closes it.
            limit: tokens chosen at most; fewer if the whole context holds no more.

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
        taken = self._numbers()
        sequence = next(number for number in range(self._slots) if number not in taken)
        member = Member(sequence, tokens, sampler, self._most(len(tokens), limit))
        self.members.append(member)
        self.members.sort(key=lambda each: each.sequence)
        return member

    def _most(self, tokens: int, limit: int) -> int:
        return min(tokens + limit, self._backbone.n_ctx + 1)

    def remove(self, member: Member) -> None:
        """Forget a sequence; its place is free for another."""
        self.members.remove(member)
        self._backbone.context.remove(member.sequence, 0)

    def step(self) -> list[tuple[Member, int]]:
        """Make one pass; the tokens it chose, each appended to its sequence already.

        Raises:
            PanalError: the pass failed; calling again makes it again.
        """
        parts = self._parts()
        rows = [
            Row(member.tokens[i], i, member.sequence, wanted=i == len(member.tokens) - 1)
            for member, end in parts
            for i in range(member.computed, end)
        ]
        decoding = not any(member.is_reading for member, _ in parts)
        begun = time.perf_counter()
        try:
            (self._backbone.compute_in_company if self._exact else self._backbone.compute)(rows)
        except SequenceLost:
            for member, _ in parts:
                member.computed = 0
            raise
        seconds = time.perf_counter() - begun
        chosen: list[tuple[Member, int]] = []
        last = -1
        for member, end in parts:
            last += end - member.computed
            member.computed = end
            if end == len(member.tokens):
                chosen.append((member, member.sampler.sample(self._backbone.context, last)))
        for member, token in chosen:
            member.tokens.append(token)
        self._on_pass(PassDone(len(rows), tokens=len(chosen), decoding=decoding, seconds=seconds))
        return chosen

    def _parts(self) -> list[tuple[Member, int]]:
        """Who takes part in the next pass, and up to which token; sequences ascending."""
        most = self._backbone.context.n_ubatch
        reading = [member for member in self.members if member.is_reading]
        if not self._exact:
            return self._shared(reading, most)
        if reading:
            first = reading[0]
            return [(first, min(first.computed + most, len(first.tokens)))]
        self._close_gaps()
        # As few passes as may be, of about the same size: nobody goes alone if there is company.
        count = len(self.members)
        size = -(-count // -(-count // self._backbone.most_rows)) if count else 0
        start = self._next if self._next < count else 0
        self._next = start + size
        return [(member, len(member.tokens)) for member in self.members[start : start + size]]

    def _shared(self, reading: list[Member], most: int) -> list[tuple[Member, int]]:
        """A pass of up to `most` rows: of who is behind first, then one each of the others in turn."""
        start = self._next if self._next < len(self.members) else 0
        others = [each for each in self.members[start:] + self.members[:start] if not each.is_reading]
        parts = []
        for member in [*reading, *others]:
            end = min(member.computed + most, len(member.tokens))
            if end > member.computed:
                parts.append((member, end))
                most -= end - member.computed
        self._next = (start + len(parts)) % max(len(self.members), 1)
        return sorted(parts, key=lambda part: part[0].sequence)

    def _close_gaps(self) -> None:
        """Let the sequences be 0, 1, 2, ... by moving the last ones into the gaps."""
        context = self._backbone.context
        gaps = [number for number in range(len(self.members)) if number not in self._numbers()]
        for gap in gaps:
            last = self.members.pop()
            context.copy(last.sequence, gap)
            context.remove(last.sequence, 0)
            last.sequence = gap
            self.members.insert(gap, last)

    def _numbers(self) -> set[int]:
        return {member.sequence for member in self.members}
