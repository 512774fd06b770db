"""Choosing the next token by llama.cpp's own samplers, in the order its tools use.

That is: logit bias, penalties, top-k, top-p, min-p, temperature, the draw. Temperature 0 takes the likeliest
token after bias and penalties. A grammar comes last, as in llama.cpp's server: a token is chosen without it,
and only one that it does not permit is chosen anew, among those that it does. So the draws are the server's,
too: two where one was refused.
"""

from __future__ import annotations

import ctypes as C
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from node.engine.context import Context
from node.engine.grammar import Grammar, GrammarError, refusal_of_text
from node.engine.library import Library
from node.engine.llama_model import LlamaModel
from node.engine.structs import LogitBias, TokenData, TokenDataArray
from routing.errors import LocalError

MIN_KEEP = 1  # tokens that top-p and min-p leave at least
MOST_PENALTY = 2.0  # either way: OpenAI's
MOST_REPEAT_PENALTY = 10.0
MOST_LAST_N = 1 << 16
"""Tokens that penalties look back at: each is counted at every draw."""
MOST_BIAS = 100.0  # either way: OpenAI's; beyond any logit, so it bans or forces
MOST_BIASED = 1024
"""Tokens with a bias: each is looked for at every draw."""
CANDIDATE = np.dtype([("id", "i4"), ("logit", "f4"), ("p", "f4")])  # llama_token_data


class SamplingSettings(msgspec.Struct, frozen=True):
    """How to choose. Temperature 0 is greedy: the likeliest token, whatever top-k, top-p, min-p and seed are.

    Attributes:
        seed: of the draw; the same seed, settings and logits give the same tokens. The largest, 4294967295,
            is llama.cpp's "draw one".
        top_k: 0 for all; top_p: 1 for all; min_p: 0 for all.
        presence_penalty: taken from the logit of a token that is among the last ones.
        frequency_penalty: taken as often as it is among them.
        repeat_penalty: what its logit is divided by (multiplied, if negative); 1 for none.
        penalty_last_n: how many last tokens the penalties look at, those of the prompt among them.
        logit_bias: (token, bias) pairs: added to the token's logit.
        grammar: GBNF, or Lark after a line `%llguidance {}`; "" for none.
    """

    temperature: float = 0.0
    seed: int = 0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_penalty: float = 1.0
    penalty_last_n: int = 64
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 100 or not 0 <= self.top_p <= 1 or not 0 <= self.min_p <= 1:
            raise LocalError("temperature must lie in 0..100, top-p and min-p in 0..1")
        if not 0 <= self.seed < 1 << 32 or self.top_k < 0:
            raise LocalError("seed must lie in 0..4294967295, top-k must not be negative")
        if not abs(self.presence_penalty) <= MOST_PENALTY or not abs(self.frequency_penalty) <= MOST_PENALTY:
            raise LocalError("presence and frequency penalty must lie in -2..2")
        if not 0 < self.repeat_penalty <= MOST_REPEAT_PENALTY or not 0 <= self.penalty_last_n <= MOST_LAST_N:
            raise LocalError("repeat penalty must lie above 0 and not above 10, its last n in 0..65536")
        if len(self.logit_bias) > MOST_BIASED:
            raise LocalError(
                f"logit bias has {len(self.logit_bias)} tokens; at most {MOST_BIASED} are possible"
            )
        if not all(abs(bias) <= MOST_BIAS for _, bias in self.logit_bias):
            raise LocalError("each logit bias must lie in -100..100")
        refusal = refusal_of_text(self.grammar, "grammar")
        if refusal:
            raise GrammarError(refusal)

    @property
    def penalises(self) -> bool:
        """Do earlier tokens matter to the choice?"""
        return self.penalty_last_n > 0 and (
            self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repeat_penalty != 1
        )


