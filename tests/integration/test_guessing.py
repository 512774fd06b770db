"""Guessing changes no token: self-draft, look-up, a small model against plain decoding, greedy and drawn."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from node.decode.at_home import at_home
from node.decode.backbone import Backbone
from node.decode.drafting.agreed import AgreedDrafter
from node.decode.drafting.draft import Draft, Drafter
from node.decode.drafting.draft_model import DraftModel
from node.decode.drafting.guessing import Guessing
from node.decode.drafting.ngram import NgramDrafter
from node.decode.drafting.rule import AlwaysRule, PassOutcome
from node.decode.drafting.self_draft import SelfDraft
from node.decode.ledger import PassDone
from node.decode.session import Session
from node.engine.expert_holes import ExpertInputs
from node.engine.sampler import Sampler, SamplingSettings
from node.engine.tokenizer import Tokenizer
from node.model.held import hold
from node.serve.cells import Cells
from routing.errors import PeerError
from routing.wire.codecs import Float32Array
from tests.model_parts import ModelParts

Parts = Callable[..., ModelParts]

PROMPT = "import os\nimport sys\n\ndef main(argv):\n    for name in argv:\n"
GREEDY = SamplingSettings()
WARM = SamplingSettings(temperature=0.8, seed=11)
HOT = SamplingSettings(temperature=1.3, seed=3, top_k=0, top_p=1.0, min_p=0.0)


class HomePort:
    """Computes everything, but makes guesses with some layers and experts alone. Notes what was asked."""

    def __init__(self, model: ModelParts, layers: Sequence[int] = (0, 3), experts: int = 6) -> None:
        self._model = model
        self._whole = model.local()
        self.cells = Cells()
        for layers_held, run in ((layers, None), (range(1, 2), range(experts))):
            held = {
                (call.layer, call.group): hold(model.mapped, call, run or range(call.n_experts))
                for call in model.manifest.calls
                if call.layer in layers_held
            }
            self.cells.add(model.stored.model_id, model.manifest, held)
        self.asked = 0
        self.guessed = 0
        self.fail_at = -1
        self._missing: list[float] = []

    def leave(self, inputs: ExpertInputs) -> Float32Array:
        if not inputs.at_home_only:
            self.asked += 1
            if self.asked == self.fail_at:
                raise PeerError("gone")
            return self._whole.leave(inputs)
        self.guessed += 1
        held = self.cells.find(bytes.fromhex(self._model.stored.model_id), inputs.call.layer, 0)
        result, missing = at_home(inputs, held, self._model.kernels)
        self._missing.append(missing)
        return result

    def enter(self, ticket: Float32Array) -> Float32Array:
        return ticket

    def missing(self) -> list[float]:
        told, self._missing = self._missing, []
        return told


@pytest.fixture(scope="module")
def model(parts: Parts) -> ModelParts:
    return parts("demo")


@pytest.fixture
def port(model: ModelParts) -> HomePort:
    return HomePort(model)


@pytest.fixture
def backbone(model: ModelParts, port: HomePort) -> Iterator[Backbone]:
    with model.backbone(port, n_ctx=400) as made:
        yield made


def drafter_of(name: str, model: ModelParts, backbone: Backbone, port: HomePort) -> Drafter:
    if name == "self":
        return SelfDraft(backbone, port.missing)
    if name == "ngram":
        return NgramDrafter()
    if name == "self+ngram":
        return AgreedDrafter(SelfDraft(backbone, port.missing), NgramDrafter())
    return DraftModel(model.library, model.path, backbone.model, n_ctx=400)


def decode(
    backbone: Backbone,
    settings: SamplingSettings,
    count: int,
    guessing: Guessing | None = None,
    is_end: Callable[[int], bool] = lambda token: False,
    prompt: str = PROMPT,
) -> tuple[list[int], list[PassDone]]:
    done: list[PassDone] = []
    backbone.context.clear()
    session = Session(backbone, guessing=guessing, on_pass=done.append)
    session.append(Tokenizer(backbone.model).encode(prompt))
    sampler = Sampler(backbone.model.library, settings)
    try:
        return list(session.generate(sampler, count, is_end)), done
    finally:
        sampler.close()


@pytest.mark.parametrize("settings", [GREEDY, WARM, HOT], ids=["greedy", "warm", "hot"])
@pytest.mark.parametrize("name", ["self", "ngram", "self+ngram", "model"])
def test_guessing_changes_no_token(
    model: ModelParts, backbone: Backbone, port: HomePort, name: str, settings: SamplingSettings
) -> None:
    plain, passes = decode(backbone, settings, 80)
    assert len(passes) == 80
    guessing = Guessing(drafter_of(name, model, backbone, port), AlwaysRule(backbone.most_rows - 1))
    try:
        guessed, passes = decode(backbone, settings, 80, guessing)
    finally:
        guessing.close()
    assert guessed == plain
    accepted = sum(each.accepted for each in passes)
    assert len(passes) == 80 - accepted
    assert accepted > 0 or (name, settings) == ("ngram", HOT)  # where nothing repeats itself
    assert max(each.rows for each in passes[1:]) <= backbone.most_rows


def test_a_perfect_guesser_makes_full_passes(model: ModelParts, backbone: Backbone, port: HomePort) -> None:
    """The model itself, whole: what it guesses is right but for near ties, drawn with the same draws too."""
    for settings in (GREEDY, WARM):
        guessing = Guessing(drafter_of("model", model, backbone, port), AlwaysRule(6))
        _, passes = decode(backbone, settings, 85, guessing)
        guessing.close()
        assert sum(each.accepted for each in passes) >= 0.9 * sum(each.drafted for each in passes)
        assert len(passes) <= 20  # 84 tokens by 7, and the prompt


def test_passes_that_guess_ask_nobody(backbone: Backbone, port: HomePort, model: ModelParts) -> None:
    decode(backbone, GREEDY, 1)
    before = port.asked
    guessing = Guessing(SelfDraft(backbone, port.missing), AlwaysRule(3))
    _, passes = decode(backbone, GREEDY, 30, guessing)
    layers = len(model.manifest.calls)
    assert port.asked - before == layers * len(passes)
    assert port.guessed >= layers * sum(each.drafted for each in passes)


def test_what_is_missing_is_told_with_the_guess(backbone: Backbone, port: HomePort) -> None:
    tokens = Tokenizer(backbone.model).encode(PROMPT)
    decode(backbone, GREEDY, 1)
    backbone.context.remove(0, len(tokens) - 1)  # its last token is not computed yet when guessing begins
    sampler = Sampler(backbone.model.library, GREEDY)
    drafts = list(SelfDraft(backbone, port.missing).drafts(tokens, sampler, 4))
    sampler.close()
    assert len(drafts) == 4
    for draft in drafts:  # layers 0 and 3 whole, half of 1, nothing of 2
        assert draft.missing_max == 1.0 and 0.25 <= draft.missing_mean <= 0.5
        assert 0 < draft.probability <= 1 and draft.source == "self" and draft.seconds > 0


@pytest.mark.parametrize("fail_at", [1, 3, 4, 7, 10])
def test_a_pass_with_guesses_that_fails_is_made_again(
    backbone: Backbone, port: HomePort, fail_at: int
) -> None:
    for settings in (GREEDY, WARM):
        plain, _ = decode(backbone, settings, 40)
        backbone.context.clear()
        session = Session(backbone, guessing=Guessing(SelfDraft(backbone, port.missing), AlwaysRule(4)))
        session.append(Tokenizer(backbone.model).encode(PROMPT))
        prompt = len(session.tokens)
        sampler = Sampler(backbone.model.library, settings)
        port.fail_at = port.asked + 4 + fail_at  # the prompt has passed
        with pytest.raises(PeerError):
            list(session.generate(sampler, 40, lambda token: False))
        known = session.tokens[prompt:]
        more = list(session.generate(sampler, 40 - len(known), lambda token: False))
        assert known + more == plain
        sampler.close()


def test_an_end_is_never_a_guess(backbone: Backbone, port: HomePort) -> None:
    plain, _ = decode(backbone, GREEDY, 60)
    for end in sorted(set(plain))[:8]:
        expected = plain[: plain.index(end)]
        guessing = Guessing(SelfDraft(backbone, port.missing), AlwaysRule(6))
        found, passes = decode(backbone, GREEDY, 60, guessing, is_end=lambda token, end=end: token == end)
        assert found == expected
        assert sum(each.tokens for each in passes) == len(expected) + 1


def test_guesses_stop_at_the_limit_and_at_the_end_of_the_context(model: ModelParts, port: HomePort) -> None:
    with model.backbone(port, n_ctx=64) as backbone:
        prompt = len(Tokenizer(backbone.model).encode(PROMPT))
        plain, _ = decode(backbone, GREEDY, 500)
        assert len(plain) == 64 - prompt + 1
        for count in (1, 2, 5, 17, 500):
            guessing = Guessing(SelfDraft(backbone, port.missing), AlwaysRule(6))
            found, _ = decode(backbone, GREEDY, count, guessing)
            assert found == plain[:count]


class WildDrafter:
    """Guesses at random, more and fewer than asked for."""

    name = "wild"

    def __init__(self, n_vocab: int) -> None:
        self._n_vocab = n_vocab
        self._rng = np.random.default_rng(5)

    def drafts(self, tokens: Sequence[int], sampler: Sampler, limit: int) -> Generator[Draft, None, None]:
        for _ in range(int(self._rng.integers(0, limit + 1))):
            yield Draft(int(self._rng.integers(0, self._n_vocab)), 0.5, source=self.name)

    def close(self) -> None: ...


class WildRule(AlwaysRule):
    """Keeps as many as it likes, and checks what it is told."""

    def __init__(self) -> None:
        super().__init__(6)
        self._rng = np.random.default_rng(6)
        self.outcomes: list[PassOutcome] = []

    def keep(self, drafts: Sequence[Draft]) -> int:
        return int(self._rng.integers(0, len(drafts) + 1))

    def learn(self, outcome: PassOutcome) -> None:
        assert outcome.accepted <= outcome.kept <= len(outcome.made)
        self.outcomes.append(outcome)


def test_guesses_however_wrong_change_nothing(backbone: Backbone) -> None:
    rule = WildRule()
    for settings in (GREEDY, WARM):
        plain, _ = decode(backbone, settings, 50)
        found, _ = decode(backbone, settings, 50, Guessing(WildDrafter(backbone.model.n_vocab), rule))
        assert found == plain
    assert any(outcome.kept for outcome in rule.outcomes) and any(not each.made for each in rule.outcomes)


def test_models_that_cannot_go_back_never_guess(parts: Parts) -> None:
    jamba = parts("jamba")

    class Never(AlwaysRule):
        def begin(self) -> bool:
            raise AssertionError("asked")

    with jamba.backbone() as backbone:
        tokens = jamba.tokens(8)
        plain = _continue(backbone, tokens, None)
        assert _continue(backbone, tokens, Guessing(NgramDrafter(), Never(3))) == plain


def _continue(backbone: Backbone, tokens: list[int], guessing: Guessing | None) -> list[int]:
    backbone.context.clear()
    session = Session(backbone, guessing=guessing)
    session.append(list(tokens))
    sampler = Sampler(backbone.model.library, GREEDY)
    try:
        return list(session.generate(sampler, 12, lambda token: False))
    finally:
        sampler.close()


def test_two_samplers_of_one_state_draw_alike(backbone: Backbone) -> None:
    decode(backbone, HOT, 1)
    sampler = Sampler(backbone.model.library, HOT)
    sampler.sample(backbone.context, -1)
    twin = sampler.clone()
    drawn: list[Any] = [
        (sampler.sample(backbone.context, -1), twin.sample(backbone.context, -1)) for _ in range(20)
    ]
    assert all(a == b for a, b in drawn) and len({a for a, _ in drawn}) > 1
    twin.close()
    sampler.sample(backbone.context, -1)
    sampler.close()
