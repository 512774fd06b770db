"""The status of a node that runs, as a process among processes: over HTTP and by the commands that ask it.

One swarm serves all tests: `w`, which is watched, serves and answers; `a` and `b` serve the other experts.
"""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from node.engine import library as llama
from node.importing import import_model
from node.model.store import Store
from node.status import facts
from node.status.token import read_token
from tests.metrics_text import read_metrics
from tests.ready_panal import run_panal
from tests.swarm_process import PANAL, Home, NodeProcess, free_port, running, start_all, wait_until

pytestmark = pytest.mark.slow

READY_SECONDS = 60.0
"""For a backbone to be open and all its experts in reach; it takes three. The machine may be busy."""

OFFLINE_SECONDS = 10.0
"""Within which a node that was killed is offline; the requirement."""

SECRET = "the quick brown fox of the prompt"

VOLATILE = {
    "at", "uptime_seconds", "rss_bytes", "anonymous_bytes", "mapped_bytes", "cpu", "up", "down", "sent_bytes",
    "received_bytes", "rtt_ms", "loss", "last_seen", "wait_ms", "load_ms", "evidence", "reason", "since",
    "calls", "tokens_per_second", "pairs", "compute_seconds",
}  # fmt: skip
"""What may be otherwise a moment later."""


@dataclass
class Swarm:
    """The running nodes.

    Attributes:
        port: of the watched one's HTTP.
    """

    folder: Path
    a: NodeProcess
    b: NodeProcess
    w: NodeProcess
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        return read_token(self.w.home.folder / "http-token")

    def status(self) -> facts.Status:
        answer = httpx.get(f"{self.url}/api/status", timeout=30)
        assert answer.status_code == 200, answer.text
        return msgspec.json.decode(answer.content, type=facts.Status)

    def panal(self, *arguments: str, config: Path | None = None) -> subprocess.CompletedProcess[str]:
        return run_panal(*arguments, "-c", config or self.w.home.config)

    def peer(self, node: NodeProcess) -> facts.Peer | None:
        return next((each for each in self.status().peers if each.id == node.peer_id), None)


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Iterator[Swarm]:
    folder = tmp_path_factory.mktemp("status")
    store = folder / "store"
    import_model(llama.load(), Store(store), demo_model)

    def home(name: str, experts: str, peers: list[str], rest: str = "") -> Home:
        lines = "lan = false\nadvert_seconds = 60"
        return Home(folder / name, store, demo_model, experts, peers=peers, swarm=lines, rest=rest)

    port = free_port()
    off = '[http]\nlisten = "off"\n'
    a = NodeProcess(home("a", "0-5", [], off))
    b = NodeProcess(home("b", "6-11", [a.home.address], off))
    watched = f'[http]\nlisten = "127.0.0.1:{port}"\n[backbone]\nmodel = "{demo_model}"\ncontext = 256\n'
    w = NodeProcess(home("w", "0-2", [a.home.address, b.home.address], watched))
    swarm = Swarm(folder, a, b, w, port)
    with running([a, b, w]):
        start_all([a, b, w])
        wait_until(lambda: _is_whole(swarm), READY_SECONDS, "the backbone to answer")
        yield swarm


def _is_whole(swarm: Swarm) -> bool:
    status = swarm.status()
    online = {peer.id for peer in status.peers if peer.state == "online"}
    return (
        status.gateway is not None and status.gateway.ready and {swarm.a.peer_id, swarm.b.peer_id} <= online
    )


def test_it_tells_what_there_is(swarm: Swarm) -> None:
    status = swarm.status()
    node = status.node
    assert (node.name, node.peer_id, node.state) == ("w", swarm.w.peer_id, "serving")
    assert node.memory.rss_bytes and node.traffic.sent_bytes > 0
    (served,) = node.serves
    assert served.cells == 4 * 3 and served.experts == [(0, 3, [(0, 2)])] and served.bytes > 0
    (model,) = status.models
    assert model.id == served.model and model.here == ["serves", "backbone"]
    assert (model.layers, model.experts, model.nodes, model.missing_cells) == ([0, 1, 2, 3], 12, 3, 0)
    replicas = msgspec.json.decode(f'"{model.replicas}"', type=bytes)
    row = bytes([2] * 3 + [1] * 9)
    assert replicas == row * 4
    assert model.home == [(0, 3, [(0, 2)])]  # what it serves its own backbone computes here
    for peer, name, experts in ((swarm.peer(swarm.a), "a", (0, 5)), (swarm.peer(swarm.b), "b", (6, 11))):
        assert peer is not None and peer.name == name and peer.version == node.version
        assert peer.route is not None and peer.route.kind == "direct" and peer.rtt_ms is not None
        (held,) = peer.holds
        assert (held.model, held.cells, held.experts) == (model.id, 4 * 6, [(0, 3, [experts])])
    assert not [each for each in status.warnings if each.level == "error"]


