"""Announcements on a local network: which are believed, and how little a hostile one can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.identity import Identity, PeerId
from routing.lan_peers import (
    MAX_ADDRESSES,
    MAX_PEERS,
    REPORT_SECONDS,
    SERVICE,
    Announcement,
    LanPeers,
    announced_properties,
    instance_name,
    is_local,
)
from routing.membership import OPEN_SWARM, Swarm
from routing.multiaddr import PeerAddress

NOW = 1000.0
ME, ANA = Identity.generate().peer_id, Identity.generate().peer_id


def properties(swarm: Swarm = OPEN_SWARM, control: int = 4190) -> dict[bytes, bytes | None]:
    return {key.encode(): value.encode() for key, value in announced_properties(swarm, control).items()}


def announcement(
    peer_id: PeerId = ANA,
    *,
    port: int = 4190,
    hosts: Sequence[str] = ("192.168.1.7",),
    said: Mapping[bytes, bytes | None] | None = None,
) -> Announcement:
    return Announcement(instance_name(peer_id), port, hosts, properties() if said is None else said)


def table(swarm: Swarm = OPEN_SWARM, *, ipv6: bool = True) -> LanPeers:
    return LanPeers(swarm, ME, ipv6=ipv6)


def test_a_peer_is_reported_once_and_again_when_it_moves() -> None:
    peers = table()
    found = peers.take(announcement(), NOW)
    assert found is not None and found.peer_id == ANA and found.control_port == 4190
    assert found.addresses == (PeerAddress("192.168.1.7", 4190, ANA),)
    assert peers.take(announcement(), NOW) is None, "nothing new"
    moved = peers.take(announcement(hosts=("192.168.1.8",)), NOW)
    assert moved is not None and peers.peers == (moved,)
    peers.drop(instance_name(ANA))
    assert peers.peers == ()
    assert peers.take(announcement(), NOW) is not None, "it came back"


def test_a_changing_peer_is_reported_at_most_so_often() -> None:
    peers = table()
    name = instance_name(ANA)
    assert not peers.is_quiet(name, NOW)
    peers.take(announcement(), NOW)
    assert peers.is_quiet(name, NOW + REPORT_SECONDS / 2)
    assert not peers.is_quiet(name, NOW + REPORT_SECONDS)


def test_only_what_is_of_our_swarm_is_taken() -> None:
    other = Swarm("other")
    assert table().take(announcement(said=properties(other)), NOW) is None
    assert table(other).take(announcement(said=properties(other)), NOW) is not None
    private = Swarm("panal", bytes(32))
    assert table(private).take(announcement(), NOW) is None


@pytest.mark.parametrize(
    "said",
    [
        {},
        {b"swarm": None, b"control": None},
        {b"swarm": OPEN_SWARM.id.hex()[:16].encode()},
        {b"swarm": OPEN_SWARM.id.hex()[:15].encode(), b"control": b"0"},
        {b"swarm": OPEN_SWARM.id.hex()[:16].encode(), b"control": b"65536"},
        {b"swarm": OPEN_SWARM.id.hex()[:16].encode(), b"control": b"-1"},
        {b"swarm": OPEN_SWARM.id.hex()[:16].encode(), b"control": b"9" * 5000},
        {b"swarm": b"\xff" * 16, b"control": b"\xb2"},
    ],
)
def test_malformed_properties_are_passed_over(said: dict[bytes, bytes | None]) -> None:
    assert table().take(announcement(said=said), NOW) is None


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_must_be_one(port: int) -> None:
    assert table().take(announcement(port=port), NOW) is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        SERVICE,
        f"ana.{SERVICE}",
        f"{ANA}._http._tcp.local.",
        f"{ANA[:-1]}.{SERVICE}",
        f"{ME}.{SERVICE}",
        f"a.{ANA}.{SERVICE}",
    ],
)
def test_a_name_must_be_anothers_peer_id(name: str) -> None:
    peers = table()
    assert not peers.wants(name)
    assert peers.take(Announcement(name, 1, ["10.0.0.1"], properties()), NOW) is None
    peers.drop(name)


@pytest.mark.parametrize(
    "host",
    [
        "8.8.8.8",
        "198.18.0.1",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.251",
        "2001:db8::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "::ffff:8.8.8.8",
        "localhost",
        "",
    ],
)
def test_nobody_makes_us_dial_the_internet(host: str) -> None:
    assert not is_local(host)
    assert table().take(announcement(hosts=[host]), NOW) is None
    kept = table().take(announcement(hosts=[host, "10.1.2.3"]), NOW)
    assert kept is not None and [each.host for each in kept.addresses] == ["10.1.2.3"]


@pytest.mark.parametrize(
    "host", ["10.1.2.3", "172.31.0.1", "192.168.0.9", "169.254.3.4", "127.0.0.1", "fd00::2", "::1"]
)
def test_local_addresses(host: str) -> None:
    assert is_local(host)
    found = table().take(announcement(hosts=[host]), NOW)
    assert found is not None and found.addresses[0].host == host
    assert (table(ipv6=False).take(announcement(hosts=[host]), NOW) is None) == (":" in host)


def test_addresses_and_peers_are_bounded() -> None:
    peers = table()
    found = peers.take(announcement(hosts=[f"10.0.0.{n}" for n in range(200)] * 2), NOW)
    assert found is not None and len(set(found.addresses)) == len(found.addresses) == MAX_ADDRESSES
    for _ in range(2 * MAX_PEERS):
        peers.take(announcement(Identity.generate().peer_id), NOW)
    assert len(peers.peers) == MAX_PEERS
    assert not peers.wants(instance_name(Identity.generate().peer_id))
    assert peers.wants(instance_name(ANA)), "a peer that is known may still move"
    assert peers.take(announcement(hosts=["10.9.9.9"]), NOW) is not None
    peers.drop(instance_name(ANA))
    assert peers.take(announcement(Identity.generate().peer_id), NOW) is not None


@given(
    st.text(max_size=80),
    st.integers(-1, 70000),
    st.lists(st.text(max_size=20), max_size=4),
    st.dictionaries(st.binary(max_size=8), st.none() | st.binary(max_size=20), max_size=4),
)
def test_any_announcement_is_harmless(
    name: str, port: int, hosts: list[str], said: dict[bytes, bytes | None]
) -> None:
    peers = table()
    for whose in (name, instance_name(ANA)):
        peers.wants(whose)
        peers.is_quiet(whose, NOW)
        assert peers.take(Announcement(whose, port, hosts, said), NOW) is None
        peers.take(Announcement(whose, port, hosts, properties()), NOW)
        peers.drop(whose)
