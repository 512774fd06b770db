"""`panal bench trips`, guessers and home sets over real servers: fewer trips, the same tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_commands import panal

pytestmark = pytest.mark.slow

COUNT = 32
"""Tokens of an answer."""


def bench(tmp_path: Path, model: Path, *options: str, code: int = 0) -> Any:
    done = panal(
        "bench",
        "trips",
        model,
        "--store",
        tmp_path / "store",
        "--json",
        "--prompts",
        "2",
        *options,
        code=code,
    )
    return json.loads(done.stdout) if not code else done.stderr


@pytest.mark.parametrize("sampling", [(), ("--temp", "0.8", "--seed", "5")], ids=["greedy", "drawn"])
def test_fewer_trips_and_the_same_tokens(tmp_path: Path, demo_model: Path, sampling: tuple[str, ...]) -> None:
    rows = bench(
        tmp_path,
        demo_model,
        *("--prompt-tokens", "48", "-n", str(COUNT), "--home", "0,50%"),
        *("--draft", "off,ngram,self6,auto,model6", "--draft-model", str(demo_model)),
        *sampling,
    )
    by_case = {(row["home"], row["draft"]): row for row in rows}
    assert all(row["differ"] == 0 and row["tokens"] == 2 * (COUNT - 1) for row in rows)
    plain, half = by_case["0", "off"], by_case["50%", "off"]
    assert plain["trips_per_layer_token"] == 1.0 and plain["trips"] == 4 * 2 * (COUNT - 1)
    assert half["share"] == 0.5 and half["trips_per_layer_token"] == 0.5  # two of the four layers
    guessed = by_case["50%", "self6"]
    assert guessed["accepted"] > 0 and guessed["trips"] == 2 * guessed["passes"]
    assert guessed["trips_per_layer_token"] < 0.45
    perfect = by_case["0", "model6"]  # the model is its own guesser
    assert perfect["tokens_per_pass"] > 4 and perfect["trips_per_layer_token"] < 0.3
    for row in rows:  # what is not accepted is not counted
        assert row["passes"] + row["accepted"] == row["tokens"]


def test_what_cannot_be_measured_is_one_line(tmp_path: Path, demo_model: Path) -> None:
    short_text = tmp_path / "short.txt"
    short_text.write_text("hello")
    short = ("--prompt-tokens", "8", "-n", "4")
    for options, told in (
        (("--draft", "oracle"), "guesses nothing"),
        (("--home", "many"), "no amount of memory"),
        (("--draft", "model"), "--draft-model"),
        (("--prompt-tokens", "100000"), "trained with"),
        (("--text", str(short_text)), "too few for 2 prompts"),
        (("--text", str(tmp_path / "none.txt")), "none.txt"),
    ):
        error = bench(tmp_path, demo_model, *short, *options, code=2)
        assert told in error and error.count("\n") == 1, error
