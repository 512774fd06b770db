"""Grammars that would end the process, or never end: each is one line, and the next one is followed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from node.engine.grammar import GrammarError, Grammars
from node.engine.library import Library
from node.engine.llama_model import LlamaModel
from node.engine.tokenizer import Tokenizer

CHAIN = "\n".join(f"r{i} ::= r{i + 1} r{i + 1} | " + '""' for i in range(40))
NOT_GRAMMARS = {
    'root ::= "a': "unexpected end of input",
    "root ::= other": "Undefined rule identifier 'other'",
    'other ::= "a"': "does not contain a 'root' symbol",
    "# nothing": "failed to parse",
    'root ::= root "a" | "b"': "left recursion",
    'root ::= "a"{99999999999999999999999}': "stoull",
    'root ::= (("a"{1,1999}){1,1999}){1,1999}': "exceeds sane defaults",
    "root ::= <[4000000]>": "permits no token",
    "%llguidance {}\nstart: other": "unknown name",
    '%llguidance {}\nstart: %json {"type": "nothing"}': "Invalid type: nothing",
}
HOSTILE = {
    "nests": "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000,
    "hidden left recursion": 'root ::= b root "x" | "y"\nb ::= c\nc ::= ',
    "counts down": 'root ::= "a"{5,2}',
    "takes ages to parse": f'root ::= r0 "z"\n{CHAIN}\nr40 ::= "x"',
    "takes ages to begin": "root ::= " + ' "a"?' * 3000,
}


@pytest.fixture(scope="module")
def model(library: Library, demo_model: Path) -> Iterator[LlamaModel]:
    with LlamaModel(library, [demo_model]) as made:
        yield made


@pytest.fixture(scope="module")
def grammars(model: LlamaModel) -> Grammars:
    return model.grammars


def walk(grammars: Grammars, text: str, tokens: list[int]) -> list[bool]:
    grammar = grammars.open(text)
    try:
        return [grammar.take(token) is None for token in tokens]
    finally:
        grammar.close()


@pytest.mark.parametrize(("text", "said"), NOT_GRAMMARS.items())
def test_what_is_no_grammar(grammars: Grammars, text: str, said: str) -> None:
    with pytest.raises(GrammarError, match=said) as caught:
        grammars.check(text)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_what_would_end_the_process_or_never_end(grammars: Grammars, model: LlamaModel, name: str) -> None:
    (token,) = Tokenizer(model).encode("a")[-1:]
    followed = grammars.open('root ::= "a"*')
    assert followed.take(token) is None
    begun = time.monotonic()
    with pytest.raises(GrammarError, match=r"use a simpler one|bad_alloc"):
        grammars.check(HOSTILE[name])
    assert time.monotonic() - begun < 30
    assert followed.take(token) is None  # who has nothing to do with it goes on
    followed.close()


@pytest.mark.slow
def test_one_that_explodes_after_some_tokens(grammars: Grammars, model: LlamaModel) -> None:
    """Twice the places after each `a`: no check at its start can tell."""
    text = 'root ::= s\ns ::= "a" s "b" | "a" s "c" | "x"'
    grammars.check(text)
    grammar = grammars.open(text)
    twin = grammar.clone()
    (token,) = Tokenizer(model).encode("a")[-1:]
    begun = time.monotonic()
    with pytest.raises(GrammarError, match="use a simpler one"):
        for _ in range(40):
            assert grammar.take(token) is None
    assert time.monotonic() - begun < 60
    for each in (grammar, twin):
        with pytest.raises(GrammarError):
            each.take(token)
        each.close()
    assert len(grammars.processes.pids) == 1


def test_following(grammars: Grammars, model: LlamaModel) -> None:
    tokenizer = Tokenizer(model)
    a, b = (tokenizer.encode(letter)[-1] for letter in "ab")
    end = next(token for token in range(model.n_vocab) if tokenizer.is_end(token))
    assert walk(grammars, 'root ::= "ab"', [b, a, a, b, b, end, end, a]) == [
        False, True, False, True, False, True, True, False
    ]  # fmt: skip
    for ended in ('root ::= "a"', '%llguidance {}\nstart: "a"'):
        assert walk(grammars, ended, [end, a, a, end, a, end]) == [False, True, False, True, False, True]
    # llguidance has what is certain spelt as the tokenizer would.
    for text, first in (('root ::= "abc"', {b"a", b"ab"}), ('%llguidance {}\nstart: "abc"', {b"ab"})):
        grammar = grammars.open(text)
        mask = grammar.take(b)
        assert mask is not None and len(mask) == model.n_vocab
        assert {tokenizer.piece(int(each)) for each in np.flatnonzero(mask)} == first
        grammar.close()


def test_a_clone_goes_its_own_way(grammars: Grammars, model: LlamaModel) -> None:
    a, b = (Tokenizer(model).encode(letter)[-1] for letter in "ab")
    for text in ('root ::= "a" ("a" | "b")', '%llguidance {}\nstart: "a" ("a" | "b")'):
        grammar = grammars.open(text)
        assert grammar.take(a) is None
        twin = grammar.clone()
        assert twin.take(a) is None and twin.take(b) is not None
        assert grammar.take(b) is None and grammar.take(a) is not None
        grammar.close()
        assert twin.take(a) is not None  # the first one's end is not its end
        twin.close()
        twin.close()
    assert len(grammars.processes.pids) == 1


def test_schemas(grammars: Grammars) -> None:
    assert "%json" in grammars.of_schema({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}},
                                          "$defs": {"b": {"enum": ["x", "y"]}}})  # fmt: skip
    assert grammars.json_object() == grammars.of_schema({"type": "object"})
    nested: dict[str, object] = {}
    for _ in range(5000):
        nested = {"type": "array", "items": nested}
    cycle: dict[str, object] = {}
    cycle["items"] = cycle
    for schema, said in (
        ({"type": "nothing"}, "not valid: .*Invalid type: nothing"),
        ({"$ref": "https://example.org/schema.json"}, "not valid"),
        ({"$ref": "#"}, "."),
        ({"pattern": "(", "type": "string"}, "not valid"),
        (nested, "."),
        (cycle, "not JSON|too deeply"),
        ({"minimum": float("nan")}, "not JSON"),
        ({"enum": ["x" * 1000] * 1000}, "bytes; at most"),
        ({1: {1, 2}}, "not JSON"),
        ("%llguidance", "."),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "."),
    ):
        try:
            grammars.of_schema(schema)
        except GrammarError as error:
            assert "\n" not in str(error)
            assert re.search(said, str(error)), (schema, str(error))
        else:
            assert said == ".", schema
    grammars.check('root ::= "a"')


def test_without_its_model(library: Library, demo_model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model.gguf"
    copy.write_bytes(demo_model.read_bytes())
    with LlamaModel(library, [copy], vocab_only=True) as model:
        copy.unlink()
        with pytest.raises(GrammarError, match=r"no grammar can be followed here: .*cannot load it"):
            model.grammars.check('root ::= "a"')
        grammars = model.grammars
    with pytest.raises(GrammarError, match="the model was closed"):
        grammars.open('root ::= "a"')
