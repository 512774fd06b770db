"""The status page of real nodes: three expert servers and a backbone, each a `panal run` of its own.

The servers hold four of the demo model's twelve experts each, in every layer: without one of them, cells are
missing. Each test leaves the swarm as it found it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.browser.conftest import OpenTab
from tests.swarm_process import Home, NodeProcess, free_port, running, start_all, wait_until

pytestmark = pytest.mark.slow

OFFLINE_SECONDS = 10.0
"""The requirement: a node that was killed is offline on the page after so long."""

NEWS_SECONDS = 15.0
"""From a change on one node to the page of another. An advert takes a second or two; the machine may be
busy."""

HOSTILE = "<img src=x onerror=window.hacked=1>"


@dataclass
class Node:
    """A process and its page."""

    process: NodeProcess
    url: str

    @property
    def peer_id(self) -> str:
        return str(self.process.peer_id)

    @property
    def row(self) -> str:
        """Its row in the table of peers of another's page."""
        return f'tr[data-peer="{self.peer_id}"]'

    def status(self) -> Any:
        return httpx.get(f"{self.url}/api/status").raise_for_status().json()


@dataclass
class Swarm:
    """The desk asks; the others serve."""

    attic: Node
    cellar: Node
    hostile: Node
    desk: Node

    def complete(self, tokens: int = 8) -> httpx.Response:
        """An answer of the desk."""
        body = {"prompt": "import os\n", "max_tokens": tokens, "temperature": 0}
        return httpx.post(f"{self.desk.url}/v1/completions", json=body, timeout=60)

    def answers(self) -> bool:
        gateway = self.desk.status()["gateway"]
        return bool(gateway and gateway["ready"])


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Iterator[Swarm]:
    folder = tmp_path_factory.mktemp("swarm")
    nodes: dict[str, Node] = {}
    peers: list[str] = []
    for name, experts in [("attic", "0-3"), ("cellar", "4-7"), (HOSTILE, "8-11"), ("desk", "")]:
        port = free_port()
        rest = f'[http]\nlisten = "127.0.0.1:{port}"\n'
        if not experts:
            rest += f'[backbone]\nmodel = "{demo_model}"\ncontext = 512\nsessions = 2\n'
        home = Home(folder / name, folder / "store", demo_model, experts, peers=peers, rest=rest)
        peers = peers or [home.address]
        nodes[name] = Node(NodeProcess(home), f"http://127.0.0.1:{port}")
    made = Swarm(nodes["attic"], nodes["cellar"], nodes[HOSTILE], nodes["desk"])
    processes = [node.process for node in nodes.values()]
    with running(processes):
        start_all(processes)
        wait_until(made.answers, 60, "the desk to answer")
        yield made


def test_the_page_shows_the_node_and_its_peers(swarm: Swarm, tab: OpenTab) -> None:
    page = tab(swarm.desk.url).live()
    page.shows("#title", "desk")
    page.shows("#short-id", swarm.desk.peer_id[-8:])
    page.shows("#peers-count", "3 online of 3")
    for node in (swarm.attic, swarm.cellar, swarm.hostile):
        page.has(node.row, "online")
        page.has(node.row, "direct")
        cells = page.page.locator(f"{node.row} td")
        told = {each.get_attribute("data-label"): each.inner_text() for each in cells.all()}
        assert re.fullmatch(r"\d+\.\d ms", told["RTT"]), told
        assert re.fullmatch(r"127\.0\.0\.1:\d+", told["address"]), told
        assert told["cells"] == "16" and told["last seen"] == "now"
        assert len(told["route"]) > len("direct "), "with its reason"
    page.has("#node", swarm.desk.peer_id)
    page.has(".model summary", "complete")
    page.has(".model", "4 layers of 12 experts")
    page.page.focus("canvas")
    page.page.keyboard.press("Home")
    page.has(".told", "layer 0, expert 0: 1 live replica (attic), scarcity 67 %")
    page.page.click(f"{swarm.attic.row} button")
    page.has("tr.detail", "layers 0-3: experts 0-3")
    page.keep("swarm")
    dark = tab(swarm.desk.url, dark=True, width=390, height=844).live()
    dark.count("#peers tbody tr", 3)
    dark.keep("swarm-phone-dark")


def test_what_a_hostile_peer_calls_itself_is_only_text(swarm: Swarm, tab: OpenTab) -> None:
    page = tab(swarm.desk.url).live()
    page.has(f"{swarm.hostile.row} button", HOSTILE)
    page.page.click(f"{swarm.hostile.row} button")
    page.page.focus("canvas")
    for key in ("Home", "End"):
        page.page.keyboard.press(key)
    page.has(".told", f"({HOSTILE})")
    assert page.asks("() => window.hacked") is None and page.page.locator("main img").count() == 0
    own = tab(swarm.hostile.url).live()
    own.shows("#title", HOSTILE)
    assert own.page.title() == f"{HOSTILE} - panal"
    assert own.asks("() => window.hacked") is None


