"""Sessions, samplers and text: what turns passes into an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from node.decode.backbone import Backbone
from node.decode.session import Session
from node.engine.context import Row
from node.engine.library import EngineError
from node.engine.sampler import Sampler, SamplingSettings
from node.engine.tokenizer import TextStream, Tokenizer
from routing.errors import LocalError, PeerError
from routing.wire.codecs import Float32Array
from tests.model_parts import ModelParts, WatchedPort, rows

Parts = Callable[..., ModelParts]

PROMPT = "import os\nimport sys\n\ndef main(argv):\n"
GREEDY = SamplingSettings()
WARM = SamplingSettings(temperature=1.5, seed=7, top_k=0, top_p=1.0, min_p=0.0)


@pytest.fixture
def model(parts: Parts) -> ModelParts:
    return parts("demo")


@pytest.fixture
def backbone(model: ModelParts) -> Iterator[Backbone]:
    with model.backbone() as made:
        yield made


def generate(
    backbone: Backbone, settings: SamplingSettings, count: int = 12, prompt: str = PROMPT
) -> list[int]:
    backbone.context.clear()
    session = Session(backbone)
    session.append(Tokenizer(backbone.model).encode(prompt))
    sampler = Sampler(backbone.model.library, settings)
    try:
        return list(session.generate(sampler, count, lambda token: False))
    finally:
        sampler.close()


# --- sessions ---


def test_an_empty_prompt_is_told(backbone: Backbone) -> None:
    sampler = Sampler(backbone.model.library, GREEDY)
    session = Session(backbone)
    with pytest.raises(EngineError, match="the prompt is empty"):
        session.next_token(sampler)
    session.append([])
    with pytest.raises(EngineError, match="the prompt is empty"):
        list(session.generate(sampler, 3, lambda token: False))
    # Text "" is not empty: the model begins with BOS.
    session.append(Tokenizer(backbone.model).encode(""))
    assert len(session.tokens) == 1
    session.next_token(sampler)
    sampler.close()


def test_a_prompt_beyond_the_context_is_one_line(backbone: Backbone) -> None:
    session = Session(backbone)
    session.append([1] * 200)
    for more in (57, 1000):
        with pytest.raises(EngineError) as caught:
            session.append([1] * more)
        message = str(caught.value)
        assert f"{200 + more} tokens do not fit a context of 256" in message and "\n" not in message
        assert "backbone.context" in message
    assert len(session.tokens) == 200
    session.append([1] * 56)
    sampler = Sampler(backbone.model.library, GREEDY)
    session.next_token(sampler)
    sampler.close()


def test_generation_ends_where_the_context_does(backbone: Backbone) -> None:
    session = Session(backbone)
    session.append([1] * 250)
    sampler = Sampler(backbone.model.library, GREEDY)
    produced = list(session.generate(sampler, 100, lambda token: False))
    # 6 fit into the cache, and one more is known after the last pass.
    assert len(produced) == 7 and len(session.tokens) == 256
    sampler.close()


def test_generation_ends_at_the_limit_and_goes_on(backbone: Backbone) -> None:
    whole = generate(backbone, GREEDY, 12)
    backbone.context.clear()
    session = Session(backbone)
    session.append(Tokenizer(backbone.model).encode(PROMPT))
    sampler = Sampler(backbone.model.library, GREEDY)
    first = list(session.generate(sampler, 5, lambda token: False))
    second = list(session.generate(sampler, 7, lambda token: False))
    assert first + second == whole and len(first) == 5
    assert list(session.generate(sampler, 0, lambda token: False)) == []
    sampler.close()


def test_generation_ends_at_an_end_token(backbone: Backbone) -> None:
    whole = generate(backbone, GREEDY, 8)
    backbone.context.clear()
    session = Session(backbone)
    session.append(Tokenizer(backbone.model).encode(PROMPT))
    sampler = Sampler(backbone.model.library, GREEDY)
    end = whole[5]
    produced = list(session.generate(sampler, 8, lambda token: token == end))
    assert produced == whole[: whole.index(end)]
    sampler.close()


@pytest.mark.parametrize("ubatch", [4, 7, 64])
def test_a_prompt_runs_in_pieces_of_a_ubatch(model: ModelParts, ubatch: int) -> None:
    counted: list[int] = []
    port = WatchedPort(model.local())
    with model.backbone(port, n_ubatch=ubatch) as backbone:
        session = Session(backbone, on_pass=lambda done: counted.append(done.rows))
        prompt = model.tokens(30)
        session.append(prompt)
        sampler = Sampler(model.library, GREEDY)
        session.next_token(sampler)
        sampler.close()
    full, rest = divmod(30, ubatch)
    assert counted == [ubatch] * full + [rest] * (rest > 0)
    # Only the last piece asks for output, of one token.
    last_layer = [len(inputs.ids) for inputs in port.calls if inputs.call.layer == 3]
    assert last_layer == [1]


class Breaking(WatchedPort):
    """Fails the n-th call from now."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.fail_at = -1

    def enter(self, ticket: Any) -> Float32Array:
        self.fail_at -= 1
        if self.fail_at == 0:
            raise PeerError("gone")
        return super().enter(ticket)


