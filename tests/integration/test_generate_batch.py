"""`panal generate --prompts`: many prompts through real servers, as people use it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_commands import END_SECONDS, LOOPBACK, panal, serving

pytestmark = pytest.mark.slow

PROMPTS = ("import os\n", "def f(x):", "class A:", "x = [1, 2", "for i in range(", "# comment:")


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Iterator[Path]:
    """The config of a backbone with experts 0-5 here and the others on a server."""
    folder = tmp_path_factory.mktemp("batch")
    panal("init", "--dir", folder / "s", "--listen", LOOPBACK, "--serve", f"{demo_model}::4-11")
    with serving(folder / "s" / "node.toml") as (_, address):
        panal(
            "init", "--dir", folder / "q", "--model", demo_model, "--peer", address,
            "--serve", f"{demo_model}::0-5",
        )  # fmt: skip
        yield folder / "q" / "node.toml"


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join((PROMPTS[0].strip(), "", *PROMPTS[1:])) + "\n", encoding="utf-8")
    return file


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_each_prompt_is_answered_as_alone(asking: Path, prompts: Path) -> None:
    ask = ("-n", "12", "--temp", "0.8", "--seed", "4", "--json")
    found = {}
    for lanes in ("1", "2", "4"):
        *answers, whole = lines_of(
            panal("generate", "-c", asking, "--prompts", prompts, "--lanes", lanes, *ask).stdout
        )
        assert [answer["prompt"] for answer in answers] == [1, 2, 3, 4, 5, 6]
        assert whole["prompts"] == 6 and whole["lanes"] == int(lanes)
        assert whole["tokens"] == sum(len(answer["tokens"]) for answer in answers)
        found[lanes] = [(answer["tokens"], answer["text"], answer["stopped"]) for answer in answers]
    assert found["1"] == found["2"] == found["4"]
    for number in (0, 3):
        alone = json.loads(panal("generate", "-c", asking, "-p", PROMPTS[number].strip(), *ask).stdout)
        assert (alone["tokens"], alone["text"], alone["stopped"]) == found["1"][number]


def test_a_trip_serves_all_of_them(asking: Path, prompts: Path) -> None:
    *_, whole = lines_of(
        panal("generate", "-c", asking, "--prompts", prompts, "--lanes", "1", "-n", "8", "--json").stdout
    )
    trips = whole["panal"]
    # Six prompts alone, then passes of all that are left; at most one trip a layer and pass.
    assert trips["passes"] <= 6 + 7 and trips["trips"] <= 4 * trips["passes"]
    assert trips["trips_per_layer_token"] < 0.5


def test_as_text(asking: Path, prompts: Path) -> None:
    done = panal("generate", "-c", asking, "--prompts", prompts, "-n", "6", "--stats")
    heads = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert heads == [f"[{number}] {prompt.strip()}" for number, prompt in enumerate(PROMPTS, 1)]
    assert "tokens/s, all together" in done.stderr and "lanes" in done.stderr
    from_stdin = panal("generate", "-c", asking, "--prompts", "-", "-n", "6", stdin=prompts.read_text())
    assert from_stdin.stdout == done.stdout


def test_ctrl_c_ends_both_lanes(asking: Path, tmp_path: Path) -> None:
    many = tmp_path / "many"
    many.write_text("x = 1\n" * 2000)
    command = [sys.executable, "-m", "node.cli.main", "generate", "-c", str(asking), "--prompts", str(many)]
    process = subprocess.Popen(
        [*command, "-n", "40", "--temp", "1.5", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    assert json.loads(process.stdout.readline())["prompt"] == 1
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.stdout.read()
    assert process.wait(END_SECONDS) == 130
    assert time.monotonic() - begun < END_SECONDS
    assert "Traceback" not in process.stderr.read()


def test_what_is_refused(asking: Path, prompts: Path, tmp_path: Path) -> None:
    def refused(*arguments: object) -> str:
        done = panal("generate", "-c", asking, *arguments, code=2)
        assert done.stdout == "" and "Traceback" not in done.stderr
        return done.stderr

    assert "--lanes goes with --prompts" in refused("-p", "x", "--lanes", "2")
    assert "--draft goes with --prompt:" in refused("--prompts", prompts, "--draft", "self")
    assert "not allowed with" in refused("-p", "x", "--prompts", prompts)
    assert "cannot be read" in refused("--prompts", tmp_path / "absent")
    blank = tmp_path / "blank"
    blank.write_text("\n \n")
    assert "no prompts" in refused("--prompts", blank)
    long = tmp_path / "long"
    long.write_text("x = 1\n" + "x " * 5000 + "\n")
    assert "tokens do not fit a context of 512; raise backbone.context" in refused("--prompts", long)
    assert "from 1 to 8" in refused("--prompts", prompts, "--lanes", "9")
