"""The zoo as test parameters: models that differ in kind are fast, the rest are slow only by number."""

from __future__ import annotations

from typing import Any

import pytest

from tests.zoo.make_zoo import zoo

SPECIAL = (
    "qwen3moe",  # the plain kind
    "llama4",  # weights before the experts, a hollow trunk
    "gpt-oss",  # biases
    "kimi-k3",  # products of three, recurrent
    "nemotron_h_moe",  # latent width, no gate
    "gemma4",  # scales, merged halves, GELU
    "qwen3moe@scales",
    "grovemoe",  # two calls a layer
    "deepseek2",  # merged halves in some layers
    "deepseek4",  # ids from a table
    "smallthinker",  # ids before attention ends
    "cohere2moe",  # experts beside attention
    "arctic",  # experts that read what attention reads
    "nomic-bert-moe",  # an encoder
    "jamba@dense",  # a hollow trunk, recurrent
    "llama@used1",  # one used expert
)

ZOO: tuple[Any, ...] = tuple(
    name if name in SPECIAL else pytest.param(name, marks=pytest.mark.slow) for name in zoo()
)
