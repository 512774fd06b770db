"""Log probabilities of tokens, for those who ask an answer for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MOST_TOP = 20
"""Of the likeliest tokens: OpenAI's."""


@dataclass(frozen=True, slots=True)
class Logprob:
    """How likely the model found a token, before bias, penalties, temperature and grammar.

    Attributes:
        logprob: its natural logarithm; minus infinity where the model excludes it.
        top: the likeliest tokens with theirs, likeliest first; of equals, the smaller number first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def logprob_of(logits: npt.NDArray[np.float32], token: int, top: int) -> Logprob:
    """The log softmax of raw logits [n_vocab], in f64.

    Args:
        top: how many of the likeliest tokens too; at most MOST_TOP and the vocabulary.
    """
    top = min(top, MOST_TOP, len(logits))
    highest = float(logits.max())
    logsum = float(np.log(np.exp(logits.astype(np.float64) - highest).sum()))

    def of(each: int) -> float:
        return float(logits[each]) - highest - logsum

    likeliest: list[int] = []
    if top:
        least = np.partition(logits, -top)[-top]
        candidates = np.flatnonzero(logits >= least)
        order = np.argsort(-logits[candidates], kind="stable")  # stable: of equals, the smaller number
        likeliest = candidates[order][:top].tolist()
    return Logprob(token, of(token), tuple((each, of(each)) for each in likeliest))
