"""Calls that leave before their layer's attention: when, with which bytes, and what if with wrong ones."""

from __future__ import annotations

import ctypes as C
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, pairwise
from typing import Any

import pytest

from node.decode.backbone import Backbone
from node.engine.context import Context, Row
from node.engine.early_router import EarlyRouter, NodeCopies
from node.engine.expert_holes import ExpertHoles, ExpertInputs
from node.engine.graph import read_node
from node.engine.hook import GraphHook
from node.engine.llama_model import LlamaModel
from node.engine.structs import EvalCallback
from routing.errors import PeerError
from routing.wire.codecs import Float32Array
from tests.model_parts import ModelParts, WatchedPort, rows

Parts = Callable[..., ModelParts]


class EventPort(WatchedPort):
    """Notes calls in the same list as the graph's nodes."""

    def __init__(self, inner: Any, events: list[str]) -> None:
        super().__init__(inner)
        self.events = events

    def leave(self, inputs: ExpertInputs) -> Any:
        self.events.append(f"leave {inputs.call.layer}")
        return super().leave(inputs)

    def enter(self, ticket: Any) -> Float32Array:
        self.events.append("enter")
        return super().enter(ticket)


@contextmanager
def watched(model: ModelParts, events: list[str]) -> Iterator[tuple[GraphHook, Context]]:
    """A hooked context; `events` gets each attention that llama.cpp asks about, each leave and each enter."""
    early = EarlyRouter(model.library, threads=1)
    calls = {(call.layer, call.group): call for call in model.manifest.calls}
    hook = GraphHook(model.library, ExpertHoles(calls, EventPort(model.local(), events), early))

    def on_node(address: int, ask: bool, data: object) -> bool:
        if ask and read_node(model.library, address).op == "FLASH_ATTN_EXT":
            events.append("attention")
        answer: bool = hook.callback(address, ask, data)
        return answer

    callback = EvalCallback(on_node)
    with (
        LlamaModel(model.library, [model.stored.trunk]) as trunk,
        Context(trunk, n_ctx=256, n_ubatch=4, n_batch=32, callback=callback) as context,
    ):
        yield hook, context
    early.close()


def events_of(model: ModelParts, sizes: tuple[int, ...]) -> list[list[str]]:
    """What happened in passes of these sizes."""
    found = []
    events: list[str] = []
    with watched(model, events) as (hook, context):
        position = 0
        for size in sizes:
            events.clear()
            hook.begin()
            context.run(rows(model.tokens(size, seed=position), position))
            hook.finish()
            position += size
            found.append(list(events))
    return found


def test_experts_beside_attention_leave_before_it(parts: Parts) -> None:
    # Layer 0 is dense. The first pass is to learn in.
    late = ["attention", "attention", "leave 1", "enter", "attention", "leave 2", "enter"]
    early = ["attention", "leave 1", "attention", "enter", "leave 2", "attention", "enter"]
    found = events_of(parts("cohere2moe"), (1, 1, 3, 1))
    assert found == [late, early, early, early]


def test_experts_that_read_the_layers_input_leave_before_attention(parts: Parts) -> None:
    early = [event for layer in range(3) for event in (f"leave {layer}", "attention", "enter")]
    found = events_of(parts("arctic"), (2, 2, 1, 4))
    assert found[1:] == [early] * 3
    # Of two graphs in a pass the second leaves early too.
    assert events_of(parts("arctic"), (4, 7, 7))[-1] == early * 2


@pytest.mark.parametrize("name", ["smallthinker", "qwen3moe", "llama4", "demo"])
def test_experts_behind_attention_leave_after_it(parts: Parts, name: str) -> None:
    model = parts(name)
    for events in events_of(model, (1, 1, 3)):
        assert events.count("enter") == len(model.manifest.calls)
        for before, event in pairwise(events):
            assert event != "attention" or not before.startswith("leave")


