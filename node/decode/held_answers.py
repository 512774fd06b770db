"""Answers of a batch that are finished: each is shown once those before it are, and it is known to be right.
Pure; times are of `time.perf_counter`.

1. An answer waits until its calls that are run again have been, or HOLD_SECONDS.
2. If a peer that it rests on is found out meanwhile it is given up, and nobody has seen it.
3. What was shown cannot be taken back: it is told what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from node.decode.batch_report import BatchAnswer
from node.decode.convictions import Conviction, Convictions

HOLD_SECONDS = 10.0
"""As long as a single answer is held back for its audits (node.market.auditor). Lanes go on meanwhile."""

MOST_SHOWN = 4_096
"""Shown answers of which it is remembered on whom they rest, the last ones: who is found out is so within
some hundred calls."""


@dataclass(frozen=True)
class _Finished:
    answer: BatchAnswer
    used: Mapping[str, float]
    at: float


class HeldAnswers:
    """Of one batch.

    Args:
        convictions: who was found out.
        hold: seconds that an answer waits at most; 0 where nothing is run again.
        on_answer: told of each, in the prompts' order.
        on_spoiled: told of those that were shown before it was known, by number.
    """

    def __init__(
        self,
        convictions: Convictions,
        hold: float,
        *,
        on_answer: Callable[[BatchAnswer], None],
        on_spoiled: Callable[[int, Conviction], None],
    ) -> None:
        self._convictions = convictions
        self._hold = hold
        self._on_answer = on_answer
        self._on_spoiled = on_spoiled
        self._waiting: dict[int, _Finished] = {}
        self._shown: dict[int, Mapping[str, float]] = {}  # with whom they rest on
        self._number = 0
        self._seen = convictions.count
        self.failed: set[int] = set()

    @property
    def count(self) -> int:
        """Answers that are finished, shown or not."""
        return self._number + len(self._waiting)

    @property
    def left(self) -> int:
        """Answers that are finished and not shown."""
        return len(self._waiting)

    def add(self, answer: BatchAnswer, used: Mapping[str, float], now: float) -> None:
        """One is finished.

        Args:
            used: peers that it rests on, and when each was asked last.
        """
        self._waiting[answer.prompt] = _Finished(answer, used, now)
        if answer.error:
            self.failed.add(answer.prompt)

    def spoiled(self) -> list[tuple[BatchAnswer, Conviction]]:
        """Those that rest on who was found out since the last time; they are given up, and not shown."""
        if self._seen == self._convictions.count:
            return []
        self._seen = self._convictions.count
        for number, used in list(self._shown.items()):
            if (spoiling := self._convictions.against(used)) is not None:
                del self._shown[number]
                self.failed.add(number)
                self._on_spoiled(number, spoiling)
        found = []
        for number, finished in list(self._waiting.items()):
            if (spoiling := self._convictions.against(finished.used)) is not None:
                del self._waiting[number]
                found.append((finished.answer, spoiling))
        return found

    def peers(self) -> set[str]:
        """On whom those rest that are not shown."""
        return {peer for finished in self._waiting.values() for peer in finished.used}

    def show(self, now: float, *, checked: bool = False) -> None:
        """Show what has waited long enough, in order; after `spoiled`.

        Args:
            checked: nothing more is run again.

        It may end before one that `spoiled` tells of next.
        """
        while (finished := self._waiting.get(self._number + 1)) is not None:
            if finished.used and not checked and now - finished.at < self._hold:
                return
            if self._convictions.against(finished.used) is not None:
                return  # while those before it were shown
            self._number += 1
            del self._waiting[self._number]
            if finished.used:
                self._shown[self._number] = finished.used
                if len(self._shown) > MOST_SHOWN:
                    del self._shown[min(self._shown)]
            self._on_answer(finished.answer)
