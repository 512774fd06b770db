"""What `panal init` asks on a terminal, and what it writes then."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from node.cli import main as frame
from node.cli.init_questions import MAX_TRIES, Answers, ask
from node.config import load_config
from node.engine.library import Library
from node.importing import import_model
from node.model.store import Store
from routing.errors import LocalError
from routing.identity import Identity

PEER = f"/ip4/192.0.2.7/udp/4190/quic-v1/p2p/{Identity.generate().peer_id}"


class Person:
    """Gives these answers, then none."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.shown: list[str] = []

    def say(self, text: str) -> None:
        self.shown.append(text)

    def read(self, prompt: str) -> str:
        self.shown.append(prompt)
        if not self.answers:
            raise EOFError
        return self.answers.pop(0)


@pytest.fixture
def asked(tmp_path: Path) -> Callable[..., tuple[Answers, Person]]:
    def call(*answers: str, overwrites: bool = False) -> tuple[Answers, Person]:
        person = Person(*answers)
        found = ask(person, tmp_path / "node.toml", tmp_path / "store", overwrites=overwrites)
        assert not person.answers, "nothing was asked twice"
        return found, person

    return call


Asked = Callable[..., tuple[Answers, Person]]


def test_enter_serves_within_half_of_what_is_free(asked: Asked, demo_model: Path) -> None:
    answers, person = asked("", str(demo_model), "", "", "", "")
    assert answers.serve == str(demo_model) and answers.model is None
    assert answers.memory is not None and answers.memory.endswith("iB")
    assert not answers.idle_only and not answers.relay and answers.peers == []
    assert any("free now" in line for line in person.shown)


def test_everything_said(asked: Asked, demo_model: Path) -> None:
    answers, _ = asked("3", str(demo_model), "512 MiB", "y", "kitchen", f"{PEER}")
    assert answers == Answers(
        serve=str(demo_model),
        model=str(demo_model),
        memory="512 MiB",
        name="kitchen",
        idle_only=True,
        peers=[PEER],
    )


def test_models_that_are_here_are_numbered(
    asked: Asked, demo_model: Path, tmp_path: Path, library: Library
) -> None:
    stored = import_model(library, Store(tmp_path / "store"), demo_model)
    answers, person = asked("2", "", "2", "1", "", "", "")
    assert answers.model == stored.model_id
    shown = "\n".join(person.shown)
    named = f"tiny-qwen2moe-12e2-shared.Q4_K_M ({stored.model_id[:12]})"
    assert f"  1  {named}: 12 experts in 4 layers, " in shown
    assert "  the number of a model that is here, or a GGUF file" in shown
    assert "2: no such file" in shown


def test_one_that_only_asks(asked: Asked, demo_model: Path) -> None:
    answers, _ = asked("2", str(demo_model), "", "", "")
    assert answers.serve is None and answers.model == str(demo_model) and answers.home_memory is None
    answers, _ = asked("2", str(demo_model), "1 GiB", "", "")
    assert answers.home_memory == "1 GiB"


def test_a_relay_needs_no_model(asked: Asked) -> None:
    answers, _ = asked("4", "hall", "")
    assert answers == Answers(relay=True, name="hall")


def test_all_of_the_model(asked: Asked, demo_model: Path) -> None:
    assert asked("1", str(demo_model), "all", "n", "", "")[0].memory is None


def test_wrong_answers_are_told_why_and_asked_again(asked: Asked, demo_model: Path, tmp_path: Path) -> None:
    (tmp_path / "letter.gguf").write_text("Dear reader")
    _, person = asked(
        "5", "serve", "1",
        "", "none.gguf", str(tmp_path / "letter.gguf"), "cafe0123", str(demo_model),
        "lots", "6 GiB",
        "maybe", "y",
        "x" * 41, "kitchen",
        "here", "/ip4/192.0.2.7/udp/4190/quic-v1", "panal-invite:abc", "",
    )  # fmt: skip
    shown = "\n".join(person.shown)
    for told in (
        "a number from 1 to 4",
        "none.gguf: no such file",
        "letter.gguf: ",
        "cafe0123: no such model",
        "'lots' is no amount of memory",
        "y or n",
        "at most 40 characters",
        "does not say who must answer",
        "an invitation is for later",
    ):
        assert told in shown, told


