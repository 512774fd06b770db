"""A living swarm: nodes as processes that join, restart, leave and die; who holds what is known to all.

Each scene is a swarm of its own and mostly waits, so two are played at a time; a test waits for the end of
one. The large one is alone.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from node.engine import library as llama
from node.importing import import_model
from node.model.store import Store
from node.swarm_files import SwarmKey, write_member
from routing.membership import OPEN_SWARM, MemberCertificate
from routing.remembered import RememberedPeers
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

pytestmark = pytest.mark.slow

PERIOD = 10
"""Seconds an advert lives here, the least there may be."""

SEEN = 60
"""Seconds within which every node must know every live slice: 30 by design, and the machine may be busy."""

AT_A_TIME = 2
"""Scenes, of up to eight nodes each."""

Scene = Callable[["Village"], None]

SCENES: dict[str, Scene] = {}


def scene(play: Scene) -> Scene:
    """Of this module."""
    SCENES[play.__name__] = play
    return play


class Village:
    """Where the nodes of a test live."""

    def __init__(self, folder: Path, store: Path, model: Path) -> None:
        self.folder, self.store, self.model = folder, store, model

    def node(self, name: str, experts: str = "", peers: Sequence[str] = (), swarm: str = "") -> NodeProcess:
        lines = f"lan = false\nadvert_seconds = {PERIOD}\n{swarm}"
        home = Home(self.folder / name, self.store, self.model, experts, peers=peers, swarm=lines)
        return NodeProcess(home)

    def backbone(self, name: str, peers: Sequence[str], swarm: str = "") -> Home:
        rest = f'[backbone]\nmodel = "{self.model}"\ncontext = 256\n'
        lines = f"lan = false\n{swarm}"
        return Home(self.folder / name, self.store, self.model, peers=peers, swarm=lines, rest=rest)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Path:
    """Of all villages, with the store they share."""
    made = tmp_path_factory.mktemp("living")
    import_model(llama.load(), Store(made / "store"), demo_model)
    return made


@pytest.fixture
def village(folder: Path, demo_model: Path) -> Village:
    return Village(folder / "large", folder / "store", demo_model)


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest, folder: Path, demo_model: Path
) -> Iterator[dict[str, Future[None]]]:
    """Scenes that are being played, of those that are asked for."""
    asked = {item.name for item in request.session.items if item.path == request.path}
    with ThreadPoolExecutor(AT_A_TIME) as stage:
        yield {
            name: stage.submit(play, Village(folder / name, folder / "store", demo_model))
            for name, play in SCENES.items()
            if f"test_scene[{name}]" in asked
        }
        stage.shutdown(cancel_futures=True)


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
        wait_news(nodes, [first], SEEN)
        wait_whole(nodes, SEEN)
        assert not any(node.said("clone") for node in nodes), "a restart is no clone"

        # the twelve hold one expert each: an answer needs all of them, and each is found through the second
        asked = servers_of(village.backbone("asks", [second.home.address]))
        assert asked == {node.peer_id for node in nodes}

        leaves, dies, *stay = nodes[4:6] + nodes[:4] + nodes[6:]
        leaves.interrupt()
        wait_whole([*stay, dies], SEEN)
        assert all(node.said("left", peer=leaves.peer_id) for node in stay)

        dies.kill()
        wait_whole(stay, SEEN)
        assert all(node.said("gone", peer=dies.peer_id) for node in stay)


@scene
def without_a_bootstrap_it_says_so_and_tries_on(village: Village) -> None:
    bootstrap = village.node("bootstrap", "0-5")
    alone = village.node("alone", "6-11")
    waits = village.node("waits", "6-11", [bootstrap.home.address])
    with running([bootstrap, alone, waits]):
        start_all([alone, waits])
        alone.wait_log("[swarm] peers is empty and nobody else was found", SEEN)
        waits.wait_log("[swarm] peers: nobody answers; still trying", SEEN)
        assert bootstrap.home.address.partition("/p2p/")[0] in waits.log, "which one"

        bootstrap.start().ready()
        wait_whole([bootstrap, waits], SEEN)
        assert alone.table == {alone.peer_id: 1}


@scene
def remembered_peers_lead_back_into_the_swarm(village: Village) -> None:
    bootstrap = village.node("bootstrap", "0")
    ana, beto, cora = nodes = [
        village.node(name, experts, [bootstrap.home.address])
        for name, experts in (("ana", "1-3"), ("beto", "4-7"), ("cora", "8-11"))
    ]
    with running([bootstrap, *nodes]):
        start_all([bootstrap, *nodes])
        wait_whole([bootstrap, *nodes], SEEN)
        others = {beto.peer_id, cora.peer_id}
        wait_until(lambda: bool(others & remembered(village, ana)), SEEN, "a neighbour that is written down")

        bootstrap.kill()
        ana.kill()
        ana.home.peers = []
        ana.home.write()
        ana.start().ready()
        wait_whole(nodes, SEEN)


def remembered(village: Village, node: NodeProcess) -> set[str]:
    memory = RememberedPeers(village.store / "peers" / f"{node.peer_id}.sqlite")
    try:
        return {peer.peer_id for peer in memory.peers(OPEN_SWARM.id)}
    finally:
        memory.close()


@scene
def two_islands_merge_through_a_common_bootstrap(village: Village) -> None:
    bootstrap = village.node("bootstrap", "0")
    islands = []
    for name, experts in (("a", ("1-3", "4-5")), ("b", ("6-8", "9-11"))):
        harbour = village.node(f"{name}0", experts[0], [bootstrap.home.address])
        quay = village.node(f"{name}1", experts[1], [bootstrap.home.address, harbour.home.address])
        islands.append([harbour, quay])
    nodes = [node for island in islands for node in island]
    with running([bootstrap, *nodes]):
        start_all(nodes)
        for island in islands:
            wait_whole(island, SEEN)

        bootstrap.start().ready()
        wait_whole([bootstrap, *nodes], SEEN)

        # and they are one now: what brought them together is needed no more
        wait_until(lambda: linked(*islands), SEEN, "neighbours on the other island")
        bootstrap.kill()
        wait_whole(nodes, SEEN)
        wait_news(nodes, nodes, SEEN)


def linked(some: Sequence[NodeProcess], others: Sequence[NodeProcess]) -> bool:
    """Whether one of these is, or was, connected to one of those."""
    return any(
        one.said("connected", peer=two.peer_id) or two.said("connected", peer=one.peer_id)
        for one in some
        for two in others
    )


@scene
def a_copied_key_is_told_loudly(village: Village) -> None:
    bootstrap = village.node("bootstrap", "0")
    first = village.node("first", "1-5", [bootstrap.home.address])
    third = village.node("third", "6-11", [bootstrap.home.address])
    (village.folder / "second").mkdir()
    shutil.copy(first.home.folder / "identity.key", village.folder / "second" / "identity.key")
    second = village.node("second", "1-5", [bootstrap.home.address])
    assert second.peer_id == first.peer_id and second.home.port != first.home.port
    with running([bootstrap, first, second, third]):
        start_all([bootstrap, first, third])
        wait_whole([bootstrap, first, third], SEEN)
        first.kill()
        first.start().ready()
        wait_news([bootstrap, third], [first], SEEN, times=2)
        assert not any(node.said("clone") for node in (bootstrap, first, third)), "a restart is no clone"

        second.start().ready()
        for node in (bootstrap, third):
            node.wait_said("clone", SEEN, peer=first.peer_id)
            assert "is in use on two machines" in node.said("clone")[0]["text"]
            assert "is in use on two machines" in node.log
        first.wait_said("clone", SEEN, peer=first.peer_id)
        for port in (first.home.port, second.home.port):
            assert f"/udp/{port}/" in first.said("clone")[0]["text"], "where both are"
        assert "this node's own identity" in first.log


@scene
def swarms_on_one_machine_do_not_mix(village: Village) -> None:
    """The open one, one of another name, two private ones of that name: all have all others as peers."""
    swarms: dict[str, list[NodeProcess]] = {}
    backbones: dict[str, Home] = {}
    for name in ("open", "named", "private", "rival"):
        lines = "" if name == "open" else 'name = "casa"\n'
        swarms[name] = [village.node(f"{name}{i}", f"{6 * i}-{6 * i + 5}", swarm=lines) for i in (0, 1)]
        backbones[name] = village.backbone(f"{name}-asks", [], lines)
        if name in ("private", "rival"):
            key = SwarmKey.create("casa", village.folder / f"{name}.swarmkey")
            for home in (backbones[name], *(node.home for node in swarms[name])):
                make_member(home, key)
    nodes = [node for swarm in swarms.values() for node in swarm]
    addresses = [node.home.address for node in nodes]
    for home in [*backbones.values(), *(node.home for node in nodes)]:
        home.peers = [each for each in addresses if each != home.address]
        home.write()
    with running(nodes):
        start_all(nodes)
        for swarm in swarms.values():
            wait_whole(swarm, SEEN)
        for name, swarm in swarms.items():
            assert servers_of(backbones[name]) == {node.peer_id for node in swarm}, name
        for swarm in swarms.values():
            own = {node.peer_id for node in swarm}
            for node in swarm:
                told = {each["peer"] for each in node.events if "peer" in each}
                assert told == own - {node.peer_id}, node.name
                assert "belongs to another swarm" in node.log, "it says why nobody else answers"


@scene
def wrong_clocks_are_tolerated_or_named(village: Village) -> None:
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    if not libraries:
        pytest.skip("needs libfaketime (Debian's package faketime)")

    def at(node: NodeProcess, seconds: int) -> NodeProcess:
        lies = {
            "LD_PRELOAD": str(libraries[0]),
            "FAKETIME": f"{seconds:+d}s",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        node.launch = functools.partial(subprocess.Popen, env=os.environ | lies)
        return node

    right = village.node("right", "0-3")
    peers = [right.home.address]
    slow = at(village.node("slow", "4-7", peers), -280)
    wrong = at(village.node("wrong", "8-11", peers), 900)
    nodes = [right, slow, wrong]
    with running(nodes):
        start_all(nodes)
        wait_whole([right, slow], SEEN)
        right.wait_log(f"the clock of {wrong.peer_id} is 900 s ahead of this node's", SEEN)
        wrong.wait_log(f"the clock of {right.peer_id} is 900 s behind this node's", SEEN)
        assert set(wrong.table) == {wrong.peer_id}
        assert f"the clock of {slow.peer_id}" not in right.log, "five minutes are nothing to speak of"

        slow.kill()
        wait_whole([right], SEEN)


def make_member(home: Home, key: SwarmKey) -> None:
    certificate = MemberCertificate.issue(key.private_key, key.swarm, home.peer_id, time.time(), 1)
    write_member(home.folder / "identity.member", certificate.encode())
    assert key.swarm.public_key is not None
    home.swarm += f'key = "{key.swarm.public_key.hex()}"\nmember = "identity.member"\n'
    home.write()


def servers_of(backbone: Home) -> set[str]:
    """Generate with it; the peers that computed experts for it."""
    done = generate(backbone.config)
    assert done.returncode == 0, done
    return {route["peer"] for route in json.loads(done.stdout)["routes"]}


@pytest.mark.parametrize("name", SCENES)
def test_scene(name: str, played: dict[str, Future[None]]) -> None:
    played[name].result()
