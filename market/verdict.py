"""Do two answers to one request say the same? Pure.

One build class: the same bytes, or the limits below at once. Different kinds of CPU add in another order;
rarely one of the values that the kernels round to 8 bits lands on the other side, and then a single row is
further off. So two limits, both on each row's cosine and on its length:

FAR  one row is so far off that no kind of CPU explains it: a proof by itself.
OFF  the middle one of the rows is off. No proof alone (market.audit counts): a call may have but one row.

Measured: experts of four trained small models (two of them, each as Q4_K_M and Q8_0) on hidden states of real
text, weighted rows, the pinned build (AVX2) against ggml 0.25.3 built for SSE4.2 (432,000 rows) and for
AVX-512 (19,200, nearly all equal); the figures are of 1 - cosine, and in brackets of |length ratio - 1|:

    another kind of CPU, f32 or f16 wire   99.9 % below 1e-7 (2e-4), the worst 2.3e-5 (2.7e-3)
    another kind of CPU, int8 wire         99.9 % below 3e-6 (2e-4), the worst 4.8e-5 (3.5e-3)
    scaled by 1.01                         0 (1.0e-2), within 5e-4 on any wire
    Q6_K in place of Q8_0                  median 3e-5 to 2e-4
    Q4_K in place of Q8_0                  median 1.4e-3 to 1.8e-3, the least 2.7e-4
    the answer to another row              median 0.9

`scripts/measure_verdicts` measures it. What the pinned build alone can show (its repacked kernels, a lower
precision) is in tests/integration/test_audit_kernels.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import numpy.typing as npt

from routing.wire.codecs import Codec, Float32Array

FAR_COSINE = 5e-4
FAR_LENGTH = 0.025
"""Limits of one row: ten and seven times the worst that another kind of CPU was seen to give, on any wire.
(The tail falls about as 1/x: past 1e-7 lies 1 row in 1,000, past 1e-5 1 in 50,000; past this, were it to go
on so, 1 in 2 million.)"""

OFF_COSINE = 1e-5
OFF_COSINE_INT8 = 3e-5
"""Limits of the middle row: 1 row in 40,000 of another kind of CPU is beyond them. int8 rounds each answer
once more, so that small differences become larger ones."""

OFF_LENGTH = 6e-3
"""The same of its length: between 1.01 on any wire and the worst row of another kind of CPU, no row of which
was beyond it."""

SEVERAL = 3
"""Rows that are off where all should have the same bytes. Another kind of CPU, taken for this one, would have
as many in a call of 64 once in a thousand million, if rows go wrong each by itself."""

QUANTUM = {Codec.F32: 1e-30, Codec.F16: 2.0**-24, Codec.INT8: 127 * 2.0**-24}
"""The smallest steps of the wire formats (int8's by its smallest scale): rows that differ by no more are
equal."""


class Verdict(Enum):
    """How two answers stand to each other."""

    SAME = auto()
    """The same, as far as can be told."""
    OFF = auto()
    """Somewhat off throughout, or in several rows that should be equal: no proof alone."""
    FAR = auto()
    """One of them is false."""


@dataclass(frozen=True)
class Comparison:
    """Two answers compared.

    Attributes:
        equal: byte for byte.
        cosine: the largest 1 - cosine of a row; length: the largest |length ratio - 1|.
    """

    verdict: Verdict
    equal: bool
    cosine: float
    length: float


def compare(one: Float32Array, other: Float32Array, codec: Codec, *, same_bytes: bool) -> Comparison:
    """Compare answers [vectors, n_out] as they came off the wire.

    Args:
        codec: how both travelled, or were rounded to as if they had.
        same_bytes: they should be equal: of one build class, and no expert's rows were asked for in parts.
    """
    if one.shape != other.shape:
        return Comparison(Verdict.FAR, False, 2.0, float("inf"))
    if np.array_equal(one.view(np.uint32), other.view(np.uint32)):
        return Comparison(Verdict.SAME, True, 0.0, 0.0)
    cosine, length = distances(one, other, codec)
    worst = float(cosine.max()), float(length.max())
    limit = OFF_COSINE_INT8 if codec is Codec.INT8 else OFF_COSINE
    if worst[0] > FAR_COSINE or worst[1] > FAR_LENGTH:
        verdict = Verdict.FAR
    elif np.median(cosine) > limit or np.median(length) > OFF_LENGTH:
        verdict = Verdict.FAR if same_bytes else Verdict.OFF
    elif same_bytes and np.count_nonzero((cosine > limit) | (length > OFF_LENGTH)) >= SEVERAL:
        verdict = Verdict.OFF  # some of its cells in a lower precision: honest rows would be equal
    else:
        verdict = Verdict.SAME
    return Comparison(verdict, False, *worst)


def distances(
    one: Float32Array, other: Float32Array, codec: Codec
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """1 - cosine and |length ratio - 1| of each row. A row of zeros where the other has none is at 1."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    of_a, of_b = np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)
    alike = np.abs(a - b).max(axis=1) <= QUANTUM[codec]
    empty = (of_a == 0) | (of_b == 0)
    of_a[empty], of_b[empty] = 1.0, 1.0
    # By the difference of the directions: 1 - a.b would be lost in rounding.
    cosine = 0.5 * np.square(a / of_a[:, None] - b / of_b[:, None]).sum(axis=1)
    length = np.abs(of_b / of_a - 1.0)
    cosine[empty], length[empty] = 1.0, 1.0
    cosine[alike], length[alike] = 0.0, 0.0
    return cosine, length
