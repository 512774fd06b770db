"""Penalties, bias and grammars: the tokens of llama.cpp's own server, greedy and seeded, guessed or not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from node.decode.backbone import Backbone
from node.decode.drafting.draft import Drafter
from node.decode.drafting.draft_model import DraftModel
from node.decode.drafting.guessing import Guessing
from node.decode.drafting.ngram import NgramDrafter
from node.decode.drafting.rule import AlwaysRule
from node.decode.ledger import PassDone
from node.decode.session import Session
from node.engine.context import Context, Row
from node.engine.library import Library
from node.engine.llama_model import LlamaModel
from node.engine.sampler import Sampler, SamplingSettings
from node.engine.tokenizer import Tokenizer
from routing.errors import LocalError
from tests.llama_server import LlamaServer, llama_server
from tests.model_parts import ModelParts

PROMPT = "def main(argv):\n    for name in argv:\n"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "n": {"type": "integer", "minimum": 0, "maximum": 999},
    },
    "required": ["name", "n"],
    "additionalProperties": False,
}
CALL = 'root ::= "return " [a-z]+ "(" [a-z]* ")"'
DRAWS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "warm": {"temperature": 0.8, "seed": 7},
    "hot": {"temperature": 1.3, "seed": 3, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
}
# ours, and what llama.cpp's server calls it
CHOICES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "frequency": ({"frequency_penalty": 1.2}, {"frequency_penalty": 1.2}),
    "presence": (
        {"presence_penalty": 1.5, "frequency_penalty": -0.3},
        {"presence_penalty": 1.5, "frequency_penalty": -0.3},
    ),
    "repeat": (
        {"repeat_penalty": 1.3, "penalty_last_n": 20},
        {"repeat_penalty": 1.3, "repeat_last_n": 20},
    ),
    "bias": (
        {"logit_bias": ((300, 100.0), (13, -100.0), (400, 3.5))},
        {"logit_bias": [[300, 100.0], [13, -100.0], [400, 3.5]]},
    ),
    "grammar": ({"grammar": CALL}, {"grammar": CALL}),
    "schema": ({"grammar": "SCHEMA"}, {"json_schema": SCHEMA}),
    "all": (
        {"grammar": "SCHEMA", "frequency_penalty": 0.7, "logit_bias": ((400, 3.5),)},
        {"json_schema": SCHEMA, "frequency_penalty": 0.7, "logit_bias": [[400, 3.5]]},
    ),
}


@pytest.fixture(scope="module")
def model(library: Library, demo_model: Path) -> Iterator[LlamaModel]:
    with LlamaModel(library, [demo_model]) as made:
        yield made


@pytest.fixture(scope="module")
def server(demo_model: Path) -> Iterator[LlamaServer]:
    with llama_server(demo_model) as made:
        yield made


def settings_of(model: LlamaModel, **settings: Any) -> SamplingSettings:
    if settings.get("grammar") == "SCHEMA":
        settings["grammar"] = model.grammars.of_schema(SCHEMA)
    return SamplingSettings(**settings)


def decode(
    model: LlamaModel, settings: SamplingSettings, limit: int, history: Sequence[int] = ()
) -> list[int]:
    """Tokens one by one, each pass as llama.cpp's server makes it."""
    tokenizer = Tokenizer(model)
    prompt = tokenizer.encode(PROMPT)
    with (
        Context(model, n_ctx=512) as context,
        closing(Sampler(model.library, settings, model)) as sampler,
    ):
        sampler.accept_prompt(history or prompt)
        context.compute([Row(token, i, wanted=i == len(prompt) - 1) for i, token in enumerate(prompt)])
        tokens = [sampler.sample(context, len(prompt) - 1)]
        while len(tokens) < limit and not tokenizer.is_end(tokens[-1]):
            context.compute([Row(tokens[-1], len(prompt) + len(tokens) - 1)])
            tokens.append(sampler.sample(context, 0))
    return tokens


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("draw", DRAWS)
def test_the_tokens_are_those_of_llama_cpps_server(
    model: LlamaModel, server: LlamaServer, draw: str, choice: str
) -> None:
    ours, theirs = CHOICES[choice]
    found = decode(model, settings_of(model, **DRAWS[draw], **ours), 40)
    defaults = {"top_k": 40, "top_p": 0.95, "min_p": 0.05}
    expected = server.tokens(Tokenizer(model).encode(PROMPT), 40, **{**defaults, **DRAWS[draw]}, **theirs)
    assert found == expected
    if "schema" in theirs:
        assert found != decode(model, settings_of(model, **DRAWS[draw]), 40)


