"""Adverts and exchange messages from anybody: any bytes give a message or the one error."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.advert_rows import Cursor, Outcome, TableLimits
from routing.adverts import AdvertTable
from routing.wire.advert import (
    ADVERT_VERSION,
    CLOCK_SKEW,
    HEADER_BYTES,
    MAX_ADVERT_BYTES,
    SIGNING_DOMAIN,
    AdvertError,
    SignedAdvert,
    read_advert,
    sign_advert,
)
from routing.wire.exchange import (
    ChangesAnswer,
    ChangesRequest,
    ExchangeError,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)
from tests.adverts import NOW, SWARM, advert, identity, signed

quick = settings(max_examples=300)
u64 = st.integers(0, 2**64 - 1)

GOOD = signed(name="casa de Ana", codecs=["f32"], combines=["rows"], versions=[1], member=b"m" * 40)
BODY = GOOD[HEADER_BYTES:]

# What msgpack can say, in any depth a body of this size has room for.
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
fields = st.sampled_from([field.name for field in msgspec.structs.fields(advert())])


def enveloped(body: bytes) -> bytes:
    return bytes([ADVERT_VERSION]) + identity("ana").private_key.sign(SIGNING_DOMAIN + body) + body


def either(data: bytes, now: float = NOW) -> SignedAdvert | AdvertError:
    """The advert or the one error that may come; anything else fails the test."""
    try:
        read = read_advert(data, swarm_id=SWARM, now=now)
    except AdvertError as error:
        text = str(error)
        assert text.isprintable() and len(text) < 500
        return error
    assert read.data == data and read.advert.name.isprintable()
    read.advert.hosts()
    return read


@quick
@given(st.binary(max_size=MAX_ADVERT_BYTES + 10))
def test_any_bytes(data: bytes) -> None:
    assert isinstance(either(data), AdvertError)
    assert isinstance(either(bytes([ADVERT_VERSION]) + data), AdvertError)


@quick
@given(st.binary(max_size=300))
def test_any_signed_body(body: bytes) -> None:
    either(enveloped(body))


@quick
@given(st.integers(0, len(BODY) - 1), st.binary(max_size=6), st.integers(0, 6))
def test_a_perturbed_body_with_a_good_signature(where: int, put_in: bytes, cut: int) -> None:
    either(enveloped(BODY[:where] + put_in + BODY[where + cut :]))


@quick
@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_any_changed_byte_is_refused(where: int, change: int) -> None:
    data = GOOD[:where] + bytes([GOOD[where] ^ change]) + GOOD[where + 1 :]
    assert isinstance(either(data), AdvertError)


@quick
@given(fields, values)
def test_any_value_in_any_field(field: str, value: object) -> None:
    content = msgspec.msgpack.decode(BODY)
    content[field] = value
    either(enveloped(msgspec.msgpack.encode(content)))


@quick
@given(st.integers(-2_000, 2_000), st.integers(10, 3_600))
def test_dates(late: int, lifetime: int) -> None:
    read = either(signed(lifetime=lifetime), NOW + late)
    good = -CLOCK_SKEW <= late < lifetime + CLOCK_SKEW
    assert isinstance(read, SignedAdvert) is good


@quick
@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcde"),
            st.integers(1, 6),  # seq
            st.integers(1, 3),  # instance
            st.booleans(),  # leaving
            st.integers(-400, 400),  # clock
            st.none() | st.floats(0, 700),  # age
            st.integers(0, 30),  # seconds passed
        ),
        max_size=30,
    )
)
def test_the_table_keeps_its_promises(
    offers: list[tuple[str, int, int, bool, int, float | None, int]],
) -> None:
    limits = TableLimits(rows=3, local=3, per_source=2, gone=2)
    known = AdvertTable(SWARM, str(identity("e").peer_id), 9, lambda advert, now: "", limits)
    mirror: dict[str, bytes] = {}
    cursor, now = Cursor(), NOW
    for who, seq, instance, leaving, clock, age, passed in offers:
        now += passed
        changes = {"leaving": True, "addresses": [], "slices": []} if leaving else {}
        value = advert(who, seq=seq, instance=instance, issued_at=int(now) + clock, lifetime=60, **changes)
        before = known.get(value.peer_id)
        offer = known.offer(sign_advert(value, identity(who)), now, from_peer=f"peer {seq % 2}", age=age)
        after = known.get(value.peer_id)
        if before is not None and after is not None:
            assert after.advert.seq >= before.advert.seq
            assert offer.changed or after.data == before.data
        assert (offer.outcome is Outcome.REFUSED) is bool(offer.reason)
        for gone in known.expire(now):
            mirror.pop(gone, None)
        told = known.changes(cursor, now)
        cursor = told.cursor
        for _, data in told.adverts:
            heard = read_advert(data, swarm_id=SWARM, now=now).advert
            mirror[heard.peer_id] = data
            if heard.leaving:
                del mirror[heard.peer_id]
        # who follows the changes knows what the table knows
        assert mirror == {row.advert.peer_id: row.data for row in known.rows()}
        assert len(known) == len(known.rows()) <= limits.rows
        for row in known.rows():
            assert row.advert.peer_id != identity("e").peer_id
            assert now < row.expires <= row.advert.issued_at + row.advert.lifetime + CLOCK_SKEW
            assert row.issued <= now


# ---- exchange -----------------------------------------------------------------------------------


@quick
@given(st.binary(max_size=400))
def test_any_exchange_bytes(data: bytes) -> None:
    for decode in (decode_request, decode_answer):
        try:
            decode(data, peer="12D3KooWpeer")
        except ExchangeError as error:
            assert error.peer == "12D3KooWpeer" and str(error).isprintable()


@quick
@given(u64, u64, st.integers(0, 20_000), st.booleans(), st.lists(st.binary(max_size=50), max_size=64))
def test_exchange_round_trip(epoch: int, counter: int, wait: int, more: bool, adverts: list[bytes]) -> None:
    request = ChangesRequest(epoch, counter, wait)
    assert decode_request(encode_request(request)) == request
    answer = ChangesAnswer(epoch, counter, more, [(number, data) for number, data in enumerate(adverts)])
    assert decode_answer(encode_answer(answer)) == answer


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"epoch": -1}, "epoch"),
        ({"counter": "1"}, "counter"),
        ({"wait_ms": 20_001}, "wait_ms"),
        ({"wait_ms": -1}, "wait_ms"),
    ],
)
def test_requests_that_are_none(change: dict[str, object], match: str) -> None:
    data = msgspec.msgpack.encode({"epoch": 1, "counter": 1, "wait_ms": 1} | change)
    with pytest.raises(ExchangeError, match=match):
        decode_request(data)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"adverts": [(0, b"")] * 65}, "adverts"),
        ({"adverts": [(0, bytes(9_001))]}, "adverts"),
        ({"adverts": [(3_600_001, b"")]}, "adverts"),
        ({"adverts": [(-1, b"")]}, "adverts"),
        ({"adverts": [b""]}, "adverts"),
        ({"more": 1}, "more"),
        ({"padding": bytes(2**18)}, "more than the 262144 allowed"),
    ],
)
def test_answers_that_are_none(change: dict[str, object], match: str) -> None:
    data = msgspec.msgpack.encode({"epoch": 1, "counter": 1, "more": False, "adverts": []} | change)
    with pytest.raises(ExchangeError, match=match):
        decode_answer(data)
