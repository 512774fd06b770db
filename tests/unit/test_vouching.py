"""`/panal/vouch/1`: exact bytes, whatever a peer may send, what is told, and what of it counts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from market.hearsay import MAX_VOUCHED, MAX_VOUCHERS
from market.receipt import CREDIT, FULL_BYTES, MAX_TOTAL, Kind, Receipt, SignedReceipt, sign
from market.stream import Issuing
from market.vouch_wire import (
    ASK_BYTES,
    EPOCHS_TOLD,
    MAX_ANSWER_BYTES,
    MAX_TOLD,
    check_ask,
    decode_told,
    encode_ask,
    encode_told,
)
from market.vouching import OLDEST_EPOCHS, Vouched, told_to
from routing.wire.experts import ProtocolError
from tests.market_books import MODEL, NOW, QUOTE, Side, folder, greet, identity, settle

ANN, BOB, EVE, WE = identity("ann"), identity("bob"), identity("eve"), identity("we")
EPOCH = int(NOW) // 3600


def receipt(
    payee: str = "bob",
    credits: int = 5 * CREDIT,
    epoch: int = EPOCH,
    n: int = 1,
    previous: tuple[int, int] = (0, 0),
) -> Receipt:
    """Ann has paid somebody."""
    return Receipt(
        Kind.WORK, ANN.peer_id, identity(payee).peer_id, epoch, n, previous, 10, credits, MODEL.hex(), QUOTE
    )


def signed(told: Receipt, payee: str = "bob") -> SignedReceipt:
    return sign(told, ANN.private_key).countersigned(identity(payee).private_key)


def unsigned(told: Receipt) -> SignedReceipt:
    """Full as far as anybody can see that does not check signatures."""
    return SignedReceipt(told, bytes(64), bytes(64))


BOBS = signed(receipt())
EVES = signed(receipt("eve", 7), "eve")


# --- the wire ---


def test_a_question_and_an_answer_are_these_bytes() -> None:
    assert encode_ask() == b"\1\1\0\0" and len(encode_ask()) == ASK_BYTES
    check_ask(b"\1\1\0\0", "ann")
    assert encode_told([]) == b"\1\2\0\0"
    ordered = sorted([BOBS, EVES], key=lambda each: each.receipt.payee)
    data = encode_told([BOBS, EVES])
    assert data == b"\1\2\2\0" + ordered[0].encode() + ordered[1].encode()
    assert data == encode_told([EVES, BOBS])
    assert decode_told(data, ANN.peer_id) == tuple(ordered)
    assert decode_told(encode_told([]), ANN.peer_id) == ()


def test_the_longest_answer_travels() -> None:
    most = [
        unsigned(receipt(f"payee {number}", epoch=EPOCH + hour))
        for number in range(MAX_TOLD // EPOCHS_TOLD)
        for hour in range(EPOCHS_TOLD)
    ]
    data = encode_told(most)
    assert len(data) == MAX_ANSWER_BYTES
    assert len(decode_told(data, ANN.peer_id)) == MAX_TOLD
    extra = unsigned(receipt("one more"))
    with pytest.raises(ProtocolError, match="bytes"):
        decode_told(encode_told([*most, extra]), ANN.peer_id)


PAID = Receipt(Kind.PAID, ANN.peer_id, BOB.peer_id, EPOCH, 1, (0, 0), 0, 5_000)
FORGIVEN = replace(PAID, kind=Kind.FORGIVEN)
OF_EVE = Receipt(Kind.WORK, EVE.peer_id, BOB.peer_id, EPOCH, 1, (0, 0), 1, 1, MODEL.hex(), QUOTE)
TO_ANN = Receipt(Kind.WORK, BOB.peer_id, ANN.peer_id, EPOCH, 1, (0, 0), 1, 1, MODEL.hex(), QUOTE)


def raw(*told: SignedReceipt) -> bytes:
    return bytes([1, 2, len(told), 0]) + b"".join(each.encode() for each in told)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "0 bytes"),
        (b"\1\2\0", "3 bytes"),
        (bytes(MAX_ANSWER_BYTES + 1), "bytes"),
        (b"\2\2\0\0", "version 2"),
        (b"\1\1\0\0", "type 1"),
        (b"\1\2\0\1", "no answer"),
        (b"\1\2\1\0", "1 receipts in 4 bytes"),
        (raw(BOBS)[:-1], "1 receipts in"),
        (raw(BOBS) + b"\0", "1 receipts in"),
        (b"\1\2\xff\0" + bytes(MAX_TOLD * FULL_BYTES), "255 receipts"),
        (raw(BOBS, BOBS), "twice"),
        (raw(*sorted([BOBS, EVES], key=lambda each: each.receipt.payee, reverse=True)), "out of order"),
        (raw(BOBS, unsigned(receipt(epoch=EPOCH - 1))), "out of order"),
        (raw(*(unsigned(receipt(epoch=EPOCH + hour)) for hour in range(3))), "more than 2 hours"),
        (raw(unsigned(PAID)), "only work vouches"),
        (raw(unsigned(FORGIVEN)), "only work vouches"),
        (raw(unsigned(OF_EVE)), "not its own"),
        (raw(unsigned(TO_ANN)), "not its own"),
        (b"\1\2\1\0\3" + BOBS.encode()[1:], "version 3 is unknown"),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_says_what_is_wrong(data: bytes, said: str) -> None:
    with pytest.raises(ProtocolError, match=said) as told:
        decode_told(data, ANN.peer_id)
    assert told.value.peer == ANN.peer_id and "\n" not in str(told.value)


@pytest.mark.parametrize("data", [b"", b"\1\1\0", b"\1\1\0\1", b"\1\2\0\0", b"\2\1\0\0", b"\1\1\0\0\0"])
def test_a_question_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="unknown here"):
        check_ask(data, "ann")


@given(st.binary(max_size=3 * FULL_BYTES) | st.binary(max_size=64).map(lambda rest: b"\1\2\1\0" + rest))
def test_any_bytes_are_an_answer_or_refused(data: bytes) -> None:
    try:
        told = decode_told(data, ANN.peer_id)
    except ProtocolError:
        return
    assert encode_told(told) == data


@given(changes=st.lists(st.tuples(st.integers(0, 4_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes_are_refused_or_not_signed(changes: list[tuple[int, int]]) -> None:
    before = encode_told([BOBS, EVES])
    data = bytearray(before)
    for place, byte in changes:
        data[place % len(data)] = byte
    try:
        told = decode_told(bytes(data), ANN.peer_id)
    except ProtocolError:
        return
    assert encode_told(told) == data
    assert data == before or any(each.fault() for each in told)


# --- what counts ---


def total_of(*answers: list[Receipt], now: float = NOW, vouched: Vouched | None = None) -> dict[str, float]:
    """Credits by payee after these answers of Ann."""
    vouched = Vouched(WE.peer_id) if vouched is None else vouched
    for answer in answers:
        told = decode_told(encode_told([unsigned(each) for each in answer]), ANN.peer_id)
        vouched.take(ANN.peer_id, vouched.news(ANN.peer_id, told, now))
    return dict(vouched.totals(ANN.peer_id))


def test_hours_that_rest_on_each_other_add_up_and_nothing_counts_twice() -> None:
    first = receipt(credits=5 * CREDIT, epoch=EPOCH - 1, n=3)
    more = replace(first, n=4, credits=6 * CREDIT)
    later = receipt(credits=2 * CREDIT, n=5, previous=(EPOCH - 1, 4))
    bob = BOB.peer_id
    assert total_of([first]) == {bob: 5.0}
    assert total_of([first], [first], [more], [more], [first]) == {bob: 6.0}
    assert total_of([first], [more, later]) == total_of([more, later], [first], [later]) == {bob: 8.0}
    # asked too seldom: what the first hour came to is not known, what it was at least is
    assert total_of([first], [later]) == {bob: 7.0}
    assert total_of([later]) == {bob: 2.0}


def test_the_same_work_in_several_hours_counts_once() -> None:
    """A receipt that does not rest on what is known covers some of it again, for all anybody can say."""
    first = receipt(credits=5 * CREDIT, epoch=EPOCH - 2, n=3)
    again = receipt(credits=5 * CREDIT, epoch=EPOCH - 1, n=4)
    and_again = receipt(credits=4 * CREDIT, n=5, previous=(EPOCH - 2, 2))
    more = receipt(credits=9 * CREDIT, n=5)
    bob = BOB.peer_id
    assert total_of([first], [again]) == total_of([first], [again], [and_again]) == {bob: 5.0}
    assert total_of([first], [again], [more]) == {bob: 9.0}
    # and in one hour: a total is behind if it rests on less
    chained = receipt(credits=1 * CREDIT, epoch=EPOCH - 1, n=4, previous=(EPOCH - 2, 3))
    loose = replace(chained, n=5, credits=5 * CREDIT, previous=(0, 0))
    assert total_of([first], [chained], [loose]) == {bob: 6.0}


@given(
    told=st.lists(
        st.tuples(
            st.integers(1, 4), st.integers(1, 9), st.integers(0, 3), st.integers(1, 9), st.integers(1, 20)
        ),
        max_size=12,
    ),
    ask=st.integers(1, 3),
)
@settings(max_examples=200)
def test_no_order_or_repetition_counts_more_than_what_was_signed(
    told: list[tuple[int, int, int, int, int]], ask: int
) -> None:
    """Whatever a voucher signs and however often it tells it: never more than each hour's largest total."""
    receipts = [
        receipt(
            credits=credits, epoch=EPOCH - 4 + hour, n=n,
            previous=(EPOCH - 4 + before, before_n) if 0 < before < hour else (0, 0),
        )
        for hour, n, before, before_n, credits in told
    ]  # fmt: skip
    vouched = Vouched(WE.peer_id)
    seen = 0.0
    for each in receipts:
        for _ in range(ask):
            total = total_of([each], vouched=vouched)[BOB.peer_id]
            assert total >= seen, "what was heard is not unsaid"
            seen = total
        assert vouched.news(ANN.peer_id, [unsigned(each)], NOW) == []
    hours: dict[int, int] = {}
    for each in receipts:
        hours[each.epoch] = max(each.credits, hours.get(each.epoch, 0))
    assert seen <= sum(hours.values()) / CREDIT + 1e-9


