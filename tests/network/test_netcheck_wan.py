"""`panal netcheck` behind each kind of NAT (wanlab, root only)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.network.lab import wanlab as wanlab
from tests.network.reach_node import PORT
from tests.network.restricted_nodes import Nodes
from tests.network.test_punch_wan import Node

pytestmark = [pytest.mark.network, pytest.mark.slow]

PUBLIC = ("r1", "r2", "h")
NATS = ("cone", "restricted-cone", "full-cone", "symmetric")

# mapping, filtering of each host: check status and a word of what is said
EXPECTED = {
    "public": (("pass", "no NAT"), ("pass", "anybody gets in")),
    "full-cone": (("pass", "one outer port"), ("pass", "anybody gets in")),
    "restricted-cone": (("pass", "one outer port"), ("pass", "only addresses that this node wrote to")),
    "cone": (("pass", "one outer port"), ("pass", f"forward UDP port {PORT} to this machine in the router")),
    "symmetric": (("fail", f"forward UDP port {PORT} to this machine in the router"), ("fail", "forward")),
    "firewall": (("pass", "no NAT"), ("pass", f"let UDP port {PORT} in through the firewall")),
}


class Wan:
    """Three public nodes, and a host of each kind where nothing runs yet."""

    def __init__(self, lab: Any, peers: list[str]) -> None:
        self.lab = lab
        self.peers = peers

    def netcheck(self, host: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "node.cli.main", "netcheck", *map(str, arguments)]
        done: subprocess.CompletedProcess[str] = self.lab.run(
            host, command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
        )
        return done


@pytest.fixture(scope="module")
def wan(wanlab: Any) -> Iterator[Wan]:
    hosts: dict[str, dict[str, Any]] = {name: {"delay": 5} for name in PUBLIC}
    hosts |= {kind: {"behind": f"n-{kind}"} for kind in NATS}
    hosts["public"] = {"delay": 15}
    hosts["firewall"] = {"delay": 15, "firewall": True}
    hosts["blocked"] = {"delay": 5, "block_udp": True}
    hosts |= {name: {"delay": 5} for name in ("relay", "members", "no-relay")}
    nats = {f"n-{kind}": {"kind": kind, "delay": 15} for kind in NATS}
    with wanlab.WanLab({"hosts": hosts, "nats": nats}) as lab, ExitStack() as ends:
        nodes = {host: Node(lab, host) for host in PUBLIC}
        addresses = {}
        for host, node in nodes.items():
            ends.callback(node.process.kill)
            addresses[host] = f"/ip4/{lab.ip(host)}/udp/{PORT}/quic-v1/p2p/{node.started()}"
        for rendezvous in ("r1", "r2"):
            assert "connected" in nodes["h"].do("connect", address=addresses[rendezvous])
        yield Wan(lab, [addresses["r1"], addresses["r2"]])


@pytest.mark.parametrize("host", EXPECTED)
def test_each_kind_is_named_with_what_to_do(wan: Wan, host: str) -> None:
    done = wan.netcheck(host, *(f"--peer={peer}" for peer in wan.peers), "--json")
    assert done.returncode == 0, done
    assert done.stderr == ""
    report = json.loads(done.stdout)
    checks = {check["name"]: check for check in report["checks"]}
    assert list(checks) == [
        "UDP out", "public address", "mapping", "filtering", "port kept", "clock",
        *(f"peer {peer}" for peer in wan.peers), "relay",
    ]  # fmt: skip
    assert report["can_take_part"] is True
    for name, (status, word) in zip(("mapping", "filtering"), EXPECTED[host], strict=True):
        check = checks[name]
        assert check["status"] == status, check
        assert word in f"{check['detail']}; {check['advice']}", check
    for name in ("UDP out", "public address", "clock", *(f"peer {peer}" for peer in wan.peers)):
        assert checks[name]["status"] == "pass", checks[name]
    assert checks["port kept"]["status"] == ("fail" if host == "symmetric" else "pass")
    assert checks["relay"]["status"] == "skip"
    assert wan.lab.ip(host) in checks["public address"]["detail"]
    assert report["reachability"]["evidence"]


def test_where_udp_is_blocked_the_node_cannot_take_part_without_a_relay(wan: Wan) -> None:
    done = wan.netcheck("blocked", *(f"--peer={peer}" for peer in wan.peers))
    assert done.returncode == 1
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].startswith("fail  UDP out: none of 2 peers answered; ") and "relay over TCP" in lines[0]
    assert sum(line.startswith("fail  peer /ip4/") for line in lines) == 2
    assert "can NOT take part" in lines[-1]


def test_a_config_names_the_peers_and_a_running_node_is_left_alone(
    wan: Wan, tmp_path: Path, demo_model: Path
) -> None:
    config = tmp_path / "node.toml"
    command = [sys.executable, "-m", "node.cli.main", "init", "--dir", str(tmp_path)]
    # a node that serves: one that only asks has no port that could be in use
    subprocess.run(
        [*command, f"--serve={demo_model}", f"--peer={wan.peers[0]}"], check=True, capture_output=True
    )
    holder = "import socket, sys\ns = socket.socket(type=socket.SOCK_DGRAM)\ns.bind(('', 4190))\n"
    with wan.lab.popen(
        "public",
        [sys.executable, "-c", holder + "print(flush=True)\nsys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as running:
        running.stdout.readline()
        done = wan.netcheck("public", "-c", config, f"--peer={wan.peers[1]}")
        running.stdin.close()
    assert done.returncode == 0, done
    assert len(done.stderr.splitlines()) == 1 and "port 4190 is in use" in done.stderr
    assert "pass  filtering: anybody gets in" in done.stdout
    assert all(f"pass  peer {peer}" in done.stdout for peer in wan.peers)


@pytest.fixture(scope="module")
def relays(wan: Wan, tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Iterator[dict[str, str]]:
    """A relay for everybody, one for the members of a swarm, and a node that relays for nobody: peer ids."""
    folder = tmp_path_factory.mktemp("relays")
    with ExitStack() as ends:
        nodes = Nodes(wan.lab, folder, ends)
        for name in ("relay", "members", "no-relay"):
            listen = f"--listen=/ip4/{wan.lab.ip(name)}/udp/{PORT}/quic-v1"
            lines = (
                "" if name == "no-relay" else f'serve = true\nwebsocket = "/ip4/{wan.lab.ip(name)}/tcp/80"'
            )
            nodes.init(name, listen, *(["--serve", demo_model] if not lines else []), relay=lines)
        nodes.make_private("casa", folder / "keys", "members")
        yield {name: nodes.run(name, name).peer_id for name in ("relay", "members", "no-relay")}


def test_relays_are_reached_and_grant_reservations(wan: Wan, relays: dict[str, str]) -> None:
    ip, peer_id = wan.lab.ip("relay"), relays["relay"]
    tcp, websocket = f"/ip4/{ip}/tcp/{PORT}/p2p/{peer_id}", f"/ip4/{ip}/tcp/80/ws/p2p/{peer_id}"
    for host in ("public", "blocked"):
        done = wan.netcheck(host, f"--peer={tcp}", f"--peer={websocket}", "--json")
        assert done.returncode == 0, done
        assert done.stderr == ""
        checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
        for kind, address in (("TCP", tcp), ("WebSocket", websocket)):
            reached, relay = checks[f"{kind} {address}"], checks[f"relay {address}"]
            assert reached["status"] == relay["status"] == "pass"
            assert reached["detail"].startswith("round trip ")
            assert relay["detail"] == "grants a reservation, a circuit lasts for 6 h or 16 GiB each way"
        assert checks["UDP out"]["status"] == "skip"


def test_where_udp_is_blocked_a_relay_is_enough_to_take_part(wan: Wan, relays: dict[str, str]) -> None:
    ip, peer_id = wan.lab.ip("relay"), relays["relay"]
    done = wan.netcheck("blocked", f"--peer=/ip4/{ip}/udp/{PORT}/quic-v1/p2p/{peer_id}")
    assert done.returncode == 0, done
    lines = done.stdout.splitlines()
    assert any(line.startswith("fail  UDP out: none of 1 peers answered") for line in lines)
    # that it takes TCP at the port of its UDP address was a guess
    assert any(
        line.startswith(f"pass  TCP /ip4/{ip}/tcp/{PORT}/p2p/{peer_id}: round trip ") for line in lines
    )
    assert any(line.startswith("pass  relay ") and "grants a reservation" in line for line in lines)
    assert lines[-1].startswith("This node can take part")


def test_relays_that_do_not_help_say_why(wan: Wan, relays: dict[str, str]) -> None:
    def at(name: str, port: int = PORT) -> str:
        return f"/ip4/{wan.lab.ip(name)}/tcp/{port}/p2p/{relays[name]}"

    nobody = at("relay", 81)
    asked = [f"--peer={each}" for each in (at("members"), at("no-relay"), nobody)]
    done = wan.netcheck("public", *asked, "--json")
    assert done.returncode == 0, done
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    members = checks[f"relay {at('members')}"]
    assert members["status"] == "fail" and "PERMISSION_DENIED" in members["detail"]
    assert "panal swarm join" in members["advice"]
    members = checks[f"QUIC over TCP {at('members')}"]
    assert members["status"] == "fail" and "belongs to another swarm" in members["detail"]
    assert checks[f"QUIC over TCP {at('no-relay')}"]["status"] == "pass"
    assert checks[f"TCP {at('members')}"]["status"] == checks[f"TCP {at('no-relay')}"]["status"] == "pass"
    other = checks[f"relay {at('no-relay')}"]
    assert (other["status"], other["detail"]) == ("skip", "it does not relay for others")
    silent = checks[f"TCP {nobody}"]
    assert silent["status"] == "fail" and silent["detail"] == "connection refused"
    assert "port 443" in silent["advice"] and f"relay {nobody}" not in checks


def test_a_relay_address_without_its_peer_is_refused(wan: Wan) -> None:
    done = wan.netcheck("public", "--peer=/ip4/192.0.2.1/tcp/4190")
    assert done.returncode == 2
    assert "names no peer" in done.stderr
