"""Prompt look-up: what followed the last few tokens when they stood in the text before. Pure.

1. The longest n-gram that occurred before wins, of equally long ones the latest occurrence (LENGTHS).
2. The copy may run into what it has just copied: a text that repeats itself is guessed to go on so.
3. How likely a guess is, is experience: how often guesses as far into a copy, after as long a match, were
   right when all before them were. It is judged by the text when the next guesses are asked for.
4. The index holds for each n-gram its latest place, and for each place the one before, so that tokens can
   be taken back: a step for each token that comes or goes.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from node.decode.drafting.draft import Draft
from node.decode.drafting.shared_prefix import shared_prefix
from node.engine.sampler import Sampler

LENGTHS = (3, 2)
"""Tokens of an n-gram, longest first. Longer ones are found by their end; single tokens are rarely right."""

LONGEST_MATCH = 16
"""Tokens back to which a match is measured: beyond, it says no more about the guesses."""

MATCH_CLASSES = (3, 4, 6, 10, LONGEST_MATCH)
"""Bounds of the lengths of matches that are judged together."""

DEPTHS = 4
"""Guesses of a copy that are judged apart; those further on count like the last of them."""

PRIOR_RIGHT = (0.45, 0.5, 0.6, 0.65, 0.7, 0.9)
"""Share of right guesses by class of match before there is experience: about what real code gave."""

PRIOR_DEPTH = 0.08
"""What is added to it for each guess of the copy that was right already: what holds goes on holding."""

PRIOR_WEIGHT = 8.0
"""Guesses that this is worth."""

MEMORY = 0.98
"""What experience keeps of its weight at each further guess of its kind: the last fifty count."""


@dataclass
class _Experience:
    right: float
    weight: float = PRIOR_WEIGHT

    def add(self, right: bool) -> None:
        self.right = self.right * MEMORY + right
        self.weight = self.weight * MEMORY + 1

    @property
    def share(self) -> float:
        return self.right / self.weight


@dataclass
class _Index:
    """Where n-grams of one length were last followed by something."""

    length: int
    latest: dict[tuple[int, ...], int] = field(default_factory=dict)
    before: list[int] = field(default_factory=list)  # for each place the one before of its n-gram, or -1

    def append(self, tokens: list[int]) -> None:
        """The last of these tokens has just come: it follows an n-gram."""
        place = len(tokens) - 1
        if place < self.length:
            self.before.append(-1)
            return
        gram = tuple(tokens[place - self.length : place])
        self.before.append(self.latest.get(gram, -1))
        self.latest[gram] = place

    def pop(self, tokens: list[int]) -> None:
        """The last of these tokens is about to go."""
        place, before = len(tokens) - 1, self.before.pop()
        if place < self.length:
            return
        gram = tuple(tokens[place - self.length : place])
        if before < 0:
            del self.latest[gram]
        else:
            self.latest[gram] = before

    def find(self, tokens: list[int]) -> int:
        """The place after the latest occurrence of the n-gram at the end, or -1."""
        if len(tokens) < self.length:
            return -1
        return self.latest.get(tuple(tokens[len(tokens) - self.length :]), -1)


class NgramDrafter:
    """A `Drafter` by prompt look-up (Saxena 2023). Holds a copy of the sequence it guesses for."""

    name = "ngram"

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._indexes = [_Index(length) for length in LENGTHS]
        self._experience = [
            [_Experience(min(share + PRIOR_DEPTH * depth, 0.95) * PRIOR_WEIGHT) for depth in range(DEPTHS)]
            for share in PRIOR_RIGHT
        ]
        self._last: list[int] = []  # the guesses last made, for what came after `_last_start` tokens
        self._last_start = 0
        self._last_match = 0

    def drafts(self, tokens: Sequence[int], sampler: Sampler, limit: int) -> Generator[Draft, None, None]:
        """The continuation of the latest match, `limit` tokens of it; nothing where there is no match."""
        self._follow(tokens)
        place, match = self._find()
        if place < 0:
            return
        experience = self._experience[_class_of(match)]
        self._last_start, self._last_match = len(self._tokens), match
        for depth in range(limit):
            source = place + depth
            own = source - self._last_start
            token = self._last[own] if own >= 0 else self._tokens[source]
            self._last.append(token)
            yield Draft(token, experience[min(depth, DEPTHS - 1)].share, source=self.name)

    def close(self) -> None:
        """Nothing to free."""

    def _find(self) -> tuple[int, int]:
        """Where the copy begins, and how many tokens before it are those at the end; (-1, 0) for no match."""
        tokens = self._tokens
        for index in self._indexes:
            place = index.find(tokens)
            if place < 0:
                continue
            match, end = index.length, len(tokens)
            while match < min(place, LONGEST_MATCH) and tokens[place - match - 1] == tokens[end - match - 1]:
                match += 1
            return place, match
        return -1, 0

    def _follow(self, tokens: Sequence[int]) -> None:
        """Bring copy and index up to these tokens, and judge the last guesses by them."""
        common = shared_prefix(self._tokens, tokens)
        if common < self._last_start:
            self._last.clear()  # nobody will know whether they were right
        while len(self._tokens) > common:
            for index in self._indexes:
                index.pop(self._tokens)
            self._tokens.pop()
        for token in tokens[len(self._tokens) :]:
            self._tokens.append(token)
            for index in self._indexes:
                index.append(self._tokens)
        self._judge()

    def _judge(self) -> None:
        experience = self._experience[_class_of(self._last_match)]
        for depth, (guess, token) in enumerate(
            zip(self._last, self._tokens[self._last_start :], strict=False)
        ):
            experience[min(depth, DEPTHS - 1)].add(guess == token)
            if guess != token:
                break
        self._last.clear()


def _class_of(match: int) -> int:
    return sum(match >= bound for bound in MATCH_CLASSES)
