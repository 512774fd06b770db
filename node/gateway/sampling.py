"""How tokens are chosen, by the fields of a request.

Defaults are OpenAI's where it has some: temperature 1, top_p 1, no penalties. What only llama.cpp has
(top_k, min_p, repeat_penalty) is off unless asked for: so a request that names none of them draws from the
model's own distribution, as OpenAI's API does.
"""

from __future__ import annotations

from node.engine.sampler import SamplingSettings
from node.gateway.bodies import Body

SEEDS = (1 << 32) - 1
"""A sampler's seeds are below it; the one at it means "draw one" to llama.cpp. Others are folded."""

ANY_SEED = -1
"""llama.cpp's clients ask for a random seed so."""

DEFAULT_REPEAT_LAST_N = 64
MOST_REPEAT_LAST_N = 65536
"""llama.cpp's default for `repeat_penalty`, and the sampler's limit. Penalties of OpenAI look at all there
is."""


def sampling_of(body: Body, seed: int, *, grammar: str, n_ctx: int) -> SamplingSettings:
    """The settings of the sampler.

    Args:
        seed: from `seed_of`; grammar: that the answer is held to; "" for none.
        n_ctx: tokens that penalties look at, at most.
    """
    presence, frequency = body.presence_penalty or 0.0, body.frequency_penalty or 0.0
    last_n = body.repeat_last_n
    if last_n is None:
        last_n = -1 if presence or frequency else DEFAULT_REPEAT_LAST_N
    return SamplingSettings(
        temperature=1.0 if body.temperature is None else body.temperature,
        seed=seed,
        top_k=max(body.top_k or 0, 0),
        top_p=1.0 if body.top_p is None else body.top_p,
        min_p=body.min_p or 0.0,
        presence_penalty=presence,
        frequency_penalty=frequency,
        repeat_penalty=1.0 if body.repeat_penalty is None else body.repeat_penalty,
        penalty_last_n=min(n_ctx, MOST_REPEAT_LAST_N) if last_n == -1 else last_n,
        logit_bias=tuple(sorted((body.logit_bias or {}).items())),
        grammar=grammar,
    )


def seed_of(body: Body, choice: int, drawn: int) -> int:
    """The seed of the n-th answer: seeds follow one another.

    Args:
        drawn: a random one, for who asks for none.
    """
    first = drawn if body.seed is None or body.seed == ANY_SEED else body.seed
    return (first + choice) % SEEDS
