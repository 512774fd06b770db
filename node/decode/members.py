"""Members of a batch, and the passes they are in: what is planned, what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from node.decode.ledger import PassDone
from node.engine.library import EngineError
from node.engine.sampler import Sampler
from routing.errors import PanalError


class Member:
    """One sequence of a batch.

    Attributes:
        tokens: the prompt, and what was chosen after it; prompt: tokens of the prompt.
        most: tokens it may come to. The last one is never computed: the batch keeps room for one less.
        sequence: its number in the cache.
        computed: tokens whose keys and values are in the cache.
        cached: tokens of the prompt that were found there.
        begun: its prompt is being read, or is read.
        written: the batch's pass in which it wrote last; missed: how many it was not in, of those who write.
    """

    def __init__(
        self, number: int, sequence: int, tokens: Sequence[int], sampler: Sampler, most: int, user: str = ""
    ) -> None:
        self.number = number
        self.sequence = sequence
        self.tokens = list(tokens)
        self.prompt = len(self.tokens)
        self.most = most
        self.sampler = sampler
        self.user = user
        self.computed = 0
        self.cached = 0
        self.begun = False
        self.written = 0
        self.missed = 0

    @property
    def is_full(self) -> bool:
        """It may not become longer."""
        return len(self.tokens) >= self.most

    @property
    def is_reading(self) -> bool:
        """Its prompt is not computed yet."""
        return self.computed == 0 or len(self.tokens) - self.computed > 1


@dataclass(frozen=True)
class Part:
    """A member's part of a pass: its tokens up to here, from where it is computed."""

    member: Member
    end: int


@dataclass(frozen=True)
class Pass:
    """A pass to be made; parts by sequence, ascending."""

    parts: tuple[Part, ...]
    reads: bool


@dataclass(frozen=True)
class Choice:
    """A token that was chosen for a member, appended to it already; or why its sampler chose none."""

    member: Member
    token: int
    error: PanalError | None = None


@dataclass(frozen=True)
class Made:
    """A pass that was made.

    Attributes:
        rows: of each member that took part.
        done: as a whole.
    """

    choices: list[Choice]
    rows: list[tuple[Member, int]]
    done: PassDone


class CacheFull(EngineError):
    """The cache that all share has no room for the next pass.

    Attributes:
        member: the one that came last, which has to go.
    """

    def __init__(self, member: Member, members: int, cells: int, n_ctx: int) -> None:
        super().__init__(
            f"the cache of {n_ctx} tokens that all sessions share is full: {members} of them hold {cells}; "
            f"raise backbone.context, lower backbone.sessions, or set backbone.exact (a cache for each)"
        )
        self.member = member