def test_an_answer_leaves_its_ledger_and_not_its_words(swarm: Swarm) -> None:
    answer = httpx.post(
        f"{swarm.url}/v1/completions",
        json={"model": _model_name(swarm), "prompt": SECRET, "max_tokens": 8, "temperature": 0},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    wait_until(lambda: bool(swarm.status().answers), 30, "the answer to be noted")
    status = swarm.status()
    told = status.answers[0]
    assert told.stopped in ("length", "end") and told.prompt_tokens > 3 and told.tokens > 0
    assert told.trips.trips > 0 and told.trips.passes > 0 and told.trips.sent_bytes > 0
    assert sum(peer.calls.made for peer in status.peers) > 0
    assert status.gateway is not None and status.gateway.answered >= 1
    text = answer.json()["choices"][0]["text"]
    everything = [httpx.get(f"{swarm.url}{path}").text for path in ("/api/status", "/metrics")]
    everything += [swarm.panal(command).stdout for command in ("status", "peers", "models")]
    for words in everything:
        assert SECRET not in words and swarm.token not in words
        assert len(text) < 4 or text not in words


def test_commands_tell_the_same_field_by_field(swarm: Swarm) -> None:
    for command, part in (("status", None), ("peers", "peers"), ("models", "models")):
        before = httpx.get(f"{swarm.url}/api/status").json()
        done = swarm.panal(command, "--json")
        after = httpx.get(f"{swarm.url}/api/status").json()
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        try:
            _agree(told, before if part is None else before[part], command)
        except AssertionError:  # something was found out just then
            _agree(told, after if part is None else after[part], command)


def test_commands_show_it_to_people(swarm: Swarm) -> None:
    shown = swarm.panal("status").stdout
    for words in ("w, panal ", swarm.w.peer_id, "panal, open", "serving", "12 cells", "2 online (2 direct)"):
        assert words in shown
    shown = swarm.panal("peers").stdout
    assert "a " in shown and swarm.a.peer_id[-8:] in shown and "direct" in shown
    shown = swarm.panal("models").stdout
    assert "serves, backbone" in shown and "4 x 12" in shown


def test_watching_goes_on_until_ctrl_c(swarm: Swarm) -> None:
    command = [*PANAL, "peers", "--watch", "--json", "-c", str(swarm.w.home.config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        try:
            assert watching.stdout is not None and watching.stderr is not None
            for _ in range(2):
                told = json.loads(watching.stdout.readline())
                assert {peer["id"] for peer in told} == {swarm.a.peer_id, swarm.b.peer_id}
            watching.send_signal(signal.SIGINT)
            assert watching.wait(30) == 0 and watching.stderr.read() == ""
        finally:
            watching.kill()


def test_on_a_terminal_it_is_drawn_as_wide_as_that(swarm: Swarm) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 60))
    command = [*PANAL, "status", "-c", str(swarm.w.home.config)]
    plain = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
    environ = plain | {"TERM": "xterm-256color"}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environ
    ) as drawing:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 65536):
                shown += piece
        except OSError:  # Linux says so that the other end is closed
            pass
        finally:
            os.close(ours)
        assert drawing.wait(30) == 0
    assert b"\x1b[1m" in shown  # bold
    lines = re.sub(rb"\x1b\[[0-9;]*m", b"", shown).decode().split("\r\n")
    assert max(map(len, lines)) <= 60 and any("2 online (2 direct)" in line for line in lines)


def test_metrics_count(swarm: Swarm) -> None:
    told = read_metrics(httpx.get(f"{swarm.url}/metrics").text)
    assert told["panal_peers"].value(state="online") == 2
    assert told["panal_serving"].value() == 1
    assert told["panal_served_cells"].samples and told["panal_gateway_ready"].value() == 1