def test_only_news_has_its_signatures_looked_at() -> None:
    vouched = Vouched(WE.peer_id)
    ours = unsigned(replace(receipt(), payee=WE.peer_id))
    assert vouched.news(ANN.peer_id, [BOBS, ours], NOW) == [BOBS]
    assert dict(vouched.totals(ANN.peer_id)) == {}, "to look is not to take"
    vouched.take(ANN.peer_id, [BOBS])
    assert vouched.news(ANN.peer_id, [BOBS, EVES], NOW) == [EVES]


@pytest.mark.parametrize("hours", [-OLDEST_EPOCHS - 1, 1, 100, 2**31])
def test_an_hour_long_over_or_not_begun_does_not_count(hours: int) -> None:
    assert total_of([receipt(epoch=EPOCH + hours)]) == {}


def test_a_clock_that_is_a_little_slow_hears_all_the_same() -> None:
    assert total_of([receipt()], now=NOW - 100) == {BOB.peer_id: 5.0}
    assert total_of([receipt(epoch=EPOCH - OLDEST_EPOCHS)]) == {BOB.peer_id: 5.0}


def test_the_largest_amounts_add_up() -> None:
    first = receipt(credits=MAX_TOTAL, epoch=EPOCH - 1)
    later = receipt(credits=MAX_TOTAL, n=2, previous=(EPOCH - 1, 1))
    assert total_of([first, later]) == {BOB.peer_id: 2 * MAX_TOTAL / CREDIT}


