"""An ask on its way: what thread and event loop both know of it, and what passes between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from node.decode.continuous.ask import Ask, Chosen
from node.decode.continuous.report import AnswerReport
from node.decode.ledger import TripsLedger
from node.decode.members import Member
from node.engine.sampler import Sampler
from routing.errors import PanalError


@dataclass(frozen=True)
class Ended:
    """There will be no more tokens; with an error if that is why."""

    error: PanalError | None = None


@dataclass(eq=False)
class Asked:
    """All but `ask` and `tell` changes under the worker's lock.

    Attributes:
        tell: called on the event loop with what has become of it.
        sampler: made before it waits if that takes time (grammars), else when it gets its place.
        left: whoever asked does not listen any more.
        asked_at, begun_at, first_at, last_at: when it came, had a place, had its first token, its last.
    """

    ask: Ask
    tell: Callable[[Chosen | Ended], None]
    asked_at: float
    sampler: Sampler | None = None
    member: Member | None = None
    left: bool = False
    stopped: str = ""
    tokens: int = 0
    cached: int = 0
    begun_at: float | None = None
    first_at: float | None = None
    last_at: float | None = None
    ledger: TripsLedger = field(default_factory=TripsLedger)

    def took(self, now: float) -> None:
        """A token was chosen."""
        self.tokens += 1
        self.last_at = now
        if self.first_at is None:
            self.first_at = now

    def close(self) -> None:
        """Free the sampler."""
        if self.sampler is not None:
            self.sampler.close()
            self.sampler = None

    def report(self, now: float) -> AnswerReport:
        """What it took so far."""
        begun = now if self.begun_at is None else self.begun_at
        last = self.last_at or begun
        return AnswerReport(
            prompt_tokens=len(self.ask.tokens),
            cached_tokens=self.cached,
            tokens=self.tokens,
            stopped=self.stopped or ("closed" if self.left else ""),
            queued=begun - self.asked_at,
            prompt_seconds=(self.first_at or last) - begun,
            seconds=last - begun,
            trips=self.ledger.report(),
        )
