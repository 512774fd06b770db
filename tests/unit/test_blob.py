"""Bytes in parts, cut into what is asked for and proven one by one."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.model.chunks import CHUNK_BYTES, digest_of, list_of
from node.share.blob import MAX_PART_BYTES, Blob, ListBlob, Part
from routing.errors import LocalError

SIZES = st.lists(
    st.one_of(st.integers(1, 5000), st.integers(CHUNK_BYTES - 2, 4 * CHUNK_BYTES)), min_size=1, max_size=12
)


def parts(sizes: list[int]) -> list[Part]:
    return [Part(size, bytes(32)) for size in sizes]


@given(SIZES)
def test_units_are_everything_once_in_order(sizes: list[int]) -> None:
    blob = Blob(parts(sizes))
    assert blob.n_bytes == sum(sizes)
    end = 0
    for unit in range(blob.n_units):
        start, size = blob.span(unit)
        assert start == end and 1 <= size <= CHUNK_BYTES
        part = blob.part_of(unit)
        assert unit in blob.units_of(part)
        assert blob.part_start(part) <= start < start + size <= blob.part_start(part) + sizes[part]
        end = start + size
    assert end == blob.n_bytes
    assert blob.with_list == tuple(number for number, size in enumerate(sizes) if size > CHUNK_BYTES)


@given(SIZES, st.data())
def test_neighbours_that_fit(sizes: list[int], data: st.DataObject) -> None:
    blob = Blob(parts(sizes))
    first = data.draw(st.integers(0, blob.n_units - 1))
    count = data.draw(st.integers(1, blob.n_units - first))
    most = data.draw(st.integers(0, 5 * CHUNK_BYTES))
    fit = blob.fit(first, count, most)
    assert 1 <= fit <= count
    assert fit == 1 or blob.span(first, fit)[1] <= most
    assert fit == count or blob.span(first, fit + 1)[1] > most


@given(SIZES)
def test_lists_are_a_blob_of_their_own(sizes: list[int]) -> None:
    blob = Blob(parts(sizes))
    lists = ListBlob(blob)
    assert lists.n_units == len(blob.with_list)
    end = 0
    for unit in range(lists.n_units):
        assert lists.span(unit) == (end, 32 * len(blob.units_of(lists.part(unit))))
        end += lists.span(unit)[1]
    assert lists.n_bytes == end
    if lists.n_units:
        for most in (0, CHUNK_BYTES, 1 << 40):
            fit = lists.fit(0, lists.n_units, most)
            proven = [sizes[lists.part(unit)] for unit in range(fit)]
            assert fit == 1 or sum(proven) <= most
            assert fit == lists.n_units or sum(proven) + sizes[lists.part(fit)] > most


def test_each_unit_is_proven_by_what_belongs_to_it() -> None:
    rng = random.Random(3)
    sizes = [1000, 2 * CHUNK_BYTES + 7, 5, CHUNK_BYTES]
    contents = [rng.randbytes(size) for size in sizes]
    blob = Blob(Part(len(data), digest_of([memoryview(data)])) for data in contents)
    lists = {1: list_of([memoryview(contents[1])])}
    whole = b"".join(contents)
    for unit in range(blob.n_units):
        start, size = blob.span(unit)
        data = bytearray(whole[start : start + size])
        assert blob.proves(unit, memoryview(data), lists)
        data[size // 2] ^= 1
        assert not blob.proves(unit, memoryview(data), lists)
        assert not blob.proves(unit, memoryview(data)[:-1], lists)
    assert ListBlob(blob).proves(0, memoryview(lists[1]))
    assert not ListBlob(blob).proves(0, memoryview(bytes(len(lists[1]))))


def test_what_is_too_large_is_refused() -> None:
    assert Blob([Part(MAX_PART_BYTES, bytes(32))]).n_units == MAX_PART_BYTES // CHUNK_BYTES
    with pytest.raises(LocalError, match="at most"):
        Blob([Part(MAX_PART_BYTES + 1, bytes(32))])
