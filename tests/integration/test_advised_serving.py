"""Nodes with prices that choose what they serve by the market's advice, and `panal market advise` about them.

`a` and `b` have the model's file; `c` has what a store keeps of it, and fetches from peers what it serves.
They are less patient than in earnest, everything else is as it is.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from node.device.folder import NodeFolder
from node.engine import library as llama
from node.home.home_set import HomeSet, shapes_of, total_bytes
from node.importing import import_model
from node.model.store import Store, StoredModel
from node.sizes import MemoryBudget
from tests.swarm_process import PANAL, Home, NodeProcess, generate, running, wait_until

pytestmark = pytest.mark.slow

SOON = (
    "import market.own_order as order; order.GAP_PATIENCE = 0.5; order.TURN_SECONDS = 5.0; "
    "order.ROUND_SECONDS = 5.0; import node.device.chosen_serving as serving; serving.LOOK_SECONDS = 1.0; "
)
ENOUGH = 120.0
"""Seconds for what takes some ten, on a machine that may be busy."""

MEMORY = "60%"
MARKET = '[market]\nmode = "scarcity"\n'
LINES = 'lan = false\ncontrol = "off"\nadvert_seconds = 60'


def launch(command: Sequence[str], **streams: Any) -> subprocess.Popen[str]:
    """`panal`, less patient."""
    code = SOON + "import sys; from node.cli.main import main; sys.exit(main())"
    return subprocess.Popen([sys.executable, "-P", "-c", code, *command[len(PANAL) :]], **streams)


class Swarm:
    """The nodes, and the config of a backbone that knows them."""

    def __init__(self, folder: Path, model: Path) -> None:
        copy = folder / "model.gguf"
        shutil.copy(model, copy)
        without = folder / "without"  # a store whose model's file is gone
        self.stored: StoredModel = import_model(llama.load(), Store(without), copy)
        copy.unlink()
        store = folder / "store"
        import_model(llama.load(), Store(store), model)
        self.shapes = shapes_of(self.stored.manifest)
        self.budget = MemoryBudget.parse(MEMORY).of(total_bytes(self.shapes))

        def home(name: str, at: Path, what: str, peers: Sequence[str] = ()) -> Home:
            rest = f'[[serve]]\nmodel = "{what}"\nmemory = "{MEMORY}"\n[http]\nlisten = "off"\n{MARKET}'
            return Home(folder / name, at, model, peers=peers, swarm=LINES, rest=rest)

        self.a = NodeProcess(home("a", store, str(model)), launch)
        self.b = NodeProcess(home("b", store, str(model), [self.a.home.address]), launch)
        known = [self.a.home.address, self.b.home.address]
        self.c = NodeProcess(home("c", without, self.stored.model_id, known), launch)
        backbone = f'[backbone]\nmodel = "{model}"\ncontext = 256\n[http]\nlisten = "off"\n{MARKET}'
        self.ask = Home(folder / "d", store, model, peers=known, swarm=LINES, rest=backbone)

    def chosen(self, node: NodeProcess) -> HomeSet:
        """What it has chosen to serve, by its own note."""
        try:
            note = json.loads(NodeFolder(node.home.folder).serving.read_bytes())
        except FileNotFoundError:
            return HomeSet()
        return HomeSet.from_ranges(note[self.stored.model_id], self.shapes)

    def all_of(self, *nodes: NodeProcess) -> int:
        together = HomeSet()
        for node in nodes:
            together |= self.chosen(node)
        return together.count()


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Iterator[Swarm]:
    made = Swarm(tmp_path_factory.mktemp("advised"), demo_model)
    with running([made.a, made.b, made.c]):
        yield made


LISTENING = "import node.market.advising as advising; advising.LISTEN_SECONDS = 3.0; "


def advise(swarm: Swarm, *flags: str) -> dict[str, Any]:
    """What the command tells of b, once it has heard a."""
    code = LISTENING + "import sys; from node.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-P", "-c", code, "market", "advise", "-c", str(swarm.b.home.config), "--json"]
    told: dict[str, Any] = {}

    def hears_a() -> bool:
        done = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=ENOUGH, check=False)
        assert done.returncode == 0, done.stderr
        told.update(json.loads(done.stdout))
        return bool(told["servers"] == told["answered"] == 1)

    wait_until(hears_a, ENOUGH, "the command to hear a")
    return told


def test_two_nodes_serve_everything_between_them(swarm: Swarm) -> None:
    swarm.a.start().ready()
    swarm.a.wait(lambda: swarm.chosen(swarm.a).count() > 0, ENOUGH, "a to choose")
    assert swarm.chosen(swarm.a).whole_layers(swarm.shapes), "whole layers first"
    swarm.b.start().ready()
    swarm.b.wait(lambda: swarm.all_of(swarm.a, swarm.b) == 48, ENOUGH, "b to choose the rest")
    for node in (swarm.a, swarm.b):
        assert 0.8 * swarm.budget < swarm.chosen(node).n_bytes(swarm.shapes) <= swarm.budget
    swarm.b.wait(lambda: swarm.b.table.get(swarm.a.peer_id) == 1, ENOUGH, "a's advert")
    done = generate(swarm.ask.config)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["panal"]["cost"] > 0, "and both ask something for it"


def test_what_the_command_says_of_it(swarm: Swarm) -> None:
    told = advise(swarm)
    assert (told["answered"], told["heard"]) == (1, 0)
    assert told["lacking"] == 48, "only a is there besides"
    assert told["hold"] and told["n_bytes"] <= told["memory"] == swarm.budget
    kept = HomeSet.from_ranges(told["hold"], swarm.shapes)
    assert (kept | swarm.chosen(swarm.a)).count() == 48, "nothing that only b holds is given up"
    small = advise(swarm, "--memory", "10%", "--uplink", "20Mbit")
    assert 0 < small["n_bytes"] <= small["memory"] < told["memory"]
    assert small["income"] < told["income"]


def test_one_that_has_no_file_fetches_what_it_serves(swarm: Swarm) -> None:
    swarm.c.start().ready()
    swarm.a.wait(lambda: swarm.a.table.get(swarm.c.peer_id) == 1, ENOUGH, "c to serve")
    swarm.c.wait_log("experts fetched", ENOUGH)
    assert swarm.chosen(swarm.c).n_bytes(swarm.shapes) <= swarm.budget


def test_what_one_served_that_goes_the_others_take_over(swarm: Swarm) -> None:
    swarm.a.interrupt()
    swarm.b.wait(lambda: swarm.all_of(swarm.b, swarm.c) == 48, ENOUGH, "b and c to fill in")
    swarm.ask.peers = [swarm.b.home.address, swarm.c.home.address]
    swarm.ask.write()
    swarm.b.wait(lambda: generate(swarm.ask.config).returncode == 0, ENOUGH, "text without a")
