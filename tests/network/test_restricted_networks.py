"""Whole nodes where hardly anything gets through: foreign relays, no UDP, HTTPS alone, members only (wanlab).

In every case the tokens are those of plain llama.cpp (`panal verify`), and the route says why it is taken.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.nginx import make_certificate, nginx_command
from tests.interop.js_node import js_command
from tests.network.lab import wanlab as wanlab
from tests.network.restricted_nodes import PORT, Nodes, Running, until

pytestmark = [pytest.mark.network, pytest.mark.slow]

JS_PORT = 4001
BEHIND_NGINX = 8080
JS_CIRCUIT_BYTES = 128 << 10

ONLY_HTTPS = """
table ip https {
    chain o {
        type filter hook output priority 1;
        oifname wan0 tcp dport 443 accept
        oifname wan0 drop
    }
}
"""


@pytest.fixture(scope="module")
def lab(wanlab: Any) -> Iterator[Any]:
    hosts: dict[str, dict[str, Any]] = {name: {"delay": 5} for name in ("relay", "spare", "js", "public")}
    nats: dict[str, dict[str, Any]] = {}
    for side in "ab":
        nats[f"nat-{side}"] = {"kind": "symmetric", "delay": 10}
        hosts[f"symmetric-{side}"] = {"behind": f"nat-{side}"}
        hosts[f"blocked-{side}"] = {"delay": 10, "firewall": True, "block_udp": True}
        hosts[f"https-{side}"] = {"delay": 10, "firewall": True}
    with wanlab.WanLab({"hosts": hosts, "nats": nats}) as made:
        for side in "ab":
            made.run(f"https-{side}", ["nft", "-f", "-"], input=ONLY_HTTPS, text=True, check=True)
        yield made


@pytest.fixture
def nodes(lab: Any, tmp_path: Path) -> Iterator[Nodes]:
    with ExitStack() as ends:
        yield Nodes(lab, tmp_path, ends)


def on(lab: Any, host: str) -> str:
    """--listen for a node that others dial."""
    return f"--listen=/ip4/{lab.ip(host)}/udp/{PORT}/quic-v1"


def js_relay(nodes: Nodes, *, limit: bool) -> str:
    """Start one on its host; its address."""
    command, folder = js_command(host=nodes.lab.ip("js"), port=JS_PORT, limit=limit)
    process = nodes.lab.popen(
        "js", command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    nodes.ends.callback(process.wait)
    nodes.ends.callback(process.kill)
    return str(json.loads(process.stdout.readline())["addresses"][0])


def reserved(node: Running) -> Callable[[], bool]:
    return lambda: node.logged("reachable through relay")


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def generate(nodes: Nodes, name: str, host: str, tokens: int = 12) -> dict[str, Any]:
    return answer(nodes.ask(name, host, "generate", "-p", "import os", "-n", tokens, "--json"))


def verified(nodes: Nodes, name: str, host: str, batch: str = "1,5") -> dict[str, Any]:
    """`panal verify`: the same bytes as plain llama.cpp."""
    verdict = answer(nodes.ask(name, host, "verify", "--batch", batch, "--json"))
    assert verdict["byte_identical"] is True
    return verdict


def routes(told: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["name"]: (each["route"], each["transport"]) for each in told["routes"]}


@pytest.mark.parametrize("limit", [False, True], ids=["unlimited", "128 KiB and 2 minutes"])
@pytest.mark.parametrize("kind", ["symmetric", "blocked"])
def test_a_js_node_is_all_they_have(nodes: Nodes, demo_model: Path, kind: str, limit: bool) -> None:
    js = js_relay(nodes, limit=limit)
    nodes.init("server", "--serve", demo_model, "--peer", js)
    nodes.init("asker", "--model", demo_model, "--peer", js)
    server = nodes.run("server", f"{kind}-a")
    until(reserved(server), "a reservation at the js node")
    told = generate(nodes, "asker", f"{kind}-b", tokens=48)
    assert routes(told) == {"server": ("relayed", "tcp")}
    assert [each["via"] for each in told["routes"]] == [js.rpartition("/")[2]]
    assert told["panal"]["failures"] == {}
    if limit:
        # several circuits' worth, one after the other, and no call was lost or sent to anybody else
        assert told["panal"]["bytes_out"] + told["panal"]["bytes_back"] > 4 * JS_CIRCUIT_BYTES
    # the calls of the larger batch alone are more than one circuit carries
    verified(nodes, "asker", f"{kind}-b", batch="1,64" if kind == "symmetric" else "1,5")


def test_udp_is_blocked_on_either_side(nodes: Nodes, lab: Any, demo_model: Path) -> None:
    boot = nodes.init("relay", on(lab, "relay"), relay="serve = true")
    nodes.run("relay", "relay")
    nodes.init("public", on(lab, "public"), "--serve", f"{demo_model}::0-3", "--peer", boot)
    nodes.run("public", "public")
    hidden = []
    for kind, experts in (("symmetric", "4-7"), ("blocked", "8-11")):
        nodes.init(kind, "--serve", f"{demo_model}::{experts}", "--peer", boot)
        hidden.append(nodes.run(kind, f"{kind}-a"))
    until(lambda: all(reserved(node)() for node in hidden), "reservations at the relay", 40)
    expected = {
        "symmetric": {"public": ("direct", "udp")},
        "blocked": {"public": ("direct", "tcp")},
    }
    for kind, direct in expected.items():
        name = f"asks-{kind}"
        nodes.init(name, "--model", demo_model, "--peer", boot)
        told = verified(nodes, name, f"{kind}-b")
        assert routes(told) == direct | {"symmetric": ("relayed", "tcp"), "blocked": ("relayed", "tcp")}
        reasons = {each["name"]: each["reason"] for each in told["routes"]}
        assert "UDP is blocked" in reasons["blocked"]
        if kind == "blocked":
            assert reasons["public"] == "UDP is blocked here: TCP to a public peer"


@dataclass
class HttpsRelay:
    """A relay behind nginx: its addresses for UDP and for HTTPS, and the authority of its certificate."""

    quic: str
    https: str
    authority: str


def https_relay(nodes: Nodes, host: str, *peers: str) -> HttpsRelay:
    """Start one on a public host."""
    ip = nodes.lab.ip(host)
    folder = nodes.folder / f"{host}.nginx"
    folder.mkdir()
    authority = make_certificate(folder, ip).read_text()
    process = nodes.lab.popen(host, nginx_command(folder, host=ip, port=443, behind=BEHIND_NGINX))
    nodes.ends.callback(process.wait)
    nodes.ends.callback(process.terminate)
    web = f"/ip4/{ip}/tcp/443/tls/ws"
    relay = f"""
