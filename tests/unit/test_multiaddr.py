"""The multiaddrs of the QUIC plane, and what is said about bad ones."""

from __future__ import annotations

import pytest

from routing.errors import LocalError
from routing.identity import PeerId
from routing.multiaddr import ListenAddress, PeerAddress

ID = PeerId("12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (f"/ip4/192.0.2.7/udp/4001/quic-v1/p2p/{ID}", PeerAddress("192.0.2.7", 4001, ID)),
        ("/ip4/192.0.2.7/udp/1/quic-v1", PeerAddress("192.0.2.7", 1, None)),
        (f"/ip6/2001:db8::1/udp/65535/quic-v1/p2p/{ID}", PeerAddress("2001:db8::1", 65535, ID)),
    ],
)
def test_peer_addresses_round_trip(text: str, address: PeerAddress) -> None:
    assert PeerAddress.parse(text) == address
    assert str(address) == text


def test_ipv6_is_brought_to_its_shortest_form() -> None:
    assert str(PeerAddress.parse("/ip6/2001:0DB8:0:0::1/udp/9/quic-v1")) == "/ip6/2001:db8::1/udp/9/quic-v1"


@pytest.mark.parametrize("text", ["/ip4/0.0.0.0/udp/0/quic-v1", "/ip6/::/udp/4001/quic-v1"])
def test_listen_addresses_round_trip(text: str) -> None:
    assert str(ListenAddress.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "must begin with '/'"),
        ("ip4/1.2.3.4", "must begin with '/'"),
        ("/", "1 parts"),
        ("/ip4/1.2.3.4/udp/1/quic-v1/", "6 parts"),
        ("/ip4/1.2.3.4/udp/1", "4 parts"),
        ("/dns4/example.org/udp/1/quic-v1", "'dns4'"),
        ("/ip4/1.2.3/udp/1/quic-v1", "'1.2.3'"),
        ("/ip4/1.2.3.256/udp/1/quic-v1", "'1.2.3.256'"),
        ("/ip4/01.2.3.4/udp/1/quic-v1", "'01.2.3.4'"),
        ("/ip4/::1/udp/1/quic-v1", "'::1'"),
        ("/ip6/1.2.3.4/udp/1/quic-v1", "'1.2.3.4'"),
        ("/ip6/fe80::1%eth0/udp/1/quic-v1", "'eth0'"),
        ("/ip4/1.2.3.4/tcp/1/quic-v1", "'tcp'"),
        ("/ip4/1.2.3.4/udp/1/quic", "'quic'"),
        ("/ip4/1.2.3.4/udp//quic-v1", "''"),
        ("/ip4/1.2.3.4/udp/65536/quic-v1", "'65536'"),
        ("/ip4/1.2.3.4/udp/-1/quic-v1", "'-1'"),
        ("/ip4/1.2.3.4/udp/ 1/quic-v1", "' 1'"),
        ("/ip4/1.2.3.4/udp/1_0/quic-v1", "'1_0'"),
        ("/ip4/1.2.3.4/udp/007/quic-v1", "'007'"),
        ("/ip4/1.2.3.4/udp/٤/quic-v1", "'٤'"),
        ("/ip4/1.2.3.4/udp/1/quic-v1/ipfs/x", "'ipfs'"),
        ("/ip4/1.2.3.4/udp/1/quic-v1/p2p/x", "peer id 'x'"),
        ("/ip4/1.2.3.4/udp/1/quic-v1/p2p/", "peer id ''"),
        ("/ip4/1.2.3.4/udp/1/quic-v1\n", r"'quic-v1\n'"),
        ("/" + "x" * 100_000, "characters long"),
    ],
)
def test_the_bad_part_is_named(text: str, names: str) -> None:
    for kind in (PeerAddress, ListenAddress):
        with pytest.raises(LocalError) as error:
            kind.parse(text)
        message = str(error.value)
        assert names in message
        assert "\n" not in message and len(message) < 350


def test_what_can_be_listened_on_but_not_dialed_and_the_other_way_round() -> None:
    with pytest.raises(LocalError, match="port 0"):
        PeerAddress.parse("/ip4/192.0.2.1/udp/0/quic-v1")
    with pytest.raises(LocalError, match=r"0\.0\.0\.0"):
        PeerAddress.parse("/ip4/0.0.0.0/udp/1/quic-v1")
    with pytest.raises(LocalError, match="/p2p/"):
        ListenAddress.parse(f"/ip4/192.0.2.1/udp/1/quic-v1/p2p/{ID}")
