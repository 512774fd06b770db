"""Key files and peer ids: round trips, agreement with py-libp2p, and every way a key file can be wrong."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from routing.errors import LocalError
from routing.identity import (
    Identity,
    decode_public_key,
    encode_public_key,
    parse_peer_id,
    peer_id_of,
    public_key_of,
)

# seed 00 01 02 ... 1f; the peer id was computed with py-libp2p 0.8.1
SEED = bytes(range(32))
PEER_ID = "12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB"

# the Ed25519 test vectors of libp2p's peer-ids.md
SPEC_PRIVATE_KEY = bytes.fromhex(
    "080112407e0830617c4a7de83925dfb2694556b12936c477a0e1feb2e148ec9da60fee7d"
    "1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e"
)
SPEC_PUBLIC_KEY = bytes.fromhex("080112201ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e")


def one_line(error: pytest.ExceptionInfo[LocalError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def test_a_key_made_once_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "state" / "node" / "key"
    made = Identity.load_or_create(path)
    assert Identity.load_or_create(path).peer_id == made.peer_id
    assert Identity.load(path).private_key.private_bytes_raw() == made.private_key.private_bytes_raw()


def test_key_file_and_folder_belong_to_the_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "key"
    old = os.umask(0)
    try:
        Identity.load_or_create(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [each.name for each in path.parent.iterdir()] == ["key"], "a temporary file was left behind"


def test_key_file_is_libp2ps_private_key_protobuf(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(SPEC_PRIVATE_KEY)
    path.chmod(0o600)
    assert encode_public_key(Identity.load(path).public_key) == SPEC_PUBLIC_KEY


def test_known_peer_id() -> None:
    assert Identity.from_private_key(Ed25519PrivateKey.from_private_bytes(SEED)).peer_id == PEER_ID


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620])
def test_a_key_others_could_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    Identity.load_or_create(path)
    path.chmod(mode)
    with pytest.raises(LocalError) as error:
        Identity.load(path)
    assert f"chmod 600 {path}" in one_line(error)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x",
        b"\x08\x01\x12\x40" + bytes(63),
        b"\x08\x01\x12\x40" + bytes(65),
        b"\x08\x00\x12\x40" + bytes(64),
    ],
)
def test_a_file_that_is_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(LocalError) as error:
        Identity.load_or_create(path)
    assert str(path) in one_line(error)
    assert path.read_bytes() == content, "a damaged key must not be overwritten"


def test_a_key_whose_halves_differ_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"\x08\x01\x12\x40" + SEED + bytes(32))
    path.chmod(0o600)
    with pytest.raises(LocalError, match="damaged"):
        Identity.load(path)


def test_missing_unreadable_and_odd_files(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="does not exist"):
        Identity.load(tmp_path / "none")
    with pytest.raises(LocalError, match="not a regular file"):
        Identity.load(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(LocalError, match="not a regular file"):
        Identity.load_or_create(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LocalError, match=r"can't be (written|read)") as error:
        Identity.load_or_create(tmp_path / "file" / "key")
    one_line(error)


def test_peer_id_and_public_key_say_the_same() -> None:
    identity = Identity.generate()
    assert public_key_of(identity.peer_id).public_bytes_raw() == identity.public_key.public_bytes_raw()
    assert peer_id_of(decode_public_key(encode_public_key(identity.public_key))) == identity.peer_id
    assert parse_peer_id(identity.peer_id) == identity.peer_id


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "begin with"),
        ("12D3KooW", "has 8 characters, 52 are needed"),
        (PEER_ID[:-1], "has 51 characters, 52 are needed"),
        (PEER_ID + "1", "has 53 characters, 52 are needed"),
        ("12D3KooW" + "z" * 44, "one of its characters is wrong"),
        ("12D3KooW" + "1" * 44, "one of its characters is wrong"),
        ("12D3KooW" + "1" * 100_000, "has 100008 characters"),
        ("1" + PEER_ID[:-1], "begin with"),
        (PEER_ID[:-1] + "0", "base58"),
        (PEER_ID[:-1] + " ", "base58"),
        ("QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", "begin with"),
        ("A" * 100_000, "too long"),
    ],
)
def test_other_texts_are_no_peer_ids(text: str, why: str) -> None:
    with pytest.raises(LocalError, match=why) as error:
        parse_peer_id(text)
    assert len(one_line(error)) < 250


@pytest.mark.slow
def test_py_libp2p_agrees() -> None:
    pytest.importorskip("libp2p")
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.peer.id import ID

    assert str(ID.from_pubkey(create_new_key_pair(SEED).public_key)) == PEER_ID
    for _ in range(20):
        ours = Identity.generate()
        # py-libp2p keeps the seed alone where the specification has seed and public key
        theirs = create_new_key_pair(ours.private_key.private_bytes_raw())
        assert str(ID.from_pubkey(theirs.public_key)) == ours.peer_id
        assert theirs.public_key.serialize() == encode_public_key(ours.public_key)
        assert ID.from_base58(ours.peer_id).to_bytes() == b"\x00\x24" + encode_public_key(ours.public_key)