serve = true
websocket = "/ip4/127.0.0.1/tcp/{BEHIND_NGINX}"
trusted_proxies = ["127.0.0.1"]
announce = ["{web}"]
"""
    address = nodes.init(host, on(nodes.lab, host), *(f"--peer={peer}" for peer in peers), relay=relay)
    nodes.run(host, host)
    return HttpsRelay(address, f"{web}/p2p/{address.rpartition('/')[2]}", authority)


def trusting(nodes: Nodes, *relays: HttpsRelay) -> str:
    """[relay] of a node that trusts their authorities."""
    path = nodes.folder / "authorities.pem"
    path.write_text("".join(each.authority for each in relays))
    return f'ca = "{path}"'


def test_only_https_gets_out(nodes: Nodes, demo_model: Path) -> None:
    relay = https_relay(nodes, "relay")
    trust = trusting(nodes, relay)
    nodes.init("inside", "--serve", f"{demo_model}::0-5", "--peer", relay.https, relay=trust)
    nodes.init("outside", "--serve", f"{demo_model}::6-11", "--peer", relay.quic)
    servers = [nodes.run("inside", "https-a"), nodes.run("outside", "symmetric-a")]
    until(lambda: all(reserved(node)() for node in servers), "reservations at the relay", 40)
    both = {"inside": ("relayed", "tcp"), "outside": ("relayed", "tcp")}
    # a backbone where everything gets out, which does not know the relay's authority
    nodes.init("free", "--model", demo_model, "--peer", relay.quic)
    assert routes(verified(nodes, "free", "symmetric-b")) == both
    nodes.init("caught", "--model", demo_model, "--peer", relay.https, relay=trust)
    assert routes(verified(nodes, "caught", "https-b")) == both


def test_behind_https_each_knows_another_relay(nodes: Nodes, demo_model: Path) -> None:
    one = https_relay(nodes, "relay")
    other = https_relay(nodes, "spare", one.quic)
    trust = trusting(nodes, one, other)
    nodes.init("server", "--serve", demo_model, "--peer", one.https, relay=trust)
    server = nodes.run("server", "https-a")
    # the second relay is known from its advert, whose first address is one that HTTPS alone does not reach
    until(lambda: all(server.is_reachable_through(each.quic) for each in (one, other)), "reservations", 40)
    nodes.init("asker", "--model", demo_model, "--peer", other.https, relay=trust)
    assert routes(verified(nodes, "asker", "https-b")) == {"server": ("relayed", "tcp")}


def test_members_meet_at_a_relay_that_serves_nobody_else(
    nodes: Nodes, lab: Any, demo_model: Path, tmp_path: Path
) -> None:
    boot = nodes.init("relay", on(lab, "relay"), relay="serve = true")
    nodes.init("server", "--serve", demo_model, "--peer", boot)
    nodes.init("asker", "--model", demo_model, "--peer", boot)
    nodes.make_private("casa", tmp_path / "keys", "relay", "server", "asker")
    nodes.init("stranger", "--serve", demo_model, "--peer", boot)
    relay = nodes.run("relay", "relay")
    server, stranger = nodes.run("server", "symmetric-a"), nodes.run("stranger", "blocked-a")
    until(reserved(server), "a member's reservation", 40)
    assert routes(verified(nodes, "asker", "symmetric-b")) == {"server": ("relayed", "tcp")}
    until(lambda: stranger.logged("gives no reservation: PERMISSION_DENIED"), "a refusal", 40)
    assert not reserved(stranger)()
    peers = {each["peer"] for node in (relay, server) for each in node.said("heard")}
    assert stranger.peer_id not in peers


def test_a_relay_dies_and_another_takes_its_place(nodes: Nodes, lab: Any, demo_model: Path) -> None:
    addresses = [nodes.init("relay", on(lab, "relay"), relay="serve = true")]
    relays = [nodes.run("relay", "relay")]
    addresses.append(nodes.init("spare", on(lab, "spare"), "--peer", addresses[0], relay="serve = true"))
    relays.append(nodes.run("spare", "spare"))
    both = [f"--peer={address}" for address in addresses]
    nodes.init("server", "--serve", demo_model, *both)
    nodes.init("asker", "--model", demo_model, *both)
    server = nodes.run("server", "symmetric-a")
    until(lambda: all(map(server.is_reachable_through, addresses)), "two reservations", 40)
    calm = generate(nodes, "asker", "symmetric-b")
    used = calm["routes"][0]["via"]
    assert used in [node.peer_id for node in relays]

    # in the middle of a generation, of which no other peer holds the experts
    said: list[dict[str, Any]] = []
    asking = threading.Thread(target=lambda: said.append(generate(nodes, "asker", "symmetric-b", tokens=48)))
    asking.start()
    time.sleep(8)  # begun, by the relay of before, and far from done
    dead = next(node for node in relays if node.peer_id == used)
    dead.process.kill()
    asking.join()
    assert said and said[0]["tokens"][: len(calm["tokens"])] == calm["tokens"]
    assert said[0]["routes"][0]["via"] in {node.peer_id for node in relays} - {used}
    assert f"instead of {used}" in (nodes.folder / "asker.generate.log").read_text()

    again = generate(nodes, "asker", "symmetric-b")
    assert again["tokens"] == calm["tokens"]
    assert again["routes"][0]["via"] != used and again["routes"][0]["route"] == "relayed"


def test_a_relay_whose_certificate_is_not_trusted_is_named(nodes: Nodes, demo_model: Path) -> None:
    relay = https_relay(nodes, "relay")
    nodes.init("asker", "--model", demo_model, "--peer", relay.https)
    done = nodes.ask("asker", "https-b", "generate", "-p", "x", "-n", "4", "--json")
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert "its certificate is not trusted" in said and relay.https.partition("/tcp")[0][5:] in said


def test_a_node_that_wants_no_relay_gets_none(nodes: Nodes, lab: Any, demo_model: Path) -> None:
    boot = nodes.init("relay", on(lab, "relay"), relay="serve = true")
    nodes.run("relay", "relay")
    nodes.init("server", "--serve", f"{demo_model}::0-5", "--peer", boot)
    nodes.init("proud", "--serve", f"{demo_model}::6-11", "--peer", boot, relay="use = false")
    server, proud = nodes.run("server", "symmetric-a"), nodes.run("proud", "blocked-a")
    until(lambda: server.is_reachable_through(boot), "a reservation", 40)
    # who calls nobody through a relay does not reach who can be called, nor is the other one called
    nodes.init("asker", "--model", demo_model, "--peer", boot, relay="use = false")
    done = nodes.ask("asker", "symmetric-b", "generate", "-p", "x", "-n", "4", "--json")
    assert done.returncode == 1 and "experts 0-11" in done.stderr.splitlines()[-1]
    assert not proud.is_reachable_through(boot)