def test_pausing_is_seen_here_and_by_peers_and_takes_the_token(swarm: Swarm) -> None:
    secret = {"X-Panal-Token": swarm.token}
    for headers in ({}, {"X-Panal-Token": "0" * 64}, secret | {"Origin": "http://evil.example"}):
        assert httpx.post(f"{swarm.url}/api/pause", headers=headers).status_code == 403
    assert swarm.status().node.state == "serving"
    done = httpx.post(f"{swarm.url}/api/pause", headers=secret, json={"seconds": 600})
    assert done.status_code == 200 and done.json()["state"] == "paused"
    status = swarm.status()
    assert status.node.state == "paused" and status.node.pause is not None and status.node.pause.by_hand
    assert status.node.serves[0].cells == 12  # on offer again when it resumes
    assert status.models[0].nodes == 2
    assert "paused by hand" in swarm.panal("status").stdout
    swarm.a.wait(lambda: swarm.a.table.get(swarm.w.peer_id) == 0, 30, "w's advert to name no slices")
    done = httpx.post(f"{swarm.url}/api/resume", headers=secret)
    assert done.status_code == 200 and done.json() == {"state": "serving", "pause": None}
    assert swarm.status().models[0].nodes == 3
    swarm.a.wait(lambda: swarm.a.table.get(swarm.w.peer_id) == 1, 30, "w's advert to name its slice again")


def test_missing_cells_name_the_peer_that_is_paused(swarm: Swarm) -> None:
    def missing() -> str:
        return "".join(each.what for each in swarm.status().warnings if each.code == "missing-cells")

    assert missing() == ""
    assert swarm.panal("pause", config=swarm.b.home.config).returncode == 0
    wait_until(lambda: "paused: " in missing(), 30, "the warning")
    what = missing()
    assert "24 cells are served by nobody: layers 0-3: experts 6-11; paused: b (" in what
    assert what.endswith(f"{swarm.b.peer_id[-4:]}), which has 24 of them")
    assert swarm.panal("resume", config=swarm.b.home.config).returncode == 0
    wait_until(lambda: missing() == "", 30, "b to serve again")


def test_a_killed_peer_is_offline_within_ten_seconds_and_comes_back(swarm: Swarm) -> None:
    with httpx.stream("GET", f"{swarm.url}/api/events", timeout=30) as response:
        events = _events(response)
        assert next(events)[0] == "snapshot"
        swarm.b.kill()
        killed = time.monotonic()
        gone = _wait_for(events, swarm.b.peer_id, lambda peer: peer["state"] == "offline")
        assert time.monotonic() - killed <= OFFLINE_SECONDS
        assert gone["reason"] and not gone["connected"] and gone["holds"] == [] and gone["route"] is None
        assert gone["name"] == "b" and gone["version"]
        status = swarm.status()
        assert status.models[0].missing_cells == 4 * 6
        assert [each for each in status.warnings if each.code == "missing-cells"]
        assert "offline" in swarm.panal("peers").stdout
        swarm.b.start().ready()
        back = _wait_for(events, swarm.b.peer_id, lambda peer: peer["state"] == "online")
        assert back["holds"]
    wait_until(lambda: swarm.status().models[0].missing_cells == 0, 30, "its cells to count again")


def test_without_a_node_there_is_one_line(swarm: Swarm) -> None:
    done = swarm.panal("status", config=swarm.a.home.config)  # it runs, but has no HTTP
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    elsewhere = swarm.folder / "nobody"
    elsewhere.mkdir()
    config = elsewhere / "node.toml"
    config.write_text(f'store = "{swarm.w.home.store}"\nidentity = "identity.key"\n')
    for command in ("status", "peers"):
        done = swarm.panal(command, config=config)
        assert done.returncode == 2
        assert done.stderr == f"panal: no node runs from {config}: panal run -c {config} starts it\n"
    done = swarm.panal("models", config=config)
    assert done.returncode == 0 and "in the store" in done.stdout and "qwen2moe" in done.stdout
    (stored,) = json.loads(swarm.panal("models", "--json", config=config).stdout)
    assert stored["id"] == swarm.status().models[0].id and stored["problem"] == ""
    assert (stored["layers"], stored["experts"]) == (4, 12)


def _model_name(swarm: Swarm) -> str:
    name: str = httpx.get(f"{swarm.url}/v1/models").json()["data"][0]["id"]
    return name


def _agree(one: Any, other: Any, where: str) -> None:
    """Whether two statuses are the same but for what moves."""
    if isinstance(one, dict) and isinstance(other, dict):
        assert list(one) == list(other), where
        for key in one.keys() - VOLATILE:
            _agree(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list) and isinstance(other, list):
        assert len(one) == len(other), where
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            _agree(left, right, f"{where}[{number}]")
    else:
        assert one == other, where


def _events(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def _wait_for(
    events: Iterator[tuple[str, Any]], peer_id: str, holds: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """The first news of a peer of which this holds."""
    end = time.monotonic() + 30
    for name, told in events:
        for peer in told["changed"] if name == "peers" else ():
            if peer["id"] == peer_id and holds(peer):
                found: dict[str, Any] = peer
                return found
        assert time.monotonic() < end, f"no such news of {peer_id}"
    raise AssertionError("the events have ended")
