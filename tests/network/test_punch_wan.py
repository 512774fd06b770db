"""Reachability and hole punching between all kinds of NAT, in network namespaces (wanlab, root only)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import combinations_with_replacement
from typing import Any

import pytest

from relay.reachability import Filtering, Mapping, Reach, Reachability, can_punch
from tests.network.lab import wanlab as wanlab
from tests.network.reach_node import PORT

pytestmark = [pytest.mark.network, pytest.mark.slow]

PUBLIC = ("r1", "r2", "h1", "h2")
HOME = ("home-a", "home-b")
"""Behind one NAT, which turns no packet of theirs back in."""
NATS = ("cone", "restricted-cone", "full-cone", "symmetric")
KINDS = (*NATS, "firewall", "public")

# reach, mapping, filtering of each kind
EXPECTED = {
    "public": ("public", "none", "none"),
    "full-cone": ("public", "independent", "none"),
    "restricted-cone": ("private", "independent", "address"),
    "cone": ("private", "independent", "port"),
    "symmetric": ("private", "dependent", "port"),
    "firewall": ("private", "none", "port"),
}
# the pairs that can't meet without a relay
HOPELESS = {
    frozenset({"symmetric"}),
    frozenset({"symmetric", "cone"}),
    frozenset({"symmetric", "firewall"}),
}


class Node:
    """A process on a host (tests/network/reach_node.py).

    Attributes:
        verdict: what its first round has found.
    """

    def __init__(self, lab: Any, host: str) -> None:
        self.host = host
        self.verdict: dict[str, Any] = {}
        self.process: subprocess.Popen[str] = lab.popen(
            host,
            [sys.executable, "-m", "tests.network.reach_node"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def started(self) -> str:
        self.peer_id: str = self.answer()["peer_id"]
        return self.peer_id

    def tell(self, do: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        print(json.dumps({"do": do} | arguments), file=self.process.stdin, flush=True)

    def do(self, do: str, **arguments: Any) -> dict[str, Any]:
        self.tell(do, **arguments)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the node on {self.host} has ended"
        answer: dict[str, Any] = json.loads(line)
        return answer


class Wan:
    """Four public nodes, and two of each kind that know r1 and r2."""

    def __init__(self, lab: Any, ends: ExitStack) -> None:
        self.lab = lab
        self.nodes: dict[str, Node] = {}
        hosts = [*PUBLIC, *(f"{kind}-{side}" for kind in KINDS for side in "ab"), *HOME, "blocked"]
        for host in hosts:
            self.nodes[host] = Node(lab, host)
            ends.callback(self.nodes[host].process.kill)
        for node in self.nodes.values():
            node.started()
        for helper in ("h1", "h2"):
            for rendezvous in ("r1", "r2"):
                assert "connected" in self.nodes[helper].do("connect", address=self.address(rendezvous))

    def address(self, host: str) -> str:
        return f"/ip4/{self.lab.ip(host)}/udp/{PORT}/quic-v1/p2p/{self.nodes[host].peer_id}"


@pytest.fixture(scope="module")
def wan(wanlab: Any) -> Iterator[Wan]:
    hosts: dict[str, dict[str, Any]] = {name: {"delay": 5} for name in PUBLIC}
    nats: dict[str, dict[str, Any]] = {}
    for side in "ab":
        hosts[f"firewall-{side}"] = {"delay": 15, "firewall": True}
        hosts[f"public-{side}"] = {"delay": 15}
        for kind in NATS:
            nats[f"n-{kind}-{side}"] = {"kind": kind, "delay": 15}
            hosts[f"{kind}-{side}"] = {"behind": f"n-{kind}-{side}"}
    nats["home"] = {"kind": "cone", "delay": 15}
    hosts |= {name: {"behind": "home"} for name in HOME}
    hosts["blocked"] = {"delay": 5, "block_udp": True}
    with wanlab.WanLab({"hosts": hosts, "nats": nats}) as lab, ExitStack() as ends:
        # where br_netfilter is loaded, the router's firewall would stop what stays in the LAN
        lab.run("home", ["sysctl", "-qw", "net.bridge.bridge-nf-call-iptables=0"], stderr=subprocess.DEVNULL)
        wan = Wan(lab, ends)
        asking = [node for name, node in wan.nodes.items() if name not in (*PUBLIC, "blocked")]
        for node in asking:
            for rendezvous in ("r1", "r2"):
                assert "connected" in node.do("connect", address=wan.address(rendezvous))
            node.tell("round")
        for node in asking:
            node.verdict = node.answer()
        yield wan


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_learns_what_stands_before_it(wan: Wan, kind: str) -> None:
    for side in "ab":
        node = wan.nodes[f"{kind}-{side}"]
        verdict = node.verdict
        assert (verdict["reach"], verdict["mapping"], verdict["filtering"]) == EXPECTED[kind], verdict
        assert verdict["udp"] is True
        assert all(host == wan.lab.ip(node.host) for host, _ in verdict["addresses"])
        if kind != "symmetric":
            assert verdict["addresses"] == [[wan.lab.ip(node.host), PORT]]
            assert verdict["port_kept"] is True


def test_blocked_udp_is_seen(wan: Wan) -> None:
    node = wan.nodes["blocked"]
    for rendezvous in ("r1", "r2"):
        assert "error" in node.do("connect", address=wan.address(rendezvous), timeout=1.0)
    verdict = node.do("round")
    assert verdict["udp"] is False
    assert verdict["reach"] == "unknown"


def _verdict(kind: str) -> Reachability:
    reach, mapping, filtering = EXPECTED[kind]
    return Reachability(Reach(reach), Mapping(mapping), Filtering(filtering), True)


@pytest.mark.parametrize(("one", "other"), list(combinations_with_replacement(KINDS, 2)))
def test_pairs_meet_where_they_can(wan: Wan, one: str, other: str) -> None:
    a, b = wan.nodes[f"{one}-a"], wan.nodes[f"{other}-b"]
    expected = frozenset({one, other}) not in HOPELESS
    assert can_punch(_verdict(one), _verdict(other))[0] is expected
    met = a.do("punch", via=wan.nodes["r1"].peer_id, to=b.peer_id)
    if not expected:
        assert "no probe came through" in met["error"] and "\n" not in met["error"]
        return
    assert met.get("peer_id") == b.peer_id, met
    assert met["remote"][0] == wan.lab.ip(b.host)


@pytest.mark.parametrize("kind", ["symmetric", "cone", "firewall"])
def test_a_public_node_has_itself_called_back(wan: Wan, kind: str) -> None:
    # both sides in the roles they did not have in the table
    public, hidden = wan.nodes["public-b"], wan.nodes[f"{kind}-a"]
    met = public.do("call_back", via=wan.nodes["r1"].peer_id, to=hidden.peer_id)
    assert met.get("peer_id") == hidden.peer_id, met
    assert met["dialed"] is False


def test_two_behind_one_nat_meet_inside(wan: Wan) -> None:
    a, b = (wan.nodes[host] for host in HOME)
    met = a.do("punch", via=wan.nodes["r1"].peer_id, to=b.peer_id)
    assert met.get("peer_id") == b.peer_id, met
    assert met["remote"] == [wan.lab.local_ip(b.host), PORT]


def test_both_begin_at_once(wan: Wan) -> None:
    a, b = wan.nodes["cone-b"], wan.nodes["restricted-cone-a"]
    for node, other in ((a, b), (b, a)):
        node.tell("punch", via=wan.nodes["r2"].peer_id, to=other.peer_id)
    for node, other in ((a, b), (b, a)):
        met = node.answer()
        assert met.get("peer_id") == other.peer_id, met
