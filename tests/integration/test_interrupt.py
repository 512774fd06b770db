"""Ctrl-C: quick, quiet, exit code 130, also while a thread waits for an answer that never comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import trio

from node.interrupt import run_interruptible

ROOT = Path(__file__).parent.parent.parent
BOUND = 3.0  # seconds


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
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
        out, err = process.communicate(timeout=20)
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
