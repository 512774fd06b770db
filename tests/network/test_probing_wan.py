"""A seller behind a NAT asks a server behind another one whether it is there: through its relay (wanlab)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.network import restricted_nodes
from tests.network.lab import wanlab as wanlab
from tests.network.restricted_nodes import PORT, Nodes, until

pytestmark = [pytest.mark.network, pytest.mark.slow]

ALONE = "import sys; import node.swarm.finding as finding; finding.NEIGHBOURS = finding.ENOUGH = 0; "
"""Else they may become neighbours, and need no probe, while nobody knows yet that they cannot be dialed."""

MARKET = '\n[market]\nmode = "scarcity"\n'


@pytest.fixture
def nodes(wanlab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    panal = [sys.executable, "-P", "-c", ALONE + "from node.cli.main import main; sys.exit(main())"]
    monkeypatch.setattr(restricted_nodes, "PANAL", panal)
    hosts: dict[str, dict[str, Any]] = {"relay": {"delay": 5}}
    nats: dict[str, dict[str, Any]] = {}
    for side in "ab":
        nats[f"nat-{side}"] = {"kind": "symmetric", "delay": 10}
        hosts[f"symmetric-{side}"] = {"behind": f"nat-{side}"}
    with wanlab.WanLab({"hosts": hosts, "nats": nats}) as lab, ExitStack() as ends:
        yield Nodes(lab, tmp_path, ends)


def test_who_can_only_be_reached_through_a_relay_is_asked_through_it(nodes: Nodes, demo_model: Path) -> None:
    listen = f"--listen=/ip4/{nodes.lab.ip('relay')}/udp/{PORT}/quic-v1"
    boot = nodes.init("relay", listen, relay="serve = true")
    nodes.run("relay", "relay")
    nodes.init("server", "--serve", f"{demo_model}::0-5", "--peer", boot)
    nodes.init("seller", "--serve", f"{demo_model}::0-5", "--peer", boot, relay=MARKET)
    server = nodes.run("server", "symmetric-a")
    until(lambda: server.logged("reachable through relay"), "a reservation at the relay", 60)
    seller = nodes.run("seller", "symmetric-b")

    def market() -> dict[str, Any]:
        done = nodes.ask("seller", "symmetric-b", "status", "--json")
        assert done.returncode == 0, done
        told: dict[str, Any] = json.loads(done.stdout)["market"]
        return told

    until(lambda: market()["holders_answered"] == 1, "the server to have answered", 90)
    assert not seller.logged(f"connected to {server.peer_id}"), "nothing but probes has reached it"
    assert not server.logged(f"connected to {seller.peer_id}")
