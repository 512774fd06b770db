"""A network that falls apart for longer than a connection or an advert lives, and comes together again."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from node.engine import library as llama
from node.importing import import_model
from node.model.store import Store
from tests.network.lab import wanlab as wanlab
from tests.swarm_process import (
    Home,
    NodeProcess,
    generate,
    running,
    start_all,
    wait_news,
    wait_until,
    wait_whole,
)

pytestmark = [pytest.mark.network, pytest.mark.slow]

PORT = 4190
PERIOD = 10
"""Seconds an advert lives: the parts forget each other while they are apart."""

APART = 20
"""Seconds of partition: four times what ends a connection, twice what ends an advert."""

SEEN = 30
"""Seconds within which every node knows every live slice."""

LATER = 60
"""The same without any bootstrap: remembered peers are tried each 30 s."""

EAST, WEST = ("e0", "e1"), ("w0", "w1")
EXPERTS = {"e0": "0-2", "e1": "3-5", "w0": "6-8", "w1": "9-11"}


class Wan:
    """A bootstrap and a backbone in the east, two servers on either side."""

    def __init__(self, lab: Any, folder: Path, model: Path) -> None:
        self.lab, self.folder, self.model = lab, folder, model
        self.store = folder / "store"
        import_model(llama.load(), Store(self.store), model)
        self.bootstrap = self._node("boot", "0", [])
        peers = [self.bootstrap.home.address]
        self.servers = {name: self._node(name, experts, peers) for name, experts in EXPERTS.items()}
        self.backbone = self._home(
            "home", "", peers, f'[backbone]\nmodel = "{model}"\ncontext = 256\ndeadline = 5.0\n'
        )

    def generate(self) -> dict[str, Any]:
        done = generate(self.backbone.config, run=functools.partial(self.lab.run, "home"))
        assert done.returncode == 0, done
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def cut(self) -> None:
        """East and west can't reach each other."""
        for east in ("boot", "home", *EAST):
            for west in WEST:
                self.lab.partition(east, west)

    def _node(self, name: str, experts: str, peers: Sequence[str]) -> NodeProcess:
        home = self._home(name, experts, peers)
        return NodeProcess(home, functools.partial(self.lab.popen, name))

    def _home(self, name: str, experts: str, peers: Sequence[str], rest: str = "") -> Home:
        return Home(
            self.folder / name,
            self.store,
            self.model,
            experts,
            host=self.lab.ip(name),
            port=PORT,
            peers=peers,
            swarm=f"lan = false\nadvert_seconds = {PERIOD}\n",
            rest=rest,
        )


@pytest.fixture
def wan(wanlab: Any, tmp_path: Path, demo_model: Path) -> Iterator[Wan]:
    hosts = {name: {"delay": 10} for name in ("boot", "home", *EXPERTS)}
    with wanlab.WanLab({"hosts": hosts}) as lab:
        wan = Wan(lab, tmp_path, demo_model)
        with running([wan.bootstrap, *wan.servers.values()]):
            yield wan


def test_a_swarm_is_whole_again_after_a_partition(wan: Wan) -> None:
    east, west = ([wan.servers[name] for name in side] for side in (EAST, WEST))
    everybody = [wan.bootstrap, *east, *west]
    start_all(everybody)
    wait_whole(everybody, SEEN)
    before = wan.generate()

    wan.cut()
    time.sleep(APART)
    wait_whole([wan.bootstrap, *east], SEEN)
    for node in west:
        assert not {each.peer_id for each in (wan.bootstrap, *east)} & set(node.table), node.table
    cut = generate(wan.backbone.config, run=functools.partial(wan.lab.run, "home"))
    assert cut.returncode == 1 and len(cut.stderr.splitlines()) == 1, cut
    assert "experts 6-11" in cut.stderr

    wan.lab.heal()
    wait_whole(everybody, SEEN)
    assert wan.generate()["tokens"] == before["tokens"]


def test_without_its_bootstrap_it_is_whole_again_too(wan: Wan) -> None:
    """Nor a DHT: nodes remember whom they were connected to."""
    for node in (wan.bootstrap, *wan.servers.values()):
        node.home.swarm += 'control = "off"\n'
        node.home.write()
    east, west = ([wan.servers[name] for name in side] for side in (EAST, WEST))
    servers = [*east, *west]
    start_all([wan.bootstrap, *servers])
    wait_whole([wan.bootstrap, *servers], SEEN)
    wait_until(lambda: all(_knows_all(node, servers) for node in servers), SEEN, "links among all servers")

    wan.bootstrap.kill()
    wan.cut()
    time.sleep(APART)
    for side in (east, west):
        wait_whole(side, SEEN)

    wan.lab.heal()
    wait_whole(servers, LATER)
    wait_news(servers, servers, PERIOD)


def _knows_all(node: NodeProcess, servers: Sequence[NodeProcess]) -> bool:
    """Whether a node is, or was, connected to each other one, by whoever dialed."""
    return all(
        node.said("connected", peer=other.peer_id) or other.said("connected", peer=node.peer_id)
        for other in servers
        if other is not node
    )
