"""The trained models say what plain llama.cpp of another build said (../shared/models/README.md)."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from node.decode.session import Session
from node.engine.sampler import Sampler, SamplingSettings
from node.engine.tokenizer import TextStream, Tokenizer
from tests.model_parts import ModelParts, WatchedPort

TOLERANCE = 0.3  # logits: another build of llama.cpp adds in another order, which may tip a router
USUAL = 0.05  # the median of differences
PROMPTS = 8

MODELS = (
    "tiny-qwen3moe-32e4.Q4_K_M",
    "tiny-qwen2moe-12e2-shared.Q4_K_M",
    pytest.param("tiny-qwen3moe-32e4.Q8_0", marks=pytest.mark.slow),
    pytest.param("tiny-qwen2moe-12e2-shared.Q8_0", marks=pytest.mark.slow),
)


def compare(model: ModelParts, prompt: dict[str, Any]) -> tuple[int, int]:
    """(tokens compared, rows of experts compared); asserts all of them.

    The told tokens are followed, also where a near-tie might have gone the other way.
    """
    port = WatchedPort(model.local())
    with model.backbone(port, n_ctx=512) as backbone:
        tokenizer = Tokenizer(backbone.model)
        assert tokenizer.encode(prompt["prompt"]) == prompt["prompt_ids"]
        sampler = Sampler(model.library, SamplingSettings())
        session = Session(backbone)
        session.append(prompt["prompt_ids"])
        decided = 0
        differences: list[float] = []
        for step, expected in enumerate(prompt["greedy_ids"]):
            token = session.next_token(sampler)
            top = prompt["top5"][step]
            row = len(prompt["prompt_ids"]) - 1 if step == 0 else 0
            logits = backbone.context.outputs([row])[0][top["ids"]]
            differences.append(float(np.abs(logits - np.array(top["logits"])).max()))
            if top["logits"][0] - top["logits"][1] > TOLERANCE:
                assert token == expected, f"step {step}"
                decided += 1
            session.append([expected])
        sampler.close()
        assert max(differences) < TOLERANCE and statistics.median(differences) < USUAL
        stream = TextStream(tokenizer)
        assert stream.feed(prompt["greedy_ids"]) + stream.finish() == prompt["greedy_text"]
    return decided, check_experts(port, prompt)


def check_experts(port: WatchedPort, prompt: dict[str, Any]) -> int:
    """The chosen experts, rows in the order of positions; the last layer leaves out what nobody wants."""
    seen: dict[int, int] = {}
    rows = differing = 0
    for inputs in port.calls:
        layer, count = inputs.call.layer, len(inputs.ids)
        first = seen.get(layer, len(prompt["prompt_ids"]) - 1 if layer == 3 else 0)
        seen[layer] = first + count
        for position, ids in enumerate(inputs.ids.tolist(), first):
            rows += 1
            # As sets: two of them may stand in the other order where their weights nearly agree.
            differing += set(ids) != set(prompt["experts"][str(layer)][position])
    assert differing <= rows * 0.01
    return rows


def golden(shared_dir: Path, name: str) -> tuple[Path, list[dict[str, Any]]]:
    path = shared_dir / "models" / f"{name}.gguf"
    told = path.with_name(f"{name}.golden.json")
    if not told.is_file():
        pytest.skip(f"needs {told}")
    return path, json.loads(told.read_text())["prompts"]


@pytest.mark.parametrize("name", MODELS)
def test_every_prompt(shared_dir: Path, parts: Callable[..., ModelParts], name: str) -> None:
    path, prompts = golden(shared_dir, name)
    assert len(prompts) == PROMPTS
    found = [compare(parts(path), prompt) for prompt in prompts]
    # Near-ties prove nothing, but they are few.
    assert sum(decided for decided, _ in found) > PROMPTS * 64 * 0.6
    assert sum(rows for _, rows in found) > 1000