def test_an_answer_is_shown_with_its_trips(swarm: Swarm, tab: OpenTab) -> None:
    page = tab(swarm.desk.url).live()
    answer = swarm.complete()
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    page.has("#answers tbody tr:first-child td:nth-child(3)", f"{usage['completion_tokens']}")
    cells = page.page.locator("#answers tbody tr").first.locator("td")
    told = {each.get_attribute("data-label"): each.inner_text() for each in cells.all()}
    ledger = swarm.desk.status()["answers"][0]
    assert ledger["tokens"] == usage["completion_tokens"] == 8
    trips = ledger["trips"]
    assert trips["trips"] > 0 and trips["trips"] == usage["panal"]["trips"]
    assert told["trips"] == f"{trips['trips']}" and told["passes"] == f"{trips['passes']}"
    assert told["prompt"].split()[0] == f"{usage['prompt_tokens']}"
    assert told["waited"] == f"{trips['waited_seconds']:.2f} s" and told["ended by"] == "length"
    assert told["slowest"] in ("attic", "cellar", HOSTILE)
    page.has("#gateway", "ready")
    page.has("#gateway", "1 given")


def test_a_killed_node_goes_offline_and_comes_back(swarm: Swarm, tab: OpenTab) -> None:
    page = tab(swarm.desk.url).live()
    page.has(swarm.cellar.row, "online")
    assert page.hidden("#warnings")
    swarm.cellar.process.kill()
    killed = time.monotonic()
    page.has(f"{swarm.cellar.row} td:nth-child(2)", "offline", seconds=OFFLINE_SECONDS)
    print(f"a killed node is offline on the page after {time.monotonic() - killed:.1f} s")
    page.shows("#peers-count", "2 online of 3")
    missing = "li[data-code=missing-cells]"
    page.has(missing, "16 cells are served by nobody: layers 0-3: experts 4-7", seconds=NEWS_SECONDS)
    page.has(missing, "panal init --serve")
    page.has(".model summary", "16 cells missing")
    page.has(".lacking", "layers 0-3: experts 4-7")
    page.keep("missing-cells")
    swarm.cellar.process.start().ready()
    page.has(f"{swarm.cellar.row} td:nth-child(2)", "online", seconds=NEWS_SECONDS)
    page.count(missing, 0, seconds=NEWS_SECONDS)
    page.has(".model summary", "complete")
    wait_until(swarm.answers, NEWS_SECONDS, "the desk to answer again")


def test_pause_and_resume(swarm: Swarm, tab: OpenTab) -> None:
    """By the button of one node, seen on the page of another."""
    desk, page = tab(swarm.desk.url).live(), tab(swarm.attic.url).live()
    assert desk.hidden("#pause"), "the desk serves nothing"
    page.shows("#state", "serving")
    page.page.select_option("#pause-seconds", "1800")
    page.page.focus("#pause")
    page.page.keyboard.press("Enter")
    page.shows("#state", "paused")
    page.has("#pause-note", "Paused by hand until ")
    page.shows("#pause", "Resume")
    told = swarm.attic.status()["node"]
    assert told["state"] == "paused" and told["pause"]["by_hand"]
    assert 1700 < told["pause"]["until"] - time.time() <= 1800
    page.keep("paused")
    # its slices are withdrawn, and what needs them is refused with a reason
    desk.has(f"{swarm.attic.row} td:nth-child(8)", "0", seconds=NEWS_SECONDS)
    desk.has("li[data-code=missing-cells]", "layers 0-3: experts 0-3", seconds=NEWS_SECONDS)
    refused = swarm.complete()
    assert refused.status_code == 503 and "0-3" in refused.json()["error"]["message"], refused.text

    page.page.keyboard.press("Enter")  # the focus has stayed
    page.shows("#state", "serving")
    page.shows("#pause-note", "")
    assert swarm.attic.status()["node"]["pause"] is None
    desk.has(f"{swarm.attic.row} td:nth-child(8)", "16", seconds=NEWS_SECONDS)
    desk.count("li[data-code=missing-cells]", 0, seconds=NEWS_SECONDS)
    wait_until(lambda: swarm.complete(2).status_code == 200, NEWS_SECONDS, "the desk to answer again")
    desk.forgive()


def test_the_page_survives_a_restart_of_its_node(swarm: Swarm, tab: OpenTab) -> None:
    page = tab(swarm.attic.url).live()
    page.asks("() => { window.loaded = 'once'; }")
    before = swarm.attic.status()["node"]["started_at"]
    swarm.attic.process.interrupt()
    page.shows("#feed", "no connection to the node; trying again")
    swarm.attic.process.start().ready()
    page.live()
    page.shows("#peers-count", "3 online of 3", seconds=NEWS_SECONDS)
    assert page.asks("() => window.loaded") == "once"
    page.has("#node", " s, panal ")
    assert swarm.attic.status()["node"]["started_at"] > before
    page.page.click("#pause")
    page.shows("#state", "paused")
    page.page.click("#pause")
    page.shows("#state", "serving")
    page.forgive("ERR_CONNECTION", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_EMPTY_RESPONSE", "503")