def test_memory_is_bounded() -> None:
    vouched = Vouched(WE.peer_id)
    for number in range(MAX_VOUCHED + 8):
        vouched.take(ANN.peer_id, [unsigned(receipt(f"payee {number}"))])
    assert len(dict(vouched.totals(ANN.peer_id))) == MAX_VOUCHED
    for number in range(MAX_VOUCHERS + 8):
        vouched.take(f"voucher {number}", [BOBS])
    assert len(vouched._chains) == MAX_VOUCHERS
    assert dict(vouched.totals(ANN.peer_id)) == {}, "the longest unheard goes first"


# --- what is told ---


@cache
def payee_stream(payee: str, credits: int, hours_ago: int) -> Issuing:
    stream = Issuing(ANN.peer_id, identity(payee).peer_id, Kind.WORK)
    earlier = receipt(payee, 1, EPOCH - hours_ago - 1)
    last = receipt(payee, credits, EPOCH - hours_ago, 2, (EPOCH - hours_ago - 1, 1))
    stream.restore(unsigned(last), unsigned(earlier), 2, credits + 1)
    return stream


def test_the_latest_and_the_largest_are_told() -> None:
    most = MAX_TOLD // EPOCHS_TOLD
    latest = [payee_stream(f"busy {number}", 10 + number, 0) for number in range(most - 1)]
    older = [payee_stream(f"older {number}", 1_000 + number, 2) for number in range(3)]
    never = Issuing(ANN.peer_id, EVE.peer_id, Kind.WORK)
    told = told_to(WE.peer_id, [*older, never, *latest], NOW)
    assert len(told) == MAX_TOLD
    payees = {each.receipt.payee for each in told}
    assert payees == {each.payee for each in latest} | {older[-1].payee}
    assert decode_told(encode_told(told), ANN.peer_id)


