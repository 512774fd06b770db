"""Swarm ids and member certificates: what is let in, and each way to be kept out."""

from __future__ import annotations

import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from routing.errors import LocalError
from routing.identity import Identity
from routing.membership import (
    CERTIFICATE_BYTES,
    CLOCK_SKEW,
    OPEN_SWARM,
    SECONDS_A_DAY,
    BadCertificateBytes,
    MemberCertificate,
    Membership,
    Swarm,
    check_member,
    check_proof,
    proof,
)

NOW = 1_800_000_000.5
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SWARM = Swarm("casa", KEY.public_key().public_bytes_raw())
ANA, BETO = (
    Identity.from_private_key(Ed25519PrivateKey.from_private_bytes(bytes([n] * 32))).peer_id for n in (1, 2)
)


def issue(swarm: Swarm = SWARM, key: Ed25519PrivateKey = KEY, days: int = 10, now: float = NOW) -> bytes:
    return MemberCertificate.issue(key, swarm, ANA, now, days).encode()


CERTIFICATE = issue()


def other_swarm(name: str = "casa") -> tuple[Swarm, Ed25519PrivateKey]:
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    return Swarm(name, key.public_key().public_bytes_raw()), key


# --- swarms ---


def test_the_id_is_what_the_protocol_says() -> None:
    assert OPEN_SWARM.id == blake3(b"panal-swarm-1\0" + b"\x05panal").digest()
    assert SWARM.id == blake3(b"panal-swarm-1\0" + b"\x04casa" + (SWARM.public_key or b"")).digest()
    assert Swarm("año").id == blake3(b"panal-swarm-1\0" + b"\x04a\xc3\xb1o").digest(), "bytes are counted"
    assert not OPEN_SWARM.is_private and SWARM.is_private


def test_swarms_of_another_name_or_key_are_others() -> None:
    key = bytes(32)
    # the last three would meet if name and key were only laid end to end
    swarms = [
        OPEN_SWARM,
        Swarm("Panal"),
        SWARM,
        other_swarm()[0],
        Swarm("casa"),
        Swarm("casa", b"b" * 32),
        Swarm("casab", b"b" * 31 + b"c"),
        Swarm("casa" + "b" * 32),
        Swarm("a", key),
    ]
    assert len({swarm.id for swarm in swarms}) == len(swarms)
    assert Swarm("panal") == OPEN_SWARM and Swarm("panal").id == OPEN_SWARM.id


@pytest.mark.parametrize(
    "name", ["", "x" * 41, "a\nb", "a\x00b", " casa", "casa ", "a\u202eb", "\ud800", "x" * 9999]
)
def test_what_cannot_be_a_name(name: str) -> None:
    with pytest.raises(LocalError, match="1 to 40 printable") as error:
        Swarm(name)
    assert len(str(error.value)) < 300 and str(error.value).isprintable()


def test_what_cannot_be_a_key() -> None:
    with pytest.raises(LocalError, match="31 bytes, 32 are needed"):
        Swarm("casa", bytes(31))


# --- certificates ---


def test_a_certificate_has_one_compact_form() -> None:
    assert len(CERTIFICATE) == CERTIFICATE_BYTES == 145
    certificate = MemberCertificate.decode(CERTIFICATE)
    assert certificate.encode() == CERTIFICATE
    assert certificate.peer_id == ANA and certificate.swarm_id == SWARM.id
    assert certificate.issued_at == int(NOW)
    assert certificate.not_after == int(NOW) + 10 * SECONDS_A_DAY
    assert certificate.is_signed_by(SWARM.public_key or b"")
    KEY.public_key().verify(CERTIFICATE[-64:], b"panal-member-1\0" + CERTIFICATE[:-64])


def test_a_member_is_let_in_while_its_certificate_lasts() -> None:
    end = int(NOW) + 10 * SECONDS_A_DAY
    for when in (NOW - CLOCK_SKEW, NOW, end, end + CLOCK_SKEW):
        assert check_member(SWARM, CERTIFICATE, ANA, when) == ""
    assert "issued in the future (2027-01-15" in check_member(SWARM, CERTIFICATE, ANA, NOW - CLOCK_SKEW - 1)
    late = check_member(SWARM, CERTIFICATE, ANA, end + CLOCK_SKEW + 1)
    assert "expired on 2027-01-25" in late and "ask for a new invitation" in late


