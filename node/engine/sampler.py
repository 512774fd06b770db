"""Choosing the next token by llama.cpp's own samplers, in the order its tools use."""

from __future__ import annotations

from typing import Any

import msgspec

from node.engine.context import Context
from node.engine.library import Library
from routing.errors import LocalError

MIN_KEEP = 1  # tokens that top-p and min-p leave at least


class SamplingSettings(msgspec.Struct, frozen=True):
    """How to choose. Temperature 0 is greedy: the likeliest token, whatever else is set.

    Attributes:
        seed: of the draw; the same seed, settings and logits give the same tokens. The largest, 4294967295,
            is llama.cpp's "draw one".
        top_k: 0 for all; top_p: 1 for all; min_p: 0 for all.
    """

    temperature: float = 0.0
    seed: int = 0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 100 or not 0 <= self.top_p <= 1 or not 0 <= self.min_p <= 1:
            raise LocalError("temperature must lie in 0..100, top-p and min-p in 0..1")
        if not 0 <= self.seed < 1 << 32 or self.top_k < 0:
            raise LocalError("seed must lie in 0..4294967295, top-k must not be negative")


class Sampler:
    """A sampler chain; owns its random state."""

    def __init__(self, library: Library, settings: SamplingSettings) -> None:
        self._library = library
        self.temperature = settings.temperature
        chain: Any = library.llama_sampler_chain_init(library.llama_sampler_chain_default_params())
        self._chain = chain
        if settings.temperature == 0:
            library.llama_sampler_chain_add(chain, library.llama_sampler_init_greedy())
            return
        if settings.top_k:
            library.llama_sampler_chain_add(chain, library.llama_sampler_init_top_k(settings.top_k))
        if settings.top_p < 1:
            library.llama_sampler_chain_add(chain, library.llama_sampler_init_top_p(settings.top_p, MIN_KEEP))
        if settings.min_p > 0:
            library.llama_sampler_chain_add(chain, library.llama_sampler_init_min_p(settings.min_p, MIN_KEEP))
        library.llama_sampler_chain_add(chain, library.llama_sampler_init_temp(settings.temperature))
        library.llama_sampler_chain_add(chain, library.llama_sampler_init_dist(settings.seed))

    def sample(self, context: Context, row: int) -> int:
        """The next token after the `row`th row of the last pass, which must have been wanted."""
        token: int = self._library.llama_sampler_sample(self._chain, context.handle, row)
        return token

    def clone(self) -> Sampler:
        """One in the same state: its next draws are the ones that this one's will be."""
        twin = object.__new__(Sampler)
        twin._library = self._library
        twin.temperature = self.temperature
        twin._chain = self._library.llama_sampler_clone(self._chain)
        return twin

    def close(self) -> None:
        if self._chain:
            self._library.llama_sampler_free(self._chain)
            self._chain = None