class Sampler:
    """A sampler chain and a place in a grammar; owns its random state.

    Args:
        model: needed for a grammar and for logit bias.

    Raises:
        GrammarError: the grammar is none, or takes too much. (`Grammars.check` says so sooner.)
        LocalError: a token with a bias is outside the vocabulary.
    """

    def __init__(self, library: Library, settings: SamplingSettings, model: LlamaModel | None = None) -> None:
        if model is None and (settings.grammar or settings.logit_bias):
            raise ValueError("a grammar and logit bias need a model")
        n_vocab = model.n_vocab if model is not None else 0
        for token, _ in settings.logit_bias:
            if not 0 <= token < n_vocab:
                raise LocalError(f"logit bias: token {token} is outside the vocabulary of {n_vocab}")
        self._library = library
        self._model = model
        self.temperature = settings.temperature
        self._penalises, self._last_n = settings.penalises, settings.penalty_last_n
        self._grammar: Grammar | None = None
        if model is not None and settings.grammar:
            self._grammar = model.grammars.open(settings.grammar)
        chain: Any = library.llama_sampler_chain_init(library.llama_sampler_chain_default_params())
        self._chain = chain
        for sampler in _samplers(library, settings, n_vocab):
            library.llama_sampler_chain_add(chain, sampler)

    def accept_prompt(self, tokens: Sequence[int]) -> None:
        """Let the penalties count the prompt, as llama.cpp's server does; the grammar begins after it."""
        if self._penalises:
            for token in tokens[-self._last_n :]:
                self._library.llama_sampler_accept(self._chain, token)

    def sample(self, context: Context, row: int) -> int:
        """The next token after the `row`th row of the last pass, which must have been wanted.

        Where the grammar permits nothing more, that is a token that ends the text.

        Raises:
            GrammarError: the grammar takes too much to follow, or it permits nothing and no token of the
                vocabulary ends a text.
        """
        if self._grammar is None:
            token: int = self._library.llama_sampler_sample(self._chain, context.handle, row)
            return token
        token = self._choose(self._grammar, context.outputs([row])[0])
        self._library.llama_sampler_accept(self._chain, token)
        return token

    def _choose(self, grammar: Grammar, logits: npt.NDArray[np.float32]) -> int:
        """A token that the grammar has taken."""
        token = self._draw(logits)
        permitted = grammar.take(token)
        if permitted is None:
            return token
        permitted = permitted[: len(logits)]
        if not permitted.any():
            return self._end()
        logits[~permitted] = -math.inf
        token = self._draw(logits)
        # A draw can fall on a token of no probability, by rounding, where nothing was cut off.
        if grammar.take(token) is not None:
            token = int(logits.argmax())
            grammar.take(token)
        return token

    def _draw(self, logits: npt.NDArray[np.float32]) -> int:
        candidates = np.zeros(len(logits), CANDIDATE)
        candidates["id"] = np.arange(len(logits), dtype=np.int32)
        candidates["logit"] = logits
        array = TokenDataArray(candidates.ctypes.data_as(C.POINTER(TokenData)), len(logits), -1, False)
        self._library.llama_sampler_apply(self._chain, C.byref(array))
        return int(array.data[array.selected].id)

    def _end(self) -> int:
        assert self._model is not None
        library, vocab = self._library, self._model.vocab
        for token in (library.llama_vocab_eot(vocab), library.llama_vocab_eos(vocab)):
            if token >= 0 and library.llama_vocab_is_eog(vocab, token):
                return int(token)
        raise GrammarError("the grammar permits nothing more, and no token of this model ends a text")

    def clone(self) -> Sampler:
        """One in the same state: its next draws are the ones that this one's will be."""
        twin = object.__new__(Sampler)
        twin._library = self._library
        twin._model = self._model
        twin.temperature = self.temperature
        twin._penalises, twin._last_n = self._penalises, self._last_n
        twin._grammar = self._grammar.clone() if self._grammar is not None else None
        twin._chain = self._library.llama_sampler_clone(self._chain)
        return twin

    def close(self) -> None:
        if self._chain:
            self._library.llama_sampler_free(self._chain)
            self._chain = None
        if self._grammar is not None:
            self._grammar.close()
            self._grammar = None


def _samplers(library: Library, settings: SamplingSettings, n_vocab: int) -> list[Any]:
    """llama.cpp's, in their order; those that would do nothing are left out."""
    samplers: list[Any] = []
    if settings.logit_bias:
        biases = (LogitBias * len(settings.logit_bias))(
            *(LogitBias(token, bias) for token, bias in settings.logit_bias)
        )
        samplers.append(library.llama_sampler_init_logit_bias(n_vocab, len(biases), biases))
    if settings.penalises:
        samplers.append(
            library.llama_sampler_init_penalties(
                n_vocab,
                settings.penalty_last_n,
                settings.repeat_penalty,
                settings.frequency_penalty,
                settings.presence_penalty,
            )
        )
    if settings.temperature == 0:
        return [*samplers, library.llama_sampler_init_greedy()]
    if settings.top_k:
        samplers.append(library.llama_sampler_init_top_k(settings.top_k))
    if settings.top_p < 1:
        samplers.append(library.llama_sampler_init_top_p(settings.top_p, MIN_KEEP))
    if settings.min_p > 0:
        samplers.append(library.llama_sampler_init_min_p(settings.min_p, MIN_KEEP))
    samplers.append(library.llama_sampler_init_temp(settings.temperature))
    samplers.append(library.llama_sampler_init_dist(settings.seed))
    return samplers
