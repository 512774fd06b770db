"""Outputs that are closed, full, or cannot hold a character: no traceback, and the right exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PANAL = f'"{sys.executable}" -m node.cli.main'
FULL = "panal: cannot write the output: No space left on device\n"

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


def shell(command: str, **environ: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command with Python's own buffers, whatever the caller's environment says."""
    env = os.environ | {"PYTHONUNBUFFERED": ""} | environ
    return subprocess.run(["sh", "-c", command], capture_output=True, env=env, timeout=30, check=False)


@needs_full
@pytest.mark.parametrize("arguments", ["--version", "--help", "init --dir node"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk(tmp_path: Path, arguments: str, unbuffered: str) -> None:
    if arguments == "--help" and unbuffered:
        pytest.skip("argparse ignores an OSError of its own printing")
    done = shell(f'cd "{tmp_path}" && {PANAL} {arguments} >/dev/full', **_path(), PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr.decode()) == (2, FULL)


@needs_full
def test_nobody_can_be_told(tmp_path: Path) -> None:
    for command in (
        f"{PANAL} --version >/dev/full 2>/dev/full",
        f"{PANAL} dance 2>/dev/full",
        f"{PANAL} run -c {tmp_path}/none.toml 2>/dev/full",
        f"{PANAL} run -c {tmp_path}/none.toml 2>&-",
    ):
        for unbuffered in ("", "1"):
            done = shell(command, PYTHONUNBUFFERED=unbuffered)
            assert (done.returncode, done.stdout, done.stderr) == (2, b"", b""), command


def test_an_output_that_is_open_for_reading_only() -> None:
    done = shell(f"{PANAL} --version 1</dev/null")
    assert done.returncode == 2
    assert done.stderr.decode() == "panal: cannot write the output: Bad file descriptor\n"


def test_closed_streams() -> None:
    for closed in (">&-", "<&-", "2>&-", "<&- >&- 2>&-"):
        done = shell(f"{PANAL} --version {closed}")
        assert (done.returncode, done.stderr) == (0, b""), closed
        assert done.stdout.startswith(b"panal 0.") is (">&-" not in closed.split()), closed


def test_a_closed_number_is_not_left_to_the_next_file() -> None:
    """What llama.cpp prints to 1 or 2 must not end up in a socket or a file."""
    program = (
        "import os, sys\n"
        "from node.cli.main import main\n"
        "try:\n    main(['--version'])\n"
        "except SystemExit:\n    pass\n"
        "os.write(9, ' '.join(os.readlink(f'/proc/self/fd/{n}') for n in range(3)).encode())\n"
    )
    done = shell(f'"{sys.executable}" -c "{program}" 9>&1 <&- >&- 2>&-')
    assert done.stdout == b"/dev/null /dev/null /dev/null"


def test_a_prompt_from_a_closed_stdin_is_empty() -> None:
    program = (
        "import sys\nfrom node.cli.frame import _mend_streams\nfrom node.cli.generate import _prompt\n"
        "_mend_streams()\nprint(repr(_prompt('-')))\n"
    )
    assert shell(f'"{sys.executable}" -c "{program}" <&-').stdout == b"''\n"
    for given, prompt in (("a b\\n", "a b"), ("a\\n\\n", "a\\n"), ("a", "a"), ("\\n", "")):
        done = shell(f'printf \'{given}\' | "{sys.executable}" -c "{program}"')
        assert done.stdout.decode() == f"'{prompt}'\n"


def test_characters_that_the_encoding_lacks(tmp_path: Path) -> None:
    done = shell(
        f'cd "{tmp_path}" && {PANAL} init --dir "hív" && {PANAL} run -c "nö.toml"',
        **_path(),
        PYTHONIOENCODING="ascii",
        PYTHONUTF8="1",
    )
    assert done.returncode == 2
    assert b"h\\xedv/node.toml" in done.stdout
    assert done.stderr.startswith(b"panal: n\\xf6.toml: no such config file")


@needs_full
def test_a_full_disk_in_a_nursery() -> None:
    program = (
        "import sys, trio\n"
        "from node.cli import main, run\n"
        "async def work():\n"
        "    async with trio.open_nursery() as nursery:\n"
        "        print('text', flush=True)\n"
        "run.run = lambda _: trio.run(work)\n"
        "sys.exit(main.main(['run', '-c', 'x']))\n"
    )
    for flag in ("", "-u"):
        done = shell(f'"{sys.executable}" {flag} -c "{program}" >/dev/full')
        assert (done.returncode, done.stderr.decode()) == (2, FULL), flag


def _path() -> dict[str, str]:
    """For commands that start elsewhere: node is found from here."""
    return {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
