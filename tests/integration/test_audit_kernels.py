"""The limits of verdicts by real kernels: honest ones of other code stay below, lower precision and scaling
do not.

Hidden states are those of the trained demo model on text. `Repacked` is the wheel's second set of kernels for
its Q4_K experts. What other CPUs were measured to give stands in market/verdict.py.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from market.audit import Audits, Outcome, Sample, Word
from market.reputation import Reputation
from market.samples import cut
from market.verdict import FAR_COSINE, OFF_COSINE, OFF_LENGTH, Verdict, compare
from node.engine.expert_holes import ExpertInputs
from node.engine.tokenizer import Tokenizer
from node.market.home_audit import HomeAudit
from node.model.held import HeldExperts
from node.serve.cells import Cells
from routing.dispatch.combine import sum_pairs, sum_runs
from routing.dispatch.holders import HOME
from routing.wire.codecs import Codec, Float32Array, decode, encode
from routing.wire.experts import Combine, ExpertsRequest
from tests.model_parts import ModelParts, WatchedPort, rows
from tests.other_kernels import Repacked, requantised
from tests.served import cells_of, run

Parts = Callable[..., ModelParts]

ROWS = 160
UBATCH = 20  # so that some experts get more rows in a call than K-quants compute one by one
TEXT = (
    "Whoever reads this sentence has read the longest one that this small model was ever asked to continue. "
)


@dataclass
class Captured:
    """Calls of a model on text, with its kernels of two kinds."""

    model: ModelParts
    calls: list[ExpertInputs]
    repacked: dict[int, Repacked]

    def held(self, call: ExpertInputs) -> HeldExperts:
        return self.model.held[call.call.layer, call.call.group]

    def ours(self, call: ExpertInputs, held: HeldExperts | None = None) -> Float32Array:
        return self.model.kernels.run(held or self.held(call), *_arguments(call))

    def others(self, call: ExpertInputs) -> Float32Array:
        return self.repacked[call.call.layer].run(*_arguments(call))


@pytest.fixture(scope="module")
def captured(parts: Parts) -> Iterator[Captured]:
    model = parts("demo")
    port = WatchedPort(model.local())
    with model.backbone(port, n_ctx=ROWS + UBATCH, n_ubatch=UBATCH) as backbone:
        tokens = (Tokenizer(backbone.model).encode(TEXT) * 20)[:ROWS]
        for start in range(0, ROWS, UBATCH):
            backbone.compute(rows(tokens[start : start + UBATCH], start))
    repacked = {layer: Repacked(model.library, held) for (layer, _), held in model.held.items()}
    yield Captured(model, port.calls, repacked)
    for each in repacked.values():
        each.close()


Arguments = tuple[Float32Array, npt.NDArray[np.uint16], npt.NDArray[np.uint16], Float32Array]


def _arguments(call: ExpertInputs) -> Arguments:
    n_rows, n_used = call.ids.shape
    assert call.weights is not None
    return (
        np.ascontiguousarray(call.x, np.float32),
        np.full(n_rows, n_used, np.uint16),
        call.ids.reshape(-1).astype(np.uint16),
        call.weights.reshape(-1),
    )


def sent(codec: Codec, y: Float32Array) -> Float32Array:
    return decode(codec, encode(codec, y), *y.shape)


def each_row(y: Float32Array) -> Iterator[slice]:
    """As if every row was a call of its own: the least there is to decide by."""
    return (slice(number, number + 1) for number in range(len(y)))


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("summed", [False, True])
def test_other_honest_kernels_are_the_same(captured: Captured, codec: Codec, summed: bool) -> None:
    """Of some 1,200 rows, each a call of its own, and of whole calls: none is off."""
    found: Counter[Verdict] = Counter()
    equal = total = 0
    for call in captured.calls:
        ours, others = captured.ours(call), captured.others(call)
        if summed:
            counts = np.full(len(call.ids), call.ids.shape[1], np.uint16)
            ours, others = sum_pairs(ours, counts), sum_pairs(others, counts)
        ours, others = sent(codec, ours), sent(codec, others)
        for part in [slice(None), *each_row(ours)]:
            seen = compare(ours[part], others[part], codec, same_bytes=False)
            found[seen.verdict] += 1
            equal += seen.equal
            total += 1
    assert found == {Verdict.SAME: total} and total > 600
    assert codec is not Codec.F32 or equal < total / 2, "these are other kernels"


@pytest.fixture(scope="module")
def lower(captured: Captured) -> dict[tuple[int, str], HeldExperts]:
    """Q3_K in place of Q4_K and Q6_K."""
    model = captured.model
    return {key: requantised(model.library, held, "Q3_K") for key, held in model.held.items()}


@pytest.mark.parametrize("codec", Codec)
def test_a_lower_precision_is_told_from_them(
    captured: Captured, lower: dict[tuple[int, str], HeldExperts], codec: Codec
) -> None:
    """Every row is off, and most are a proof by themselves."""
    found: Counter[Verdict] = Counter()
    for call in captured.calls:
        ours = sent(codec, captured.others(call))
        theirs = sent(codec, captured.ours(call, lower[call.call.layer, call.call.group]))
        for part in each_row(ours):
            seen = compare(theirs[part], ours[part], codec, same_bytes=False)
            found[seen.verdict] += 1
            assert seen.cosine > 3 * OFF_COSINE
    assert found[Verdict.FAR] > 0.9 * found.total() and not found[Verdict.SAME]


@pytest.mark.parametrize("codec", Codec)
def test_a_hundredth_more_is_told_from_them(captured: Captured, codec: Codec) -> None:
    for call in captured.calls:
        ours = sent(codec, captured.others(call))
        theirs = sent(codec, captured.ours(call) * np.float32(1.01))
        for part in each_row(ours):
            seen = compare(theirs[part], ours[part], codec, same_bytes=False)
            assert seen.verdict is Verdict.OFF
            assert OFF_LENGTH < seen.length < 0.012 and seen.cosine < FAR_COSINE / 5


def request_of(captured: Captured, call: ExpertInputs, combine: Combine, codec: Codec) -> ExpertsRequest:
    x, counts, experts, weights = _arguments(call)
    run_length = call.call.run_length if combine is Combine.STABLE else 0
    return ExpertsRequest(
        bytes.fromhex(captured.model.stored.model_id), call.call.layer, call.call.index, 1, x, counts,
        experts, weights, call.call.n_out, codec, codec, combine, 1000, run_length,
    )  # fmt: skip


@pytest.mark.parametrize("combine", Combine)
@pytest.mark.parametrize("codec", Codec)
def test_home_gives_the_bytes_of_a_server_of_its_class(
    captured: Captured, combine: Combine, codec: Codec
) -> None:
    """Also of a part of the call's experts, from the file and from cells; by rows, it is the same."""
    model = captured.model
    halves = cells_of(model, [range(5), range(5, 12)])

    async def main() -> None:
        with (
            HomeAudit(model.library, model.stored, Cells) as whole,
            HomeAudit(model.library, model.stored, lambda: halves) as parts,
        ):
            parts._files = Cells()  # as if the model's file was not here
            for call in captured.calls[:12]:
                request = request_of(captured, call, combine, codec)
                y = captured.ours(call) if codec is Codec.F32 else None
                if y is None:
                    held = captured.held(call)
                    x = sent(codec, request.x)
                    y = model.kernels.run(held, x, request.counts, request.experts, request.weights)
                if combine is Combine.SUM:
                    y = sum_pairs(y, request.counts)
                elif combine is Combine.STABLE:
                    y = sum_runs(y, request.counts, request.experts, request.run_length)
                sample = Sample(request, Word("peer", whole.build, sent(codec, y)), 0.0)
                for part in (sample, cut(sample, random.Random(3).shuffle, most=12)):
                    assert part is not None and (part is sample or part.request.pairs <= 12)
                    for home in (whole, parts):
                        assert not part.experts & ~home.held(part.request)
                        seen = compare(
                            part.word.y, await home.compute(part.request), codec, same_bytes=part.whole
                        )
                        assert seen.verdict is Verdict.SAME
                        assert seen.equal or not part.whole

    run(main, seconds=120)


def test_an_honest_server_of_other_kernels_in_2000_audits(captured: Captured) -> None:
    """Nothing stands against it, at home or by peers; each row is a call of its own."""
    rng = random.Random(5)
    audits = Audits(0.05, Reputation())
    pairs = [(captured.ours(call), captured.others(call), call) for call in captured.calls]
    for _ in range(2_000):
        ours, others, call = pairs[rng.randrange(len(pairs))]
        row = rng.randrange(len(ours))
        codec = rng.choice(list(Codec))
        request = request_of(captured, call, Combine.ROWS, codec)
        word = Word("honest", "other", sent(codec, others[row : row + 1]))
        ruling = audits.check(
            Sample(request, word, 0.0), Word(HOME, "ours", sent(codec, ours[row : row + 1]))
        )
        assert ruling.outcome is Outcome.AGREED
    assert not audits.suspected("honest")
