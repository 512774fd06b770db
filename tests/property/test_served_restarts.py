"""What a node has served fades alike whether its process was started anew meanwhile or not."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from node.market.served import Served
from node.market.served_memory import LEAST_PAIRS, ServedMemory
from node.market.served_rate import DAY, HALF_LIFE

MODEL = "ab" * 32
EXPERTS = 3

Step = tuple[str, float, list[int]]
Pairs = npt.NDArray[np.int64]


@dataclass
class Reference:
    """Every look that is remembered, and nothing thrown together: its time, pairs, and seconds."""

    looks: list[tuple[float, Pairs, float]] = field(default_factory=list)

    def faded(self, now: float) -> tuple[npt.NDArray[np.float64], float]:
        pairs, seconds = np.zeros(EXPERTS), 0.0
        for at, signed, passed in self.looks:
            kept = 0.5 ** ((now - at) / HALF_LIFE)
            pairs += signed * kept
            seconds += passed * kept
        return pairs, seconds


class Process:
    """A node that is started anew by and by; its clocks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.now = 0.0
        self.reference = Reference()
        self.kept: list[tuple[float, Pairs, float]] = []
        self.begin()

    def begin(self) -> None:
        self._sums: dict[tuple[str, int], Pairs] = {}
        self.served = Served(
            self,
            lambda: {MODEL},
            ServedMemory(self._path, "me"),
            clock=lambda: self.now % 1e6 + 7,  # not unix time
            wall=lambda: 1.8e9 + self.now,
        )
        if not self._is_worth(MODEL in self.served._rates):
            self.reference.looks.clear()

    def demand(self) -> dict[tuple[str, int], Pairs]:
        return self._sums

    def work(self, seconds: float, pairs: list[int]) -> None:
        self.now += seconds
        signed = np.array(pairs, np.int64)
        self._sums[MODEL, 0] = self._sums.get((MODEL, 0), np.zeros(EXPERTS, np.int64)) + signed
        self.reference.looks.append((self.now, signed, seconds))
        self.served.look()

    def keep(self) -> None:
        """As every two minutes; what is less than a pair is not written."""
        if self._is_worth(self.served._encoded() is not None):
            self.kept = list(self.reference.looks)
        self.served.close()

    def _is_worth(self, is_worth: bool) -> bool:
        """Whether there is anything to keep, as the node says it; the last bit of the least is its own."""
        pairs = self.reference.faded(self.now)[0].sum()
        assert pairs >= LEAST_PAIRS * 0.9999 if is_worth else pairs <= LEAST_PAIRS * 1.0001
        return is_worth

    def end(self, *, killed: bool, away: float) -> None:
        if not killed:
            self.keep()
        self.reference.looks = list(self.kept)
        self.now += away
        self.begin()


works: st.SearchStrategy[Step] = st.tuples(
    st.just("work"), st.floats(1.0, 20_000.0), st.lists(st.integers(0, 10**6), min_size=3, max_size=3)
)
keeps: st.SearchStrategy[Step] = st.tuples(st.just("keep"), st.just(0.0), st.just([]))
ends: st.SearchStrategy[Step] = st.tuples(
    st.sampled_from(["end", "kill"]), st.floats(0.0, 50_000.0), st.just([])
)


@given(st.lists(works | keeps | ends, max_size=12))
def test_it_fades_alike(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        process = Process(Path(folder) / "served.bin")
        for what, seconds, pairs in steps:
            if what == "work":
                process.work(seconds, pairs)
            elif what == "keep":
                process.keep()
            else:
                process.end(killed=what == "kill", away=seconds)
            expected, sold = process.reference.faded(process.now)
            rates = process.served.a_day(MODEL)
            found = rates.get(0, np.zeros(EXPERTS))
            if process.reference.looks:
                expected *= DAY / sold
            np.testing.assert_allclose(found, expected, rtol=1e-5)
