"""Invitations: one text for each, and nothing else is one."""

from __future__ import annotations

import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from routing.errors import LocalError
from routing.identity import Identity
from routing.invitation import MAX_ADDRESSES, MAX_CHARS, PREFIX, Invitation, check_address
from routing.membership import MemberCertificate, Swarm

NOW = 1_800_000_000
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SWARM = Swarm("casa de Ana", KEY.public_key().public_bytes_raw())
ANA = Identity.from_private_key(Ed25519PrivateKey.from_private_bytes(bytes([1] * 32))).peer_id
CERTIFICATE = MemberCertificate.issue(KEY, SWARM, ANA, NOW, 10)
ADDRESSES = (
    f"/ip4/192.0.2.7/udp/4190/quic-v1/p2p/{ANA}",
    f"/ip6/2001:db8::1/tcp/4190/p2p/{ANA}",
    f"/dns4/relay.example.org/tcp/443/tls/ws/p2p/{ANA}",
)
LINE = Invitation(SWARM, CERTIFICATE, ADDRESSES).encode(KEY)


def raw(line: str) -> bytes:
    text = line.removeprefix(PREFIX)
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def line_of(data: bytes) -> str:
    return PREFIX + base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed(body: bytes) -> str:
    return line_of(body + KEY.sign(b"panal-invite-1\0" + body))


def test_there_and_back() -> None:
    assert Invitation.decode(LINE) == Invitation(SWARM, CERTIFICATE, ADDRESSES)
    bare = Invitation(SWARM, CERTIFICATE).encode(KEY)
    assert Invitation.decode(bare).addresses == ()
    assert len(bare) < 400 and "\n" not in LINE and LINE.isascii()


def test_line_ends_of_a_mail_do_no_harm() -> None:
    wrapped = "  " + "\r\n ".join(LINE[i : i + 60] for i in range(0, len(LINE), 60)) + "\n"
    assert Invitation.decode(wrapped) == Invitation.decode(LINE)


def test_the_longest_one_can_be_read() -> None:
    swarm = Swarm("\U0001f41d" * 40, SWARM.public_key)
    name = ".".join(["x" * 63] * 3 + ["y" * 61])
    addresses = tuple(f"/dns4/{name}/tcp/{65528 + n}/tls/ws/p2p/{ANA}" for n in range(MAX_ADDRESSES))
    certificate = MemberCertificate.issue(KEY, swarm, ANA, NOW, 10)
    line = Invitation(swarm, certificate, addresses).encode(KEY)
    assert len(line) < MAX_CHARS * 0.9
    assert Invitation.decode(line).addresses == addresses
    with pytest.raises(LocalError, match=f"up to {MAX_ADDRESSES}"):
        Invitation(swarm, certificate, (*addresses, ADDRESSES[0])).encode(KEY)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "should begin with"),
        ("panal-invitation:AAAA", "should begin with"),
        (PREFIX, "cut short"),
        (PREFIX + "!!!!", "not base64url"),
        (PREFIX + "AAAA=", "not base64url"),
        (PREFIX + "AAAAA", "not base64url"),
        (PREFIX + "ñ", "not base64url"),
        (LINE[:-20], "damaged or incomplete"),
        (line_of(raw(LINE)[:-20]), "cut short"),
        (LINE + "AAAA", "bytes after its end"),
        (line_of(b"\x02" + raw(LINE)[1:]), "version 2"),
        ("x" * (MAX_CHARS + 1), "characters"),
    ],
)
def test_what_is_no_invitation(text: str, words: str) -> None:
    with pytest.raises(LocalError, match=words) as error:
        Invitation.decode(text)
    assert len(str(error.value).splitlines()) == 1 and len(str(error.value)) < 300


def test_a_changed_bit_anywhere_is_noticed() -> None:
    data = raw(LINE)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1 << (position % 8)
        with pytest.raises(LocalError):
            Invitation.decode(line_of(bytes(changed)))


def test_only_the_swarms_own_key_makes_one() -> None:
    stranger = Ed25519PrivateKey.from_private_bytes(bytes(32))
    with pytest.raises(LocalError, match="not signed by its swarm's key"):
        Invitation.decode(Invitation(SWARM, CERTIFICATE).encode(stranger))
    other = Swarm("other", stranger.public_key().public_bytes_raw())
    with pytest.raises(LocalError, match="another swarm"):
        Invitation.decode(Invitation(other, CERTIFICATE).encode(stranger))


@pytest.mark.parametrize(
    "address",
    [
        "/ip4/192.0.2.7/udp/4190/quic-v1",
        "/ip4/192.0.2.7/udp/0/quic-v1",
        "",
        f"/ip4/192.0.2.7/tcp/080/p2p/{ANA}",
    ],
)
def test_addresses_are_checked_both_ways(address: str) -> None:
    with pytest.raises(LocalError):
        check_address(address)
    body = raw(Invitation(SWARM, CERTIFICATE).encode(KEY))[:-65] + b"\x01"
    body += len(address).to_bytes(2, "little") + address.encode()
    with pytest.raises(LocalError):
        Invitation.decode(signed(body))


def test_a_claimed_count_is_bounded() -> None:
    body = raw(Invitation(SWARM, CERTIFICATE).encode(KEY))[:-65] + b"\xff"
    with pytest.raises(LocalError, match="255 addresses"):
        Invitation.decode(signed(body))


@given(st.binary(max_size=400))
def test_any_bytes_give_one_line(data: bytes) -> None:
    for line in (line_of(data), signed(data), signed(b"\x01" + data)):
        with pytest.raises(LocalError) as error:
            Invitation.decode(line)
        assert len(str(error.value).splitlines()) == 1