def test_a_config_that_is_there(asked: Asked, tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="left as it is"):
        asked("", overwrites=True)
    assert asked("y", "4", "", "", overwrites=True)[0].relay


@pytest.mark.parametrize("answers", [[], ["1"], ["x"] * MAX_TRIES])
def test_answers_that_end_or_make_no_sense(asked: Asked, answers: Sequence[str], tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="nothing is written"):
        asked(*answers)
    assert not (tmp_path / "node.toml").exists()


# --- the command ---


def run_on_a_terminal(answers: str, *arguments: str, home: Path, until: str = "Next:") -> tuple[int, str]:
    """`panal init` with a terminal as its stdin and stdout; its exit code, and all that was shown."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("PANAL", "XDG"))}
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "node.cli.main", "init", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=home,
        env=environ | {"HOME": str(home), "TERM": "dumb"},
    )
    os.close(theirs)
    os.write(ours, answers.encode())
    shown = b""
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        shown += data
    os.close(ours)
    return process.wait(), shown.decode()


@pytest.mark.slow
def test_on_a_terminal_it_asks_and_writes_the_devices_own_config(
    tmp_path: Path, demo_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    answers = f"1\n{demo_model}\n1 MiB\ny\nkitchen\n\n"
    code, shown = run_on_a_terminal(answers, home=tmp_path)
    assert code == 0, shown
    config = load_config(tmp_path / ".local/share/panal/node.toml")
    assert config.name == "kitchen" and str(config.serve[0].memory) == "1 MiB" and config.device.idle_only
    assert config.store == tmp_path / ".local/share/panal" and config.identity_path.exists()
    assert "take part" in shown, "it has asked the network"
    assert "\n  panal run\r\n" in shown and "panal service install" in shown


@pytest.mark.slow
def test_with_flags_it_asks_nothing(tmp_path: Path, demo_model: Path) -> None:
    code, shown = run_on_a_terminal("", "--serve", str(demo_model), home=tmp_path)
    assert code == 0 and (tmp_path / "node.toml").exists() and "Which" not in shown
    code, shown = run_on_a_terminal("", "--dir", "other", "--yes", home=tmp_path)
    assert code == 0 and (tmp_path / "other/node.toml").exists() and "Which" not in shown


def test_without_a_terminal_it_asks_nothing(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert frame.main(["init", "--dir", "node"]) == 0
    assert "Which" not in capfd.readouterr().out


def test_memory_and_device_by_flags(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, demo_model: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    serve = ["--serve", str(demo_model), "--memory", "6 GiB"]
    device = ["--idle-only", "--schedule", "mon-fri 22:00-07:00", "--schedule", "sat 0:00-24:00"]
    assert frame.main(["init", "--dir", "node", *serve, *device]) == 0
    config = load_config(Path("node/node.toml"))
    assert str(config.serve[0].memory) == "6 GiB" and config.device.idle_only
    assert config.device.schedule.texts == ("mon-fri 22:00-07:00", "sat 0:00-24:00")
    for wrong, told in (
        (["--memory", "6 GiB"], "give it with one --serve MODEL"),
        ([f"--serve={demo_model}:0-1", "--memory", "6 GiB"], "without layers and experts"),
        (["--memory", "6 apples"], "is no amount of memory"),
        (["--schedule", "at night"], "write it like"),
    ):
        capfd.readouterr()
        try:
            code = frame.main(["init", "--dir", "wrong", *wrong])
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        assert code == 2 and told in capfd.readouterr().err
    assert not Path("wrong").exists()
