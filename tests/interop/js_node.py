"""A js-libp2p node as a process: bootstrap peer, DHT server and relay (js_node.mjs).

Its packages, Node 22 included, are installed once into a cache folder outside the repository
(`PANAL_INTEROP_CACHE`, else `~/.cache/panal-interop`), exactly as package-lock.json names them.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from routing.control_address import ControlAddress

_HERE = Path(__file__).parent
_INSTALL_SECONDS = 300
# Node's start and the imports of libp2p, on a busy machine.
_READY_SECONDS = 60
_ANSWER_SECONDS = 60


class JsNode:
    """A running node.

    Attributes:
        address: where it listens, with its peer id.
        peer_id: who it is.
    """

    def __init__(self, process: trio.Process, lines: AsyncIterator[str], ready: dict[str, Any]) -> None:
        self._process = process
        self._lines = lines
        self.address = ControlAddress.parse(ready["addresses"][0])
        self.peer_id: str = ready["peer"]

    async def ask(self, **request: Any) -> dict[str, Any]:
        """One request of those that js_node.mjs lists, `do` first, and its answer."""
        assert self._process.stdin is not None
        with trio.fail_after(_ANSWER_SECONDS):
            await self._process.stdin.send_all(json.dumps(request).encode() + b"\n")
            answer: dict[str, Any] = json.loads(await anext(self._lines))
            return answer


def js_command(**options: Any) -> tuple[list[str], Path]:
    """The command that starts a node, and the folder to run it in; skips the test where it can't be had.

    Args:
        options: as of `js_node`, and `host`: the address to listen on.
    """
    folder = _installed()
    return [str(folder / "node_modules/.bin/node"), "js_node.mjs", json.dumps(options)], folder


@asynccontextmanager
async def js_node(**options: Any) -> AsyncIterator[JsNode]:
    """Start a node and end it.

    Args:
        options: `port`, `relay` (True), `limit` (False: circuits without limits), `validator` (True).
    """
    command, folder = js_command(**options)
    process = await trio.lowlevel.open_process(
        command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        lines = _lines(process)
        with trio.fail_after(_READY_SECONDS):
            ready = json.loads(await anext(lines))
        yield JsNode(process, lines, ready)
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            assert process.stdin is not None and process.stdout is not None
            await process.stdin.aclose()
            await process.stdout.aclose()


async def _lines(process: trio.Process) -> AsyncIterator[str]:
    assert process.stdout is not None
    rest = b""
    while data := await process.stdout.receive_some(65536):
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield line.decode()
    raise AssertionError("the js-libp2p node has ended")


@functools.cache
def _installed() -> Path:
    """The folder with the packages and the script, made if it is not there."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed: js-libp2p can't be fetched")
    sources = [_HERE / name for name in ("package.json", "package-lock.json", "js_node.mjs")]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources[:2])).hexdigest()[:16]
    base = Path(os.environ.get("PANAL_INTEROP_CACHE") or Path.home() / ".cache/panal-interop")
    folder = base / digest
    if not (folder / "node_modules").is_dir():
        _install(folder, sources)
    _copy(sources[2], folder)
    return folder


def _install(folder: Path, sources: list[Path]) -> None:
    """In a folder of our own first, so that two test runs at once and a broken one do no harm."""
    fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for source in sources:
        _copy(source, fresh)
    done = subprocess.run(
        ["npm", "ci", "--no-audit", "--no-fund"],
        cwd=fresh,
        capture_output=True,
        text=True,
        timeout=_INSTALL_SECONDS,
    )
    if done.returncode != 0:
        shutil.rmtree(fresh, ignore_errors=True)
        pytest.skip(f"npm ci failed, js-libp2p can't be fetched: {done.stderr.strip()[-300:]}")
    try:
        fresh.rename(folder)
    except OSError:  # another run was first
        shutil.rmtree(fresh, ignore_errors=True)


def _copy(source: Path, folder: Path) -> None:
    target = folder / source.name
    if not target.exists() or target.read_bytes() != source.read_bytes():
        temporary = target.with_name(f"{source.name}.{os.getpid()}")
        shutil.copyfile(source, temporary)
        temporary.rename(target)
