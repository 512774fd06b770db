"""`panal netcheck` on loopback: the reasons it gives, the advice, and the verdict that follows from them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from node.swarm.unnamed_peers import lan_peers
from relay.netcheck import Bearing, Status, Verdict, decide
from relay.reachability import Reachability
from routing.identity import Identity
from routing.lan import LanDiscovery
from routing.membership import OPEN_SWARM, Swarm
from routing.quic.endpoint import Endpoint
from routing.remembered import RememberedPeers
from routing.wire.advert import decode_advert, sign_advert
from tests.adverts import advert
from tests.ready_panal import run_panal
from tests.swarm_process import Home, NodeProcess, running, start_all

SECONDS = 30


def panal(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_panal(*arguments)


def checked(home: Home, code: int) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """The checks by name, and the report, of a node's config."""
    done = panal("netcheck", "-c", home.config, "--json")
    assert done.returncode == code, done
    assert done.stderr == ""
    report = json.loads(done.stdout)
    return {check["name"]: check for check in report["checks"]}, report


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("netcheck")


@pytest.fixture(scope="module")
def relay(folder: Path, demo_model: Path) -> Iterator[Home]:
    """A relay of a private swarm, of which nobody else here is."""
    home = Home(folder / "relay", folder / "store", demo_model, rest="[relay]\nserve = true\n")
    key = folder / "swarm.key"
    assert panal("swarm", "create", "casa", "--dir", folder).returncode == 0
    invited = panal("swarm", "invite", home.peer_id, "--key", key, "--json")
    joined = panal("swarm", "join", json.loads(invited.stdout)["invite"], "-c", home.config)
    assert joined.returncode == 0, joined
    node = NodeProcess(home)
    with running([node]):
        start_all([node])
        yield home


@pytest.fixture(scope="module")
def server(folder: Path, demo_model: Path) -> Iterator[Home]:
    """A node of the open swarm."""
    home = Home(folder / "server", folder / "store", demo_model, experts="0-11")
    node = NodeProcess(home)
    with running([node]):
        start_all([node])
        yield home


@pytest.fixture
def asker(tmp_path: Path, folder: Path, demo_model: Path) -> Home:
    return Home(tmp_path / "asker", folder / "store", demo_model)


@pytest.mark.parametrize(
    ("bearings", "verdict"),
    [
        ([], Verdict.UNKNOWN),
        ([Bearing.NONE], Verdict.UNKNOWN),
        ([Bearing.SILENCE, Bearing.NONE], Verdict.CANNOT),
        ([Bearing.ANSWER, Bearing.SILENCE], Verdict.UNKNOWN),
        ([Bearing.ANSWER, Bearing.REFUSAL], Verdict.CANNOT),
        ([Bearing.REFUSAL, Bearing.WAY_IN, Bearing.SILENCE], Verdict.CAN),
    ],
)
def test_the_verdict_follows_from_the_checks(bearings: list[Bearing], verdict: Verdict) -> None:
    assert decide(bearings, Reachability())[0] is verdict


def test_with_nothing_known_the_answer_is_unknown(asker: Home) -> None:
    done = panal("netcheck", "-c", asker.config)
    assert done.returncode == 1, done
    lines = done.stdout.splitlines()
    assert lines[0] == (
        "skip  UDP out: not checked: no peer is known; name one with --peer, or in [swarm] peers"
    )
    assert "skip  LAN: not looked for: this node listens on loopback only" in lines
    assert lines[-1] == "Whether this node can take part is unknown: no peer to ask."


def test_a_key_that_run_refuses_is_refused(asker: Home) -> None:
    asker.experts = "0-11"
    asker.write()
    (asker.folder / "identity.key").write_bytes(b"junk")
    said = [panal(command, "-c", asker.config) for command in ("run", "netcheck")]
    assert [done.returncode for done in said] == [2, 2]
    assert said[0].stderr == said[1].stderr and "identity.key" in said[0].stderr


@pytest.mark.slow
def test_a_node_of_the_swarm_is_a_way_in(asker: Home, server: Home) -> None:
    asker.peers = [server.address]
    asker.write()
    checks, report = checked(asker, 0)
    assert checks[f"peer {server.address}"]["status"] == "pass"
    assert checks["UDP out"]["detail"] == "1 of 1 peers answered"
    assert "LAN" not in checks
    assert (report["can_take_part"], report["verdict"]) == (True, "can")


