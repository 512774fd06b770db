"""A device that is its owner's: a node that pauses while others go on, one in a folder, what doctor tells.

One swarm serves all tests: `a` and `b` both serve every expert, so text is generated as long as one does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

from node.config import load_config
from node.decode.answer import Answer, answer
from node.decode.configured import configured_backbone
from node.decode.live_backbone import LiveBackbone
from node.engine import library as llama
from node.engine.sampler import SamplingSettings
from node.importing import import_model
from node.model.store import Store
from tests.ready_panal import run_panal
from tests.swarm_process import Home, NodeProcess, running, start_all, wait_until

pytestmark = pytest.mark.slow

PROMPT = "import os\n"

LAYERS = 4
MANY = 100
"""Tokens of an answer in whose middle something happens."""

WITHDRAWN_SECONDS = 30.0
"""From a pause until peers have heard of it: half a second by design; the machine may be busy."""


@dataclass
class Swarm:
    """The running nodes, and a backbone that is a command.

    Attributes:
        ask: the backbone's config.
    """

    a: NodeProcess
    b: NodeProcess
    ask: Path

    def panal(self, *arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = run_panal(*arguments)
        assert done.returncode == code, done
        return done

    def generated(self, tokens: int = 8) -> dict[str, Any]:
        flags = ("-p", PROMPT, "-n", tokens, "--json")
        return dict(json.loads(self.panal("generate", "-c", self.ask, *flags).stdout))

    def told(self, node: NodeProcess) -> dict[str, Any]:
        """The node's own status."""
        return dict(json.loads(self.panal("status", "-c", node.home.config, "--json").stdout))

    def calls(self, node: NodeProcess) -> int:
        """How many it has answered."""
        return int(self.told(node)["node"]["work"]["calls"])


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Iterator[Swarm]:
    folder = tmp_path_factory.mktemp("device")
    store = folder / "store"
    import_model(llama.load(), Store(store), demo_model)
    a = NodeProcess(Home(folder / "a", store, demo_model, experts="0-11"))
    rest = '[http]\nlisten = "off"\n'
    b = NodeProcess(Home(folder / "b", store, demo_model, experts="0-11", peers=[a.home.address], rest=rest))
    with running([a, b]):
        start_all([a, b])
        b.wait_said("heard", 30, peer=a.peer_id)
        a.wait_said("heard", 30, peer=b.peer_id)
        backbone = f'[backbone]\nmodel = "{demo_model}"\ndraft = "off"\n'
        peers = [a.home.address, b.home.address]
        asks = Home(folder / "c", store, demo_model, peers=peers, rest=backbone)
        yield Swarm(a, b, asks.config)


def test_a_paused_node_serves_nothing_and_others_take_over(swarm: Swarm) -> None:
    before = swarm.generated()
    paused = swarm.panal("pause", "-c", swarm.a.home.config, "--for", "2h")
    assert paused.stdout.startswith("paused: by hand until ")
    swarm.b.wait(lambda: swarm.b.table[swarm.a.peer_id] == 0, WITHDRAWN_SECONDS, "a to withdraw")
    assert swarm.told(swarm.a)["node"]["state"] == "paused"
    during = swarm.generated()
    assert during["text"] == before["text"]
    assert [each["peer"] for each in during["routes"]] == [swarm.b.peer_id]
    assert not swarm.b.said("lost", peer=swarm.a.peer_id), "connections stay"
    resumed = swarm.panal("resume", "-c", swarm.a.home.config)
    assert resumed.stdout == "the node serves\n"
    swarm.b.wait(lambda: swarm.b.table[swarm.a.peer_id] == 1, WITHDRAWN_SECONDS, "a to be back")
    assert swarm.generated()["text"] == before["text"]


