"""The hook in real graphs: the bytes of plain llama.cpp, whatever the passes' shapes and whatever fails."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from node.decode.backbone import SequenceLost
from node.decode.session import Session
from node.engine.context import Context, Row
from node.engine.expert_holes import ExpertHoles, ExpertInputs
from node.engine.hook import GraphHook, HookError
from node.engine.library import EngineError
from node.engine.llama_model import LlamaModel
from node.engine.sampler import Sampler, SamplingSettings
from routing.errors import LocalError, PeerError
from routing.wire.codecs import Float32Array
from tests.model_parts import ModelParts, WatchedPort, rows
from tests.zoo.names import ZOO

Parts = Callable[..., ModelParts]

NAMES = ("demo", *ZOO)


def same(expected: Float32Array, found: Float32Array) -> bool:
    return expected.shape == found.shape and expected.tobytes() == found.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_passes_of_changing_shape(parts: Parts, name: str) -> None:
    model = parts(name)
    sizes = (5, 1, 1, 9, 1, 5, 5, 1)
    tokens = model.tokens(sum(sizes))
    with model.plain(n_ubatch=16) as plain, model.backbone(n_ubatch=16) as backbone:
        position = 0
        for number, size in enumerate(sizes):
            start = 0 if plain.is_encoder else position
            batch = rows(tokens[position : position + size], start)
            assert same(plain.run(batch), backbone.run(batch)), f"pass {number} of {size} tokens"
            position += size


@pytest.mark.parametrize("name", ["demo", "grovemoe", "llama4", "deepseek4", "smallthinker", "gemma4"])
def test_a_pass_of_several_graphs(parts: Parts, name: str) -> None:
    model = parts(name)
    port = WatchedPort(model.local())
    tokens = model.tokens(19)
    options: dict[str, Any] = {"n_ctx": 256, "n_ubatch": 4, "n_batch": 32}
    calls = {(call.layer, call.group): call for call in model.manifest.calls}
    hook = GraphHook(model.library, ExpertHoles(calls, port))
    with (
        model.plain(**options) as plain,
        LlamaModel(model.library, [model.stored.trunk]) as trunk,
        Context(trunk, **options, callback=hook.callback) as hooked,
    ):
        for start, size in ((0, 11), (11, 1), (12, 7)):
            batch = rows(tokens[start : start + size], start)
            hook.begin()
            found = hooked.run(batch)
            hook.finish()
            assert same(plain.run(batch), found)
    # 3 graphs of at most 4 rows, then 1, then 2.
    assert len(port.calls) == (3 + 1 + 2) * len(calls)
    assert max(len(inputs.ids) for inputs in port.calls) == 4


def test_more_rows_than_a_pass_may_have_are_refused(parts: Parts) -> None:
    # llama.cpp would abort the process.
    model = parts("demo")
    with model.backbone(n_ubatch=8) as backbone:
        backbone.run(rows(model.tokens(8)))
        with pytest.raises(EngineError, match="a pass of 9 tokens, at most 8"):
            backbone.run(rows(model.tokens(9), 8))
        backbone.run(rows(model.tokens(8), 8))
        with pytest.raises(EngineError, match="token 99999 is outside"):
            backbone.run([Row(99999, 16)])
        with pytest.raises(EngineError, match="0 tokens"):
            backbone.run([])
    encoder = parts("nomic-bert-moe")
    with encoder.plain(n_ubatch=8, n_batch=32) as plain, pytest.raises(EngineError, match="at most 8"):
        plain.run(rows(encoder.tokens(9)))


@pytest.mark.parametrize("name", ["demo", "grovemoe", "llama4", "gpt-oss", "deepseek2", "granitehybrid"])
def test_wanted_rows_decide_what_the_last_layer_sees(parts: Parts, name: str) -> None:
    model = parts(name)
    port = WatchedPort(model.local())
    tokens = model.tokens(24)
    with model.plain() as plain, model.backbone(port) as backbone:
        last_layer = model.manifest.calls[-1].layer
        position = 0
        for wanted, count in (("none", 0), ("all", 4), ("last", 1), ("none", 0), ("last", 1), ("all", 4)):
            port.calls.clear()
            batch = rows(tokens[position : position + 4], position, wanted=wanted)
            found = backbone.run(batch)
            assert found.shape[0] == count
            assert same(plain.run(batch), found)
            by_layer = {inputs.call.layer: len(inputs.ids) for inputs in port.calls}
            others = [size for layer, size in by_layer.items() if layer != last_layer]
            assert set(others) <= {4} and by_layer.get(last_layer, 0) in (count, 4)
            position += 4


def test_no_output_wanted_skips_the_last_layers_trip(parts: Parts) -> None:
    model = parts("demo")
    port = WatchedPort(model.local())
    with model.backbone(port) as backbone:
        backbone.run(rows(model.tokens(4), wanted="none"))
    assert [inputs.call.layer for inputs in port.calls] == [0, 1, 2]


@pytest.mark.parametrize("name", ["demo", "qwen3moe", "deepseek2", "glm4moe", "gpt-oss"])
def test_sequences_that_share_a_prefix_and_a_verify_that_is_taken_back(parts: Parts, name: str) -> None:
    model = parts(name)
    tokens = model.tokens(40)

    def script(context: Context, run: Callable[[list[Row]], Float32Array]) -> list[Float32Array]:
        outputs = [run(rows(tokens[:10]))]
        context.copy(0, 1)
        context.copy(0, 2)
        outputs.append(run([Row(tokens[11 + s], 10, s) for s in range(3)]))
        mixed = [*rows(tokens[20:25], 11, 1), Row(tokens[30], 11, 0), *rows(tokens[31:33], 11, 2)]
        outputs.append(run(mixed))
        assert context.remove(1, 13)  # two of five drafted tokens were right
        outputs.append(run([Row(tokens[26], 13, 1), Row(tokens[27], 12, 0)]))
        return outputs

    with model.plain(n_sequences=3) as plain, model.backbone(n_sequences=3) as backbone:
        expected, found = script(plain, plain.run), script(backbone.context, backbone.run)
    assert all(same(a, b) for a, b in zip(expected, found, strict=True))


class Flipping(WatchedPort):
    """Turns one bit of the largest value of one call around: a small one is lost where rows are quantised."""

    def __init__(self, inner: Any, call: int) -> None:
        super().__init__(inner)
        self.call = call

    def enter(self, ticket: Any) -> Float32Array:
        result = self.inner.enter(ticket).copy()
        if len(self.calls) == self.call:
            result.view(np.uint32).reshape(-1)[np.abs(result).argmax()] ^= 1 << 22
        return result


@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_a_result_of_other_bits_changes_the_logits(parts: Parts, call: int) -> None:
    # The control: what the port gives back is what the graph goes on with, in each layer.
    model = parts("demo")
    batch = rows(model.tokens(1))
    with model.plain() as plain, model.backbone(Flipping(model.local(), call)) as backbone:
        assert not same(plain.run(batch), backbone.run(batch))


def test_inputs_are_copies(parts: Parts) -> None:
    model = parts("demo")
    port = WatchedPort(model.local())
    with model.backbone(port) as backbone:
        backbone.run(rows(model.tokens(5)))
        before = [(c.x.copy(), c.ids.copy(), c.weights) for c in port.calls]
        first = port.calls[:4]
        backbone.run(rows(model.tokens(5, seed=2), 5))
    gc.collect()
    for inputs, (x, ids, weights) in zip(first, before, strict=True):
        assert same(inputs.x, x) and (inputs.ids == ids).all()
        assert inputs.x.flags.owndata or inputs.x.base is not None
        assert weights is not None and inputs.weights is not None and (weights == inputs.weights).all()
        assert inputs.ids.dtype == np.int32 and inputs.x.dtype == np.float32
        assert (inputs.ids >= 0).all() and (inputs.ids < 12).all()


# --- what goes wrong ---


class Failing(WatchedPort):
    """Raises once, at the given call, on the way out or on the way in."""

    def __init__(self, inner: Any, where: str, call: int, error: BaseException) -> None:
        super().__init__(inner)
        self.where = where
        self.call = call
        self.error: BaseException | None = error

    def _fail(self, where: str) -> None:
        if self.error is not None and (self.where, self.call) == (where, len(self.calls)):
            error, self.error = self.error, None
            raise error

    def leave(self, inputs: ExpertInputs) -> Any:
        result = super().leave(inputs)
        self._fail("leave")
        return result

    def enter(self, ticket: Any) -> Float32Array:
        self._fail("enter")
        return super().enter(ticket)


ERRORS = [
    PeerError("the peer is gone"),
    LocalError("no memory"),
    ZeroDivisionError("a bug"),
    KeyboardInterrupt(),
]
FAILURES = [
    *(
        (name, where, call, ERRORS[0])
        for name in ("demo", "grovemoe", "llama4")
        for where in ("leave", "enter")
        for call in (1, 3)
    ),
    *(("demo", where, 2, error) for where in ("leave", "enter") for error in ERRORS[1:]),
]


@pytest.mark.parametrize(
    ("name", "where", "call", "error"), FAILURES, ids=lambda value: str(value) or "signal"
)
def test_a_failed_pass_is_taken_back_and_made_again(
    parts: Parts, capfd: pytest.CaptureFixture[str], name: str, where: str, call: int, error: BaseException
) -> None:
    model = parts(name)
    call = min(call, len(model.manifest.calls))
    tokens = model.tokens(12)
    port = WatchedPort(model.local())
    with model.plain() as plain, model.backbone(port) as backbone:
        first, second = rows(tokens[:7]), rows(tokens[7:12], 7)
        assert same(plain.run(first), backbone.run(first))
        port.inner = failing = Failing(model.local(), where, call, error)
        with pytest.raises(type(error)) as caught:
            backbone.run(second)
        assert caught.value is error
        # The graph was left at once: no further call was made with garbage.
        assert len(failing.calls) == call
        assert same(plain.run(second), backbone.run(second))
        third = rows(tokens[:1], 12)
        assert same(plain.run(third), backbone.run(third))
    # ctypes prints what escapes a callback.
    assert "Exception ignored" not in capfd.readouterr().err


@pytest.mark.parametrize("sequences", [1, 2])
def test_both_sequences_of_a_failed_pass_are_taken_back(parts: Parts, sequences: int) -> None:
    model = parts("demo")
    tokens = model.tokens(20)
    port = WatchedPort(model.local())
    with model.plain(n_sequences=2) as plain, model.backbone(port, n_sequences=2) as backbone:
        first = [*rows(tokens[:4], 0, 0), *rows(tokens[4:8], 0, 1)]
        assert same(plain.run(first), backbone.run(first))
        second = [row for s in range(sequences) for row in rows(tokens[10 : 12 + s], 4, s)]
        port.inner = Failing(model.local(), "enter", 2, PeerError("gone"))
        with pytest.raises(PeerError):
            backbone.run(second)
        assert same(plain.run(second), backbone.run(second))


class Misshapen(WatchedPort):
    """Gives back something else than the routed output."""

    def __init__(self, inner: Any, change: Callable[[Float32Array], Any]) -> None:
        super().__init__(inner)
        self.change = change

    def enter(self, ticket: Any) -> Any:
        return self.change(self.inner.enter(ticket))


@pytest.mark.parametrize(
    "change",
    [
        lambda y: y[:-1],
        lambda y: y[:, :-1],
        lambda y: y.T,
        lambda y: y[None],
        lambda y: y.ravel(),
        lambda y: np.concatenate([y, y]),
        lambda y: y.astype(np.float64),
        lambda y: y.astype(np.float16),
        lambda y: y.view(np.int32),
        lambda y: y[:0],
    ],
)
def test_a_result_of_another_shape_or_type(parts: Parts, change: Callable[[Float32Array], Any]) -> None:
    model = parts("demo")
    port = WatchedPort(Misshapen(model.local(), change))
    batch = rows(model.tokens(3))
    with model.plain() as plain, model.backbone(port) as backbone:
        with pytest.raises(HookError, match="layer 0: a result of"):
            backbone.run(batch)
        port.inner = model.local()
        assert same(plain.run(batch), backbone.run(batch))


def test_a_result_in_another_memory_order_is_taken(parts: Parts) -> None:
    model = parts("demo")
    batch = rows(model.tokens(3))
    with model.plain() as plain, model.backbone(Misshapen(model.local(), np.asfortranarray)) as backbone:
        assert same(plain.run(batch), backbone.run(batch))


def test_a_call_that_the_manifest_does_not_have(parts: Parts) -> None:
    model = parts("demo")
    calls = {(call.layer, call.group): call for call in model.manifest.calls if call.layer != 2}
    hook = GraphHook(model.library, ExpertHoles(calls, model.local()))
    with (
        LlamaModel(model.library, [model.stored.trunk]) as trunk,
        Context(trunk, n_ctx=64, callback=hook.callback) as context,
    ):
        hook.begin()
        with pytest.raises(EngineError):  # llama.cpp sees that its graph was left
            context.run(rows(model.tokens(2)))
            raise EngineError("the graph was run to its end")
        with pytest.raises(HookError, match=r"layer 2: the graph uses blk\.2"):
            hook.finish()


def test_llamas_own_refusal_is_told_and_taken_back(parts: Parts) -> None:
    model = parts("demo")
    tokens = model.tokens(560)
    with model.plain() as plain, model.backbone() as backbone:
        first = rows(tokens[:250])
        assert same(plain.run(first), backbone.run(first))
        # 16 more than were asked for, as guesses need; llama.cpp rounds up to 512
        backbone.run(rows(tokens[250:450], 250, wanted="last"))
        with pytest.raises(EngineError) as caught:
            backbone.run(rows(tokens[450:560], 450))
        assert "context of 272 tokens has no room for 110 more" in str(caught.value)
        assert backbone.context.remove(0, 250)
        again = rows(tokens[250:256], 250)
        assert same(plain.run(again), backbone.run(again))


# --- models whose memory cannot go back ---

RECURRENT = ("granitehybrid", "jamba", "qwen3next", "nemotron_h_moe", "kimi-k3", "minimax-01")


@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_model_starts_anew(parts: Parts, name: str) -> None:
    model = parts(name)
    prompt = model.tokens(6)

    def generate(port: WatchedPort, failure: Any = None) -> tuple[list[int], int]:
        lost = 0
        with model.backbone(port, n_ubatch=4) as backbone:
            sampler = Sampler(model.library, SamplingSettings())
            session = Session(backbone)
            session.append(prompt)
            produced: list[int] = []
            while len(produced) < 6:
                if len(produced) == 3 and failure is not None:
                    port.inner, failure = failure, None
                try:
                    token = session.next_token(sampler)
                except SequenceLost as error:
                    assert "cannot go back" in str(error) and "gone" in str(error)
                    lost += 1
                    continue
                produced.append(token)
                session.append([token])
            sampler.close()
        return produced, lost

    expected, _ = generate(WatchedPort(model.local()))
    port = WatchedPort(model.local())
    found, lost = generate(port, Failing(model.local(), "enter", 1, PeerError("gone")))
    assert lost == 1
    assert found == expected


def test_all_sequences_of_a_lost_pass_are_emptied(parts: Parts) -> None:
    model = parts("granitehybrid")
    tokens = model.tokens(20)
    port = WatchedPort(model.local())
    both = [*rows(tokens[:4], 0, 0), *rows(tokens[4:8], 0, 1)]
    with model.plain(n_sequences=2) as plain, model.backbone(port, n_sequences=2) as backbone:
        expected = plain.run(both)
        assert same(expected, backbone.run(both))
        port.inner = Failing(model.local(), "leave", 2, PeerError("gone"))
        with pytest.raises(SequenceLost):
            backbone.run([Row(tokens[8], 4, 0), Row(tokens[9], 4, 1)])
        # Both begin again at 0 and give what they gave.
        assert same(expected, backbone.run(both))


def test_a_sequence_that_could_go_back_is_emptied_with_the_one_that_could_not(parts: Parts) -> None:
    model = parts("granitehybrid")
    tokens = model.tokens(20)
    port = WatchedPort(model.local())
    first, fresh = rows(tokens[:4], 0, 0), rows(tokens[4:8], 0, 1)
    with model.plain(n_sequences=2) as plain, model.backbone(port, n_sequences=2) as backbone:
        expected = [plain.run(first), plain.run(fresh)]
        assert same(expected[0], backbone.run(first))
        port.inner = Failing(model.local(), "leave", 2, PeerError("gone"))
        with pytest.raises(SequenceLost):
            backbone.run([Row(tokens[8], 4, 0), *fresh])
        assert same(expected[0], backbone.run(first)) and same(expected[1], backbone.run(fresh))


def test_what_was_learned_serves_the_next_passes(parts: Parts) -> None:
    model = parts("demo")
    tokens = model.tokens(30)
    with model.backbone() as backbone:
        backbone.run(rows(tokens[:1]))
        backbone.run(rows(tokens[1:2], 1))
        learned = backbone.hook.counts.classified
        for position in range(2, 10):
            backbone.run(rows(tokens[position : position + 1], position))
        assert backbone.hook.counts.classified == learned
        assert backbone.hook.counts.asks >= 10 * 40