@pytest.mark.slow
def test_tcp_alone_leads_to_a_node_of_the_swarm(asker: Home, server: Home) -> None:
    tcp = f"/ip4/127.0.0.1/tcp/{server.port}/p2p/{server.peer_id}"
    asker.peers = [tcp]
    asker.write()
    checks, _ = checked(asker, 0)
    assert checks[f"TCP {tcp}"]["status"] == checks[f"QUIC over TCP {tcp}"]["status"] == "pass"
    assert checks[f"relay {tcp}"]["detail"] == "it does not relay for others"


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["udp", "tcp"])
def test_another_swarm_is_named_and_is_no_way_in(asker: Home, relay: Home, transport: str) -> None:
    tcp = f"/ip4/127.0.0.1/tcp/{relay.port}/p2p/{relay.peer_id}"
    asker.peers = [relay.address if transport == "udp" else tcp]
    asker.write()
    checks, report = checked(asker, 1)
    assert report["verdict"] == "cannot"
    refused = [f"QUIC over TCP {tcp}"]
    if transport == "udp":
        refused.append(f"peer {relay.address}")
        assert checks["UDP out"]["status"] == "pass"
        assert checks["UDP out"]["detail"].startswith("1 of 1 peers answered, but none")
    for name in refused:
        check = checks[name]
        assert check["status"] == "fail" and "belongs to another swarm" in check["detail"], check
        assert "panal swarm join" in check["advice"] and "address" not in check["advice"]
    assert checks[f"TCP {tcp}"]["status"] == "pass"
    assert "PERMISSION_DENIED" in checks[f"relay {tcp}"]["detail"]


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["udp", "tcp"])
def test_another_peer_at_the_address_is_told_apart_from_silence(
    asker: Home, server: Home, transport: str
) -> None:
    other = Identity.generate().peer_id
    rest = "/quic-v1" if transport == "udp" else ""
    address = f"/ip4/127.0.0.1/{transport}/{server.port}{rest}/p2p/{other}"
    asker.peers = [address]
    asker.write()
    checks, report = checked(asker, 1)
    assert report["verdict"] == "cannot"
    check = checks[f"peer {address}" if transport == "udp" else f"TCP {address}"]
    assert check["status"] == "fail" and server.peer_id in check["detail"]
    assert check["advice"].startswith("copy the address again")
    assert "blocks UDP" not in json.dumps(report)


@pytest.mark.slow
def test_peers_of_earlier_days_are_asked(asker: Home, server: Home) -> None:
    known = Identity.load(server.folder / "identity.key")
    silent = Identity.generate()
    memory = RememberedPeers(asker.store / "peers" / f"{asker.peer_id}.sqlite")
    for identity, port in ((known, server.port), (silent, asker.port)):
        place = f"/ip4/127.0.0.1/udp/{port}/quic-v1"
        data = sign_advert(
            advert(swarm_id=OPEN_SWARM.id, peer_id=identity.peer_id, addresses=[place]), identity
        )
        memory.remember(decode_advert(data).prove(), time.time())
    memory.close()
    checks, report = checked(asker, 0)
    assert checks[f"remembered peer {server.address}"]["status"] == "pass"
    stale = f"remembered peer /ip4/127.0.0.1/udp/{asker.port}/quic-v1/p2p/{silent.peer_id}"
    assert (checks[stale]["status"], checks[stale]["bearing"]) == ("fail", "")
    assert report["verdict"] == "can"


@pytest.mark.slow
def test_who_does_not_answer_is_silent(asker: Home) -> None:
    address = f"/ip4/127.0.0.1/udp/{asker.port}/quic-v1/p2p/{Identity.generate().peer_id}"
    asker.peers = [address]
    asker.write()
    checks, report = checked(asker, 1)
    assert checks["UDP out"]["status"] == "fail" and "blocks UDP" in checks["UDP out"]["advice"]
    assert "no answer" in checks[f"peer {address}"]["detail"]
    assert report["reason"] == "no peer and no relay can be reached"


@pytest.mark.slow
def test_only_a_node_with_a_port_of_its_own_cares_about_it(asker: Home, server: Home) -> None:
    with NodeOnPort(asker.port):
        asker.peers = [server.address]
        asker.write()
        checks, _ = checked(asker, 0)
        assert checks["port kept"]["status"] == "skip"
        asker.experts = "0-11"
        asker.write()
        done = panal("netcheck", "-c", asker.config)
        assert done.returncode == 0
        assert f"port {asker.port} is in use" in done.stderr


class NodeOnPort:
    """Holds a UDP port of loopback."""

    def __init__(self, port: int) -> None:
        self._endpoint = Endpoint(Identity.generate(), listen=("127.0.0.1", port))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._endpoint.close()


def test_nodes_of_this_network_are_heard_without_being_told_of_this_one() -> None:
    pytest.importorskip("zeroconf")
    swarm = Swarm(f"test {os.urandom(8).hex()}")  # other nodes may be at work on this machine

    async def test() -> None:
        endpoint = Endpoint(Identity.generate(), listen=("127.0.0.1", 0))
        heard: list[object] = []
        other = Identity.generate().peer_id
        lan = LanDiscovery(swarm, other, ("127.0.0.1", 4001), heard.append)
        try:
            with trio.fail_after(SECONDS):
                check, found = await lan_peers(endpoint, swarm, listen_seconds=0.5)
                assert (check.status, found) == (Status.SKIP, [])
                assert check.detail == "no node of this swarm was heard on this network in 0.5 s"
                async with trio.open_nursery() as nursery:
                    await nursery.start(lan.run)
                    check, found = await lan_peers(endpoint, swarm, listen_seconds=SECONDS)
                    nursery.cancel_scope.cancel()
            assert (check.status, check.detail) == (Status.PASS, "1 node heard")
            assert [each.addresses[0].peer_id for each in found] == [other]
            assert found[0].origin == "LAN" and not heard
        finally:
            endpoint.close()

    trio.run(test)
