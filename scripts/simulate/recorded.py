"""Recorded routing of a trained model: what tiny-qwen3moe-32e4 chose on text (scripts/record_routing). Reads
a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scripts.simulate.world import FloatArray, IntArray

FILE = Path(__file__).with_name("tiny-qwen3moe-32e4.routing.npz")
"""From 3,072 tokens each of calibration.txt (`learn`) and heldout_code.txt (`measure`) in shared/models:
CPython text, which the model was trained on (the first) or for the most part not (the second). Only expert
numbers are kept; and `bonds`, by which nodes make groups of experts: cosines between the router's rows
(market.affinity)."""


@dataclass(frozen=True)
class Recorded:
    """What was recorded.

    Attributes:
        learn, measure: [tokens, layers, used], choices.
        bonds: [layers, experts, experts].
    """

    learn: IntArray
    measure: IntArray
    bonds: FloatArray

    @classmethod
    def load(cls, path: Path = FILE) -> Recorded:
        with np.load(path, allow_pickle=False) as stored:
            choices = stored["learn"].astype(np.int64), stored["measure"].astype(np.int64)
            return cls(*choices, stored["bonds"].astype(np.float64))

    def popularity(self, experts: int) -> FloatArray:
        """[layers, experts]: how often each was chosen in the text to learn from."""
        layers = self.learn.shape[1]
        counts = [np.bincount(self.learn[:, layer].reshape(-1), minlength=experts) for layer in range(layers)]
        return np.stack(counts).astype(np.float64)

    def tokens(self, layer: int, count: int, period: int) -> IntArray:
        """[count, used]: tokens of the held-out text, other ones in each period."""
        start = period * count % max(1, len(self.measure) - count)
        return self.measure[start : start + count, layer]