@pytest.mark.parametrize("fail_at", [1, 4, 6, 11, 13])
def test_a_failed_pass_is_continued(model: ModelParts, fail_at: int) -> None:
    port = Breaking(model.local())
    with model.backbone(port, n_ubatch=8) as backbone:
        expected = generate(backbone, GREEDY, 6)
        backbone.context.clear()
        counted: list[int] = []
        session = Session(backbone, on_pass=lambda done: counted.append(done.rows))
        session.append(Tokenizer(backbone.model).encode(PROMPT))
        prompt = len(session.tokens)
        sampler = Sampler(model.library, GREEDY)
        port.fail_at = fail_at
        with pytest.raises(PeerError):
            list(session.generate(sampler, 6, lambda token: False))
        known = session.tokens[prompt:]
        assert known == expected[: len(known)]
        more = list(session.generate(sampler, 6 - len(known), lambda token: False))
        assert known + more == expected
        # What was computed was not computed again.
        assert sum(counted) == prompt + 5
        sampler.close()


def test_two_sessions_of_one_backbone(model: ModelParts) -> None:
    with model.backbone() as alone:
        first, second = (
            generate(alone, GREEDY, 6, "def f(x):\n"),
            generate(alone, GREEDY, 6, "In the beginning"),
        )
    with model.backbone(n_sequences=2) as backbone:
        tokenizer = Tokenizer(backbone.model)
        sessions = [Session(backbone, number) for number in range(2)]
        sampler = Sampler(model.library, GREEDY)
        for session, text in zip(sessions, ("def f(x):\n", "In the beginning"), strict=True):
            session.append(tokenizer.encode(text))
        streams = [session.generate(sampler, 6, lambda token: False) for session in sessions]
        taken = [(next(streams[0]), next(streams[1])) for _ in range(6)]
        assert [list(each) for each in zip(*taken, strict=True)] == [first, second]
        sampler.close()


# --- samplers ---


def test_temperature_zero_is_greedy(backbone: Backbone) -> None:
    batch = rows(Tokenizer(backbone.model).encode(PROMPT))
    logits = backbone.run(batch)
    for settings in (GREEDY, SamplingSettings(seed=99), SamplingSettings(top_k=1, top_p=0.1, min_p=0.9)):
        sampler = Sampler(backbone.model.library, settings)
        assert [sampler.sample(backbone.context, i) for i in range(len(batch))] == logits.argmax(
            axis=1
        ).tolist()
        sampler.close()
    assert generate(backbone, GREEDY) == generate(backbone, SamplingSettings(seed=5))


def test_the_same_seed_gives_the_same_tokens(backbone: Backbone) -> None:
    first = generate(backbone, WARM)
    assert generate(backbone, WARM) == first
    others = [generate(backbone, SamplingSettings(1.5, seed, 0, 1.0, 0.0)) for seed in (0, 1, 8, 2**32 - 2)]
    assert all(other != first for other in others)
    assert generate(backbone, SamplingSettings(1.5, 2**32 - 2, 0, 1.0, 0.0)) == others[-1]
    assert first != generate(backbone, GREEDY)


