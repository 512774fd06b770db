"""Digests of bytes that come in chunks: each chunk can be proven as it arrives. Pure.

The digest of up to CHUNK_BYTES is their BLAKE3. The digest of more is that of the *list*: the BLAKE3 digests
of its chunks, one after another; the last chunk may be shorter. So who knows a digest can check a list that
somebody sends, and with the list each chunk. Lists are hashed by BLAKE3's key derivation with a context of
their own: no bytes have the digest of a list.
"""

from __future__ import annotations

from collections.abc import Iterable

from blake3 import blake3

DIGEST_BYTES = 32

LIST_CONTEXT = "panal 2026-11-30 list of chunks"
"""Tells lists from bytes (BLAKE3's derive_key mode)."""

CHUNK_BYTES = 256 << 10
"""What a source of wrong bytes can send before it is found out, and what a killed fetch may lose: 40 ms at 50
Mbit/s. A list takes an eight-thousandth of what it proves."""


def digest_of(pieces: Iterable[memoryview]) -> bytes:
    """The digest of these pieces as if they lay in one."""
    hasher = ContentHasher()
    for piece in pieces:
        hasher.update(piece)
    return hasher.digest()


def list_of(pieces: Iterable[memoryview]) -> bytes:
    """The list of these pieces' chunks; also of a single one."""
    hasher = ContentHasher()
    for piece in pieces:
        hasher.update(piece)
    return hasher.list()


def chunk_count(n_bytes: int) -> int:
    """Chunks of so many bytes."""
    return -(-n_bytes // CHUNK_BYTES)


def list_bytes(n_bytes: int) -> int:
    """How long the list of so many bytes is; 0 where there is none, since the digest is that of the bytes."""
    return DIGEST_BYTES * chunk_count(n_bytes) if n_bytes > CHUNK_BYTES else 0


def list_proves(data: memoryview, digest: bytes) -> bool:
    """Whether a list is the one that a digest was made of."""
    return _list_digest(data) == digest


def chunk_proves(data: memoryview, digest: bytes) -> bool:
    """Whether a chunk is the one that an entry of a list was made of."""
    return blake3(data).digest() == digest


def _list_digest(data: bytes | memoryview) -> bytes:
    return blake3(data, derive_key_context=LIST_CONTEXT).digest()


class ContentHasher:
    """Takes bytes as they come."""

    def __init__(self) -> None:
        self._chunk = blake3()
        self._within = 0
        self._list = bytearray()

    def update(self, data: memoryview) -> None:
        """The next bytes."""
        data = data.cast("B")
        while data:
            if self._within == CHUNK_BYTES:
                self._end_chunk()
            piece = data[: CHUNK_BYTES - self._within]
            self._chunk.update(piece)
            self._within += len(piece)
            data = data[len(piece) :]

    def list(self) -> bytes:
        """The list of all until now."""
        return bytes(self._list) + self._chunk.digest()

    def digest(self) -> bytes:
        """The digest of all until now."""
        return _list_digest(self.list()) if self._list else self._chunk.digest()

    def _end_chunk(self) -> None:
        self._list += self._chunk.digest()
        self._chunk = blake3()
        self._within = 0