def test_a_pause_in_the_middle_of_an_answer(swarm: Swarm) -> None:
    """The answer waits with its first piece until roles have changed: however fast the machine writes."""
    whole = swarm.generated(MANY)
    swarm.panal("pause", "-c", swarm.b.home.config)
    swarm.a.wait(lambda: swarm.a.table[swarm.b.peer_id] == 0, WITHDRAWN_SECONDS, "b to withdraw")
    before = swarm.calls(swarm.a)
    changed = list[bool]()

    def change_roles(live: LiveBackbone) -> None:
        def serving() -> set[str]:
            return {each.peer_id for each in live.table.holders(0, 0).holders}

        assert serving() == {swarm.a.peer_id}
        asked = "a to have been asked for all layers"
        wait_until(lambda: swarm.calls(swarm.a) >= before + LAYERS, WITHDRAWN_SECONDS, asked)
        swarm.panal("resume", "-c", swarm.b.home.config)
        wait_until(lambda: swarm.b.peer_id in serving(), WITHDRAWN_SECONDS, "the backbone to learn of b")
        swarm.panal("pause", "-c", swarm.a.home.config)
        changed.append(True)

    async def ask() -> Answer:
        config = load_config(swarm.ask)
        async with configured_backbone(config, prompt=PROMPT) as live:

            def show(text: str) -> None:
                if not changed:
                    change_roles(live)

            return await live.in_thread(answer, live, PROMPT, MANY, SamplingSettings(), show)

    try:
        said = trio.run(ask)
    finally:
        swarm.panal("resume", "-c", swarm.a.home.config)
    assert said.text == whole["text"] and said.tokens == whole["tokens"], "none is another, and none is lost"
    swarm.b.wait(lambda: swarm.b.table[swarm.a.peer_id] == 1, WITHDRAWN_SECONDS, "a to be back")


def test_a_node_without_http_is_paused_by_its_file(swarm: Swarm) -> None:
    done = json.loads(swarm.panal("pause", "-c", swarm.b.home.config, "--json").stdout)
    assert done["paused"] and done["by_hand"] and done["running"]
    swarm.a.wait(lambda: swarm.a.table[swarm.b.peer_id] == 0, WITHDRAWN_SECONDS, "b to withdraw")
    assert json.loads(swarm.panal("resume", "-c", swarm.b.home.config, "--json").stdout)["paused"] is False
    swarm.a.wait(lambda: swarm.a.table[swarm.b.peer_id] == 1, WITHDRAWN_SECONDS, "b to be back")


def test_a_second_node_in_its_folder_is_refused_by_name(swarm: Swarm) -> None:
    error = swarm.panal("run", "-c", swarm.a.home.config, code=2).stderr
    assert "the node 'a' (pid " in error and f") already uses {swarm.a.home.folder}; stop it or" in error
    assert error.splitlines()[-1].startswith("panal: the node 'a'")


def test_what_doctor_tells_of_a_running_node(swarm: Swarm, tmp_path: Path) -> None:
    token = (swarm.a.home.folder / "http-token").read_text().strip()
    shown = swarm.panal("doctor", "-c", swarm.a.home.config).stdout
    file = tmp_path / "report.json"
    swarm.panal("doctor", "-c", swarm.a.home.config, "-o", file)
    report = json.loads(file.read_text())
    assert report["node"]["running"] and report["node"]["status"]["node"]["name"] == "a"
    assert report["lock"]["held"] and report["lock"]["pid"] > 0
    assert report["log"]["lines"], "the end of its log"
    assert "library" in report["llama"] and report["system"]["cpu_flags"]
    (model,) = report["data"]["models"]
    assert len(model) == 64, "ids of models are no secret"
    for text in (shown, file.read_text()):
        for secret in (token, swarm.a.peer_id, swarm.b.peer_id, swarm.b.peer_id[-8:]):
            assert secret not in text
        assert "peer-1" in text
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_killed_node_leaves_its_folder_free(swarm: Swarm) -> None:
    swarm.panal("pause", "-c", swarm.b.home.config)
    swarm.b.kill()
    swarm.b.start().ready()
    swarm.a.wait(lambda: swarm.a.table.get(swarm.b.peer_id) == 0, WITHDRAWN_SECONDS, "b, paused as it was")
    swarm.panal("resume", "-c", swarm.b.home.config)
    swarm.a.wait(lambda: swarm.a.table.get(swarm.b.peer_id) == 1, WITHDRAWN_SECONDS, "b to serve again")


def test_a_node_without_a_config(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PANAL_STORE": str(tmp_path / "data")}
    command = [sys.executable, "-P", "-m", "node.cli.main", "run", "--json"]
    config = tmp_path / "data" / "node.toml"
    config.parent.mkdir()
    # a port of its own: what a device without any config listens on may be in use on this machine
    config.write_text('[swarm]\nlisten = "/ip4/127.0.0.1/udp/0/quic-v1"\n')
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    )
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        assert (said["cells"], said["slices"], said["model"]) == (0, [], "")
        assert said["config"] == str(config) and said["url"].startswith("http://127.0.0.1:")
    finally:
        process.terminate()
        _, log = process.communicate()
    assert process.returncode == 0
    assert all(json.loads(line)["level"] for line in log.splitlines()), "JSON lines, since nobody looks"
