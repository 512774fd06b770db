"""`panal chat`: over pipes and on a terminal; with the node that runs, and with one of its own."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from node.gateway.chat_template import ChatTemplate
from node.local_swarm import LocalSwarm
from tests.model_parts import ModelParts
from tests.plain_answers import plain_answers
from tests.ready_panal import run_panal
from tests.swarm_process import PANAL, Home, NodeProcess, running, wait_until

pytestmark = pytest.mark.slow

CONTEXT = 4096
"""Tokens; what is ended in the middle would take seconds to fill it on any machine."""
SECONDS = 60.0
"""A chat of some turns takes three; the machine may be busy."""
END_SECONDS = 15.0
"""Ctrl-C ends an answer within 3; the machine may be busy."""
MODEL = "tiny-qwen2moe-12e2-shared.Q4_K_M"


@pytest.fixture(scope="module")
def home(parts: Callable[..., ModelParts], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A config with a backbone and a key, and servers for it; no node of its own runs."""
    model = parts("demo")
    folder = tmp_path_factory.mktemp("chat")
    with LocalSwarm(folder / "servers", model.store.root, threads=1) as swarm:
        swarm.start(model.path, model.manifest, 2)
        keys = folder / "http.key"
        keys.touch(0o600)
        keys.write_text("somebody sesame-sesame-sesame-sesame\n", encoding="utf-8")
        yield Home(
            folder / "asker",
            model.store.root,
            model.path,
            peers=[str(address) for address in swarm.addresses],
            rest=f'[http]\nlisten = "127.0.0.1:0"\nkey_file = "{keys}"\n'
            f'[backbone]\nmodel = "{model.path}"\ncontext = {CONTEXT}\n',
        )


@contextmanager
def running_node(home: Home) -> Iterator[NodeProcess]:
    """The config's node, once its model answers."""
    node = NodeProcess(home)
    with running([node]):
        node.start().ready()
        wait_until(lambda: "answers: every expert" in node.log, SECONDS, "the model to be opened")
        yield node


def chat(home: Home, *lines: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """A chat over pipes, greedy."""
    said = "".join(f"{line}\n" for line in lines)
    return run_panal("chat", "-c", home.config, "--temp", "0", *options, stdin=said, timeout=SECONDS)


def told(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """The lines of --json."""
    return [json.loads(line) for line in done.stdout.splitlines()]


JSON = ("--json", "-n", "12")


def test_turns_over_pipes(home: Home, parts: Callable[..., ModelParts]) -> None:
    """The same answers as of plain llama.cpp, with a node of its own and through one that runs."""
    lines = ("Hello there.", '{"content": "def f():\\n    "}', "/reset", "", "Hello there.")
    alone = chat(home, *lines, options=JSON)
    assert alone.returncode == 0 and alone.stderr == ""
    first, second, note, again = told(alone)
    model = parts("demo")
    with plain_answers(model.library, model.path, n_ctx=CONTEXT) as plain:
        template = ChatTemplate.from_model(plain.model)
        assert template is not None
        said = [{"role": "user", "content": "Hello there."}]
        assert first["text"] == plain.answer(trio.run(template.tokens, said), 12).text
        # Of the second turn the answer depends on last bits: with K-quants, what the cache kept of the first
        # answer was computed by other kernels than a prompt is.
        said += [
            {"role": "assistant", "content": first["text"]},
            {"role": "user", "content": "def f():\n    "},
        ]
        prompt = trio.run(template.tokens, said)
        template.close()
    assert first["usage"]["completion_tokens"] == 12 and first["usage"]["panal"]["trips"] > 0
    assert second["usage"]["prompt_tokens"] == len(prompt)
    assert len(prompt) - second["usage"]["prompt_tokens_details"]["cached_tokens"] <= 32
    assert note == {"note": "forgotten"} and again["text"] == first["text"]

    with running_node(home):
        through = told(chat(home, *lines, options=JSON))
    assert [each.get("text") for each in through] == [first["text"], second["text"], None, first["text"]]


def test_commands_and_errors(home: Home) -> None:
    long = "word " * (2 * CONTEXT)
    done = chat(home, "/system Be kind.", "Hi", long, "/stats", "//x", "/what", "/system", "Hi", options=JSON)
    assert done.returncode == 1  # one turn was not answered
    noted, hi, refused, stats, slash, unknown, taken_back, bare = told(done)
    assert noted == {"note": "noted"} and taken_back == {"note": "taken back"}
    assert (
        refused["error"]["code"] == "context_length_exceeded" and f"{CONTEXT}" in refused["error"]["message"]
    )
    assert stats["usage"] == hi["usage"]
    assert slash["finish_reason"] in ("length", "stop") and "/what is no command" in unknown["note"]
    # What was refused is forgotten; the rest is kept.
    assert (
        hi["usage"]["prompt_tokens"] < slash["usage"]["prompt_tokens"] < bare["usage"]["prompt_tokens"] < 200
    )


def test_text_over_pipes(home: Home) -> None:
    done = chat(home, "Hello there.", "/help", options=("-n", "12", "--stats"))
    assert done.returncode == 0
    assert done.stdout.strip() and done.stdout.endswith("\n") and "panal" not in done.stdout
    for words in ("cut off", "/reset", "trips per layer and token", "slowest peer"):
        assert words in done.stderr
    none = chat(home, "/stats")
    assert none.returncode == 0 and none.stdout == "" and "no figures" in none.stderr
    assert chat(home).returncode == 0


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *command: str) -> None:
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            os.execv(command[0], command)
        self.shown = ""
        self._seen = 0

    def wait(self, text: str) -> None:
        """Until it shows something, after what was waited for last."""
        deadline = time.monotonic() + SECONDS
        while (at := self.shown.find(text, self._seen)) < 0:
            assert time.monotonic() < deadline, self.shown
            if not self._read():
                raise AssertionError(f"ended: {self.shown}")
        self._seen = at + len(text)

    def type(self, text: str) -> None:
        os.write(self._file, text.encode())

    def end(self) -> int:
        """Its exit code, which is there soon."""
        deadline = time.monotonic() + END_SECONDS
        while self._read():
            assert time.monotonic() < deadline, self.shown
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self) -> bool:
        if not select.select([self._file], [], [], 0.1)[0]:
            return True
        try:
            data = os.read(self._file, 1 << 16)
        except OSError:  # Linux tells the end so
            data = b""
        self.shown += data.decode(errors="replace")
        return bool(data)


