"""`panal model share | get` and `panal slice get | ls | rm`, as people use them: between nodes' processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from node.engine.library import Library
from node.model.chunks import CHUNK_BYTES
from node.model.slice_file import read_slice
from tests.integration.test_commands import LOOPBACK, panal, serving
from tests.share_sources import make_model

pytestmark = pytest.mark.slow

RATE = 3 << 20
"""Bytes a second that the giver sends: all of the wide model's experts take two seconds."""


@dataclass
class World:
    """A node that gives two models, and one that asks.

    Attributes:
        giver, asker: folders with node.toml.
        ids: model ids by name.
        expert_bytes: of "wide".
    """

    giver: Path
    asker: Path
    ids: dict[str, str]
    pid: int
    wide: Path
    demo: Path

    @property
    def config(self) -> Path:
        return self.asker / "node.toml"


@pytest.fixture(scope="module")
def world(library: Library, demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("sharing")
    giver, asker = folder / "giver", folder / "asker"
    panal("init", "--dir", giver, "--listen", LOOPBACK)
    config = giver / "node.toml"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("[swarm]", f"[swarm]\nshare_rate = {RATE}", 1), encoding="utf-8")
    wide, demo = make_model(library, folder), folder / "demo.gguf"
    demo.write_bytes(demo_model.read_bytes())
    told = json.loads(panal("model", "share", demo, "-c", config, "--json").stdout)
    with serving(config) as (process, address):
        # A node that runs already gives what is shared from now on.
        said = panal("model", "share", wide, "--name", "wide one", "-c", config).stdout
        (wide_id,) = re.findall(r"^model id +([0-9a-f]{64})$", said, re.MULTILINE)
        assert "panal model get 'wide one'" in said
        panal("init", "--dir", asker, "--listen", LOOPBACK, "--peer", address)
        yield World(giver, asker, {"demo": told["model_id"], "wide one": wide_id}, process.pid, wide, demo)


def get_json(world: World, *arguments: object, code: int = 0) -> dict[str, Any]:
    done = panal(*arguments, "-c", world.config, "--json", code=code)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_model_goes_from_one_device_to_another(world: World, tmp_path: Path) -> None:
    done = panal("model", "get", "demo", "--all", "-o", tmp_path / "slices", "-c", world.config)
    assert done.stderr == ""
    (path,) = (tmp_path / "slices").iterdir()
    cut = tmp_path / "cut.gguf"
    panal("slice", "cut", world.demo, "-o", cut, "--store", world.giver / "store")
    assert path.read_bytes() == cut.read_bytes()
    # What it says at the end is what makes it run: no file of the model is here.
    lines = tomllib.loads(done.stdout[done.stdout.index("[backbone]") :])
    assert lines == {"backbone": {"model": world.ids["demo"]}, "serve": [{"model": str(path)}]}
    alone = tmp_path / "alone.toml"
    alone.write_text(
        f'store = "{world.asker / "store"}"\n[swarm]\nlan = false\ncontrol = "off"\n'
        + done.stdout[done.stdout.index("[backbone]") :],
        encoding="utf-8",
    )
    mine = json.loads(panal("generate", "-c", alone, "-p", "import os\n", "-n", 12, "--json").stdout)
    whole = tmp_path / "whole.toml"
    whole.write_text(
        f'store = "{tmp_path / "s"}"\n[swarm]\nlan = false\ncontrol = "off"\n'
        f'[backbone]\nmodel = "{world.demo}"\n[[serve]]\nmodel = "{world.demo}"\n',
        encoding="utf-8",
    )
    theirs = json.loads(panal("generate", "-c", whole, "-p", "import os\n", "-n", 12, "--json").stdout)
    assert mine["text"] == theirs["text"] and len(mine["text"]) > 0

    again = get_json(world, "model", "get", world.ids["demo"][:10], "--all", "-o", tmp_path / "slices")
    assert again["complete"] and again["bytes"] == 0 and again["slices"] == [str(path)]