def test_each_choice_matters(model: LlamaModel) -> None:
    plain = decode(model, SamplingSettings(), 30)
    for ours, _ in list(CHOICES.values())[1:]:
        assert decode(model, settings_of(model, **ours), 30) != plain
    penalised = SamplingSettings(repeat_penalty=2.0, penalty_last_n=400)
    assert decode(model, penalised, 30) != decode(model, penalised, 30, history=[0])  # the prompt counts


def test_bias_forces_and_bans(model: LlamaModel) -> None:
    plain = decode(model, SamplingSettings(), 10)
    assert decode(model, SamplingSettings(logit_bias=((700, 100.0),)), 10) == [700] * 10
    banned = SamplingSettings(logit_bias=tuple((token, -100.0) for token in set(plain)))
    assert not set(decode(model, banned, 10)) & set(plain)
    warm = SamplingSettings(temperature=1.0, seed=4, logit_bias=((700, 100.0),))
    assert decode(model, warm, 10) == [700] * 10


def test_a_schema_gives_json(model: LlamaModel) -> None:
    tokenizer = Tokenizer(model)
    # A model this small would write spaces for ever where they are permitted.
    grammar = model.grammars.of_schema(SCHEMA | {"x-guidance": {"whitespace_flexible": False}})
    for seed in range(5):
        settings = SamplingSettings(temperature=1.0, seed=seed, grammar=grammar)
        tokens = decode(model, settings, 300)
        assert tokenizer.is_end(tokens[-1])
        value = json.loads(b"".join(map(tokenizer.piece, tokens)))
        assert set(value) == {"name", "n"} and value["n"] in range(1000) and len(value["name"]) <= 12


def test_a_grammar_that_permits_nothing_more_ends_the_text(model: LlamaModel) -> None:
    """What follows `a` is a token that no vocabulary of this size has."""
    for grammar in ('root ::= "a" <[4000000]>', 'root ::= "a"'):
        tokens = decode(model, SamplingSettings(grammar=grammar), 10)
        assert [Tokenizer(model).piece(token) for token in tokens[:-1]] == [b"a"]
        assert Tokenizer(model).is_end(tokens[-1])


def test_a_biased_token_outside_the_vocabulary(model: LlamaModel) -> None:
    for token in (-1, model.n_vocab):
        with pytest.raises(LocalError, match=f"token {token} is outside the vocabulary of 2048"):
            Sampler(model.library, SamplingSettings(logit_bias=((token, 1.0),)), model)


# --- guessing ---


def session_tokens(
    backbone: Backbone, settings: SamplingSettings, guessing: Guessing | None = None
) -> tuple[list[int], list[PassDone]]:
    tokenizer = Tokenizer(backbone.model)
    done: list[PassDone] = []
    backbone.context.clear()
    session = Session(backbone, guessing=guessing, on_pass=done.append)
    session.append(tokenizer.encode(PROMPT))
    with closing(Sampler(backbone.model.library, settings, backbone.model)) as sampler:
        sampler.accept_prompt(session.tokens)
        return list(session.generate(sampler, 60, tokenizer.is_end)), done


@pytest.mark.parametrize("draw", ["greedy", "warm"])
@pytest.mark.parametrize("choice", ["presence", "repeat", "grammar", "all"])
def test_guessing_changes_no_token(parts: Callable[..., ModelParts], draw: str, choice: str) -> None:
    """Guesses drawn with a clone of the sampler, and copied ones, which penalties and grammar never saw."""
    whole = parts("demo")
    with whole.backbone(n_ctx=400) as backbone:
        settings = settings_of(backbone.model, **DRAWS[draw], **CHOICES[choice][0])
        plain, passes = session_tokens(backbone, settings)
        assert len(passes) == len(plain) + 1 or len(plain) == 60
        drafters: list[Drafter] = [
            DraftModel(whole.library, whole.path, backbone.model, n_ctx=400),
            NgramDrafter(),
        ]
        for drafter in drafters:
            guessing = Guessing(drafter, AlwaysRule(backbone.most_rows - 1))
            guessed, passes = session_tokens(backbone, settings, guessing)
            guessing.close()
            assert guessed == plain
            if isinstance(drafter, DraftModel):
                assert sum(done.accepted for done in passes) > len(plain) // 2
