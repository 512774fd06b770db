"""Confined processes: whatever is done in one, the next question is answered, and nothing is left over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.confined.frames import MOST_ANSWER, ConfinedFailed, Refused
from node.confined.process import Confinement

WORK = "tests.confined_work"


@pytest.fixture(scope="module")
def confinement() -> Iterator[Confinement]:
    made = Confinement(WORK)
    yield made
    made.close()


def ask(confinement: Confinement, question: bytes, cpu: float = 5, wall: float = 20) -> bytes:
    process = confinement.fork()
    try:
        return process.ask(question, cpu=cpu, wall=wall)
    finally:
        process.close()


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(*pids: int) -> None:
    deadline = time.monotonic() + 10
    while any(running(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_answers(confinement: Confinement) -> None:
    process = confinement.fork()
    for question in (b"", b"words", b"x" * 3_000_000, b"print words"):
        assert process.ask(question, cpu=5, wall=20) == question
    with pytest.raises(Refused, match=r"^not this$"):
        process.ask(b"refuse not this", cpu=5, wall=20)
    assert process.ask(b"count", cpu=5, wall=20) == b"6"
    assert ask(confinement, b"count") == b"1"  # another one knows nothing of it
    assert 0 <= process.seconds < 5
    process.close()
    with pytest.raises(ConfinedFailed):
        process.ask(b"words", cpu=5, wall=20)


@pytest.mark.parametrize(
    ("question", "failure"),
    [
        (b"spin", "time"),
        (b"hold", "time"),
        (b"sleep 60", "time"),
        (b"crash", "crash"),
        (b"raise", "crash"),
        (b"long %d" % (MOST_ANSWER + 1), "crash"),
    ],
)
def test_what_goes_wrong_is_over_soon(confinement: Confinement, question: bytes, failure: str) -> None:
    begun = time.monotonic()
    process = confinement.fork()
    with pytest.raises(ConfinedFailed) as failed:
        process.ask(question, cpu=0.2, wall=0.5 if question.startswith(b"sleep") else 30)
    assert failed.value.failure == failure
    assert time.monotonic() - begun < 15
    assert not running(process.pid)
    assert ask(confinement, b"words") == b"words"


@pytest.mark.parametrize("question", [b"eat 1000000000", b"recurse"])
def test_what_python_notices_is_refused(confinement: Confinement, question: bytes) -> None:
    process = confinement.fork()
    with pytest.raises(Refused, match=r"needs too much memory|nests too deeply"):
        process.ask(question, cpu=5, wall=20)
    assert process.ask(b"words", cpu=5, wall=20) == b"words"
    process.close()


def test_it_inherits_nothing(confinement: Confinement, monkeypatch: pytest.MonkeyPatch) -> None:
    # /dev/null thrice, the socket; the directory that is being listed would be one more than is allowed.
    with pytest.raises(ConfinedFailed):
        ask(confinement, b"files")
    for path in (b"/etc/passwd", __file__.encode(), b"/dev/null"):
        with pytest.raises(ConfinedFailed):
            ask(confinement, b"open " + path)
    monkeypatch.setenv("A_SECRET", "hush")
    another = Confinement(WORK)
    assert b"hush" not in ask(another, b"environment")
    (origin,) = another.pids
    inherited = {str(link.readlink()) for link in Path(f"/proc/{origin}/fd").iterdir()}
    assert all(target == "/dev/null" or target.startswith("socket:") for target in inherited), inherited
    assert sum(target.startswith("socket:") for target in inherited) == 1
    another.close()
    assert not running(origin) and not another.pids
    with pytest.raises(ConfinedFailed):
        another.fork()


def test_one_that_cannot_be_prepared() -> None:
    confinement = Confinement(WORK, b"cannot")
    for _ in range(2):
        with pytest.raises(ConfinedFailed, match="it cannot be prepared") as failed:
            confinement.fork()
        assert failed.value.failure == "start"
    assert not confinement.pids
    missing = Confinement("tests.no_such_work")
    with pytest.raises(ConfinedFailed, match="ended"):
        missing.fork()


def test_a_killed_origin_is_replaced(confinement: Confinement) -> None:
    process = confinement.fork()
    origin = next(iter(confinement.pids - {process.pid}))
    os.kill(origin, signal.SIGKILL)
    wait_until_gone(origin)
    assert process.ask(b"words", cpu=5, wall=20) == b"words"  # it has its own socket
    assert ask(confinement, b"words") == b"words"
    process.close()
    wait_until_gone(process.pid)


def test_closing_ends_a_question_under_way() -> None:
    confinement = Confinement(WORK)
    process = confinement.fork()
    caught: list[ConfinedFailed] = []

    def wait() -> None:
        try:
            process.ask(b"sleep 60", cpu=5, wall=60)
        except ConfinedFailed as failed:
            caught.append(failed)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    process.close()
    thread.join(5)
    assert [each.failure for each in caught] == ["closed"]
    confinement.close()


PARENT = """
import os, sys, time
from node.confined.process import Confinement
confinement = Confinement("tests.confined_work")
process = confinement.fork()
print(*confinement.pids, flush=True)
process.ask(sys.argv[1].encode(), cpu=1, wall=60)
"""


@pytest.mark.parametrize("doing", ["sleep 60", "spin", "hold"])
def test_they_end_with_a_killed_parent(doing: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, doing], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2 and all(map(running, pids))
    assert all(os.getsid(pid) != os.getsid(0) for pid in pids)  # a terminal's Ctrl-C is for the parent
    time.sleep(0.1)
    parent.kill()
    parent.wait()
    wait_until_gone(*pids)
