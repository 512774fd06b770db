"""Hosts behind one NAT find each other by mDNS and connect, without config; other networks hear nothing."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.network.lab import wanlab as wanlab

pytestmark = [pytest.mark.network, pytest.mark.slow]

NODE = Path(__file__).with_name("lan_node.py")
ROOT = NODE.parent.parent.parent
SECONDS = 30  # it takes one; the machine may be busy
TOPOLOGY = {
    "hosts": {
        "alice": {"behind": "home"},
        "anna": {"behind": "home"},
        "other": {"behind": "home"},
        "bob": {"behind": "office"},
        "dora": {"behind": "office"},
    },
    "nats": {"home": {"kind": "cone", "delay": 5}, "office": {"kind": "symmetric", "delay": 5}},
}


class Node:
    """A process on a host, and what it has said."""

    def __init__(self, lab: Any, host: str, swarm: str = "panal") -> None:
        self.process = lab.popen(
            host,
            ["env", f"PYTHONPATH={ROOT}", sys.executable, NODE, swarm],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        self.said: list[dict[str, Any]] = []
        self.peer_id: str = self.next()["peer_id"]

    def next(self) -> dict[str, Any]:
        ready, _, _ = select.select([self.process.stdout], [], [], SECONDS)
        assert ready, f"nothing more after {self.said}"
        self.said.append(json.loads(self.process.stdout.readline()))
        return self.said[-1]

    def until(self, key: str) -> Any:
        """The value of the next line that has this key."""
        while key not in (line := self.next()):
            pass
        return line[key]

    def stop(self) -> list[dict[str, Any]]:
        """All that it ever said."""
        self.process.kill()
        rest, _ = self.process.communicate(timeout=10)
        return self.said + [json.loads(line) for line in rest.splitlines()]


def be_a_plain_switch(lab: Any, nat: str) -> None:
    """Where br_netfilter is loaded, a NAT's rules also drop what its LAN ports say to each other."""
    switch = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
    if switch.exists():
        lab.run(nat, ["sh", "-c", f"echo 0 > {switch}"], check=True)


def test_hosts_of_one_network_find_each_other(wanlab: Any) -> None:
    with wanlab.WanLab(TOPOLOGY) as lab:
        for nat in TOPOLOGY["nats"]:
            be_a_plain_switch(lab, nat)
        other = Node(lab, "other", swarm="another")
        bob, alice = Node(lab, "bob"), Node(lab, "alice")
        anna, dora = Node(lab, "anna"), Node(lab, "dora")
        for one, two, host in ((alice, anna, "anna"), (anna, alice, "alice"), (dora, bob, "bob")):
            assert one.until("found") == two.peer_id
            assert one.said[-1]["hosts"] == [lab.local_ip(host)]
            assert one.until("connected") == two.peer_id
        said = {node: node.stop() for node in (alice, anna, bob, dora, other)}
        for node, partner in ((alice, anna), (anna, alice), (bob, dora), (dora, bob)):
            assert {line["found"] for line in said[node] if "found" in line} <= {partner.peer_id}
            assert not any("failed" in line for line in said[node])
        assert said[other] == [{"peer_id": other.peer_id}], "another swarm on the same network"
