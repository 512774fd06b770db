"""2 % loss, and every five seconds somebody is unreachable for two: the same tokens as on a calm network."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from routing.estimates import HEDGE_BURST, HEDGE_SHARE
from tests.network.lab import wanlab as wanlab

pytestmark = [pytest.mark.network, pytest.mark.slow]

SERVERS = ("s0", "s1")
PORT = 4190
DELAY = 10  # ms one way of each of two links: 20 ms from home to a server
LOSS = 0.02
TOKENS = 80  # of four trips of 40 ms: some 13 s without the faults, and so three blackholes or more
EVERY, LASTS = 5.0, 2.0


def panal(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "node.cli.main", *map(str, arguments)]


@contextmanager
def blackholes(lab: Any, hosts: tuple[str, ...]) -> Iterator[list[str]]:
    """Cut one host after the other off; gives the list of those it has cut."""
    stop = threading.Event()
    cut: list[str] = []

    def work() -> None:
        for host in cycle(hosts):
            if stop.wait(EVERY - LASTS):
                return
            lab.partition(host)
            cut.append(host)
            stop.wait(LASTS)
            lab.heal(host)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield cut
    finally:
        stop.set()
        thread.join()


@pytest.fixture(scope="module")
def home(
    wanlab: Any, tmp_path_factory: pytest.TempPathFactory, demo_model: Path
) -> Iterator[tuple[Any, Path]]:
    """A lab with two servers that hold everything, and the config of a backbone that uses them."""
    folder = tmp_path_factory.mktemp("blackholes")
    hosts = {name: {"delay": DELAY} for name in ("home", *SERVERS)}
    with wanlab.WanLab({"hosts": hosts}) as lab, ExitStack() as ends:
        flags = []
        for name in SERVERS:
            listen = f"/ip4/{lab.ip(name)}/udp/{PORT}/quic-v1"
            made = subprocess.run(
                panal("init", "--dir", folder / name, "--json", "--listen", listen, "--serve", demo_model),
                capture_output=True,
                text=True,
                check=True,
            )
            flags.append(f"--peer={json.loads(made.stdout)['address']}")
            command = panal("run", "-c", folder / name / "node.toml", "--json")
            server = lab.popen(name, command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            ends.callback(server.kill)
            assert json.loads(server.stdout.readline())["cells"] == 48
        init = panal("init", "--dir", folder / "home", "--model", demo_model, *flags)
        subprocess.run(init, capture_output=True, check=True)
        yield lab, folder / "home" / "node.toml"


def generate(lab: Any, config: Path) -> dict[str, Any]:
    command = panal("generate", "-c", config, "-p", "import os\n", "-n", TOKENS, "--json", "--draft", "off")
    done = lab.run("home", command, capture_output=True, text=True, timeout=110, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.fixture(scope="module")
def calm(home: tuple[Any, Path]) -> dict[str, Any]:
    """The same answer without loss and blackholes."""
    return generate(*home)


@pytest.mark.parametrize("cut_off", [SERVERS, ("home",)], ids=["servers in turn", "everything"])
def test_blackholes_change_no_token(
    home: tuple[Any, Path], calm: dict[str, Any], cut_off: tuple[str, ...]
) -> None:
    lab, config = home
    try:
        for host in ("home", *SERVERS):
            lab.set_loss(host, LOSS / 2)  # a packet passes two links
        with blackholes(lab, cut_off) as cut:
            shaken = generate(lab, config)
    finally:
        for host in ("home", *SERVERS):
            lab.set_loss(host, 0.0)
    assert shaken["tokens"] == calm["tokens"]
    assert len(cut) >= 2
    told = shaken["panal"]
    print(
        f"calm {calm['seconds']:.1f} s, shaken {shaken['seconds']:.1f} s with {len(cut)} blackholes: {told}"
    )
    assert sum(told["late"].values()) >= 1
    # A hedge for a share of the calls, not for each that is late.
    assert told["hedges"] <= HEDGE_BURST + HEDGE_SHARE * (told["trips"] + told["hedges"])
