"""Expert kernels: right by a float64 reference, and the same bits however a call is cut."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from node.engine import kernels as kernels_module
from node.engine.kernels import Kernels
from node.engine.library import EngineError, Library
from node.model import recipe as R
from node.model.gguf.map import MappedModel
from node.model.gguf.split import open_model
from node.model.gguf.types import TENSOR_TYPES
from node.model.held import HeldExperts, HeldTensor, hold
from node.serve.cells import HeldCall
from routing.errors import LocalError
from routing.wire.codecs import Float32Array
from tests.model_parts import ModelParts
from tests.reference_experts import expert_row
from tests.zoo.names import ZOO

Parts = Callable[..., ModelParts]


@pytest.fixture
def kernels(library: Library) -> Iterator[Kernels]:
    made = Kernels(library, threads=1)
    yield made
    made.close()


class Question:
    """Seeded rows for one call, each to some distinct experts."""

    def __init__(self, held: HeldExperts, counts: list[int], seed: int = 3) -> None:
        rng = np.random.default_rng(seed)
        self.held = held
        self.counts = np.array(counts, np.uint16)
        self.x = rng.standard_normal((len(counts), held.n_in)).astype(np.float32)
        chosen = [held.first + rng.permutation(held.n_held)[:count] for count in counts]
        self.experts = np.concatenate(chosen).astype(np.uint16)
        pairs = len(self.experts)
        self.weights = (
            rng.uniform(0.1, 1, pairs).astype(np.float32) if held.recipe.weights == "after" else None
        )

    def ask(self, kernels: Kernels) -> Float32Array:
        return kernels.run(self.held, self.x, self.counts, self.experts, self.weights)

    def singly(self) -> Question:
        """The same pairs, each with its own row."""
        other = Question(self.held, [1])
        other.x = np.repeat(self.x, self.counts, axis=0)
        other.counts = np.ones(len(self.experts), np.uint16)
        other.experts, other.weights = self.experts, self.weights
        return other

    def reference(self) -> npt.NDArray[np.float64]:
        row_of_pair = np.repeat(np.arange(len(self.x)), self.counts)
        weights = self.weights if self.weights is not None else np.ones(len(self.experts))
        pairs = zip(row_of_pair, self.experts, weights, strict=True)
        return np.stack([expert_row(self.held, self.x[row], int(e), float(w)) for row, e, w in pairs])


@pytest.mark.parametrize("name", ZOO)
def test_against_float64(parts: Parts, kernels: Kernels, name: str) -> None:
    for held in parts(name).held.values():
        question = Question(held, [3, 3, 3, 3, 3])
        found, expected = question.ask(kernels), question.reference()
        assert found.dtype == np.float32 and found.shape == expected.shape
        scale = np.abs(expected).max()
        assert scale > 1e-3  # zeros would agree with anything
        # ggml looks GELU up in a table of f16.
        tolerance = 2e-3 if "GELU" in repr(held.recipe) or "GEGLU" in repr(held.recipe) else 2e-5
        assert np.abs(found - expected).max() < tolerance * scale


def made(recipe: R.Expression, n_out: int, weights: str = "none") -> HeldExperts:
    """Experts of a recipe that no zoo model has; [8] in, [12] hidden."""
    rng = np.random.default_rng(5)
    shapes: dict[str, tuple[int, ...]] = {
        "gate.weight": (8, 12), "up.weight": (8, 12), "down.weight": (12, 8), "gate_up.weight": (8, 24),
        "up.bias": (12,), "down.scale": (),
    }  # fmt: skip
    whole = R.Recipe(weights, recipe)  # type: ignore[arg-type]
    tensors = {}
    for role in R.roles(whole):
        values = rng.standard_normal((5, *shapes[role][::-1])).astype(np.float32)
        tensors[role] = HeldTensor(0, (*shapes[role], 5), values.reshape(-1).view(np.uint8))
    return HeldExperts(whole, tensors, 10, 5, 8, n_out)


UP, GATE, BOTH = (R.Matmul(f"{part}.weight", R.Input()) for part in ("up", "gate", "gate_up"))


@pytest.mark.parametrize(
    ("expression", "n_out"),
    [
        (R.Glu("SWIGLU", BOTH), 12),
        (R.Glu("SWIGLU", BOTH, None, True), 12),
        (R.Glu("REGLU", GATE, UP), 12),
        (R.Glu("SWIGLU_OAI", BOTH, None, False, 1.5, 0.75), 12),
        (R.Glu("SWIGLU_CLAMP", GATE, UP, limit=0.5), 12),
        (R.Square(R.Half(0, UP)), 6),
        (R.Square(R.Half(1, UP)), 6),
        (R.Affine(0.5, R.Half(1, UP), 2.0), 6),
        (R.Square(R.Half(0, R.Half(1, BOTH))), 6),
        (R.Clamp(-0.5, 0.25, R.Half(1, UP)), 6),
        (R.Total(R.Clamp(-0.5, 0.25, UP), UP), 12),
        (R.Clamp(None, 0.25, UP), 12),
        (R.Clamp(-0.5, None, UP), 12),
        (R.Product(R.Unary("RELU", UP), R.Bias("up.bias", UP)), 12),
        (R.Norm("RMS_NORM", 1e-3, UP), 12),
        (R.Norm("NORM", 1e-3, R.Half(0, UP)), 6),
        (R.Norm("L2_NORM", 1e-3, UP), 12),
        (R.Matmul("down.weight", R.Weigh(R.Scale("down.scale", R.Unary("SIGMOID", UP)))), 8),
        (R.Matmul("up.weight", R.Square(R.Input())), 12),
        (R.Matmul("gate.weight", R.Matmul("down.weight", R.Unary("SILU", UP))), 12),
    ],
    ids=lambda value: type(value).__name__,
)
def test_expressions_against_float64(kernels: Kernels, expression: R.Expression, n_out: int) -> None:
    weighed = "Weigh" in repr(expression)
    question = Question(made(expression, n_out, "after" if weighed else "none"), [2, 2, 2])
    expected = question.reference()
    assert np.abs(question.ask(kernels) - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("name", "experts"), [("demo", ""), ("gpt-oss", "q8_0"), ("qwen3moe", "f16"), ("kimi-k3", "f32")]
)
def test_uneven_counts_give_the_same_bits(parts: Parts, kernels: Kernels, name: str, experts: str) -> None:
    for held in parts(name, experts or "f32").held.values():
        even = Question(held, [2] * 6)
        assert even.ask(kernels).tobytes() == even.singly().ask(kernels).tobytes()
        # Some pairs of each row of an even call; up to 7 rows an expert, company does not change bits.
        full = Question(held, [4] * 6)
        uneven = Question(held, [4] * 6)
        uneven.counts = np.array([1, 3, 2, 1, 4, 1], np.uint16)
        asked = np.concatenate([np.arange(4) < count for count in uneven.counts])
        uneven.experts = full.experts[asked]
        uneven.weights = None if full.weights is None else full.weights[asked]
        found = uneven.ask(kernels)
        assert found.tobytes() == uneven.singly().ask(kernels).tobytes()
        assert found.tobytes() == full.ask(kernels)[asked].tobytes()


@pytest.mark.parametrize(
    ("name", "experts"), [("demo", ""), ("qwen3moe@scales", "q8_0"), ("gpt-oss", "f32"), ("grovemoe", "f16")]
)
def test_a_run_of_experts_gives_the_bits_of_the_whole(
    parts: Parts, kernels: Kernels, name: str, experts: str
) -> None:
    model = parts(name, experts or "f32")
    for call in model.manifest.calls:
        whole = model.held[call.layer, call.group]
        run = range(1, call.n_experts - 1)
        piece = hold(model.mapped, call, run)
        assert (piece.first, piece.n_held) == (1, len(run))
        question = Question(piece, [2, 2, 2, 2])
        found = question.ask(kernels)
        question.held = whole
        assert found.tobytes() == question.ask(kernels).tobytes()


def test_cells_in_several_runs_give_the_bits_of_one(parts: Parts, kernels: Kernels) -> None:
    model = parts("demo")
    call = model.manifest.calls[1]
    held = HeldCall(call)
    for run in (range(3), range(2, 5), range(8, 12), range(9, 10)):  # some overlap
        held.add(hold(model.mapped, call, run))
    assert held.experts() == [0, 1, 2, 3, 4, 8, 9, 10, 11]
    assert held.missing(np.array([5, 0, 7, 5, 65535, 12], np.uint16)) == (5, 7, 12, 65535)
    rng = np.random.default_rng(1)
    question = Question(model.held[1, "exps"], [2] * 9)
    question.experts = rng.choice(held.experts(), 18).astype(np.uint16)
    found = held.compute(kernels, question.x, question.counts, question.experts, question.weights)
    assert found.tobytes() == question.ask(kernels).tobytes()
    question.experts[:] = 9  # all of one run
    found = held.compute(kernels, question.x, question.counts, question.experts, question.weights)
    assert found.tobytes() == question.ask(kernels).tobytes()


@pytest.mark.parametrize("name", ["demo", "llama4", "nemotron_h_moe", "gpt-oss"])
def test_threads_do_not_change_bits(library: Library, parts: Parts, kernels: Kernels, name: str) -> None:
    two = Kernels(library, threads=2)
    try:
        for held in parts(name).held.values():
            for counts in ([3], [2] * 5, [1, 2, 3], [2] * 40):
                question = Question(held, counts)
                assert question.ask(kernels).tobytes() == question.ask(two).tobytes()
    finally:
        two.close()


@pytest.mark.parametrize("name", ["demo", "gpt-oss", "llama4", "grovemoe", "llama@used1", "kimi-k3"])
def test_the_routed_output_is_the_rows_added_in_order(parts: Parts, kernels: Kernels, name: str) -> None:
    model = parts(name)
    n_used = model.file.find_int(f"{model.file.architecture}.expert_used_count")
    assert n_used is not None
    for held in model.held.values():
        for tokens in (1, 5, 40):
            per_slot = held.recipe.weights == "before"
            question = Question(held, [1] * (tokens * n_used) if per_slot else [n_used] * tokens)
            shape = (tokens, n_used)
            weights = None if question.weights is None else question.weights.reshape(shape)
            found = kernels.routed(held, question.x, question.experts.reshape(shape), weights)
            added = question.ask(kernels).reshape(tokens, n_used, -1)
            expected = added[:, 0].copy()
            for slot in range(1, n_used):
                expected = expected + added[:, slot]
            assert found.tobytes() == expected.tobytes()


def test_an_expert_may_be_chosen_twice_by_one_row(parts: Parts, kernels: Kernels) -> None:
    question = Question(parts("grovemoe").held[0, "chexps"], [3, 3])
    question.experts[:] = [1, 1, 2, 0, 0, 0]
    expected = question.reference()
    assert np.abs(question.ask(kernels) - expected).max() < 2e-5 * np.abs(expected).max()


def test_nothing_asked_nothing_given(parts: Parts, kernels: Kernels) -> None:
    held = parts("demo").held[0, "exps"]
    none = np.zeros(0, np.uint16)
    assert kernels.run(held, np.zeros((0, 256), np.float32), none, none, None).shape == (0, 256)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda q: q.experts.__setitem__(0, 12),
        lambda q: q.experts.__setitem__(-1, 65535),
        lambda q: setattr(q, "experts", np.array([-1, 0, 1, 2])),
        lambda q: setattr(q, "x", q.x[:, :-1]),
        lambda q: setattr(q, "x", np.repeat(q.x, 2, axis=1)),
        lambda q: setattr(q, "weights", q.weights[:-1]),
        lambda q: setattr(q, "weights", np.repeat(q.weights, 2)),
        lambda q: setattr(q, "counts", np.array([1, 2])),
        lambda q: setattr(q, "counts", np.array([3, 2])),
        lambda q: setattr(q, "experts", np.zeros(2000, np.uint16)),
    ],
)
def test_what_does_not_fit_is_refused(
    parts: Parts, kernels: Kernels, break_it: Callable[[Any], object]
) -> None:
    question = Question(parts("demo").held[0, "exps"], [2, 2])
    before = question.ask(kernels)
    broken = Question(parts("demo").held[0, "exps"], [2, 2])
    break_it(broken)
    with pytest.raises(LocalError):
        broken.ask(kernels)
    assert question.ask(kernels).tobytes() == before.tobytes()


def test_ids_below_a_runs_first_are_refused(parts: Parts, kernels: Kernels) -> None:
    model = parts("demo")
    piece = hold(model.mapped, model.manifest.calls[0], range(4, 8))
    question = Question(piece, [2, 2])
    question.ask(kernels)
    for outside in (3, 8, 0):
        question.experts[1] = outside
        with pytest.raises(EngineError):
            question.ask(kernels)


@pytest.mark.parametrize(
    ("expression", "n_out", "message"),
    [
        (R.Unary("WOBBLE", UP), 12, "uses WOBBLE, which this llama.cpp does not have"),
        (R.Glu("WOBBLE", GATE, UP), 12, "WOBBLE"),
        (R.Product(UP, R.Half(0, UP)), 12, "joins rows of 12 and 6"),
        (R.Matmul("down.weight", R.Input()), 8, "down.weight takes rows of 12"),
        (UP, 13, "the recipe gives"),
    ],
)
def test_recipes_that_cannot_be_built(
    kernels: Kernels, expression: R.Expression, n_out: int, message: str
) -> None:
    question = Question(made(expression, n_out), [2])
    for _ in range(2):
        with pytest.raises(EngineError, match=message):
            question.ask(kernels)


def test_a_tensor_whose_bytes_do_not_fit_its_shape(parts: Parts, kernels: Kernels) -> None:
    held = parts("demo").held[0, "exps"]
    down = held.tensors["down.weight"]
    short = replace(held, tensors={**held.tensors, "down.weight": replace(down, data=down.data[:-1])})
    with pytest.raises(EngineError, match="its shape says otherwise"):
        Question(short, [2]).ask(kernels)


def test_old_graphs_make_room_and_results_stay_right(
    library: Library, parts: Parts, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels_module, "CACHED_GRAPHS", 3)
    closed = 0
    close = kernels_module._Graph.close

    def counted(graph: kernels_module._Graph) -> None:
        nonlocal closed
        closed += 1
        close(graph)

    monkeypatch.setattr(kernels_module._Graph, "close", counted)
    held = parts("demo").held[0, "exps"]
    other = parts("gpt-oss").held[0, "exps"]
    questions = [Question(each, [2] * size) for size in (1, 2, 3, 4) for each in (held, other)]
    small = Kernels(library, threads=1)
    expected = [question.singly().ask(kernels).tobytes() for question in questions]
    closed = 0
    for _ in range(3):
        for question, right in zip(questions, expected, strict=True):
            assert question.ask(small).tobytes() == right
            assert len(small._graphs) <= 3
    assert closed == 3 * len(questions) - 3
    small.close()
    assert closed == 3 * len(questions)


def test_the_graph_that_was_used_longest_ago_goes_first(
    library: Library, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels_module, "CACHED_GRAPHS", 3)
    kernels = Kernels(library, threads=1)
    held = parts("demo").held[0, "exps"]
    try:
        for size in (1, 2, 3, 1, 4):
            Question(held, [2] * size).ask(kernels)
        assert sorted(graph.n_pairs for graph in kernels._graphs.values()) == [2, 6, 8]
    finally:
        kernels.close()


def test_the_size_of_old_graphs_is_bounded_too(
    library: Library, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels_module, "CACHED_PAIRS", 20)
    kernels = Kernels(library, threads=1)
    held = parts("demo").held[0, "exps"]
    try:
        for size in (1, 2, 3, 4, 30, 5):
            Question(held, [2] * size).ask(kernels)
            assert sum(graph.n_pairs for graph in kernels._graphs.values()) <= 20 or len(kernels._graphs) == 1
        assert [graph.n_pairs for graph in kernels._graphs.values()] == [10]
    finally:
        kernels.close()


def test_layers_share_graphs(library: Library, parts: Parts) -> None:
    kernels = Kernels(library, threads=1)
    try:
        same_kind = {held.signature for held in parts("demo").held.values()}
        for held in parts("demo").held.values():
            Question(held, [2, 2]).ask(kernels)
        assert len(kernels._graphs) == len(same_kind) < len(parts("demo").held)
    finally:
        kernels.close()


def test_several_threads_take_turns(parts: Parts, kernels: Kernels) -> None:
    questions = [Question(held, [2] * (1 + n)) for n, held in enumerate(parts("demo").held.values())]
    expected = [question.ask(kernels).tobytes() for question in questions]
    wrong: list[int] = []

    def ask(number: int) -> None:
        for _ in range(30):
            if questions[number].ask(kernels).tobytes() != expected[number]:
                wrong.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(questions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# --- held experts ---


def test_what_is_held_is_not_copied(parts: Parts) -> None:
    model = parts("demo")
    view = np.frombuffer(model.mapped.tensor_view("blk.0.ffn_up_exps.weight"), np.uint8)
    held = hold(model.mapped, model.manifest.calls[0], range(3, 5))
    up = held.tensors["up.weight"]
    assert up.address == view.ctypes.data + 3 * (len(view) // 12)
    assert up.data.nbytes == 2 * (len(view) // 12)
    assert not up.data.flags.writeable


def test_what_is_not_there_is_not_held(parts: Parts) -> None:
    model = parts("demo")
    call = model.manifest.calls[0]
    for run in (range(13), range(5, 5), range(-1, 2)):
        with pytest.raises(LocalError, match="layer 0: holds experts 0-11"):
            hold(model.mapped, call, run)
    elsewhere = hold(model.mapped, call, range(102, 104), range(100, 112))
    assert (
        elsewhere.tensors["up.weight"].address
        == hold(model.mapped, call, range(2, 4)).tensors["up.weight"].address
    )
    moved = msgspec.structs.replace(call, layer=9)
    with pytest.raises(LocalError, match=r"has no tensor blk\.9"):
        hold(model.mapped, moved, range(1))
    tensors = tuple(msgspec.structs.replace(each, shape=(256, 128)) for each in call.tensors)
    with pytest.raises(LocalError, match="the manifest says otherwise"):
        hold(model.mapped, msgspec.structs.replace(call, tensors=tensors), range(1))


def resident_anonymous() -> int:
    """RssAnon of this process in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1]) << 10


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_mapping_and_computing_takes_no_memory_of_our_own(
    library: Library, kernels: Kernels, shared_dir: Path
) -> None:
    model = open_model(shared_dir / "models" / "tiny-qwen3moe-32e4.Q8_0.gguf")
    recipe = R.Recipe("none", R.Matmul("up.weight", R.Input()))
    before = resident_anonymous()
    with MappedModel(model) as mapped:
        size = 0
        for layer in range(4):
            tensor = model.tensors[f"blk.{layer}.ffn_up_exps.weight"]
            data = np.frombuffer(mapped.tensor_view(tensor.name), np.uint8)
            ne = tensor.shape
            held = HeldExperts(
                recipe, {"up.weight": HeldTensor(tensor.type.id, ne, data)}, 0, ne[2], ne[0], ne[1]
            )
            Question(held, [8] * 8).ask(kernels)
            size += data.nbytes
            assert TENSOR_TYPES[tensor.type.id].name == "Q8_0"
        assert size > 4 << 20
        assert resident_anonymous() - before < size // 2
        del held, data