def test_killed_in_the_middle(world: World, tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "node.cli.main", "slice", "get", "wide one", "--all"),
        *("-o", str(tmp_path), "-c", str(world.config), "--json"),
    ]
    name = f"{world.ids['wide one'][:12]}-layers-0-1-experts-0-3.gguf"
    data = tmp_path / f"{name}.part" / "data"
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 30
    while not data.exists() or data.stat().st_blocks * 512 < 2 << 20:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / name).exists()
    on_disk = data.stat().st_blocks * 512
    (listed,) = [
        each for each in get_json_list(world, "slice", "ls", tmp_path) if each["path"] == str(tmp_path / name)
    ]
    assert listed["kind"] == "fetching" and not listed["complete"] and 0.2 < listed["share"] < 1
    got = get_json(world, "slice", "get", "wide one", "--all", "-o", tmp_path)
    whole = (tmp_path / name).stat().st_size
    assert got["complete"] and got["trunk"] is None
    # What was written was whole chunks, but for the last; and none of them came again.
    assert got["was_there"] >= on_disk - CHUNK_BYTES - (64 << 10)
    assert got["bytes"] <= whole - got["was_there"] + (16 << 10)  # lists of digests, the manifest
    cut = tmp_path / "cut.gguf"
    panal("slice", "cut", world.wide, "-o", cut, "--store", world.giver / "store")
    assert (tmp_path / name).read_bytes() == cut.read_bytes()
    assert [each.name for each in tmp_path.glob("*.part")] == []