def terminal(home: Home, *options: str) -> Terminal:
    return Terminal(*PANAL, "chat", "-c", str(home.config), "--temp", "1", "--seed", "3", *options)


def test_on_a_terminal(home: Home) -> None:
    """Ctrl-C ends an answer and not the chat; with a node of its own, and through one that runs."""

    def talk(where: str) -> None:
        screen = terminal(home)
        screen.wait(f"panal: {MODEL}, by {where}")
        screen.wait("> ")
        screen.type("Hello there.\r")
        screen.wait("import")
        begun = time.monotonic()
        screen.type("\x03")
        screen.wait("panal: stopped")
        assert time.monotonic() - begun < END_SECONDS
        screen.wait("> ")
        screen.type("/stats\r")
        screen.wait("no figures")
        screen.wait("> ")
        screen.type("\x04")
        assert screen.end() == 0
        screen = terminal(home)
        screen.wait("> ")
        screen.type("half a li\x03")
        assert screen.end() == 130

    talk("a node that runs for this chat;")
    with running_node(home) as node:
        talk("the node at http://127.0.0.1:")
        assert "Traceback" not in node.log


def test_ctrl_c_twice(home: Home) -> None:
    with running_node(home):
        screen = terminal(home)
        screen.wait("> ")
        screen.type("Hello there.\r")
        screen.wait("import")
        for _ in range(2):
            screen.type("\x03")
            time.sleep(0.1)  # two at once would be one
        assert screen.end() == 130


def test_the_node_dies_meanwhile(home: Home) -> None:
    with running_node(home) as node:
        process = subprocess.Popen(
            [*PANAL, "chat", "-c", str(home.config), "--temp", "1", "--seed", "3"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"Hello there.\n")
        process.stdin.flush()
        assert process.stdout.read(1)
        node.kill()
        _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert errors.startswith(b"panal: the node at http://127.0.0.1:") and b"does not answer" in errors
    assert errors.count(b"\n") == 1


def test_nobody_to_talk_to(home: Home, tmp_path: Path) -> None:
    bare = Home(tmp_path / "bare", home.store, home.model, rest='[http]\nlisten = "127.0.0.1:0"\n')
    done = chat(bare, "Hello.")
    assert done.returncode == 2 and "backbone" in done.stderr and done.stderr.count("\n") == 1
    node = NodeProcess(bare)
    with running([node]):
        node.start().ready()
        done = chat(bare, "Hello.")
    assert done.returncode == 2 and "runs no model" in done.stderr and done.stderr.count("\n") == 1


def test_sigterm_at_the_prompt(home: Home) -> None:
    screen = terminal(home)
    screen.wait("> ")
    os.kill(screen.pid, signal.SIGTERM)
    assert screen.end() == 130
