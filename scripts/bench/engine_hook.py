"""What the hook costs a layer, apart from computing or sending anything.

Four contexts on the trunk run the same single-token passes in turns:

    ready    the hook with a port that hands back a ready-made result at once
    without  the same graph without its experts, callback answering "no" to every node: one graph execution
    empty    the trunk as it is (with its one-value experts), callback answering "no"
    bare     the trunk as it is, no callback

empty - bare is the price of being asked at all: asks x the time of an empty Python callback. So
without - (empty - bare) is plain graph execution minus experts, and

    hook per layer = (ready - (without - (empty - bare))) / MoE layers

It holds everything: asking about each node, deciding, stopping the graph and starting it again, copying the
inputs out, checking and writing the result. A fifth context, `asked`, has the hook with nothing to hook: its
cost above `bare` is that of the hook's answers to asks alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

import numpy as np

from node.engine.context import Context, Row
from node.engine.expert_holes import ExpertHoles, ExpertInputs
from node.engine.graph import op_cell
from node.engine.hook import NOP, GraphHook, HookError, Seen, Step
from node.engine.library import Library
from node.engine.llama_model import LlamaModel
from node.engine.structs import EvalCallback
from node.model.store import StoredModel
from routing.wire.codecs import Float32Array

CONTEXT = 256  # tokens: one size of graph, so that it is reused from pass to pass
PASSES = 32  # of each context in a round, one after the other


@dataclass(frozen=True)
class HookCost:
    """Seconds unless said otherwise.

    Attributes:
        layers: MoE calls in a pass; asks: nodes asked about in a pass (a count).
        passes: context -> seconds a pass, median of all.
        per_layer: what the hook costs a MoE layer, median over passes; contexts take turns pass by pass.
        empty_ask: one empty Python callback; hook_ask: the hook's answer to one ask.
        asks_per_layer: asks x hook_ask over layers: the part of per_layer that is answering.
    """

    threads: int
    layers: int
    asks: int
    passes: dict[str, float]
    per_layer: float
    empty_ask: float
    hook_ask: float
    asks_per_layer: float


class _ReadyPort:
    """An `ExpertPort` whose result is there before it is asked for."""

    def __init__(self, n_out: int) -> None:
        self._result = np.zeros((1, n_out), np.float32)

    def leave(self, inputs: ExpertInputs) -> None:
        pass

    def enter(self, ticket: None) -> Float32Array:
        return self._result


class _NothingToHook:
    """A `Recogniser` for which every node is plain."""

    def classify(self, node: Seen) -> Step:
        return Step()

    def is_idle(self) -> bool:
        return True

    def reset(self) -> None:
        pass

    def begin(self) -> None:
        pass

    def unfinished(self) -> str:
        return ""


class _SaysNo:
    """A callback that answers "no" to every node. While `teacher` is set, that hook answers instead: what it
    left out stays left out, because llama.cpp uses the same graph again."""

    def __init__(self, teacher: GraphHook | None) -> None:
        self.teacher = teacher
        self.left_out: set[int] = set()
        self.callback = EvalCallback(self._on_node)

    def _on_node(self, address: int, ask: bool, data: object) -> bool:
        if self.teacher is None:
            return False
        answer: bool = self.teacher.callback(address, ask, data)
        if ask and op_cell(address).value == NOP:
            self.left_out.add(address)
        return answer


def measure_hook(library: Library, stored: StoredModel, *, threads: int, rounds: int) -> HookCost:
    """Raises HookError if llama.cpp built a new graph meanwhile, which would void the comparison."""
    calls = {(call.layer, call.group): call for call in stored.manifest.calls}
    widths = {call.n_out for call in calls.values()}
    port = _ReadyPort(widths.pop())
    ready = GraphHook(library, ExpertHoles(calls, port))
    teacher = GraphHook(library, ExpertHoles(calls, port))
    asked = GraphHook(library, _NothingToHook())
    without, empty = _SaysNo(teacher), _SaysNo(None)
    callbacks = {
        "bare": None,
        "empty": empty.callback,
        "without": without.callback,
        "asked": asked.callback,
        "ready": ready.callback,
    }
    hooks = (ready, teacher, asked)
    with ExitStack() as opened:
        model = opened.enter_context(LlamaModel(library, [stored.trunk]))
        seconds: dict[str, list[float]] = {name: [] for name in callbacks}
        contexts = {
            name: opened.enter_context(
                Context(model, n_ctx=CONTEXT, n_ubatch=CONTEXT, threads=threads, callback=callback)
            )
            for name, callback in callbacks.items()
        }
        turns = list(contexts.items())
        asks_before = 0
        for number in range(rounds + 1):
            if number == 1:  # the first round is to warm up and to teach
                without.teacher = None
                asks_before = ready.counts.asks
                seconds = {name: [] for name in contexts}
            for context in contexts.values():
                context.clear()
            for position in range(PASSES):
                for name, context in turns if position % 2 == 0 else turns[::-1]:
                    seconds[name].append(_timed_pass(context, position, hooks))
        asks = (ready.counts.asks - asks_before) // (rounds * PASSES)
        if any(op_cell(address).value != NOP for address in without.left_out):
            raise HookError("llama.cpp did not use its graph again, so nothing was measured; raise CONTEXT")
    per_layer = [
        (a - (b - (c - d))) / len(calls)
        for a, b, c, d in zip(*(seconds[name] for name in ("ready", "without", "empty", "bare")), strict=True)
    ]
    hook_ask = _difference(seconds["asked"], seconds["bare"]) / asks
    return HookCost(
        threads=threads,
        layers=len(calls),
        asks=asks,
        passes={name: median(times) for name, times in seconds.items()},
        per_layer=median(per_layer),
        empty_ask=_difference(seconds["empty"], seconds["bare"]) / asks,
        hook_ask=hook_ask,
        asks_per_layer=hook_ask * asks / len(calls),
    )


def _timed_pass(context: Context, position: int, hooks: Iterable[GraphHook]) -> float:
    for hook in hooks:
        hook.begin()
    begun = time.perf_counter()
    context.compute([Row(position % context.model.n_vocab, position)])
    seconds = time.perf_counter() - begun
    for hook in hooks:
        hook.finish()
    return seconds


def _difference(more: list[float], less: list[float]) -> float:
    return median(a - b for a, b in zip(more, less, strict=True))
