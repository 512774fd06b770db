"""What a sequence's cache holds, and how much of it a new prompt may take instead of computing it. Pure.

A prompt is read in chunks of `grid` tokens, each a pass, counted from its beginning. A row's last bits depend
on the pass it is computed in: from 64 rows on llama.cpp's attention goes another way, and K-quants do from
eight rows of the same expert on (measured: every row of a pass of 63 differs from one of 64; Q4_K_M in
chunks of 256 differs from 512 wherever seven and eight rows of an expert fall together). So, exactly:

1. Whole chunks from the beginning on are what any prompt with the same tokens would compute: they may be
   taken by everybody. The piece after the last whole one is computed anew, by all its tokens.
2. A prompt that goes on after an answer found here (one token of it at least) is a further turn. It gets
   what llama.cpp has that keeps its cache for the next turn: the rows of the answer as they were decoded,
   and after them chunks counted from there. That is what "equal to plain decoding" means for it
   (`Session` with more tokens appended); computed from nothing its last bits could be others.
3. Only whole passes are taken: in a pass each row may depend on how many others there were.

Where bits may differ, all that is common is taken. Models that cannot rewind keep a state of the very end:
it is taken as a whole, or not at all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from node.decode.drafting.shared_prefix import shared_prefix

COPY_PART = 32
"""A copy moves a whole cache, computed or not. It is worth that from this part of its tokens on: moving
costs a token some 0.1 MB (30B), computing it reads and writes several times as much and takes a trip."""


@dataclass
class Past:
    """A sequence as it lies in a cache.

    Attributes:
        tokens: those whose keys and values are there.
        ends: where passes ended, ascending; the last one is the number of tokens.
        aligned: tokens read in whole chunks from the beginning on.
        answer: where the first answer begins, if one was written.
        cells: of a cache that sequences share: which cell each token has; sequences may have cells in common.
    """

    tokens: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    aligned: int = 0
    answer: int | None = None
    cells: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)

    def read(self, tokens: Sequence[int], grid: int) -> None:
        """A pass over these, a piece of a prompt."""
        if len(self.tokens) == self.aligned and len(tokens) == grid:
            self.aligned += grid
        self.tokens += tokens
        self.ends.append(len(self.tokens))

    def wrote(self, tokens: Sequence[int]) -> None:
        """Passes of one row each, or one with guesses, which gives the same."""
        if self.answer is None:
            self.answer = len(self.tokens)
        for token in tokens:
            self.tokens.append(token)
            self.ends.append(len(self.tokens))

    def cut(self, length: int, grid: int) -> None:
        """What comes after so many tokens has left the cache."""
        if length >= len(self.tokens):
            return
        del self.tokens[length:], self.cells[length:]
        del self.ends[bisect_right(self.ends, length) :]
        if length and (not self.ends or self.ends[-1] != length):
            self.ends.append(length)
        self.aligned = min(self.aligned, length // grid * grid)
        if self.answer is not None and self.answer >= length:
            self.answer = None

    def copy(self) -> Past:
        return Past(self.tokens[:], self.ends[:], self.aligned, self.answer, self.cells[:])


@dataclass(frozen=True)
class Reuse:
    """How much of a cache a prompt may take.

    Attributes:
        grid: tokens of a chunk.
        exact: keep to rules 1 to 3.
        can_rewind: positions can be taken back.
    """

    grid: int
    exact: bool
    can_rewind: bool

    def of(self, past: Past, prompt: Sequence[int]) -> int:
        """Tokens of a prompt that need not be computed; at least one is, for its output."""
        most = min(shared_prefix(past.tokens, prompt), len(prompt) - 1)
        if not self.can_rewind:
            if most < len(past):
                return 0
            return most if not self.exact or most == past.aligned or _goes_on(past, most) else 0
        if not self.exact:
            return most
        whole = min(most, past.aligned) // self.grid * self.grid
        if not _goes_on(past, most):
            return whole
        last = bisect_right(past.ends, most)
        return max(whole, past.ends[last - 1] if last else 0)

    def promised(self, other: Sequence[int], prompt: Sequence[int]) -> int:
        """Tokens of a prompt that it may take from another one once that is read."""
        common = shared_prefix(other, prompt)
        if common == len(prompt) == len(other):
            return common  # the output, too
        if not self.can_rewind:
            return 0
        most = min(common, len(prompt) - 1)
        return most // self.grid * self.grid if self.exact else most


def _goes_on(past: Past, most: int) -> bool:
    return past.answer is not None and most > past.answer


@dataclass(frozen=True)
class Seat:
    """Where a new sequence goes.

    Attributes:
        slot: the sequence it becomes.
        source: the sequence whose cache is copied there; None: what the slot holds is what it takes.
        kept: tokens it takes.
    """

    slot: int
    source: int | None
    kept: int


def choose_seat(
    prompt: Sequence[int], pasts: Sequence[Past], free: Sequence[int], rule: Reuse, copy_least: int
) -> Seat:
    """The free slot for a prompt, and whose cache it takes how much of.

    Its own old slot if most of what that holds is common; else a copy, so that what others may come back to
    stays; the slot that is given up is the one not used for longest.

    Args:
        pasts: of all sequences, those under way included.
        free: slots nobody uses, in the order in which they are to be given up; at least one.
        copy_least: tokens from which on a copy is worth it.
    """
    kept = [rule.of(past, prompt) for past in pasts]
    best = max(free, key=lambda slot: kept[slot])
    victim = free[0]
    if kept[best] and (best == victim or 2 * kept[best] >= len(pasts[best])):
        own = Seat(best, None, kept[best])
    else:
        own = Seat(victim, None, kept[victim])
    source = max(range(len(pasts)), key=lambda slot: kept[slot])
    if kept[source] - own.kept >= copy_least and source != victim:
        return Seat(victim, source, kept[source])
    return own
