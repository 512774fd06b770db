"""Every kind of network against every other: the expected route, the stated reason, the same bytes.

One laboratory holds a server behind each kind of NAT or firewall, each with a share of every layer's experts,
so that one backbone reaches all kinds at once; a backbone behind each kind takes its turn. Two public nodes
relay and bear witness; both sides know only one of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.network.lab import wanlab as wanlab

pytestmark = [pytest.mark.network, pytest.mark.slow]

KINDS = ("public", "full-cone", "restricted-cone", "cone", "symmetric", "firewall", "udp-blocked")
SHARES = ("0-1", "2-3", "4-5", "6-7", "8-9", "10", "11")
DELAY = 5  # ms one way at each end: the routes are the same at any delay, and the test is short

SETTLE_SECONDS = 40.0
"""For the servers to find out how they can be reached and to reserve at relays."""

D, P, R, T = "direct/udp", "punched/udp", "relayed/tcp", "direct/tcp"

# rows: the backbone; columns: the server, in the order of KINDS. Where two stand, the backbone, which has
# just begun, may be connected before it has found out that strangers reach it.
EXPECTED: dict[str, tuple[tuple[str, ...], ...]] = {
    "public":          ((D,), (D,), (D,), (D,), (D,), (D,), (R,)),
    "full-cone":       ((D,), (D,), (P, D), (P, D), (P, D), (P, D), (R,)),
    "restricted-cone": ((D,), (D,), (P,), (P,), (P,), (P,), (R,)),
    "cone":            ((D,), (D,), (P,), (P,), (R,), (P,), (R,)),
    "symmetric":       ((D,), (D,), (P,), (R,), (R,), (R,), (R,)),
    "firewall":        ((D,), (D,), (P,), (P,), (R,), (P,), (R,)),
    "udp-blocked":     ((T,), (R,), (R,), (R,), (R,), (R,), (R,)),
}  # fmt: skip


def why(backbone: str, server: str, route: str) -> str:
    """A part of the reason that must be stated."""
    if "udp-blocked" in (backbone, server):
        return "UDP is blocked"
    if route == D:
        return "the peer is public" if server in ("public", "full-cone") else "this node is public"
    if route == P:
        # also where the other end lets in any port
        return "NAT"
    if backbone == server == "symmetric":
        return "neither can be told where to send"
    return "lets in known ports only"


@dataclass
class Matrix:
    lab: Any
    folder: Path
    model: Path
    boot: str = ""
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    reach: dict[str, str] = field(default_factory=dict)

    def panal(self, host: str | None, *arguments: object, timeout: float = 120) -> Any:
        command = [sys.executable, "-m", "node.cli.main", *map(str, arguments)]
        run = subprocess.run if host is None else (lambda argv, **kw: self.lab.run(host, argv, **kw))
        return run(command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)

    def init(self, name: str, *arguments: object, more: str = "") -> dict[str, Any]:
        done = self.panal(None, "init", "--dir", self.folder / name, "--name", name, "--json", *arguments)
        assert done.returncode == 0, done
        config = self.folder / name / "node.toml"
        config.write_text(config.read_text() + more)
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    def start(self, name: str) -> None:
        command = [
            sys.executable, "-m", "node.cli.main", "run", "-c", self.folder / name / "node.toml", "--events",
        ]  # fmt: skip
        events = (self.folder / f"{name}.events").open("w")
        log = (self.folder / f"{name}.log").open("w")
        self.processes[name] = self.lab.popen(name, command, stdout=events, stderr=log, text=True)

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = (self.folder / f"{name}.events").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith('{"event"')]


@pytest.fixture(scope="module")
def matrix(wanlab: Any, tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Iterator[Matrix]:
    hosts: dict[str, dict[str, Any]] = {"boot": {"delay": DELAY}, "witness": {"delay": DELAY}}
    nats: dict[str, dict[str, Any]] = {}
    for side in ("s", "b"):
        for kind in KINDS:
            name = f"{side}-{kind}"
            if kind == "public":
                hosts[name] = {"delay": DELAY}
            elif kind in ("firewall", "udp-blocked"):
                hosts[name] = {"delay": DELAY, "firewall": True, "block_udp": kind == "udp-blocked"}
            else:
                nats[f"n{name}"] = {"kind": kind, "delay": DELAY}
                hosts[name] = {"behind": f"n{name}"}
    with wanlab.WanLab({"hosts": hosts, "nats": nats}) as lab, ExitStack() as ends:
        made = Matrix(lab, tmp_path_factory.mktemp("matrix"), demo_model)
        ends.callback(lambda: [process.kill() for process in made.processes.values()])
        relay = "\n[relay]\nserve = true\n"
        for name in ("boot", "witness"):
            listen = f"/ip4/{lab.ip(name)}/udp/4190/quic-v1"
            peers = [f"--peer={made.boot}"] if made.boot else []
            address = made.init(name, "--listen", listen, *peers, more=relay)["address"]
            made.boot = made.boot or address
            made.start(name)
        for kind, share in zip(KINDS, SHARES, strict=True):
            made.init(f"s-{kind}", "--serve", f"{demo_model}::{share}", f"--peer={made.boot}")
            made.start(f"s-{kind}")
        _wait_until_settled(made)
        yield made


def _wait_until_settled(made: Matrix) -> None:
    """Until the bootstrap has heard of each server what it can say of itself."""
    end = time.monotonic() + SETTLE_SECONDS
    wanted = {f"s-{kind}": "public" if kind in ("public", "full-cone") else "private" for kind in KINDS}
    wanted["s-udp-blocked"] = "unknown"
    while time.monotonic() < end:
        told = {
            event["name"]: event["reach"]
            for event in made.events("boot")
            if event["event"] in ("heard", "refreshed")
        }
        relayed = {
            name: "reachable through relay" in (made.folder / f"{name}.log").read_text()
            for name in wanted
            if name != "s-public"
        }
        made.reach = told
        if all(told.get(name) == reach for name, reach in wanted.items()) and all(relayed.values()):
            time.sleep(1.0)  # the advert that names the relays is on its way
            return
        time.sleep(0.2)
    raise AssertionError(f"after {SETTLE_SECONDS:g} s: {made.reach}, expected {wanted}; relays {relayed}")


@pytest.fixture(scope="module")
def plain_tokens(matrix: Matrix) -> list[int]:
    """What one machine says."""
    matrix.init("alone", "--model", matrix.model, "--serve", matrix.model)
    done = matrix.panal(
        None,
        "generate",
        "-c",
        matrix.folder / "alone" / "node.toml",
        "-p",
        "import os\n",
        "-n",
        "16",
        "--json",
    )
    assert done.returncode == 0, done
    tokens: list[int] = json.loads(done.stdout)["tokens"]
    return tokens


@pytest.mark.parametrize("kind", KINDS)
def test_routes_from_every_kind_to_every_kind(matrix: Matrix, plain_tokens: list[int], kind: str) -> None:
    name = f"b-{kind}"
    matrix.init(name, "--model", matrix.model, f"--peer={matrix.boot}")
    config = matrix.folder / name / "node.toml"
    # the first request begins on whatever way works first, and moves to better ones under way
    done = matrix.panal(name, "generate", "-c", config, "-p", "import os\n", "-n", "16", "--json")
    assert done.returncode == 0, done
    assert json.loads(done.stdout)["tokens"] == plain_tokens
    done = matrix.panal(name, "verify", "-c", config, "--batch", "1,5,64", "--json")
    assert done.returncode == 0, done
    verdict = json.loads(done.stdout)
    assert verdict["byte_identical"] is True and verdict["servers"] == len(KINDS)
    routes = {route["name"]: route for route in verdict["routes"]}
    problems = []
    for server, expected in zip(KINDS, EXPECTED[kind], strict=True):
        route = routes[f"s-{server}"]
        taken = f"{route['route']}/{route['transport']}"
        if taken not in expected or why(kind, server, taken) not in route["reason"]:
            problems.append(f"to {server}: {taken} ({route['reason']}), expected {' or '.join(expected)}")
    assert not problems, "; ".join(problems)


def test_nodes_that_stay_meet_without_udp(matrix: Matrix) -> None:
    """Neighbours, not backbone and server: the node without UDP dials public ones over TCP."""
    events = matrix.events("s-udp-blocked")
    names = {event["peer"]: event["name"] for event in events if event["event"] == "heard"}
    routes = [event for event in events if event["event"] == "route"]
    public = [event for event in routes if names.get(event["peer"]) in ("boot", "witness", "s-public")]
    assert public and {(event["route"], event["transport"]) for event in public} == {("direct", "tcp")}
    assert all("UDP" in event["reason"] for event in public)


def test_no_public_node_is_ever_relayed(matrix: Matrix) -> None:
    for name in ("boot", "witness", "s-public"):
        for event in matrix.events(name):
            assert event["event"] != "route" or event["route"] != "relayed", event
