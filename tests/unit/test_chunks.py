"""Digests by chunks: short bytes have BLAKE3's own, longer ones that of their list."""

from __future__ import annotations

import random

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from node.model.chunks import (
    CHUNK_BYTES,
    LIST_CONTEXT,
    ContentHasher,
    chunk_count,
    chunk_proves,
    digest_of,
    list_bytes,
    list_of,
    list_proves,
)

EDGES = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES, 3 * CHUNK_BYTES - 7]


def by_definition(data: bytes) -> bytes:
    if len(data) <= CHUNK_BYTES:
        return blake3(data).digest()
    chunks = [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]
    made = b"".join(blake3(chunk).digest() for chunk in chunks)
    return blake3(made, derive_key_context=LIST_CONTEXT).digest()


@pytest.mark.parametrize("size", EDGES)
def test_the_digest_is_as_defined(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert digest_of([memoryview(data)]) == by_definition(data)
    assert list_bytes(size) == (len(list_of([memoryview(data)])) if size > CHUNK_BYTES else 0)
    assert chunk_count(size) == -(-size // CHUNK_BYTES)


@given(st.integers(0, 3 * CHUNK_BYTES), st.lists(st.integers(0, 3 * CHUNK_BYTES), max_size=6))
def test_it_does_not_matter_in_which_pieces_they_come(size: int, cuts: list[int]) -> None:
    data = memoryview(random.Random(size).randbytes(size))
    hasher, start = ContentHasher(), 0
    for cut in [*sorted(cut for cut in cuts if cut < size), size]:
        hasher.update(data[start:cut])
        start = cut
    assert hasher.digest() == by_definition(bytes(data))
    assert hasher.list() == list_of([data])


def test_a_list_is_proven_by_the_digest_and_a_chunk_by_the_list() -> None:
    data = random.Random(1).randbytes(2 * CHUNK_BYTES + 5)
    digest, made = digest_of([memoryview(data)]), list_of([memoryview(data)])
    assert list_proves(memoryview(made), digest)
    for number in range(3):
        chunk = memoryview(data)[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]
        assert chunk_proves(chunk, made[32 * number : 32 * number + 32])
        assert not chunk_proves(chunk, made[32 * ((number + 1) % 3) :][:32])
    wrong = bytearray(made)
    wrong[40] ^= 1
    assert not list_proves(memoryview(bytes(wrong)), digest)
    assert not list_proves(memoryview(data[: len(made)]), digest)


def test_a_list_is_not_the_bytes_that_it_proves() -> None:
    # Else a source that is believed how long a manifest is could send the manifest's list as the manifest.
    data = random.Random(2).randbytes(2 * CHUNK_BYTES)
    made = list_of([memoryview(data)])
    assert digest_of([memoryview(made)]) != digest_of([memoryview(data)])
