"""`panal generate` on a budget: a line says where the text ends; a day's spending outlives the process."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from market.budget import DAY_SECONDS
from node.device.folder import NodeFolder
from tests.model_parts import ModelParts
from tests.swarm_process import PANAL, Home, NodeProcess, running

pytestmark = pytest.mark.slow

WAIT = 120.0
"""A command takes two seconds; the machine may be busy."""


@pytest.fixture(scope="module")
def server(parts: Callable[..., ModelParts], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A node that asks the base price for all there is."""
    model = parts("demo")
    experts = f"0-{model.manifest.calls[0].n_experts - 1}"
    folder = tmp_path_factory.mktemp("spending") / "server"
    home = Home(folder, model.store.root, model.path, experts=experts, rest='[market]\nmode = "fixed"\n')
    node = NodeProcess(home)
    with running([node]):
        node.start().ready()
        yield home


def generate(server: Home, folder: Path, market: str, *more: str) -> subprocess.CompletedProcess[str]:
    home = Home(
        folder,
        server.store,
        server.model,
        peers=[server.address],
        rest=f'[market]\nmode = "fixed"\n{market}\n[backbone]\nmodel = "{server.model}"\n',
    )
    command = [*PANAL, "generate", "-c", str(home.config), "-p", "def read(path):\n", "-n", "60", *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=False)


def until(
    ask: Callable[[], subprocess.CompletedProcess[str]],
    is_so: Callable[[subprocess.CompletedProcess[str]], bool],
) -> subprocess.CompletedProcess[str]:
    """Ask until it is so: on a busy machine a server's prices may be heard after all its answers."""
    end = time.monotonic() + WAIT
    while True:
        done = ask()
        assert done.returncode == 0, done.stderr
        if is_so(done):
            return done
        assert time.monotonic() < end, done


def spent_by(folder: Path) -> int:
    return sum(json.loads(NodeFolder(folder).spent.read_text())["spent"].values())


def test_budgets_of_a_command(server: Home, tmp_path: Path) -> None:
    folder = tmp_path / "node"
    free = until(
        lambda: generate(server, folder, "", "--json"),
        lambda done: json.loads(done.stdout)["panal"]["cost"] > 0,
    )
    answer = json.loads(free.stdout)
    cost = answer["panal"]["cost"]
    assert answer["panal"]["cost_by_peer"] == {str(server.peer_id): cost}
    before = spent_by(folder)
    assert before >= cost

    cut = until(
        lambda: generate(server, folder, "budget_answer = 0.000001", "--stats"),
        lambda done: "budget" in done.stderr,
    )
    (line,) = [line for line in cut.stderr.splitlines() if "budget" in line]
    assert line == (
        "panal: the answer's budget of 0.000001 credits is spent, the text ends here (market.budget_answer)"
    )
    text = cut.stdout.removesuffix("\n")
    assert answer["text"].startswith(text) and len(text) < len(answer["text"])
    assert "cost at server" in cut.stderr and "credits" in cut.stderr
    assert spent_by(folder) > before

    until_midnight = DAY_SECONDS - time.time() % DAY_SECONDS
    if until_midnight < 2 * WAIT:  # then the next day has cost something, too
        today = int(time.time() // DAY_SECONDS)
        NodeFolder(folder).spent.write_text(json.dumps({"spent": {today: 5, today + 1: 5}}))
    refused = generate(server, folder, "budget_day = 0.000001")
    assert refused.returncode != 0 and not refused.stdout.strip()
    last = refused.stderr.strip().splitlines()[-1]
    assert last.startswith("panal: today's budget of 0.000001 credits is spent: it begins anew at 00:00 UTC")
