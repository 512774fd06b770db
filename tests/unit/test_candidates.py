"""Where a peer may be: config, adverts, LAN and memory put together."""

from __future__ import annotations

from node.swarm.candidates import MAX_REMEMBERED, Candidates
from routing.adverts import AdvertTable
from routing.control_address import ControlAddress
from routing.identity import Identity
from routing.membership import OPEN_SWARM
from routing.multiaddr import PeerAddress
from routing.routes import Standing
from routing.wire.advert import Advert, sign_advert

NOW = 1_800_000_000.0
PEER = Identity.generate()
RELAY = Identity.generate().peer_id


def said(**fields: object) -> Advert:
    base = {
        "swarm_id": OPEN_SWARM.id,
        "peer_id": PEER.peer_id,
        "instance": 1,
        "seq": int(NOW * 1000),
        "issued_at": int(NOW),
        "addresses": ["/ip4/198.18.0.7/udp/4190/quic-v1", "/ip4/192.168.1.20/udp/4190/quic-v1"],
        "control": ["/ip4/198.18.0.7/tcp/4190"],
        "relays": [f"/ip4/198.18.0.9/tcp/4190/p2p/{RELAY}"],
        "reach": "private",
        "mapping": "independent",
        "filtering": "port",
    }
    return Advert(**{**base, **fields})  # type: ignore[arg-type]


def candidates(*adverts: Advert, own: tuple[str, ...] = ("10.9.9.9",)) -> Candidates:
    table = AdvertTable(OPEN_SWARM.id, Identity.generate().peer_id, 7, lambda advert, now: "")
    for advert in adverts:
        assert table.offer(sign_advert(advert, PEER), NOW, from_peer="").changed
    return Candidates(table, lambda: own)


def quic(text: str) -> PeerAddress:
    return PeerAddress.parse(f"{text}/p2p/{PEER.peer_id}")


def test_nobody_is_known_of() -> None:
    assert candidates().find(PEER.peer_id) is None
    assert candidates().label(PEER.peer_id) == PEER.peer_id


def test_an_advert_says_where_how_and_through_whom() -> None:
    found = candidates(said()).find(PEER.peer_id)
    assert found is not None and found.advertised
    assert found.standing == Standing("private", "independent", "port", True)
    assert found.quic[0] == quic("/ip4/198.18.0.7/udp/4190/quic-v1")
    assert found.control == (ControlAddress.parse(f"/ip4/198.18.0.7/tcp/4190/p2p/{PEER.peer_id}"),)
    assert found.relays == (ControlAddress.parse(f"/ip4/198.18.0.9/tcp/4190/p2p/{RELAY}"),)
    assert found.near == ()


def test_the_same_subnet_is_near_and_another_is_not() -> None:
    near = candidates(said(), own=("192.168.1.77", "198.18.0.7")).find(PEER.peer_id)
    assert near is not None and near.near == (quic("/ip4/192.168.1.20/udp/4190/quic-v1"),)
    assert not near.on_this_machine
    loopback = said(addresses=["/ip4/127.0.0.1/udp/4190/quic-v1"])
    here = candidates(loopback, own=("127.0.0.1",)).find(PEER.peer_id)
    assert here is not None and here.on_this_machine
    far = candidates(said(), own=("192.168.2.77",)).find(PEER.peer_id)
    assert far is not None and far.near == ()


def test_a_configured_peer_is_guessed_to_take_tcp_at_the_same_port() -> None:
    known = candidates()
    known.configure([quic("/ip4/198.18.0.3/udp/4999/quic-v1")])
    found = known.find(PEER.peer_id)
    assert found is not None and not found.advertised and found.standing == Standing()
    assert found.control == (ControlAddress.of("198.18.0.3", 4999, PEER.peer_id),)
    assert known.label(PEER.peer_id) == str(quic("/ip4/198.18.0.3/udp/4999/quic-v1"))
    assert known.configured == known.configured_for_quic == {PEER.peer_id}


def test_a_control_address_alone_promises_no_panal_node() -> None:
    known = candidates()
    address = ControlAddress.parse(f"/dns4/relay.example.org/tcp/443/tls/ws/p2p/{PEER.peer_id}")
    known.configure([address])
    assert known.configured == {PEER.peer_id} and known.configured_for_quic == set()
    found = known.find(PEER.peer_id)
    assert found is not None and found.control == (address,) and found.quic == ()


def test_configured_addresses_come_before_advertised_ones() -> None:
    known = candidates(said())
    known.configure([quic("/ip4/198.18.0.3/udp/4999/quic-v1")])
    found = known.find(PEER.peer_id)
    assert found is not None and found.quic[0] == quic("/ip4/198.18.0.3/udp/4999/quic-v1")
    assert found.standing.reach == "private"


def test_of_a_remembered_peer_only_the_addresses_count() -> None:
    known = candidates()
    known.remember([said()])
    found = known.find(PEER.peer_id)
    assert found is not None and not found.advertised
    assert found.standing == Standing() and found.quic and found.relays


def test_lan_addresses_are_near() -> None:
    known = candidates()
    here = quic("/ip4/192.168.9.9/udp/4190/quic-v1")
    known.found_on_lan(PEER.peer_id, [here])
    found = known.find(PEER.peer_id)
    assert found is not None and found.near == (here,)
    assert known.on_lan == {PEER.peer_id}


def test_an_advert_cannot_send_us_into_our_own_network() -> None:
    inner = ("127.0.0.1", "10.0.0.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "192.168.77.1")
    advert = said(
        addresses=[f"/ip4/{host}/udp/4190/quic-v1" for host in ("198.18.0.7", *inner)],
        control=[f"/ip4/{host}/tcp/80" for host in inner]
        + [f"/dns4/{name}/tcp/80" for name in ("localhost", "router.lan", "node.example.org")],
        relays=[f"/ip4/{host}/tcp/80/p2p/{RELAY}" for host in inner],
        reach="unknown",
    )
    found = candidates(advert, own=("192.168.1.77", "198.18.0.9")).find(PEER.peer_id)
    assert found is not None
    assert [each.host for each in found.quic] == ["198.18.0.7", "192.168.77.1"], "it may be routed here"
    assert [each.host for each in found.control] == ["192.168.77.1", "node.example.org"]
    assert [each.host for each in found.relays] == ["192.168.77.1"]


def test_peers_without_end_are_not_remembered() -> None:
    known = candidates()
    known.remember([said()])
    names = [Identity.generate().peer_id for _ in range(MAX_REMEMBERED + 5)]
    known.remember([said(peer_id=name) for name in names])
    known.remember([said(name="anew")])
    assert len(known.remembered) == MAX_REMEMBERED and known.remembered[0] == PEER.peer_id
