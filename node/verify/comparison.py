"""Does a swarm compute what one machine would? Passes over it against plain llama.cpp on the whole file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from node.decode.ledger import PassDone, TripsReport
from node.decode.live_backbone import LiveBackbone
from node.engine.context import Context, Row
from node.engine.expert_holes import ExpertInputs, ExpertPort
from node.engine.gate import routed_output
from node.engine.kernels import Kernels
from node.engine.library import Library
from node.engine.llama_model import LlamaModel
from node.engine.tokenizer import Tokenizer
from node.model.gguf.map import MappedModel
from node.model.held import HeldExperts, hold
from node.model.manifest import Manifest
from node.verify.passages import PASSAGES
from routing.wire.codecs import Codec, Float32Array
from routing.wire.experts import Combine

SEED = 4190
"""Of the token ids for models without a tokenizer."""

PASSES = 16
"""Passes of each batch size, one after the other in one sequence: later ones read a filled cache."""

ROWS = 512
"""Rows of a batch size at most, or one pass where a single one has more."""


@dataclass(frozen=True)
class Bounds:
    """What passes where bytes need not be equal.

    The cosine is the mean over rows. The worst row is reported, but does not decide: a router's choice is a
    threshold, so any rounding at all, f16's too, now and then tips a near-tie and moves one row a long way.
    """

    cosine: float = 0.998
    argmax: float = 0.98


class Verdict(msgspec.Struct, frozen=True):
    """The outcome, as `--json` prints it.

    Attributes:
        byte_identical: every compared value has the same bytes.
        cosine_min, cosine_mean: over compared rows of logits (encoders: vectors).
        argmax_agreement: share of rows with the same largest value.
        worst_layer: the layer whose routed output deviates most from a local computation on the same input;
            None if nothing deviates.
        trips, bytes_out, bytes_back: of the swarm's passes.
        passed: what the mode promises holds; reason: what does not, or what was shown.
        routes: how each server was reached in the end.
        rows: how many were compared.
        gate: what was recorded for `wire = "auto"`, in words; "" for f32.
    """

    model_id: str
    architecture: str
    servers: int
    combine: str
    wire: str
    byte_identical: bool
    cosine_min: float
    cosine_mean: float
    argmax_agreement: float
    worst_layer: int | None
    trips: int
    bytes_out: int
    bytes_back: int
    passed: bool
    reason: str
    routes: list[dict[str, object]] = []
    rows: int = 0
    gate: str = ""


@dataclass(frozen=True)
class Comparison:
    """All rows of a verification, from both sides, [n_rows, width]."""

    expected: Float32Array
    found: Float32Array

    @property
    def identical(self) -> bool:
        return self.expected.tobytes() == self.found.tobytes()

    def cosines(self) -> npt.NDArray[np.float64]:
        a, b = self.expected.astype(np.float64), self.found.astype(np.float64)
        norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        dots = np.einsum("ij,ij->i", a, b)
        # Two zero rows are the same; NaN anywhere is the worst there is.
        cosines: npt.NDArray[np.float64] = np.where(
            norms > 0, dots / np.where(norms > 0, norms, 1), (a == b).all(axis=1)
        )
        cosines[np.isnan(cosines) | np.isnan(dots)] = -1.0
        return cosines

    def argmax_agreement(self) -> float:
        return float((self.expected.argmax(axis=1) == self.found.argmax(axis=1)).mean())


def plan_batches(batches: Sequence[int]) -> list[list[int]]:
    """Sizes of the passes of each batch size; each list is one sequence."""
    return [[size] * max(1, min(PASSES, ROWS // size)) for size in batches]


def tokens_for(model: LlamaModel, planned: Sequence[Sequence[int]]) -> list[list[int]]:
    """Token ids of each sequence: real text where there is a tokenizer, seeded ids where there is none."""
    counts = [sum(sizes) for sizes in planned]
    if not model.has_vocab:
        rng = np.random.default_rng(SEED)
        return [[int(token) for token in rng.integers(0, model.n_vocab, count)] for count in counts]
    tokenizer = Tokenizer(model)
    passages = [tokenizer.encode(passage) for passage in PASSAGES]
    sequences = []
    for number, count in enumerate(counts):
        # Each sequence begins with another passage: the same tokens would only count the same rows again.
        text = [token for k in range(len(passages)) for token in passages[(number + k) % len(passages)]]
        sequences.append([text[i % len(text)] for i in range(count)])
    return sequences


def run_passes(
    compute: Callable[[list[Row]], Float32Array],
    clear: Callable[[], None],
    tokens: Sequence[Sequence[int]],
    planned: Sequence[Sequence[int]],
    *,
    encoder: bool,
    on_pass: Callable[[], None] = lambda: None,
) -> Float32Array:
    """Run each list of passes as one sequence from an empty cache; returns all rows, [n_rows, width]."""
    outputs = []
    for sequence, sizes in zip(tokens, planned, strict=True):
        clear()
        position = 0
        for size in sizes:
            start = 0 if encoder else position
            rows = [Row(sequence[position + i], start + i) for i in range(size)]
            outputs.append(compute(rows))
            on_pass()
            position += size
    return np.concatenate(outputs)


class ErrorPort:
    """An `ExpertPort` that passes on and notes how far each layer's result is from our own kernels'."""

    def __init__(self, inner: ExpertPort, kernels: Kernels, held: dict[tuple[int, str], HeldExperts]) -> None:
        self._inner = inner
        self._kernels = kernels
        self._held = held
        self.enabled = False
        self.errors: dict[int, float] = {}

    def leave(self, inputs: ExpertInputs) -> tuple[ExpertInputs, Any]:
        return inputs, self._inner.leave(inputs)

    def enter(self, ticket: tuple[ExpertInputs, Any]) -> Float32Array:
        inputs, inner = ticket
        result: Float32Array = self._inner.enter(inner)
        if self.enabled:
            call = inputs.call
            expected = routed_output(self._kernels, self._held[call.layer, call.group], inputs)
            scale = float(np.linalg.norm(expected)) or 1.0
            error = float(np.linalg.norm(result - expected)) / scale
            self.errors[call.layer] = max(self.errors.get(call.layer, 0.0), error)
        return result

    def worst_layer(self) -> int | None:
        if not self.errors or max(self.errors.values()) == 0:
            return None
        return max(self.errors, key=lambda layer: self.errors[layer])


def held_whole(mapped: MappedModel, manifest: Manifest) -> dict[tuple[int, str], HeldExperts]:
    """All experts of a model, for comparisons."""
    return {(call.layer, call.group): hold(mapped, call, range(call.n_experts)) for call in manifest.calls}


def verify(
    live: LiveBackbone,
    library: Library,
    whole: tuple[Path, ...],
    port: ErrorPort,
    *,
    batches: Sequence[int],
    threads: int,
    progress: Callable[[str], None] = lambda what: None,
) -> tuple[Comparison, TripsReport]:
    """Make all passes on both sides, on the calling thread. Afterwards `port` knows each layer's error.

    Args:
        whole: the model's file, or its parts, for plain llama.cpp.
        progress: told what is being done, pass by pass.
    """
    backbone = live.backbone
    encoder = backbone.context.is_encoder
    planned = plan_batches(batches)
    tokens = tokens_for(backbone.model, planned)

    def over_swarm(rows: list[Row]) -> Float32Array:
        result = backbone.run(rows)
        live.port.ledger.count_pass(PassDone(len(rows)))
        return result

    def counter(where: str, passes: int) -> Callable[[], None]:
        done = 0

        def step() -> None:
            nonlocal done
            done += 1
            progress(f"{where}: pass {done} of {passes}")

        return step

    passes = sum(len(sizes) for sizes in planned)
    clear = backbone.context.clear
    found = run_passes(
        over_swarm, clear, tokens, planned, encoder=encoder, on_pass=counter("the swarm", passes)
    )
    report = live.port.ledger.report()
    progress("loading the whole model into llama.cpp")
    n_ctx, n_ubatch = backbone.context.n_ctx, backbone.context.n_ubatch
    with (
        LlamaModel(library, whole) as model,
        Context(model, n_ctx=n_ctx, n_ubatch=n_ubatch, threads=threads) as plain,
    ):
        expected = run_passes(
            plain.run, plain.clear, tokens, planned, encoder=encoder, on_pass=counter("llama.cpp", passes)
        )
    comparison = Comparison(expected, found)
    if not comparison.identical:
        port.enabled = True
        last = planned[-1:]
        run_passes(
            over_swarm, clear, tokens[-1:], last, encoder=encoder, on_pass=counter("each layer", len(last[0]))
        )
        port.enabled = False
    return comparison, report


def judge(
    comparison: Comparison,
    report: TripsReport,
    manifest: Manifest,
    *,
    servers: int,
    combine: Combine,
    wire: Codec,
    worst_layer: int | None,
    bounds: Bounds,
) -> Verdict:
    """Hold the outcome against what the mode promises. Pure."""
    cosines = comparison.cosines()
    agreement = comparison.argmax_agreement()
    exact = combine is Combine.ROWS and wire is Codec.F32
    faults = []
    if report.trips == 0:
        faults.append("no expert was computed by a peer, so nothing about the swarm was shown")
    if exact and not comparison.identical:
        faults.append("rows and f32 promise the same bytes, and they differ")
    if not exact and cosines.mean() < bounds.cosine:
        faults.append(f"the mean cosine {cosines.mean():.6f} is below {bounds.cosine:g}")
    if not exact and agreement < bounds.argmax:
        faults.append(f"the likeliest token agrees in {agreement:.1%}, below {bounds.argmax:.1%}")
    rows = len(comparison.expected)
    return Verdict(
        model_id=manifest.model_id(),
        architecture=manifest.architecture,
        servers=servers,
        combine=combine.name.lower(),
        wire=wire.name.lower(),
        byte_identical=comparison.identical,
        cosine_min=float(cosines.min()),
        cosine_mean=float(cosines.mean()),
        argmax_agreement=agreement,
        worst_layer=worst_layer,
        trips=report.trips,
        bytes_out=report.bytes_out,
        bytes_back=report.bytes_back,
        rows=rows,
        passed=not faults,
        reason="; ".join(faults)
        or (
            f"{rows} rows have the same bytes"
            if comparison.identical
            else f"{rows} rows are within the bounds"
        ),
    )
