"""The Noise handshake in memory: who is proven, and what any damage on the way does."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from routing.identity import Identity, PeerId
from routing.libp2p.noise import Cipher, Handshake, NoiseError, WrongIdentity

DIALER, LISTENER = Identity.generate(), Identity.generate()


def pair(expected: PeerId | None = LISTENER.peer_id) -> tuple[Handshake, Handshake]:
    def side(identity: Identity, expected: PeerId | None, initiator: bool) -> Handshake:
        keys = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        return Handshake(identity, expected=expected, initiator=initiator, static=keys[0], ephemeral=keys[1])

    return side(DIALER, expected, True), side(LISTENER, None, False)


def test_both_sides_are_proven_and_share_keys() -> None:
    dialer, listener = pair()
    listener.read(dialer.write())
    dialer.read(listener.write())
    assert dialer.peer_id == LISTENER.peer_id and listener.peer_id is None and not listener.finished
    listener.read(dialer.write())
    assert listener.peer_id == DIALER.peer_id and dialer.finished and listener.finished
    (out, into), (back, come) = dialer.ciphers(), listener.ciphers()
    for text in (b"", b"first", bytes(65_000)):
        assert come.decrypt(out.encrypt(text)) == text
        assert into.decrypt(back.encrypt(text)) == text


def test_the_dialer_refuses_another_peer_before_it_names_itself() -> None:
    dialer, listener = pair(expected=DIALER.peer_id)
    listener.read(dialer.write())
    with pytest.raises(WrongIdentity, match=LISTENER.peer_id):
        dialer.read(listener.write())


def test_messages_must_come_in_order_and_once() -> None:
    ends = Cipher(bytes(32)), Cipher(bytes(32))
    first, second = ends[0].encrypt(b"1"), ends[0].encrypt(b"2")
    assert ends[1].decrypt(first) == b"1"
    for replayed in (first, second[:-1], b"", second + b"x"):
        with pytest.raises(NoiseError, match="not authentic"):
            Cipher(bytes(32)).decrypt(replayed) if replayed != first else ends[1].decrypt(replayed)


@given(message=st.integers(0, 2), position=st.integers(0, 300), change=st.integers(1, 255), cut=st.booleans())
def test_no_damage_goes_unnoticed(message: int, position: int, change: int, cut: bool) -> None:
    dialer, listener = pair()
    with pytest.raises(NoiseError):
        for number in range(3):
            sender, receiver = (dialer, listener) if number != 1 else (listener, dialer)
            data = bytearray(sender.write())
            if number == message:
                position %= len(data)
                if cut:
                    del data[position:]
                else:
                    data[position] ^= change
            receiver.read(bytes(data))


def test_a_degenerate_key_is_refused() -> None:
    dialer, listener = pair()
    dialer.write()
    listener.read(bytes(32))
    with pytest.raises(NoiseError, match="degenerate"):
        listener.write()
