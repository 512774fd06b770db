"""Receipts and the messages of `/panal/market/1`: exact bytes, signatures, and whatever a peer may send."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from market.market_wire import (
    MAX_MESSAGE_BYTES,
    MAX_SHOWN,
    Countersigned,
    Hello,
    MarketMessage,
    NotSigned,
    Offer,
    Reason,
    decode,
    encode,
)
from market.receipt import (
    BODY_BYTES,
    FULL_BYTES,
    MAX_TOTAL,
    OFFERED_BYTES,
    BadReceiptBytes,
    Kind,
    Receipt,
    SignedReceipt,
    contradiction,
    sign,
    signed_double,
)
from routing.wire.experts import ProtocolError
from tests.market_books import MODEL, NOW, PRICE, QUOTE, identity

ANN, BOB, EVE = identity("ann"), identity("bob"), identity("eve")
EPOCH = int(NOW) // 3600
WORK = Receipt(
    Kind.WORK, ANN.peer_id, BOB.peer_id, EPOCH, 4, (EPOCH - 2, 9), 10, 10 * PRICE, MODEL.hex(), QUOTE
)
PAID = Receipt(Kind.PAID, ANN.peer_id, BOB.peer_id, EPOCH, 1, (0, 0), 0, 5_000)
OFFERED = sign(WORK, ANN.private_key)
FULL = OFFERED.countersigned(BOB.private_key)

MESSAGES: list[MarketMessage] = [
    Hello(),
    Hello((FULL,) * MAX_SHOWN, back=True),
    Offer(OFFERED),
    Countersigned(FULL, 17),
    NotSigned(Reason.BEHIND, "number 5 is signed already", FULL, 3),
    NotSigned(Reason.QUOTE, ""),
]


def test_a_receipt_is_these_bytes() -> None:
    body = WORK.encode()
    assert (len(body), BODY_BYTES, OFFERED_BYTES, FULL_BYTES) == (138, 138, 202, 266)
    assert body[:2] == b"\1\1"
    assert body[2:34] == ANN.public_key.public_bytes_raw()
    assert body[34:66] == BOB.public_key.public_bytes_raw()
    numbers = (EPOCH, 4, EPOCH - 2, 9)
    assert body[66:82] == b"".join(number.to_bytes(4, "little") for number in numbers)
    assert body[82:98] == (10).to_bytes(8, "little") + (10 * PRICE).to_bytes(8, "little")
    assert body[98:130] == MODEL
    assert body[130:] == QUOTE.to_bytes(8, "little")
    assert Receipt.decode(body) == WORK
    assert SignedReceipt.decode(FULL.encode()) == FULL
    # with both signatures: what other versions have signed must stay good
    assert blake3(FULL.encode()).hexdigest() == (
        "b58a7cb0226db5d5ba4a7c53cf73f9834e792859880b13f215e1507912b96f15"
    )


def test_both_signatures_are_of_who_must_sign() -> None:
    assert OFFERED.fault() == FULL.fault() == ""
    assert sign(WORK, EVE.private_key).fault() == "is not signed by its issuer"
    assert OFFERED.countersigned(EVE.private_key).fault() == "is not countersigned by the other side"
    # a settlement is signed by the creditor first
    assert sign(PAID, BOB.private_key).countersigned(ANN.private_key).fault() == ""
    assert sign(PAID, ANN.private_key).fault() == "is not signed by its issuer"
    # the first signature is worth nothing as the second, nor for other content
    assert replace(OFFERED, second=OFFERED.first).fault() != ""
    assert replace(FULL, receipt=replace(WORK, credits=WORK.credits + 1)).fault() != ""


@pytest.mark.parametrize("field", range(BODY_BYTES + 128))
def test_a_receipt_with_one_bit_changed_is_none(field: int) -> None:
    data = bytearray(FULL.encode())
    data[field] ^= 1
    try:
        assert SignedReceipt.decode(bytes(data)).fault() != ""
    except BadReceiptBytes:
        pass


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda body: body[:-1], "137 bytes"),
        (lambda body: b"\2" + body[1:], "version 2"),
        (lambda body: body[:1] + b"\x09" + body[2:], "kind 9"),
        (lambda body: body[:34] + body[2:34] + body[66:], "the same"),
        (lambda body: body[:70] + bytes(4) + body[74:], "out of range"),
        (lambda body: body[:90] + bytes(8) + body[98:], "out of range"),
        (lambda body: body[:90] + b"\xff" * 8 + body[98:], "out of range"),
        (lambda body: body[:82] + b"\xff" * 8 + body[90:], "out of range"),
        (lambda body: body[:74] + body[66:70] + body[78:], "earlier epoch"),
        (lambda body: body[:78] + bytes(4) + body[82:], "earlier epoch"),
        (lambda body: body[:1] + b"\2" + body[2:], "settlement with pairs"),
    ],
)
def test_a_bad_body_says_what_is_wrong(change: Callable[[bytes], bytes], said: str) -> None:
    with pytest.raises(BadReceiptBytes, match=said):
        Receipt.decode(change(WORK.encode()))


def test_the_largest_amounts_travel() -> None:
    most = replace(WORK, credits=MAX_TOTAL, pairs=MAX_TOTAL, quote=MAX_TOTAL, n=2**32 - 1, epoch=2**32 - 1)
    assert Receipt.decode(most.encode()) == most


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_wire(message: MarketMessage) -> None:
    data = encode(message)
    assert len(data) <= MAX_MESSAGE_BYTES
    assert decode(data, "bob") == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_that_is_cut_or_longer_is_refused(message: MarketMessage) -> None:
    data = encode(message)
    text = len(message.text) if isinstance(message, NotSigned) else 0  # it may end anywhere
    for size in range(len(data) - text):
        with pytest.raises(ProtocolError, match="market message of bob"):
            decode(data[:size], "bob")
    with pytest.raises(ProtocolError):
        decode(data + bytes(MAX_MESSAGE_BYTES), "bob")


@given(st.binary(max_size=MAX_MESSAGE_BYTES + 8))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        message = decode(data, "bob")
    except ProtocolError:
        return
    if not isinstance(message, NotSigned):  # its text is made printable
        assert encode(message) == data


@given(
    kind=st.sampled_from(range(len(MESSAGES))),
    changes=st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 255)), max_size=4),
)
def test_changed_bytes_are_a_message_or_refused(kind: int, changes: list[tuple[int, int]]) -> None:
    data = bytearray(encode(MESSAGES[kind]))
    for place, byte in changes:
        data[place % len(data)] = byte
    try:
        decode(bytes(data), "bob")
    except ProtocolError as error:
        assert "\n" not in str(error)


def test_a_refusal_cannot_command_a_terminal() -> None:
    message = decode(encode(NotSigned(Reason.QUOTE, "old\x1b[2J\nquote")), "bob")
    assert isinstance(message, NotSigned)
    assert message.text == "old [2J quote"


# --- double signing ---


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (replace(WORK, credits=WORK.credits + 1), "two receipts number 4"),
        (replace(WORK, n=5, credits=WORK.credits - 1), "says less than number 4"),
        (replace(WORK, n=3, pairs=WORK.pairs + 1), "says less than number 3"),
        (replace(WORK, n=5, previous=(EPOCH - 2, 8)), "follows an earlier one"),
        (WORK, ""),
        (replace(WORK, n=5), ""),
        (replace(WORK, n=5, credits=WORK.credits + 1), ""),
        (replace(WORK, n=5, credits=1, pairs=1, previous=(EPOCH - 1, 1)), ""),
        (replace(WORK, credits=1, epoch=EPOCH + 1), ""),
        (replace(WORK, credits=1, payee=EVE.peer_id), ""),
        (replace(PAID, n=4), ""),
    ],
)
def test_two_receipts_contradict_each_other_or_do_not(other: Receipt, why: str) -> None:
    for pair in ((WORK, other), (other, WORK)):
        assert why in contradiction(*pair)
        assert bool(contradiction(*pair)) == bool(why)


def test_nobody_is_convicted_by_a_signature_that_is_not_his() -> None:
    other = replace(WORK, credits=WORK.credits + 1)
    assert signed_double(OFFERED, sign(other, ANN.private_key)) != ""
    assert signed_double(OFFERED, sign(other, EVE.private_key)) == ""