def get_json_list(world: World, *arguments: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(panal(*arguments, "-c", world.config, "--json").stdout)
    return found


def test_slices_are_listed_and_removed(world: World, tmp_path: Path) -> None:
    get_json(world, "slice", "get", "demo", "--layers", "0,2-3", "--experts", "0-3", "-o", tmp_path)
    names = [f"{world.ids['demo'][:12]}-layers-{run}-experts-0-3.gguf" for run in ("0-0", "2-3")]
    assert sorted(each.name for each in tmp_path.iterdir()) == names
    listed = {each["path"]: each for each in get_json_list(world, "slice", "ls")}  # noted when they were got
    found = listed[str(tmp_path / names[1])]
    assert (found["layers"], found["experts"], found["cells"]) == ("2-3", "0-3", 8)
    assert found["complete"] and found["model_id"] == world.ids["demo"]
    assert read_slice(tmp_path / names[0]).layers == range(1)
    text = panal("slice", "ls", tmp_path, "-c", world.config).stdout
    assert re.search(rf"^{world.ids['demo'][:12]} +2-3 +0-3 +8 .* complete +", text, re.MULTILINE)

    serves = tmp_path / "serves.toml"
    serves.write_text(f'[[serve]]\nmodel = "{names[0]}"\n', encoding="utf-8")
    refused = panal("slice", "rm", tmp_path / names[0], "-c", serves, code=2).stderr
    assert "serves it; take it out of [[serve]] first, or --force" in refused and refused.count("\n") == 1
    removed = panal("slice", "rm", tmp_path / names[0], "-c", serves, "--force").stdout
    assert "removed, " in removed and not (tmp_path / names[0]).exists()
    for other in (serves, world.demo, tmp_path / "nothing.gguf", tmp_path):
        said = panal("slice", "rm", other, "-c", world.config, code=2).stderr
        assert said.count("\n") == 1 and "Traceback" not in said
        assert other.exists() or other.name == "nothing.gguf"
    panal("slice", "rm", tmp_path / names[1], "-c", world.config)
    assert str(tmp_path / names[1]) not in {each["path"] for each in get_json_list(world, "slice", "ls")}


def test_what_cannot_be_got(world: World, tmp_path: Path) -> None:
    for arguments, code, said in (
        (("model", "get", "nobodys"), 1, "nobodys: nobody gives it; there are demo ("),
        (("slice", "get", "demo"), 2, "which experts?"),
        (("slice", "get", "demo", "--all", "--layers", "0"), 2, "--all is all experts of all layers"),
        (("slice", "get", "demo", "--layers", "0-9"), 2, "there are 4 layers"),
        (("model", "get", "demo", "--metadata", "xyz"), 2, "not the beginning of a digest"),
        (
            ("model", "get", "demo", "--metadata", "000000"),
            1,
            "no connected peer gives its trunk with metadata",
        ),
    ):
        done = panal(*arguments, "-o", tmp_path, "-c", world.config, code=code)
        assert said in done.stderr and done.stderr.count("\n") == 1 and not list(tmp_path.iterdir())
    taken = tmp_path / f"{world.ids['demo'][:12]}-layers-0-0-experts-0-0.gguf"
    taken.write_bytes(b"something else")
    done = panal(
        "slice", "get", "demo", "--layers", 0, "--experts", 0, "-o", tmp_path, "-c", world.config, code=2
    )
    assert str(taken) in done.stderr and taken.read_bytes() == b"something else"


def test_a_disk_that_is_too_small(world: World, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root (test_growing.py has a disk that takes no more)")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=18m", "tmpfs", str(tmp_path)], check=True)
    try:
        arguments = ("slice", "get", "wide one", "--all", "-o", tmp_path, "-c", world.config)
        done = panal(*arguments, code=2)
        assert re.search(
            r"5\.8 MiB are to be fetched, 1[78](\.\d)? MiB are free there; make room", done.stderr
        )
        assert done.stderr.count("\n") == 1 and not list(tmp_path.glob("*.gguf"))
        subprocess.run(["mount", "-o", "remount,size=64m", str(tmp_path)], check=True)
        panal(*arguments)
        assert len(list(tmp_path.glob("*.gguf"))) == 1
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_the_share_list(world: World, tmp_path: Path) -> None:
    config = world.giver / "node.toml"
    text = panal("model", "share", "-c", config).stdout
    assert re.search(r"^wide one +[0-9a-f]{12} +[0-9a-f]{12} +/.*wide\.gguf$", text, re.MULTILINE)
    shares = json.loads(panal("model", "share", "-c", config, "--json").stdout)
    assert {each["name"]: each["model_id"] for each in shares} == world.ids
    for arguments, said in (
        (("--name", "DEMO", world.wide), "is shared as 'DEMO' already"),
        (("--name", "cafe00", world.wide), "cannot be a model's name"),
        (("--name", "two\nlines", world.wide), "cannot be a model's name"),
        (("--name", "x"), "--name is for a FILE"),
        (("--remove", "nothing"), "no model that is shared"),
        (("--remove", "demo", world.wide), "give FILE without it"),
        ((tmp_path / "none.gguf",), "none.gguf"),
    ):
        done = panal("model", "share", *arguments, "-c", config, code=2)
        assert said in done.stderr and done.stderr.count("\n") == 1
    panal("model", "share", "--remove", "DEMO", "-c", config)
    time.sleep(2.5)  # nodes look every two seconds
    refused = panal("model", "get", "demo", "-c", world.config, code=1).stderr
    assert "there are wide one (" in refused
    panal("model", "share", world.ids["demo"][:12], "--name", "demo", "-c", config)
    (tmp_path / "shares.json").write_text("[{}]", encoding="utf-8")
    done = panal("model", "share", "--store", tmp_path, "-c", config, code=2)
    assert "is damaged; remove it" in done.stderr and done.stderr.count("\n") == 1


def test_the_giver_holds_no_file_in_memory(world: World) -> None:
    """What was sent lies in the map of the file: memory of its own has the process for chunks only."""
    status = Path(f"/proc/{world.pid}/status").read_text(encoding="utf-8")
    own = int(re.findall(r"^RssAnon:\s+(\d+) kB$", status, re.MULTILINE)[0]) << 10
    assert own < 160 << 20
