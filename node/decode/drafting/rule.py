"""What a session asks whoever decides how far to guess, and what it tells them afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from node.decode.drafting.draft import Draft


@dataclass(frozen=True, slots=True)
class PassOutcome:
    """A pass over the last known token and the guesses after it.

    Attributes:
        made: guesses made; the first `kept` of them were verified, the first `accepted` of those were right.
        draft_seconds: spent on making them; pass_seconds: the pass itself, waiting included.
        waited, trips: seconds waited in it for experts elsewhere, and how often.
    """

    made: tuple[Draft, ...]
    kept: int
    accepted: int
    draft_seconds: float
    pass_seconds: float
    waited: float
    trips: int

    @property
    def rows(self) -> int:
        """Tokens computed, the last known one included."""
        return 1 + self.kept


class Rule(Protocol):
    """Decides how far a session guesses; each session has its own."""

    def begin(self) -> bool:
        """Whether to guess at all before the next pass."""

    def wants(self, drafts: Sequence[Draft]) -> bool:
        """Whether to make one more guess after these."""

    def keep(self, drafts: Sequence[Draft]) -> int:
        """How many of these guesses are worth their rows in the pass."""

    def learn(self, outcome: PassOutcome) -> None:
        """What came of a pass, whether or not there were guesses."""


class AlwaysRule:
    """As many guesses as are asked for, each time: for tests and comparisons.

    Args:
        count: guesses of a pass; 0 for none.
    """

    def __init__(self, count: int) -> None:
        self._count = count

    def begin(self) -> bool:
        return self._count > 0

    def wants(self, drafts: Sequence[Draft]) -> bool:
        return len(drafts) < self._count

    def keep(self, drafts: Sequence[Draft]) -> int:
        return min(len(drafts), self._count)

    def learn(self, outcome: PassOutcome) -> None:
        """It knows already."""
