"""A swarm that lives: nodes as processes that join, restart, leave and die; who holds what is known to all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from node.engine import library as llama
from node.importing import import_model
from node.model.store import Store
from tests.swarm_process import Home, NodeProcess, generate, running, start_all, wait_whole

pytestmark = pytest.mark.slow

PERIOD = 10
"""Seconds an advert lives here, the least there may be."""

SEEN = 30
"""Seconds within which every node must know every live slice."""

AT_ONCE = 5
"""Seconds for a farewell, long before the advert would end; it takes a tenth of one."""


class Village:
    """Where the nodes of a test live."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.model = folder, model
        self.store = folder / "store"
        import_model(llama.load(), Store(self.store), model)

    def node(
        self, name: str, experts: str = "", peers: list[str] | None = None, swarm: str = "", rest: str = ""
    ) -> NodeProcess:
        swarm = f"lan = false\nadvert_seconds = {PERIOD}\n{swarm}"
        return NodeProcess(
            Home(
                self.folder / name,
                self.store,
                self.model,
                experts,
                peers=peers or [],
                swarm=swarm,
                rest=rest,
            )
        )

    def backbone(self, name: str, peers: list[str], swarm: str = "") -> Path:
        rest = f'[backbone]\nmodel = "{self.model}"\ncontext = 256\n'
        return self.node(name, peers=peers, swarm=swarm, rest=rest).home.config


@pytest.fixture
def village(tmp_path: Path, demo_model: Path) -> Village:
    return Village(tmp_path, demo_model)


def test_twelve_nodes_know_each_other(village: Village) -> None:
    """Three join late, a bootstrap is restarted, one leaves, one dies: all tables are right in time."""
    first, second = nodes = [village.node(f"n{i}", experts=str(i)) for i in range(2)]
    bootstraps = [first.home.address, second.home.address]
    for node in nodes:
        node.home.peers = [each for each in bootstraps if each != node.home.address]
        node.home.write()
    nodes += [village.node(f"n{i}", experts=str(i), peers=bootstraps) for i in range(2, 12)]
    with running(nodes):
        start_all(nodes[:9])
        wait_whole(nodes[:9], SEEN)

        start_all(nodes[9:])
        wait_whole(nodes, SEEN)

        first.kill()
        first.start().ready()
        wait_whole(nodes, SEEN)
        assert not any(node.said("clone") for node in nodes), "a restart is no clone"

        # the twelve hold one expert each: an answer needs all of them, and each is found through the second
        done = generate(village.backbone("asks", [second.home.address]))
        assert done.returncode == 0, done
        assert {route["peer"] for route in json.loads(done.stdout)["routes"]} == {
            node.peer_id for node in nodes
        }

        leaves, dies, *stay = nodes[4:6] + nodes[:4] + nodes[6:]
        leaves.interrupt()
        wait_whole([*stay, dies], AT_ONCE)
        assert all(node.said("left", peer=leaves.peer_id) for node in stay)

        dies.kill()
        wait_whole(stay, 2 * PERIOD)
        assert all(node.said("gone", peer=dies.peer_id) for node in stay)
