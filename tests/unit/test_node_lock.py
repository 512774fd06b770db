"""One node in a folder: the second is refused by name, a killed one is in nobody's way."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from node.device.folder import NodeFolder
from node.device.lock import FolderInUse, Holder, NodeLock, holder
from routing.errors import LocalError

HOLD = """
import sys, time
from pathlib import Path
from node.device.folder import NodeFolder
from node.device.lock import NodeLock
with NodeLock.take(NodeFolder(Path(sys.argv[1])), name="kitchen", config=Path("/etc/node.toml")):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> NodeFolder:
    return NodeFolder(tmp_path / "data")


def other(folder: NodeFolder) -> subprocess.Popen[str]:
    """Another process that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", HOLD, str(folder.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.communicate()


def test_a_second_node_is_refused_by_name(folder: NodeFolder) -> None:
    process = other(folder)
    try:
        with pytest.raises(FolderInUse) as caught, NodeLock.take(folder, name="cellar"):
            pass
        assert str(caught.value) == (
            f"the node 'kitchen' (pid {process.pid}) already uses {folder.root}; stop it or give this one a "
            "directory of its own: panal init --dir DIR"
        )
        told = holder(folder)
        assert told is not None
        assert (told.pid, told.name, told.config) == (process.pid, "kitchen", "/etc/node.toml")
    finally:
        end(process)
    assert holder(folder) is None


def test_a_killed_node_is_in_nobodys_way(folder: NodeFolder) -> None:
    process = other(folder)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    process.stdout.close()
    assert holder(folder) is None
    with NodeLock.take(folder, name="cellar"):
        told = holder(folder)
        assert told is not None and (told.pid, told.name) == (os.getpid(), "cellar")
    assert holder(folder) is None


def test_the_folder_is_made_for_its_owner_alone(folder: NodeFolder) -> None:
    with NodeLock.take(folder):
        assert stat.S_IMODE(folder.root.stat().st_mode) == 0o700
        assert stat.S_IMODE(folder.lock.stat().st_mode) == 0o600


def test_who_looks_keeps_nobody_out(folder: NodeFolder) -> None:
    with NodeLock.take(folder):
        for _ in range(50):
            assert holder(folder) is not None
    for _ in range(50):
        assert holder(folder) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x"}'])
def test_a_holder_that_says_nothing(folder: NodeFolder, content: str) -> None:
    with NodeLock.take(folder):
        folder.lock.write_text(content)
        assert holder(folder) == Holder()
        with pytest.raises(FolderInUse, match="another node already uses"), NodeLock.take(folder):
            pass


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(LocalError, match="cannot be written: File exists"),
        NodeLock.take(NodeFolder(tmp_path / "file")),
    ):
        pass
