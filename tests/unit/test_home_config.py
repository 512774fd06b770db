"""`home_memory` and `[[backbone.home]]` in a config."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.config import BackboneConfig, ConfigError, parse_config, render_config
from node.sizes import MemoryBudget

HEAD = '[backbone]\nmodel = "cafe0123"\n'


def backbone(text: str) -> BackboneConfig:
    found = parse_config(text, Path("/x/node.toml"), Path("/x/store")).backbone
    assert found is not None
    return found


def test_nothing_said_is_nothing_at_home() -> None:
    assert backbone(HEAD).home_memory is None and backbone(HEAD).home == ()


def test_memory_and_cells() -> None:
    assert backbone(HEAD + 'home_memory = "4 GiB"\n').home_memory == MemoryBudget(n_bytes=4 << 30)
    text = HEAD + '[[backbone.home]]\nlayers = "0-3"\nexperts = "0-15"\n[[backbone.home]]\nlayers = "7"\n'
    first, second = backbone(text).home
    assert (str(first.layers), str(first.experts)) == ("0-3", "0-15")
    assert str(second.layers) == "7" and second.experts is None


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('home_memory = "4 gigs"', "backbone.home_memory: '4 gigs' is no amount"),
        ('home_memory = "0%"', "backbone.home_memory"),
        ("home_memory = 4", "backbone.home_memory: expected text"),
        ('[[backbone.home]]\nexperts = "0"', "backbone.home[0]: the key layers is missing"),
        ('[[backbone.home]]\nlayers = "3-1"', "backbone.home[0].layers"),
        ('[[backbone.home]]\nlayers = "1"\nexperts = "x"', "backbone.home[0].experts"),
        ('home_memory = "1 GiB"\n[[backbone.home]]\nlayers = "1"', "keep one of the two"),
    ],
)
def test_mistakes_are_one_line_with_the_key(more: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        backbone(HEAD + more + "\n")
    assert said in str(caught.value) and "/x/node.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_init_writes_is_read_back() -> None:
    written = render_config(model="cafe0123", home_memory="50%")
    assert backbone(written).home_memory == MemoryBudget(share=0.5)
    assert backbone(render_config(model="cafe0123")).home_memory is None
