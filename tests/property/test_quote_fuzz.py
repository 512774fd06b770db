"""Quotes in adverts: any bytes give an advert or the one error; any prices find room, nearly as they were."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from market.price_book import PriceBook
from market.quote_runs import quote_of
from routing.wire.advert import (
    ADVERT_VERSION,
    HEADER_BYTES,
    SIGNING_DOMAIN,
    AdvertError,
    Fault,
    SignedAdvert,
    read_advert,
    sign_advert,
)
from routing.wire.limits import MAX_EXPERT
from routing.wire.quote import MAX_PRICE, Quote, quote_fault
from tests.adverts import MODEL, NOW, SWARM, advert, identity

quick = settings(max_examples=200, deadline=None)
UNTIL = int(NOW) + 1_320

Prices = dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]

PRICED = advert(quotes=[Quote(MODEL, 7, UNTIL, [20, 25], [(0, 46, [118, 69, 2]), (47, 47, [1])])])
BODY = sign_advert(PRICED, identity("ana"))[HEADER_BYTES:]

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
fields = st.sampled_from([field.name for field in msgspec.structs.fields(Quote)])
numbers = st.integers(0, 256 * MAX_EXPERT) | st.integers(0, 400)
layouts = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 50), st.lists(numbers, max_size=12)), max_size=5
)


def either(body: bytes) -> SignedAdvert | AdvertError:
    """The advert or the error that may come; whatever an advert's quotes say can be asked for."""
    signature = identity("ana").private_key.sign(SIGNING_DOMAIN + body)
    try:
        read = read_advert(bytes([ADVERT_VERSION]) + signature + body, swarm_id=SWARM, now=NOW)
    except AdvertError as error:
        assert str(error).isprintable() and len(str(error)) < 500
        return error
    for quote in read.advert.quotes:
        assert quote_fault(quote) == ""
        book = PriceBook.of(quote)
        for layer in (0, 47, 65_535):
            experts = np.array([0, 1, 64, 65_535], np.uint16)
            assert 0 < book.total(layer, experts) <= 4 * MAX_PRICE
            assert 0 < book.mean(layer) <= MAX_PRICE
    return read


def test_the_advert_that_is_perturbed_below_is_good() -> None:
    read = either(BODY)
    assert isinstance(read, SignedAdvert) and read.advert == PRICED


@quick
@given(st.integers(0, len(BODY) - 1), st.binary(max_size=6), st.integers(0, 6))
def test_a_perturbed_body_with_a_good_signature(where: int, put_in: bytes, cut: int) -> None:
    either(BODY[:where] + put_in + BODY[where + cut :])


@quick
@given(fields, values)
def test_any_value_in_any_field_of_a_quote(field: str, value: object) -> None:
    content: dict[str, Any] = msgspec.msgpack.decode(BODY)
    content["quotes"][0][field] = value
    either(msgspec.msgpack.encode(content))


@quick
@given(values)
def test_any_value_for_quotes(value: object) -> None:
    content = msgspec.msgpack.decode(BODY) | {"quotes": value}
    read = either(msgspec.msgpack.encode(content))
    assert value == [] or isinstance(read, AdvertError)


@quick
@given(st.lists(st.integers(-1, MAX_PRICE + 1), max_size=4), layouts)
def test_runs_and_prices_of_any_kind(prices: list[int], layers: list[tuple[int, int, list[int]]]) -> None:
    content = msgspec.msgpack.decode(BODY)
    content["quotes"][0] |= {"prices": prices, "layers": layers}
    read = either(msgspec.msgpack.encode(content))
    assert isinstance(read, SignedAdvert) or read.fault is Fault.MALFORMED


# ---- from prices to a quote ---------------------------------------------------------------------


GRID = np.array([round(2_500 * 2 ** (step / 8)) for step in range(-16, 33)])


@st.composite
def priced_cells(draw: st.DrawFn) -> Prices:
    """Some cells of some layers: at one price, at prices of the grid, or at any."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    share, kind = draw(st.floats(0.01, 1)), draw(st.sampled_from(["one", "grid", "any"]))
    cells: Prices = {}
    for layer in draw(st.lists(st.integers(0, 60), min_size=1, max_size=8, unique=True)):
        experts = np.flatnonzero(rng.random(128) < share)
        drawn = rng.choice(GRID, 128) if kind == "grid" else rng.integers(1, MAX_PRICE + 1, 128)
        prices = np.full(128, 2_500) if kind == "one" else drawn
        if len(experts):
            cells[layer] = experts, prices[: len(experts)]
    return cells or {0: (np.array([127]), np.array([MAX_PRICE]))}


@quick
@given(priced_cells())
def test_with_room_every_cell_is_quoted_at_its_price_and_no_other_cell(cells: Prices) -> None:
    if len({int(price) for _, prices in cells.values() for price in prices}) > 255:
        return
    quote = quote_of(MODEL, 1, UNTIL, cells, 9_000)
    named = {
        (layer, e)
        for layer in range(61)
        for first, last, _ in quote.runs(layer)
        for e in range(first, last + 1)
    }
    assert named == {(layer, int(expert)) for layer, (experts, _) in cells.items() for expert in experts}
    book = PriceBook.of(quote)
    for layer, (experts, prices) in cells.items():
        assert book.prices(layer, 128)[experts].tolist() == prices.tolist()
        assert book.total(layer, experts.astype(np.uint16)) == prices.sum()
        assert abs(book.mean(layer) - prices.mean()) < 1e-6 * prices.mean()


@quick
@given(priced_cells(), st.integers(150, 1_000))
def test_a_quote_keeps_to_its_room(cells: Prices, room: int) -> None:
    quote = quote_of(MODEL, 2**53, UNTIL, cells, room)
    assert len(msgspec.msgpack.encode(quote)) <= room
    assert quote_fault(quote) == ""
    every = np.concatenate([prices for _, prices in cells.values()])
    assert every.min() <= min(quote.prices) and max(quote.prices) <= every.max()
    read = either(sign_advert(advert(quotes=[quote]), identity("ana"))[HEADER_BYTES:])
    assert isinstance(read, SignedAdvert) and read.advert.quotes == [quote]


def test_a_large_server_with_a_price_for_each_cell_finds_room() -> None:
    """48 x 128 cells, prices at random on the whole grid: the worst there is."""
    rng = np.random.default_rng(3)
    cells = {layer: (np.arange(128), rng.choice(GRID, 128)) for layer in range(48)}
    quote = quote_of(MODEL, 1, UNTIL, cells, 4_000)
    assert len(msgspec.msgpack.encode(quote)) <= 4_000
    book = PriceBook.of(quote)
    asked = sum(int(book.prices(layer, 128).sum()) for layer in range(48))
    assert abs(asked / sum(int(prices.sum()) for _, prices in cells.values()) - 1) < 0.05


def test_a_server_of_whole_layers_quotes_each_cell_as_it_is() -> None:
    """10 layers of 128 cells, popularity as Zipf has it, on the grid: 4,000 bytes are enough."""
    rng = np.random.default_rng(4)
    popular = 1 / (1 + rng.permuted(np.tile(np.arange(128), (10, 1)), axis=1))
    steps = np.clip(np.round(8 * np.log2(popular * 30)), -16, 32)
    prices = np.round(2_500 * 2 ** (steps / 8)).astype(np.int64)
    quote = quote_of(MODEL, 1, UNTIL, {layer: (np.arange(128), prices[layer]) for layer in range(10)}, 4_000)
    book = PriceBook.of(quote)
    assert all(book.prices(layer, 128).tolist() == prices[layer].tolist() for layer in range(10))