@pytest.mark.parametrize("name", ["cohere2moe", "arctic"])
def test_what_left_early_is_what_the_graph_computes(parts: Parts, name: str) -> None:
    model = parts(name)
    port = WatchedPort(model.local())
    tokens = model.tokens(60)
    position = 0
    with model.plain(n_ubatch=8) as plain, model.backbone(port, n_ubatch=8, threads=2) as backbone:
        for wanted, size in (("all", 5), ("last", 1), ("last", 8), ("none", 2), ("last", 1), ("all", 8)):
            port.calls.clear()
            batch = rows(tokens[position : position + size], position, wanted=wanted)
            assert plain.run(batch).tobytes() == backbone.run(batch).tobytes()
            assert len(port.calls) == len(model.manifest.calls) - (wanted == "none")
            position += size
        assert early_holes(backbone) == len(model.manifest.calls)
        assert backbone._holes.sent_in_vain == 0


def early_holes(backbone: Backbone) -> int:
    return sum(known.step is not None and known.step.early is not None for known in backbone.hook._known)


@pytest.mark.parametrize("name", ["cohere2moe", "arctic"])
def test_a_row_that_keeps_company_is_not_sent_early_either(parts: Parts, name: str) -> None:
    model = parts(name)
    port = WatchedPort(model.local())
    tokens = model.tokens(12)
    outputs: list[bytes] = []
    for junk in (0, 1):
        with model.backbone(port) as backbone:
            backbone.run(rows(tokens[:10]))
            port.calls.clear()
            backbone.compute([Row(tokens[10], 10), Row(tokens[11], 11)], junk=junk)
            outputs.append(backbone.context.outputs([0]).tobytes())
            assert {len(inputs.ids) for inputs in port.calls} == {2 - junk}
            assert backbone._holes.sent_in_vain == 0
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("name", ["cohere2moe", "arctic"])
def test_what_left_with_other_bits_is_sent_again(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    # A wrong copy must cost a trip and nothing else.
    model = parts(name)
    port = WatchedPort(model.local())
    compute = NodeCopies.compute

    def compute_wrong(copies: NodeCopies) -> bool:
        if not compute(copies):
            return False
        weights = [copy for copy in copies._copies.values() if copy.view_src is None][-1]
        C.memset(weights.data, 0, 4)
        return True

    monkeypatch.setattr(NodeCopies, "compute", compute_wrong)
    tokens = model.tokens(20)
    with model.plain() as plain, model.backbone(port) as backbone:
        for start in (0, 5, 10):
            batch = rows(tokens[start : start + 5], start)
            assert plain.run(batch).tobytes() == backbone.run(batch).tobytes()
        calls = len(model.manifest.calls)
        assert backbone._holes.sent_in_vain > 0
        assert len(port.calls) == 3 * calls + backbone._holes.sent_in_vain


@pytest.mark.parametrize("name", ["cohere2moe", "arctic"])
def test_nodes_that_are_not_the_copied_ones(parts: Parts, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    # Then the call leaves when its turn comes.
    model = parts(name)
    port = WatchedPort(model.local())
    numbers = count()
    monkeypatch.setattr(NodeCopies, "_identity", lambda copies: [(next(numbers), b"")])
    tokens = model.tokens(20)
    with model.plain() as plain, model.backbone(port) as backbone:
        for start in (0, 5, 10):
            batch = rows(tokens[start : start + 5], start)
            assert plain.run(batch).tobytes() == backbone.run(batch).tobytes()
        assert len(port.calls) == 3 * len(model.manifest.calls) and backbone._holes.sent_in_vain == 0


class Failing(WatchedPort):
    """Refuses one call on its way out."""

    fails = False

    def leave(self, inputs: ExpertInputs) -> Any:
        if self.fails:
            self.fails = False
            raise PeerError("gone")
        return super().leave(inputs)


@pytest.mark.parametrize("name", ["cohere2moe", "arctic"])
def test_an_early_call_that_fails_takes_the_pass_back(parts: Parts, name: str) -> None:
    model = parts(name)
    port = Failing(model.local())
    tokens = model.tokens(20)
    with model.plain() as plain, model.backbone(port) as backbone:
        for start in (0, 5, 10):
            batch = rows(tokens[start : start + 5], start)
            if start:
                port.fails = True
                with pytest.raises(PeerError):
                    backbone.run(batch)
            assert plain.run(batch).tobytes() == backbone.run(batch).tobytes()