def test_each_way_not_to_be_a_member_has_its_own_reason() -> None:
    swarm, key = other_swarm()
    body = CERTIFICATE[:-64]
    stranger = body + key.sign(b"panal-member-1\0" + body)
    foreign_domain = body + KEY.sign(b"panal-advert-1\0" + body)
    reasons = [
        check_member(SWARM, b"", ANA, NOW),
        check_member(SWARM, CERTIFICATE, BETO, NOW),
        check_member(SWARM, issue(swarm, key), ANA, NOW),
        check_member(SWARM, stranger, ANA, NOW),
        check_member(SWARM, CERTIFICATE[:-1], ANA, NOW),
    ]
    for reason, words in zip(
        reasons,
        ("not a member", f"another peer id, {ANA}", "another swarm", "another key", "malformed"),
        strict=True,
    ):
        assert words in reason
        assert len(reason.splitlines()) == 1 and "casa" not in reason, "strangers are told this"
    assert check_member(SWARM, foreign_domain, ANA, NOW) == reasons[3]
    assert len(set(reasons)) == len(reasons)


def test_an_open_swarm_has_no_certificates() -> None:
    assert check_member(OPEN_SWARM, b"", ANA, NOW) == ""
    assert "open swarm" in check_member(OPEN_SWARM, CERTIFICATE, ANA, NOW)


@pytest.mark.parametrize("position", range(CERTIFICATE_BYTES))
def test_every_changed_byte_is_noticed(position: int) -> None:
    for bit in (0, 7):
        changed = bytearray(CERTIFICATE)
        changed[position] ^= 1 << bit
        assert check_member(SWARM, bytes(changed), ANA, NOW) != ""


@given(st.binary(max_size=300))
def test_any_bytes_give_a_reason(data: bytes) -> None:
    assert check_member(SWARM, data, ANA, NOW) != ""
    assert check_proof(SWARM, data, ANA, NOW) != ""
    assert check_proof(SWARM, SWARM.id + data, ANA, NOW) != ""
    assert check_proof(OPEN_SWARM, data, ANA, NOW) != ""


def test_times_that_make_no_sense_are_malformed() -> None:
    for issued, ended in ((10, 10), (11, 10), (0, 2**64 - 1)):
        body = CERTIFICATE[:65] + issued.to_bytes(8, "little") + ended.to_bytes(8, "little")
        with pytest.raises(BadCertificateBytes, match="times"):
            MemberCertificate.decode(body + KEY.sign(b"panal-member-1\0" + body))


def test_only_the_swarms_key_issues_and_for_a_sensible_time() -> None:
    with pytest.raises(LocalError, match="not the key of swarm 'casa'"):
        issue(key=other_swarm()[1])
    with pytest.raises(LocalError, match="not the key"):
        issue(Swarm("casa"))
    for days in (0, -1, 3651):
        with pytest.raises(LocalError, match="1 to 3650 days"):
            issue(days=days)


# --- proofs ---


def test_a_proof_is_the_swarms_id_and_the_certificate() -> None:
    shown = proof(Membership(SWARM, CERTIFICATE))
    assert shown == SWARM.id + CERTIFICATE
    assert check_proof(SWARM, shown, ANA, NOW) == ""
    assert check_proof(SWARM, shown, BETO, NOW) != ""
    assert proof(Membership()) == OPEN_SWARM.id
    assert check_proof(OPEN_SWARM, OPEN_SWARM.id, ANA, NOW) == ""


def test_swarms_do_not_mix() -> None:
    open_other = Swarm("other")
    for ours, theirs in ((OPEN_SWARM, open_other), (OPEN_SWARM, SWARM), (SWARM, OPEN_SWARM)):
        assert check_proof(ours, proof(Membership(theirs, b"")), ANA, NOW) == (
            f"belongs to another swarm ({theirs.id[:8].hex()}...)"
        )


def test_only_an_open_swarm_takes_nodes_that_show_nothing() -> None:
    assert check_proof(OPEN_SWARM, None, ANA, NOW) == ""
    assert "shows no membership" in check_proof(SWARM, None, ANA, NOW)
    assert "malformed" in check_proof(OPEN_SWARM, b"", ANA, NOW)
