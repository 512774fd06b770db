"""Multiaddrs of the control plane: one text for each address, and nothing that can't be dialed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.control_address import MAX_ADDRESS_CHARS, CircuitAddress, ControlAddress
from routing.errors import LocalError
from routing.identity import Identity

PEER = Identity.generate().peer_id
OTHER = Identity.generate().peer_id


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/ip4/192.0.2.1/tcp/4001", ControlAddress("192.0.2.1", 4001)),
        (f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}", ControlAddress("192.0.2.1", 4001, "tcp", PEER)),
        ("/ip6/2001:db8::1/tcp/1", ControlAddress("2001:db8::1", 1, family="ip6")),
        ("/dns4/node.example.org/tcp/80/ws", ControlAddress("node.example.org", 80, "ws", family="dns4")),
        (
            f"/dns6/a-b.example/tcp/443/tls/ws/p2p/{PEER}",
            ControlAddress("a-b.example", 443, "wss", PEER, "dns6"),
        ),
    ],
)
def test_round_trip(text: str, expected: ControlAddress) -> None:
    address = ControlAddress.parse(text)
    assert address == expected
    assert str(address) == text
    assert ControlAddress.from_bytes(address.to_bytes()) == address


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("/dns4/Example.ORG/tcp/443/wss", "/dns4/example.org/tcp/443/tls/ws"),
        ("/ip6/2001:DB8:0::1/tcp/9", "/ip6/2001:db8::1/tcp/9"),
    ],
)
def test_several_spellings_become_one(text: str, canonical: str) -> None:
    assert str(ControlAddress.parse(text)) == canonical


def test_binary_form_is_the_specs() -> None:
    # from multiformats/multiaddr: ip4 is code 4, tcp 6, dns4 54, tls 448, ws 477
    assert ControlAddress.parse("/ip4/127.0.0.1/tcp/4001").to_bytes() == bytes.fromhex("047f000001060fa1")
    assert ControlAddress.parse("/dns4/a.bc/tcp/443/tls/ws").to_bytes() == bytes.fromhex(
        "3604612e6263" + "0601bb" + "c003" + "dd03"
    )


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "form"),
        ("ip4/192.0.2.1/tcp/1", "form"),
        ("/ip4/192.0.2.1/tcp", "form"),
        ("/ip4/192.0.2.1/udp/1", "'tcp'"),
        ("/ip4/192.0.2.1/tcp/0", "'0'"),
        ("/ip4/192.0.2.1/tcp/65536", "'65536'"),
        ("/ip4/192.0.2.1/tcp/080", "'080'"),
        ("/ip4/192.0.2.1/tcp/ 80", "' 80'"),
        ("/ip4/192.0.2.1/tcp/٣", "٣"),
        ("/ip4/192.0.2.300/tcp/1", "192.0.2.300"),
        ("/ip4/0.0.0.0/tcp/1", "can't be dialed"),
        ("/ip6/::/tcp/1", "can't be dialed"),
        ("/ip6/fe80::1%eth0/tcp/1", "zone"),
        ("/dns/example.org/tcp/1", "'dns'"),
        ("/dns4/192.0.2.1/tcp/1", "host name"),
        ("/dns4/-a.org/tcp/1", "host name"),
        ("/dns4/a..org/tcp/1", "host name"),
        ("/dns4/a b.org/tcp/1", "host name"),
        ("/dns4/" + "a" * 254 + "/tcp/1", "host name"),
        ("/ip4/192.0.2.1/tcp/1/", "at the end"),
        ("/ip4/192.0.2.1/tcp/1/quic-v1", "quic-v1"),
        ("/ip4/192.0.2.1/tcp/1/tls", "tls"),
        ("/ip4/192.0.2.1/tcp/1/p2p/QmNotOurs", "QmNotOurs"),
        (f"/ip4/192.0.2.1/tcp/1/p2p/{PEER}/p2p/{PEER}", "at the end"),
        (f"/ip4/192.0.2.1/tcp/1/p2p/{PEER}/p2p-circuit", "relay"),
        ("/ip4/192.0.2.1/tcp/1" + "/ws" * 200, "characters long"),
    ],
)
def test_refused_in_one_line_that_names_the_part(text: str, part: str) -> None:
    with pytest.raises(LocalError) as caught:
        ControlAddress.parse(text)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_circuits() -> None:
    text = f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}/p2p-circuit"
    circuit = CircuitAddress.parse(text)
    assert circuit == CircuitAddress(ControlAddress("192.0.2.1", 4001, "tcp", PEER))
    assert str(circuit) == text
    far = CircuitAddress.parse(f"{text}/p2p/{OTHER}")
    assert far.peer_id == OTHER and str(far) == f"{text}/p2p/{OTHER}"
    for wrong in (
        "/ip4/192.0.2.1/tcp/1",
        "/ip4/192.0.2.1/tcp/1/p2p-circuit",
        f"{text}x",
        f"{text}/p2p-circuit",
    ):
        with pytest.raises(LocalError):
            CircuitAddress.parse(wrong)


@given(st.binary(max_size=MAX_ADDRESS_CHARS + 5))
def test_any_bytes_give_an_address_or_a_value_error(data: bytes) -> None:
    try:
        address = ControlAddress.from_bytes(data)
    except ValueError:
        return
    assert ControlAddress.parse(str(address)) == address


@given(st.text(max_size=60))
def test_any_text_gives_an_address_or_a_local_error(text: str) -> None:
    try:
        address = ControlAddress.parse("/ip4/192.0.2.1/tcp/" + text)
    except LocalError as error:
        assert "\n" not in str(error)
    else:
        assert ControlAddress.parse(str(address)) == address
