"""Ctrl-C: quick, quiet, exit code 130, also while a thread waits for an answer that never comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from node.interrupt import run_blocking, run_interruptible

ROOT = Path(__file__).parent.parent.parent
BOUND = 15.0
"""Seconds; 3 by design, and the machine may be busy."""


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        *(pytest.param(each, marks=pytest.mark.slow) for each in (signal.SIGTERM, signal.SIGHUP)),
    ],
)
def test_while_the_decoding_thread_waits(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.interrupted_decode", str(tmp_path / "store")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        begun = time.perf_counter()
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        seconds = time.perf_counter() - begun
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, err
    assert seconds < BOUND
    assert out == "" and "Traceback" not in err and "Exception" not in err


def send_soon(number: signal.Signals) -> None:
    threading.Timer(0.05, os.kill, (os.getpid(), number)).start()


def test_what_main_returns_and_raises_passes_through() -> None:
    async def answer() -> int:
        await trio.sleep(0)
        return 42

    async def fail() -> None:
        raise ValueError("mine")

    assert run_interruptible(answer) == 42
    with pytest.RaisesGroup(
        pytest.RaisesExc(ValueError, match="mine"), allow_unwrapped=True, flatten_subgroups=True
    ):
        run_interruptible(fail)


def test_main_is_cancelled_and_cleans_up() -> None:
    cleaned: list[str] = []

    async def main() -> None:
        try:
            send_soon(signal.SIGINT)
            await trio.sleep_forever()
        finally:
            cleaned.append("yes")

    with pytest.raises(KeyboardInterrupt):
        run_interruptible(main)
    assert cleaned == ["yes"]


def test_an_error_on_the_way_out_does_not_hide_the_interrupt() -> None:
    async def main() -> None:
        try:
            send_soon(signal.SIGTERM)
            await trio.sleep_forever()
        finally:
            raise ValueError("while ending")

    with pytest.raises(KeyboardInterrupt):
        run_interruptible(main)


def test_a_signal_after_the_end_is_pythons_again() -> None:
    async def main() -> None:
        await trio.sleep(0)

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    run_interruptible(main)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


# --- run_blocking ---


@pytest.fixture
def interrupt_in() -> Iterator[Callable[[float], None]]:
    """interrupt_in(seconds): SIGINT reaches the main thread then, wherever it is."""
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_work_never_outlives_run_blocking(interrupt_in: Callable[[float], None]) -> None:
    """Also when the interrupt comes while its thread is being started."""
    begun: list[int] = []
    ended: list[int] = []
    interrupted = 0

    def work() -> None:
        begun.append(1)
        time.sleep(0.003)
        ended.append(1)

    for microseconds in range(10, 810, 4):
        try:
            interrupt_in(microseconds / 1e6)
            run_blocking(work)
            time.sleep(0.01)
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            interrupt_in(0)
        if begun != ended:
            time.sleep(0.05)
            pytest.fail(f"interrupted after {microseconds} us, it returned before its work ended")
    assert interrupted == 200 and begun  # on a busy machine most come before the thread runs


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_impatience_does_not_disturb_the_ending(number: signal.Signals) -> None:
    ended: list[str] = []
    told: list[str] = []

    def work() -> None:
        for _ in range(5):
            time.sleep(0.06)
            os.kill(os.getpid(), number)
        ended.append("yes")

    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        run_blocking(work, lambda: told.append("once"))
    assert ended == ["yes"] and told == ["once"]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers


def test_what_work_returns_and_raises_passes_through() -> None:
    def fail() -> None:
        raise ValueError("mine")

    assert run_blocking(lambda: 42) == 42
    with pytest.raises(ValueError, match="mine"):
        run_blocking(fail)


def test_a_signal_before_trio_listens_is_not_lost(interrupt_in: Callable[[float], None]) -> None:
    for microseconds in range(10, 3010, 50):
        with pytest.raises(KeyboardInterrupt):
            interrupt_in(microseconds / 1e6)
            run_interruptible(trio.sleep_forever)


# --- from the first line on ---


def python(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=20,
    )


def test_an_import_is_not_torn(tmp_path: Path) -> None:
    """The interrupt strikes once the module is whole; a callback that would swallow it is inside, too."""
    (tmp_path / "slow.py").write_text(
        "import os, signal, time, weakref\n"
        "class Thing: pass\n"
        "thing = Thing()\n"
        "def swallow(_):\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(0.05)\n"
        "ref = weakref.ref(thing, swallow)\n"
        "del thing\n"
        "whole = True\n"
    )
    done = python(
        "import sys, time\n"
        "from node import sigint\n"
        "sigint.arm()\n"
        "try:\n    import slow\n    time.sleep(5)\n"
        "except KeyboardInterrupt:\n    print(sys.modules['slow'].whole, sigint.came())\n",
        tmp_path,
    )
    assert (done.stdout, done.stderr) == ("True True\n", "")


def test_an_interrupt_that_got_lost_is_found_again(tmp_path: Path) -> None:
    for call in ("run_blocking(print)", "run_interruptible(trio.sleep_forever)"):
        done = python(
            "import signal, trio\n"
            "from node import sigint\n"
            "from node.interrupt import run_blocking, run_interruptible\n"
            "class Thing:\n    def __del__(self): signal.raise_signal(signal.SIGINT)\n"
            "sigint.arm()\n"
            "Thing()\n"
            f"try:\n    {call}\n"
            "except KeyboardInterrupt:\n    print('found')\n",
            tmp_path,
        )
        assert done.stdout == "found\n", done


def test_who_ignores_sigint_goes_on(tmp_path: Path) -> None:
    """As a shell has it for its background jobs."""
    done = python(
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from node.cli.main import main\n"
        "try:\n    main(['--version'])\n"
        "finally:\n    print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)\n",
        tmp_path,
    )
    assert done.stdout.splitlines()[1:] == ["True"]


@pytest.mark.slow
def test_a_command_is_interrupted_at_any_time(tmp_path: Path) -> None:
    """Between the first line of panal's own and the end; before that Python has nobody to ask."""
    for milliseconds in range(40, 700, 120):
        process = subprocess.Popen(
            [sys.executable, "-m", "node.cli.main", "demo", "-n", "2"],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        time.sleep(milliseconds / 1000)
        begun = time.perf_counter()
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert time.perf_counter() - begun < BOUND
        assert process.returncode in (130, 0) or "node/" not in err, (milliseconds, err)
        if "node/" in err or process.returncode == 130:
            assert err == "", milliseconds
        assert list(tmp_path.iterdir()) == [], milliseconds
