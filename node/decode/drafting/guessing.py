"""A session's guesser and the rule that says how far it goes."""

from __future__ import annotations

from dataclasses import dataclass

from node.decode.drafting.draft import Drafter
from node.decode.drafting.rule import Rule


@dataclass(frozen=True)
class Guessing:
    """Who guesses for a session, and when it pays. Each session has its own."""

    drafter: Drafter
    rule: Rule

    def close(self) -> None:
        self.drafter.close()
