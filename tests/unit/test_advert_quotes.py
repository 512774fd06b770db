"""Quotes in adverts: what is refused, what stays as it was without them."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from market.price_book import PriceBook
from node.swarm.announcing import Offered, _same
from routing.errors import LocalError
from routing.wire.advert import (
    HEADER_BYTES,
    MAX_LIFETIME,
    SIGNING_DOMAIN,
    Advert,
    AdvertError,
    Fault,
    farewell,
    read_advert,
    sign_advert,
)
from routing.wire.quote import MAX_PRICE, MAX_QUOTE_SECONDS, Quote, lasting
from tests.adverts import MODEL, NOW, SWARM, advert, identity, signed

UNTIL = int(NOW) + 1_320
LAYERS = [(0, 46, [39 * 3 + 1, 23 * 3, 2]), (47, 47, [39 * 3 + 2])]  # of two prices


def quote(**changes: Any) -> Quote:
    base: dict[str, Any] = {
        "model_id": MODEL,
        "number": 7,
        "until": UNTIL,
        "prices": [20, 25],
        "layers": LAYERS,
    }
    return Quote(**(base | changes))


def refused(**changes: Any) -> str:
    """Why a properly signed advert with such a quote is not taken; this side would not send it either."""
    value = advert(quotes=[quote(**changes)])
    body = msgspec.msgpack.encode(value)
    data = b"\x01" + identity("ana").private_key.sign(SIGNING_DOMAIN + body) + body
    with pytest.raises(AdvertError) as caught:
        read_advert(data, swarm_id=SWARM, now=NOW)
    assert caught.value.fault is Fault.MALFORMED and caught.value.peer in ("", value.peer_id)
    with pytest.raises(LocalError, match="can't be sent"):
        sign_advert(value, identity("ana"))
    return str(caught.value)


def test_a_quote_is_read_as_it_was_written() -> None:
    value = advert(quotes=[quote(), quote(model_id="00" * 32, number=8)])
    read = read_advert(sign_advert(value, identity("ana")), swarm_id=SWARM, now=NOW).advert
    assert read == value
    assert read.quote(MODEL) == quote() and read.quote("11" * 32) is None
    assert list(quote().runs(3)) == [(0, 39, 20), (64, 64, 25)]
    assert list(quote().runs(47)) == [(0, 39, 25)] and list(quote().runs(48)) == []


def test_the_bytes_of_a_quote_are_the_documented_ones() -> None:
    example = quote(number=1_800_000_000_123, prices=[2_105, 2_500])
    encoded = msgspec.msgpack.encode(example)
    start = bytes([0x85, 0xA8]) + b"model_id" + bytes([0xD9, 0x40]) + MODEL.encode()
    assert encoded == start + bytes.fromhex(
        """
        a6 6e 75 6d 62 65 72 cf 00 00 01 a3 18 5c 50 7b
        a5 75 6e 74 69 6c ce 6b 49 d7 28
        a6 70 72 69 63 65 73 92 cd 08 39 cd 09 c4
        a6 6c 61 79 65 72 73 92 93 00 2e 93 76 45 02 93 2f 2f 91 77
        """
    )
    assert msgspec.msgpack.decode(encoded, type=Quote) == example


def test_an_advert_without_quotes_says_the_same_bytes_as_before_there_were_any() -> None:
    fields = msgspec.msgpack.decode(signed()[HEADER_BYTES:])
    assert len(fields) == 24 and "quotes" not in fields


def test_an_older_reader_takes_an_advert_with_quotes() -> None:
    """Unknown fields are ignored: what it knows is the same."""
    names = [field.name for field in msgspec.structs.fields(Advert) if field.name != "quotes"]
    older = msgspec.defstruct("Older", [(name, Any) for name in names])
    body = sign_advert(advert(quotes=[quote()]), identity("ana"))[HEADER_BYTES:]
    read = msgspec.msgpack.decode(body, type=older)
    assert [getattr(read, name) for name in names[:4]] == [
        SWARM,
        str(identity("ana").peer_id),
        7,
        int(NOW) * 1000,
    ]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model_id": "0F" * 32}, "model_id"),
        ({"model_id": "0f" * 31}, "model_id"),
        ({"number": 0}, "number"),
        ({"number": 2**53 + 1}, "number"),
        ({"until": int(NOW) + 599}, "ends 599 s after the advert was issued"),
        ({"until": int(NOW) - 1}, "ends -1 s after"),
        ({"until": int(NOW) + MAX_QUOTE_SECONDS + 1}, "ends 7501 s after"),
        ({"prices": []}, "prices"),
        ({"prices": [0, 25]}, "prices"),
        ({"prices": [25, 25]}, "prices are not ascending"),
        ({"prices": [20, MAX_PRICE + 1]}, "prices"),
        ({"prices": list(range(1, 257))}, "prices"),
        ({"layers": []}, "layers"),
        ({"layers": [(1, 0, [1, 1])]}, "runs of layers"),
        ({"layers": [(0, 1, [1, 1]), (1, 2, [1, 1])]}, "runs of layers"),
        ({"layers": [(0, 65_536, [1, 1])]}, "layers"),
        ({"layers": [(0, 1, [])]}, "layers"),
        ({"layers": [(0, 1, [65_535 * 3 + 1, 0])]}, "have 65537 experts"),
        ({"layers": [(0, 1, [65_536 * 256])]}, "layers"),
        ({"layers": [(0, 1, [1, -1])]}, "layers"),
        ({"layers": [(0, 1, [1] * 1_025)]}, "layers"),
    ],
)
def test_a_quote_that_breaks_a_rule(changes: dict[str, Any], match: str) -> None:
    assert match in refused(**changes)


@pytest.mark.parametrize(
    ("quotes", "match"),
    [
        ([quote(), quote(number=8)], "two quotes are for one model"),
        ([quote(), quote(model_id="00" * 32)], "two quotes have one number"),
    ],
)
def test_two_quotes_that_are_one(quotes: list[Quote], match: str) -> None:
    with pytest.raises(LocalError, match=match):
        signed(quotes=quotes)


def test_more_quotes_than_models_can_be() -> None:
    with pytest.raises(LocalError, match="quotes"):
        signed(
            quotes=[
                quote(model_id=f"{each:064x}", number=each + 1, layers=[(0, 0, [1, 1])]) for each in range(65)
            ]
        )


def test_a_farewell_carries_no_quotes() -> None:
    value = advert(quotes=[quote()])
    last = farewell(value, seq=value.seq + 1, issued_at=int(NOW))
    assert last.quotes == []
    sign_advert(last, identity("ana"))
    with pytest.raises(LocalError, match="a farewell carries no addresses, relays, slices or quotes"):
        signed(leaving=True, addresses=[], slices=[], quotes=[quote()])


def test_quotes_that_a_clock_has_ended_are_left_out() -> None:
    good, over, far = quote(), quote(number=8, until=int(NOW) + 599), quote(number=9, until=UNTIL + 7_000)
    assert lasting([good, over, far], int(NOW), 600) == [good]
    assert lasting([quote(until=int(NOW) + 2 * MAX_LIFETIME + 120)], int(NOW), MAX_LIFETIME)


def test_other_prices_are_news() -> None:
    assert Offered().quotes == []
    assert not _same(advert(quotes=[quote()]), advert(quotes=[quote(number=8)]))
    assert _same(advert(quotes=[quote()]), advert(quotes=[quote()], load=3))


def test_what_a_call_costs() -> None:
    layers = [(0, 46, [39 * 4 + 1, 23 * 4, 2]), (47, 47, [39 * 4 + 2])]
    book = PriceBook.of(quote(prices=[20, 25, 90], layers=layers))
    assert book.number == 7 and book.until == UNTIL and book.model_id == MODEL
    pairs = np.array([0, 39, 39, 64], np.uint16)
    assert book.total(3, pairs) == 20 + 20 + 20 + 25
    assert book.total(3, np.array([40, 63, 65, 65_535], np.uint16)) == 4 * 25  # not named: the middle price
    assert book.total(99, pairs) == 4 * 25
    assert book.total(3, pairs[:0]) == 0
    assert book.mean(3) == (40 * 20 + 25) / 41 and book.mean(99) == 25.0


def test_a_hostile_quote_takes_no_more_room_than_its_bytes() -> None:
    wide = PriceBook.of(quote(layers=[(0, 65_535, [65_535 * 3 + 1])]))
    for layer in range(0, 65_536, 4_096):
        assert wide.total(layer, np.array([65_535], np.uint16)) == 20
        assert wide._of(layer)[0].size <= 2
