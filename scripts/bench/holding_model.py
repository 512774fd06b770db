"""The model of bench_holding: its cells, and what plain llama.cpp writes after some prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scripts.simulate.world import BoolArray

TOKENS, PROMPT_CHARACTERS = 24, 200
"""Of an answer, and of what it goes on."""

PROMPTS = ("argparse", "ast", "calendar", "csv", "dis", "heapq", "inspect", "json.decoder", "pdb", "random")
"""Modules of Python whose source the prompts are from: what the small models were trained on."""


@dataclass(frozen=True)
class Model:
    """What is served.

    Attributes:
        cell_bytes: the mean. plain: what plain llama.cpp writes after each of `prompts`.
    """

    path: Path
    model_id: str
    layers: list[int]
    experts: int
    n_bytes: int
    prompts: list[str]
    plain: list[str]

    @property
    def cells(self) -> int:
        return len(self.layers) * self.experts

    @property
    def cell_bytes(self) -> float:
        return self.n_bytes / self.cells

    def held(self, runs: Sequence[Any]) -> BoolArray:
        """[cells], from runs as the status tells them."""
        found = np.zeros((len(self.layers), self.experts), np.bool_)
        for first, last, experts in runs:
            for place, layer in enumerate(self.layers):
                if first <= layer <= last:
                    for start, end in experts:
                        found[place, start : end + 1] = True
        return found.reshape(-1)


def open_model(path: Path, store: Path) -> dict[str, Any]:
    """What a fork finds out of a model: its cells, and plain llama.cpp's text after prompts."""
    from importlib.util import find_spec

    from node.engine import library as llama
    from node.engine.sampler import SamplingSettings
    from node.home.home_set import shapes_of, total_bytes
    from node.importing import import_model
    from node.model.store import Store
    from scripts.bench.plain_text import PlainText

    library = llama.load()
    stored = import_model(library, Store(store), path)
    shapes = shapes_of(stored.manifest)
    prompts = []
    for name in PROMPTS:
        spec = find_spec(name)
        assert spec is not None and spec.origin is not None
        prompts.append(Path(spec.origin).read_text(encoding="utf-8")[600:][:PROMPT_CHARACTERS])
    with PlainText(library, path, n_ctx=512) as plain:
        texts = [
            plain.text(plain.tokens(each, TOKENS, SamplingSettings(temperature=0.0))) for each in prompts
        ]
    return {
        "model_id": stored.model_id,
        "layers": list(shapes),
        "experts": max(each.n_experts for each in shapes.values()),
        "n_bytes": total_bytes(shapes),
        "prompts": prompts,
        "plain": texts,
    }