def test_the_asker_is_not_told_of_itself_and_nothing_that_is_long_over() -> None:
    mine, old = payee_stream("we", 5, 0), payee_stream("old", 5, OLDEST_EPOCHS + 1)
    edge = payee_stream("edge", 5, OLDEST_EPOCHS)
    told = told_to(WE.peer_id, [mine, old, edge], NOW)
    assert [each.receipt.payee for each in told] == [edge.payee]


def test_books_tell_who_was_paid_to_those_they_have_receipts_with() -> None:
    with folder() as path:
        ann, bob, cleo = (Side(name, path) for name in ("ann", "bob", "cleo"))
        greet(ann, bob, NOW)
        assert bob.serve(ann, 100, NOW) == "" and settle(ann, bob, NOW) == ""
        assert ann.books.vouches(cleo.peer, NOW) == [], "nothing to strangers"
        assert ann.serve(cleo, 100, NOW) == ""
        assert ann.books.vouches(cleo.peer, NOW) == [], "nor before both have signed"
        assert settle(cleo, ann, NOW) == ""
        (told,) = ann.books.vouches(cleo.peer, NOW)
        assert (told.receipt.payer, told.receipt.payee) == (ann.peer, bob.peer) and told.fault() == ""
        assert bob.books.vouches(ann.peer, NOW) == [], "bob has paid nobody"
        assert ann.books.vouches(bob.peer, NOW) == [], "and is not told what it has signed itself"
        assert [each.receipt.payee for each in cleo.books.vouches(ann.peer, NOW)] == []
        later = NOW + 3600
        assert bob.serve(ann, 50, later) == "" and settle(ann, bob, later) == ""
        ann.restart()
        both = ann.books.vouches(cleo.peer, later)
        assert [each.receipt.epoch for each in both] == [EPOCH, EPOCH + 1]
        ann.account(bob).fault = "it has signed double"
        assert ann.books.vouches(cleo.peer, later) == []
        ann.account(bob).fault, ann.account(cleo).fault = "", "it has signed double"
        assert ann.books.vouches(cleo.peer, later) == []
        for each in (ann, bob, cleo):
            each.ledger.close()


def test_a_settlement_does_not_vouch() -> None:
    """Bob works for Ann; Ann's debt is settled by Bob's word. What she tells is the work, as before."""
    with folder() as path:
        ann, bob, cleo = (Side(name, path) for name in ("ann", "bob", "cleo"))
        assert ann.serve(cleo, 1, NOW) == "" and settle(cleo, ann, NOW) == ""
        assert bob.serve(ann, 1_000, NOW) == "" and settle(ann, bob, NOW) == ""
        before = ann.books.vouches(cleo.peer, NOW)
        owed = bob.owed_by(ann)
        for kind in (Kind.PAID, Kind.FORGIVEN):
            bob.do(bob.books.settle(ann.peer, owed // 4, kind, NOW))
            assert settle(bob, ann, NOW) == ""
        assert bob.owed_by(ann) < owed
        assert ann.books.vouches(cleo.peer, NOW) == before
        assert bob.books.vouches(ann.peer, NOW) == []
        for each in (ann, bob, cleo):
            each.ledger.close()
