"""What is said of a peer that is not reached."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from routing.identity import Identity
from routing.not_reached import COPY_ADDRESS, START, advice, describe, short, why

PEER = Identity.generate().peer_id
OTHER = Identity.generate().peer_id
QUIC = "/ip4/127.0.0.1/udp/4191/quic-v1"
TCP = "/ip4/127.0.0.1/tcp/4191"
END = f"…{PEER[-8:]}"


def test_one_that_is_off_is_named_once_and_each_address_without_its_id() -> None:
    label = f"{QUIC}/p2p/{PEER}"
    reason = f"{TCP}/p2p/{PEER}: connection refused; dialing {label}: no answer within 5 s"
    said = f"{TCP}: connection refused; {QUIC}: no answer within 5 s"
    assert why(label, reason) == said
    assert describe(label, reason) == f"{END}: {said}"
    assert advice(reason) == START


def test_the_label_is_not_said_again() -> None:
    assert why(f"{QUIC}/p2p/{PEER}", f"dialing {QUIC}/p2p/{PEER}: no answer within 5 s") == (
        "no answer within 5 s"
    )
    assert why(PEER, f"{PEER}: no way to it is known") == "no way to it is known"
    assert describe(PEER, "no way to it is known") == f"{END}: no way to it is known"
    assert why("relay.example", "no answer") == "no answer"


def test_who_answers_instead_is_named() -> None:
    reason = f"{OTHER} answered instead of {PEER}"
    assert describe(f"{QUIC}/p2p/{PEER}", reason) == f"{QUIC}: {short(OTHER)} answered instead of {END}"
    assert advice(reason) == COPY_ADDRESS


@given(st.text(max_size=40), st.lists(st.sampled_from([PEER, OTHER, QUIC, TCP, "/p2p/", "; ", ": ", "x"])))
def test_no_whole_id_is_left_and_nothing_raises(label: str, parts: list[str]) -> None:
    said = describe(label, " ".join(parts))
    assert PEER not in said and OTHER not in said
