"""A model with everything that tests of the engine ask for: trunk, manifest, whole file, its experts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from node.decode.backbone import Backbone
from node.engine.context import Context, Row
from node.engine.expert_holes import ExpertInputs, ExpertPort
from node.engine.gate import LocalExperts
from node.engine.kernels import Kernels
from node.engine.library import Library
from node.engine.llama_model import LlamaModel
from node.importing import import_model
from node.model.gguf.map import MappedModel
from node.model.gguf.split import open_model
from node.model.store import Store
from node.verify.comparison import held_whole
from routing.wire.codecs import Float32Array


class ModelParts:
    """A model in a store, its whole file mapped."""

    def __init__(self, library: Library, store: Store, path: Path) -> None:
        self.library = library
        self.store = store
        self.path = path
        self.stored = import_model(library, store, path)
        self.manifest = self.stored.manifest
        self.file = open_model(path)
        self.mapped = MappedModel(self.file)
        self.held = held_whole(self.mapped, self.manifest)
        self.kernels = Kernels(library, threads=1)
        self._n_vocab: int | None = None

    def local(self) -> LocalExperts:
        """A port that computes all experts here."""
        return LocalExperts(self.kernels, self.held)

    @contextmanager
    def backbone(self, port: ExpertPort | None = None, **options: Any) -> Iterator[Backbone]:
        """A hooked backbone on the trunk."""
        backbone = Backbone(self.library, self.stored, port or self.local(), **{"n_ctx": 256, **options})
        try:
            yield backbone
        finally:
            backbone.close()

    @contextmanager
    def plain(self, **options: Any) -> Iterator[Context]:
        """llama.cpp on the whole file, nothing hooked."""
        with (
            LlamaModel(self.library, [self.path]) as model,
            Context(model, **{"n_ctx": 256, **options}) as context,
        ):
            yield context

    def tokens(self, count: int, seed: int = 1) -> list[int]:
        """Seeded token ids."""
        if self._n_vocab is None:
            with LlamaModel(self.library, [self.stored.trunk]) as model:
                self._n_vocab = model.n_vocab
        return [int(token) for token in np.random.default_rng(seed).integers(0, self._n_vocab, count)]

    def close(self) -> None:
        self.kernels.close()
        self.held.clear()
        self.mapped.close()


def rows(tokens: list[int], start: int = 0, sequence: int = 0, wanted: str = "all") -> list[Row]:
    """Rows of consecutive positions; `wanted`: all, last or none."""
    last = len(tokens) - 1
    return [
        Row(token, start + i, sequence, wanted == "all" or (wanted == "last" and i == last))
        for i, token in enumerate(tokens)
    ]


class WatchedPort:
    """An `ExpertPort` that notes every call before it passes it on; tests of faults derive from it."""

    def __init__(self, inner: ExpertPort) -> None:
        self.inner = inner
        self.calls: list[ExpertInputs] = []

    def leave(self, inputs: ExpertInputs) -> Any:
        self.calls.append(inputs)
        return self.inner.leave(inputs)

    def enter(self, ticket: Any) -> Float32Array:
        return self.inner.enter(ticket)
