"""Self-drafting: the backbone guesses with the experts at home alone, which costs no trip.

What is missing is left out and the router's weights stay as they are: renormalising was worse, choosing among
the experts at home no better (design/round-trips.md). The rows are those of the session's own sequence and
leave the cache before anything is verified.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence

import numpy as np

from node.decode.backbone import Backbone
from node.decode.drafting.draft import Draft
from node.engine.context import Row
from node.engine.sampler import Sampler


class SelfDraft:
    """A `Drafter` on a backbone's own context.

    Args:
        missing: shares of the router's weight that the last guessing pass left out, one a call; forgotten
            once told.
        sequence: the session's, or a function that names it at each pass.
    """

    name = "self"

    def __init__(
        self, backbone: Backbone, missing: Callable[[], list[float]], sequence: int | Callable[[], int] = 0
    ) -> None:
        self._backbone = backbone
        self._missing = missing
        self._sequence = sequence

    def drafts(self, tokens: Sequence[int], sampler: Sampler, limit: int) -> Generator[Draft, None, None]:
        context = self._backbone.context
        token, start = tokens[-1], len(tokens) - 1
        sequence = self._sequence if isinstance(self._sequence, int) else self._sequence()
        twin = sampler.clone()
        try:
            for position in range(start, start + limit):
                begun = time.perf_counter()
                self._backbone.compute([Row(token, position, sequence)], at_home_only=True)
                missing = self._missing()
                token = twin.sample(context, 0)
                probability = probability_of(token, context.outputs([0])[0], sampler.temperature)
                yield Draft(
                    token,
                    probability,
                    missing_mean=sum(missing) / len(missing) if missing else 0.0,
                    missing_max=max(missing, default=0.0),
                    source=self.name,
                    seconds=time.perf_counter() - begun,
                )
        finally:
            twin.close()
            context.remove(sequence, start)

    def close(self) -> None:
        """Nothing to free: the context is the backbone's."""


def probability_of(
    token: int, logits: np.ndarray[tuple[int, ...], np.dtype[np.float32]], temperature: float
) -> float:
    """How likely a token is by these logits [n_vocab], at a temperature (greedy: at 1)."""
    scaled = logits / (temperature or 1.0)
    scaled -= scaled.max()
    odds = np.exp(scaled)
    return float(odds[token] / odds.sum())
