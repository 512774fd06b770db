"""Rows of one pass against passes of one token each, to the last bit (node.decode.exactness)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from node.decode.backbone import Backbone
from node.decode.exactness import FEW_ROWS, MOST_ROWS, can_rewind, most_rows
from node.engine.context import Context, Row
from node.engine.library import Library
from node.engine.llama_model import LlamaModel
from node.engine.tokenizer import Tokenizer
from routing.wire.codecs import Float32Array
from tests.model_parts import ModelParts, WatchedPort, rows
from tests.zoo.make_zoo import zoo

Parts = Callable[..., ModelParts]

TEXT = "def read_config(path):\n    with open(path) as file:\n        return [line.strip() for line in file"
PROMPT = 12
"""Tokens computed before the passes that are compared."""


def one_by_one(backbone: Backbone, tokens: list[int]) -> Float32Array:
    """Logits [n, n_vocab] of passes of one token, each with company."""
    backbone.context.clear()
    backbone.compute(rows(tokens[:PROMPT], wanted="last"))
    found = []
    for i, token in enumerate(tokens[PROMPT:], PROMPT):
        backbone.compute([Row(token, i), Row(token, i + 1)], junk=1)
        found.append(backbone.context.outputs([0])[0])
        assert backbone.context.remove(0, i + 1)
    return np.stack(found)


def together(backbone: Backbone, tokens: list[int], size: int) -> Float32Array:
    """The same from passes of so many rows; a last one alone gets company."""
    backbone.context.clear()
    backbone.compute(rows(tokens[:PROMPT], wanted="last"))
    found = []
    for start in range(PROMPT, len(tokens), size):
        batch = rows(tokens[start : start + size], start)
        alone = len(batch) == 1
        if alone:
            batch.append(Row(batch[0].token, start + 1))
        backbone.compute(batch, junk=int(alone))
        found.append(backbone.context.outputs(list(range(len(batch) - alone))))
        if alone:
            backbone.context.remove(0, start + 1)
    return np.concatenate(found)


def check(model: ModelParts) -> None:
    with model.backbone() as backbone:
        tokens = Tokenizer(backbone.model).encode(TEXT)[: PROMPT + 2 * MOST_ROWS]
        alone = one_by_one(backbone, tokens)
        for size in range(2, backbone.most_rows + 1):
            assert together(backbone, tokens, size).tobytes() == alone.tobytes(), f"{size} rows"


def test_rows_of_a_pass_have_the_bytes_of_single_tokens(parts: Parts) -> None:
    model = parts("demo")
    assert most_rows(model.manifest) == FEW_ROWS  # K-quants
    check(model)


@pytest.mark.parametrize("name", ["tiny-qwen3moe-32e4.Q8_0", "tiny-qwen2moe-12e2-shared.Q8_0"])
def test_sixteen_rows_where_the_types_allow(parts: Parts, shared_dir: Path, name: str) -> None:
    model = parts(shared_dir / "models" / f"{name}.gguf")
    assert most_rows(model.manifest) == MOST_ROWS
    check(model)


@pytest.mark.parametrize("name", ["tiny-qwen3moe-32e4.Q4_K_M", "tiny-gpt-oss-16e4-random.MXFP4"])
def test_seven_rows_elsewhere(parts: Parts, shared_dir: Path, name: str) -> None:
    model = parts(shared_dir / "models" / f"{name}.gguf")
    assert most_rows(model.manifest) == FEW_ROWS
    check(model)


def test_a_row_without_company_has_other_bytes(parts: Parts) -> None:
    """Else the rule would be for nothing."""
    with parts("demo").backbone() as backbone:
        tokens = Tokenizer(backbone.model).encode(TEXT)[: PROMPT + 8]
        alone = one_by_one(backbone, tokens)
        backbone.context.clear()
        backbone.compute(rows(tokens[:PROMPT], wanted="last"))
        lonely = []
        for i, token in enumerate(tokens[PROMPT:], PROMPT):
            backbone.compute([Row(token, i)])
            lonely.append(backbone.context.outputs([0])[0])
    assert np.stack(lonely).tobytes() != alone.tobytes()


def test_nobody_is_asked_for_the_company(parts: Parts) -> None:
    model = parts("demo")
    port = WatchedPort(model.local())
    with model.backbone(port) as backbone:
        backbone.compute([Row(5, 0), Row(6, 1)], junk=1)
    assert [len(inputs.ids) for inputs in port.calls] == [1] * len(model.manifest.calls)
    assert all(len(inputs.x) == 1 for inputs in port.calls)


def test_what_cannot_go_back_is_known(zoo_file: Callable[..., Path], library: Library) -> None:
    rewinds, stay = set[str](), set[str]()
    for name in zoo():
        with LlamaModel(library, [zoo_file(name)]) as model, Context(model, n_ctx=64) as context:
            if context.is_encoder:
                continue
            tokens = [int(token) for token in np.random.default_rng(3).integers(0, model.n_vocab, 8)]
            context.compute(rows(tokens))
            gone = context.remove(0, 5)
            assert gone == can_rewind(model), name
            (rewinds if gone else stay).add(name)
            if gone:  # and what comes afterwards is as if they had never been
                again = context.run(rows(tokens[5:7], 5))
                context.clear()
                context.compute(rows(tokens[:5]))
                assert again.tobytes() == context.run(rows(tokens[5:7], 5)).tobytes(), name
    assert {"jamba", "qwen3next"} <= stay and {"qwen3moe", "gpt-oss"} <= rewinds