def test_filters_bound_what_is_drawn(backbone: Backbone) -> None:
    batch = rows(Tokenizer(backbone.model).encode(PROMPT), wanted="last")
    logits = backbone.run(batch)[0]
    order = logits.argsort()[::-1].tolist()

    def drawn(**settings: Any) -> set[int]:
        chosen = set()
        for seed in range(60):
            everything = {
                "temperature": 5.0,
                "seed": seed,
                "top_k": 0,
                "top_p": 1.0,
                "min_p": 0.0,
                **settings,
            }
            sampler = Sampler(backbone.model.library, SamplingSettings(**everything))
            chosen.add(sampler.sample(backbone.context, len(batch) - 1))
            sampler.close()
        return chosen

    assert len(drawn()) > 10
    assert drawn(top_k=3) == set(order[:3])
    assert drawn(top_p=0.0) == {order[0]}
    assert drawn(min_p=1.0) == {order[0]}


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": 101.0},
        {"top_p": 1.1},
        {"top_p": -0.1},
        {"min_p": float("nan")},
        {"min_p": 2.0},
        {"top_k": -1},
        {"seed": -1},
        {"seed": 1 << 32},
    ],
)
def test_settings_out_of_range(settings: dict[str, Any]) -> None:
    with pytest.raises(LocalError, match="must lie in"):
        SamplingSettings(**settings)


# --- text ---


@pytest.fixture
def tokenizer(backbone: Backbone) -> Tokenizer:
    return Tokenizer(backbone.model)


TEXTS = (
    "",
    "def f(x):\n    return x",
    "naïve café — ½ €",
    "日本語のテキスト",
    "🐝🍯👩‍👩‍👧",
    "a\x00b\n\t",
    " " * 50,
)


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    assert tokens[0] == 0  # BOS
    assert b"".join(tokenizer.piece(token) for token in tokens[1:]) == text.encode()


@pytest.mark.parametrize("text", TEXTS[1:])
def test_characters_split_over_tokens_are_held_back(tokenizer: Tokenizer, text: str) -> None:
    stream = TextStream(tokenizer)
    tokens = tokenizer.encode(text)[1:]
    pieces = [stream.feed([token]) for token in tokens]
    assert "".join(pieces) + stream.finish() == text
    assert "\ufffd" not in "".join(pieces)
    if "🐝" in text:
        assert "" in pieces  # a character of several tokens came whole, with its last


def test_what_never_becomes_a_character(tokenizer: Tokenizer) -> None:
    first = tokenizer.encode("🐝")[1:]
    assert len(first) > 1
    stream = TextStream(tokenizer)
    assert stream.feed(first[:1]) == ""
    assert stream.feed(tokenizer.encode("a")[1:]) == "\ufffda"
    assert stream.feed(first[:1]) == ""
    assert stream.finish() == "\ufffd"


def test_lone_surrogates_do_not_break_anything(tokenizer: Tokenizer) -> None:
    # What Python makes of command line arguments that are no UTF-8.
    assert tokenizer.encode("a\udcffb") == tokenizer.encode("a?b")


def test_control_words_of_users_are_text(tokenizer: Tokenizer) -> None:
    word = "<|endoftext|>"
    assert tokenizer.encode(word, special=True) == [0, 0]
    plain = tokenizer.encode(word)
    assert len(plain) > 2 and b"".join(tokenizer.piece(token) for token in plain[1:]) == word.encode()
    assert tokenizer.is_end(0) and not tokenizer.is_end(plain[1])


def test_long_text(tokenizer: Tokenizer) -> None:
    text = "".join(f"line {n}: {'ä' * (n % 7)}\n" for n in range(3000))
    assert b"".join(tokenizer.piece(token) for token in tokenizer.encode(text)[1:]) == text.encode()


def test_a_model_without_a_tokenizer(parts: Parts) -> None:
    with parts("olmoe").backbone() as backbone, pytest.raises(EngineError, match="has no tokenizer"):
        Tokenizer(backbone.model)


def test_rows_outside_the_vocabulary(backbone: Backbone) -> None:
    for token in (-1, backbone.model.n_vocab, 1 << 31):
        with pytest.raises(EngineError, match="outside the vocabulary"):
            backbone.run([Row(token, 0)])
