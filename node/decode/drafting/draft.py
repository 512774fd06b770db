"""What all who guess have in common. Guesses cost no trip and bind nobody: a pass over all experts decides
(node.decode.session), so that what comes out is the same as without them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from node.engine.sampler import Sampler


@dataclass(frozen=True, slots=True)
class Draft:
    """One guessed token.

    Attributes:
        probability: that the guesser's own distribution gives it, 0 to 1; look-up tables give their
            experience.
        missing_mean, missing_max: share of the router's weight whose experts were not at home, mean and worst
            over the layers; 0 where nothing was left out.
        source: name of who guessed it.
        seconds: what it took.
    """

    token: int
    probability: float
    missing_mean: float = 0.0
    missing_max: float = 0.0
    source: str = ""
    seconds: float = 0.0


class Drafter(Protocol):
    """Somebody who guesses."""

    @property
    def name(self) -> str:
        """As config and ledger say it: "self", "ngram", "model"."""

    def drafts(self, tokens: Sequence[int], sampler: Sampler, limit: int) -> Generator[Draft, None, None]:
        """Guesses for what follows `tokens`, each made when it is asked for.

        Closing the iterator takes back whatever guessing left behind (rows in a KV cache). A guesser that
        draws should draw as the session will: with a clone of its sampler, whose next draws are the same.

        Args:
            tokens: all tokens of the sequence; the last one is not in any cache yet.
            sampler: the session's; it is not changed.
            limit: guesses at most.
        """

    def close(self) -> None:
        """Free what it holds."""
