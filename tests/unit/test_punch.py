"""What a punch says, whom it probes and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.punch_plan import (
    LAST_PAUSE,
    MAX_CANDIDATES,
    MAX_MESSAGE_BYTES,
    PROBE_SECONDS,
    CallBack,
    Connect,
    Message,
    Outcome,
    PunchError,
    PunchFailed,
    Sync,
    decode,
    dials,
    encode,
    expect,
    pack_addresses,
    pauses,
    targets,
    unpack_addresses,
)

NONCE = bytes(16)
OURS = [("9.1.2.3", 4190), ("192.168.1.10", 4190)]


@pytest.mark.parametrize(
    "message",
    [
        Connect(NONCE, pack_addresses([("1.2.3.4", 5), ("2001:db8::1", 65535)])),
        Connect(NONCE, []),
        Sync(),
        CallBack(NONCE, pack_addresses([("1.2.3.4", 5)])),
        Outcome(True),
        Outcome(False, "no", True),
    ],
)
def test_messages_come_back_as_they_were(message: Message) -> None:
    assert decode(encode(message)) == message


def test_the_largest_message_fits() -> None:
    addresses = [(f"2001:db8::{i}", 65535) for i in range(MAX_CANDIDATES + 3)]
    assert len(encode(Connect(NONCE, pack_addresses(addresses)))) <= MAX_MESSAGE_BYTES
    assert len(encode(Outcome(False, "x" * 5000, True))) <= MAX_MESSAGE_BYTES


@given(st.binary(max_size=MAX_MESSAGE_BYTES + 8))
def test_any_bytes_are_a_message_or_one_error(data: bytes) -> None:
    try:
        decode(data, peer="P")
    except PunchError as error:
        assert "\n" not in str(error) and error.peer == "P"


def test_a_message_out_of_turn() -> None:
    assert expect(Sync(), Sync, peer="P") == Sync()
    with pytest.raises(PunchError, match="call_back where connect belongs"):
        expect(CallBack(NONCE, []), Connect, peer="P")
    with pytest.raises(PunchFailed, match="gave the punch up: too busy"):
        expect(Outcome(False, "too busy"), Sync, peer="P")


def test_addresses() -> None:
    addresses = [("1.2.3.4", 5), ("2001:db8::1", 65535)]
    assert unpack_addresses(pack_addresses(addresses)) == addresses
    assert unpack_addresses(pack_addresses([("1.2.3.4", 5), ("carried", 1), ("1.2.3.4", 5)])) == [
        ("1.2.3.4", 5)
    ]
    assert unpack_addresses([b"1234567"]) == []


@pytest.mark.parametrize(
    ("theirs", "ours", "expected"),
    [
        pytest.param([("8.8.8.8", 5000)], OURS, [("8.8.8.8", 5000)], id="far away"),
        pytest.param(
            [("8.8.8.8", 5000), ("192.168.1.20", 4190)], OURS, [("8.8.8.8", 5000)], id="not our network"
        ),
        pytest.param(
            [("9.1.2.3", 5000), ("192.168.1.20", 4190)],
            OURS,
            [("9.1.2.3", 5000), ("192.168.1.20", 4190)],
            id="same NAT",
        ),
        pytest.param(
            [("9.1.2.3", 5000), ("127.0.0.1", 4190), ("224.0.0.1", 4190), ("192.168.1.20", 53)],
            OURS,
            [("9.1.2.3", 5000)],
            id="same NAT, not this machine, no group, no low port",
        ),
        pytest.param(
            [("10.0.0.1", 5000)], [("10.9.9.9", 4190)], [("10.0.0.1", 5000)], id="a private internet"
        ),
        pytest.param([("127.0.0.1", 5000)], [("127.0.0.1", 6000)], [("127.0.0.1", 5000)], id="one machine"),
        pytest.param([OURS[0]], OURS, [], id="ourselves"),
        pytest.param([("10.0.0.1", 5000), ("8.8.8.8", 5000)], [], [("8.8.8.8", 5000)], id="we know nothing"),
        pytest.param(
            [(f"8.8.8.{i}", 5000) for i in range(9)],
            OURS,
            [(f"8.8.8.{i}", 5000) for i in range(4)],
            id="many",
        ),
    ],
)
def test_whom_a_punch_probes(
    theirs: list[tuple[str, int]], ours: list[tuple[str, int]], expected: list[tuple[str, int]]
) -> None:
    assert targets(theirs, ours) == expected


def test_the_schedule_begins_fast_ends_in_time_and_sends_little() -> None:
    schedule = list(pauses())
    assert schedule[0] == 0.02
    assert sum(schedule) == pytest.approx(PROBE_SECONDS)
    assert max(schedule) == LAST_PAUSE
    # what one punch may send at most, as relay.punch says
    assert len(schedule) <= 20


def test_exactly_one_side_dials() -> None:
    assert dials("12D3a", "12D3b") is not dials("12D3b", "12D3a")
