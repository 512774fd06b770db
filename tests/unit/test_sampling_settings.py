"""What may be asked of the sampler."""

from __future__ import annotations

from typing import Any

import pytest

from node.engine.grammar import MOST_BYTES, GrammarError
from node.engine.sampler import MOST_BIASED, SamplingSettings
from routing.errors import LocalError

NAN = float("nan")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"presence_penalty": 2.1}, "presence and frequency penalty must lie in -2..2"),
        ({"presence_penalty": NAN}, "presence and frequency penalty must lie in -2..2"),
        ({"frequency_penalty": -2.1}, "presence and frequency penalty must lie in -2..2"),
        ({"frequency_penalty": NAN}, "presence and frequency penalty must lie in -2..2"),
        ({"repeat_penalty": 0.0}, "repeat penalty must lie above 0"),
        ({"repeat_penalty": 10.1}, "repeat penalty must lie above 0"),
        ({"repeat_penalty": NAN}, "repeat penalty must lie above 0"),
        ({"penalty_last_n": -1}, "its last n in 0..65536"),
        ({"penalty_last_n": 65537}, "its last n in 0..65536"),
        ({"logit_bias": ((1, 100.1),)}, "logit bias must lie in -100..100"),
        ({"logit_bias": ((1, NAN),)}, "logit bias must lie in -100..100"),
        ({"logit_bias": ((1, 1.0),) * (MOST_BIASED + 1)}, "has 1025 tokens; at most 1024"),
    ],
)
def test_out_of_range(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(LocalError, match=said) as caught:
        SamplingSettings(**settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("grammar", ["root ::= \0", "#" * (MOST_BYTES + 1), "é" * (MOST_BYTES // 2 + 1)])
def test_texts_that_are_not_read(grammar: str) -> None:
    with pytest.raises(GrammarError):
        SamplingSettings(grammar=grammar)


def test_the_edges_are_possible() -> None:
    for sign in (-1, 1):
        SamplingSettings(
            presence_penalty=2.0 * sign,
            frequency_penalty=2.0 * sign,
            repeat_penalty=10.0,
            penalty_last_n=65536,
            logit_bias=tuple((token, 100.0 * sign) for token in range(MOST_BIASED)),
            grammar="#" * MOST_BYTES,
        )


def test_when_earlier_tokens_matter() -> None:
    assert not SamplingSettings().penalises
    assert not SamplingSettings(presence_penalty=1, penalty_last_n=0).penalises
    assert SamplingSettings(presence_penalty=1).penalises
    assert SamplingSettings(frequency_penalty=-1).penalises
    assert SamplingSettings(repeat_penalty=1.1).penalises
