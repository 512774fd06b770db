"""Nodes that are given memory and choose what they serve: together everything, also when one goes.

`a` and `b` have the model's file; `c` has what a store keeps of it, and fetches from peers what it serves.
Better choices are made sooner than in earnest (GAP_PATIENCE), everything else is as it is.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from node.device.folder import NodeFolder
from node.engine import library as llama
from node.home.home_set import HomeSet, shapes_of, total_bytes
from node.importing import import_model
from node.model.store import Store, StoredModel
from node.sizes import MemoryBudget
from tests.swarm_process import PANAL, Home, NodeProcess, free_port, generate, running

pytestmark = pytest.mark.slow

SOON = "import node.device.chooser as chooser; chooser.GAP_PATIENCE = 1.0; "
CHOSEN_SECONDS = 60.0
"""For a choice to be made and heard of; it takes some six seconds at first, one to four later."""

MEMORY = "60%"


def launch(command: list[str], **streams: Any) -> subprocess.Popen[str]:
    """`panal`, less patient."""
    code = SOON + "import sys; from node.cli.main import main; sys.exit(main())"
    return subprocess.Popen([sys.executable, "-P", "-c", code, *command[len(PANAL) :]], **streams)


@dataclass
class Swarm:
    """The nodes, and the config of a backbone that knows `a`."""

    a: NodeProcess
    b: NodeProcess
    c: NodeProcess
    ask: Path
    stored: StoredModel

    def chosen(self, node: NodeProcess) -> HomeSet:
        """What it has chosen to serve, by its own note."""
        note = NodeFolder(node.home.folder).serving
        shapes = shapes_of(self.stored.manifest)
        try:
            ranges = json.loads(note.read_bytes())[self.stored.model_id]
        except FileNotFoundError:
            return HomeSet()
        return HomeSet.from_ranges(ranges, shapes)

    def all_of(self, *nodes: NodeProcess) -> int:
        together = HomeSet()
        for node in nodes:
            together |= self.chosen(node)
        return together.count()


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Iterator[Swarm]:
    folder = tmp_path_factory.mktemp("chosen")
    copy = folder / "model.gguf"
    shutil.copy(demo_model, copy)
    without = folder / "without"  # a store whose model's file is gone
    stored = import_model(llama.load(), Store(without), copy)
    copy.unlink()
    store = folder / "store"
    import_model(llama.load(), Store(store), demo_model)
    serve = f'[[serve]]\nmodel = "{demo_model}"\nmemory = "{MEMORY}"\n[http]\nlisten = "off"\n'
    by_id = f'[[serve]]\nmodel = "{stored.model_id}"\nmemory = "{MEMORY}"\n[http]\nlisten = "off"\n'
    a = NodeProcess(Home(folder / "a", store, demo_model, rest=serve), launch)
    b = NodeProcess(Home(folder / "b", store, demo_model, peers=[a.home.address], rest=serve), launch)
    known = [a.home.address, b.home.address]
    c = NodeProcess(Home(folder / "c", without, demo_model, peers=known, rest=by_id), launch)
    asks = Home(folder / "d", store, demo_model, peers=known, rest=f'[backbone]\nmodel = "{demo_model}"\n')
    with running([a, b, c]):
        yield Swarm(a, b, c, asks.config, stored)


def test_two_nodes_serve_everything_between_them(swarm: Swarm) -> None:
    shapes = shapes_of(swarm.stored.manifest)
    budget = MemoryBudget.parse(MEMORY).of(total_bytes(shapes))
    swarm.a.start().ready()
    swarm.a.wait(lambda: swarm.chosen(swarm.a).count() > 0, CHOSEN_SECONDS, "a to choose")
    assert swarm.chosen(swarm.a).whole_layers(shapes), "whole layers first"
    swarm.b.start().ready()
    swarm.b.wait(lambda: swarm.all_of(swarm.a, swarm.b) == 48, CHOSEN_SECONDS, "b to choose the rest")
    for node in (swarm.a, swarm.b):
        assert 0.8 * budget < swarm.chosen(node).n_bytes(shapes) <= budget
    swarm.b.wait(lambda: swarm.b.table.get(swarm.a.peer_id) == 1, CHOSEN_SECONDS, "a's advert")
    done = generate(swarm.ask)
    assert done.returncode == 0, done.stderr


def test_one_that_has_no_file_fetches_what_it_serves(swarm: Swarm) -> None:
    swarm.c.start().ready()
    swarm.a.wait(lambda: swarm.a.table.get(swarm.c.peer_id) == 1, CHOSEN_SECONDS, "c to serve")
    swarm.c.wait_log("experts fetched", CHOSEN_SECONDS)
    shapes = shapes_of(swarm.stored.manifest)
    assert swarm.chosen(swarm.c).n_bytes(shapes) <= MemoryBudget.parse(MEMORY).of(total_bytes(shapes))


def test_what_one_served_that_goes_the_others_take_over(swarm: Swarm) -> None:
    swarm.a.interrupt()
    swarm.b.wait(lambda: swarm.all_of(swarm.b, swarm.c) == 48, CHOSEN_SECONDS, "b and c to fill in")
    config = swarm.ask.read_text(encoding="utf-8").replace(swarm.a.home.address, swarm.c.home.address)
    swarm.ask.write_text(config, encoding="utf-8")
    swarm.b.wait(lambda: generate(swarm.ask).returncode == 0, CHOSEN_SECONDS, "text without a")


def test_what_was_chosen_is_served_at_once_the_next_time(swarm: Swarm) -> None:
    before = swarm.chosen(swarm.b)
    swarm.b.interrupt()
    swarm.b.start().ready()
    assert swarm.b.table[swarm.b.peer_id] == 1, "what it said when it began to listen"
    assert swarm.chosen(swarm.b) == before


def test_what_it_serves_its_own_backbone_computes_at_home(swarm: Swarm) -> None:
    home = swarm.a.home
    port = free_port()
    home.rest = (
        f'[[serve]]\nmodel = "{home.model}"\nmemory = "100%"\n[backbone]\nmodel = "{home.model}"\n'
        f'context = 512\nsessions = 1\n[http]\nlisten = "127.0.0.1:{port}"\n'
    )
    home.peers = ()
    home.folder = home.folder.with_name("alone")
    home.__post_init__()
    alone = NodeProcess(home, launch)
    with running([alone]):
        alone.start().ready()
        alone.wait(
            lambda: httpx.get(f"http://127.0.0.1:{port}/health", timeout=10).status_code == 200,
            CHOSEN_SECONDS,
            "answers without any peer",
        )
    assert swarm.chosen(alone).count() == 48
    done = generate(home.config)  # a command of the same node: by the note of what was chosen
    assert done.returncode == 0 and json.loads(done.stdout)["routes"] == []
