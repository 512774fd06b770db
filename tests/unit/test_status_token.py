"""The secret for whatever changes something: its file, its header, the page's cookie."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.status.token import Token, read_token
from routing.errors import LocalError
from tests.adverts import identity

ANA, BEN = str(identity("ana").peer_id), str(identity("ben").peer_id)


def test_it_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "data" / "http-token"
    token = Token.load_or_create(path, ANA)
    secret = read_token(path)
    assert path.stat().st_mode & 0o777 == 0o600 and len(secret) == 64
    assert token.is_shown(secret) and Token.load_or_create(path, ANA).is_shown(secret)
    assert not token.is_shown(None) and not token.is_shown("") and not token.is_shown(secret[:-1])
    assert not token.is_shown("\u20ac" * 64)  # a header may hold anything
    assert secret not in repr(token)


def test_the_cookie_is_another_value_under_the_nodes_name(tmp_path: Path) -> None:
    token = Token.load_or_create(tmp_path / "http-token", ANA)
    secret = read_token(tmp_path / "http-token")
    assert token.is_in_cookie(token.cookie_value) and not token.is_in_cookie(secret)
    assert not token.is_shown(token.cookie_value) and not token.is_in_cookie(None)
    other = Token(secret, BEN)
    assert other.cookie_name != token.cookie_name == f"panal-{ANA[-8:]}"


@pytest.mark.parametrize("content", [b"", b"abc\n", b"g" * 64, b"0" * 64 + b"\nmore", b"0" * 9000])
def test_a_file_that_holds_something_else_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "http-token"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(LocalError, match="holds no token: remove it"):
        Token.load_or_create(path, ANA)


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "http-token"
    path.write_text("0" * 64)
    path.chmod(0o644)
    with pytest.raises(LocalError, match="chmod 600"):
        Token.load_or_create(path, ANA)
