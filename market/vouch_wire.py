"""Messages of `/panal/vouch/1`, bytes in and out, without I/O (docs/protocol.md, "Vouching").

One stream is one exchange: who wants to know asks, the other tells the newest receipts in which it is the
payer itself. 4 bytes: version, type, a number of receipts, 0; then so many full receipts. Rules:

1. Any bytes give a message or ProtocolError; each message has one encoding: receipts stand in the order of
   payee (as text) and epoch, none twice.
2. Only work that the sender paid for: nothing of others, no settlement, nothing that is signed once.
3. Signatures are not looked at here, nor whether a receipt is news (market.vouching).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum

from market.receipt import FULL_BYTES, BadReceiptBytes, Kind, SignedReceipt
from routing.wire.experts import ProtocolError

PROTOCOL_ID = "/panal/vouch/1"

EPOCHS_TOLD = 2
"""Hours told of one payee: the one that may still grow, and the one before it, whose last receipt nobody may
have asked for. Who asks each ten minutes misses nothing."""

MAX_TOLD = 64
"""Receipts in an answer: of 32 payees. To look at their signatures takes whoever asked 20 ms, a third of a
millisecond at a time; where it has heard all before, to read them 1 ms."""

_VERSION = 1
_HEAD = struct.Struct("<BBBB")

ASK_BYTES = _HEAD.size
MAX_ANSWER_BYTES = _HEAD.size + MAX_TOLD * FULL_BYTES


class Type(IntEnum):
    ASK = 1
    TOLD = 2


def encode_ask() -> bytes:
    """Whom have you paid?"""
    return _HEAD.pack(_VERSION, Type.ASK, 0, 0)


def check_ask(data: bytes, peer: str) -> None:
    """Look whether that is what a peer asks.

    Raises:
        ProtocolError: it is something else.
    """
    if data != encode_ask():
        raise ProtocolError(f"vouching: {peer or 'a peer'} asks in bytes that are unknown here", peer=peer)


def encode_told(receipts: Sequence[SignedReceipt]) -> bytes:
    """An answer: full receipts of one payer, at most MAX_TOLD, in any order."""
    ordered = sorted(receipts, key=lambda each: _place(each))
    return _HEAD.pack(_VERSION, Type.TOLD, len(ordered), 0) + b"".join(each.encode() for each in ordered)


def decode_told(data: bytes, peer: str) -> tuple[SignedReceipt, ...]:
    """Read a peer's answer.

    Raises:
        ProtocolError: what is wrong with it.
    """
    try:
        return _read(bytes(data), peer)
    except ValueError as error:
        raise ProtocolError(f"vouching: what {peer or 'a peer'} tells: {error}", peer=peer) from None


def _read(data: bytes, peer: str) -> tuple[SignedReceipt, ...]:
    if not _HEAD.size <= len(data) <= MAX_ANSWER_BYTES:
        raise ValueError(f"{len(data)} bytes, {_HEAD.size} to {MAX_ANSWER_BYTES} are allowed")
    version, kind, number, zero = _HEAD.unpack_from(data)
    if version != _VERSION or kind != Type.TOLD or zero:
        raise ValueError(f"version {version}, type {kind} is no answer that is known here")
    if number > MAX_TOLD or len(data) != _HEAD.size + number * FULL_BYTES:
        raise ValueError(f"{number} receipts in {len(data)} bytes")
    receipts: list[SignedReceipt] = []
    for at in range(_HEAD.size, len(data), FULL_BYTES):
        try:
            signed = SignedReceipt.decode(data[at : at + FULL_BYTES])
        except BadReceiptBytes as error:
            raise ValueError(f"a receipt: {error}") from None
        receipt = signed.receipt
        if receipt.payer != peer:
            raise ValueError(f"a receipt of {receipt.payer}, not its own")
        if receipt.kind is not Kind.WORK:
            raise ValueError("a settlement: only work vouches")
        if receipts and _place(receipts[-1]) >= _place(signed):
            raise ValueError("receipts out of order, or twice")
        receipts.append(signed)
    payees = [each.receipt.payee for each in receipts]
    if any(first == later for first, later in zip(payees, payees[EPOCHS_TOLD:], strict=False)):
        raise ValueError(f"more than {EPOCHS_TOLD} hours of one payee")
    return tuple(receipts)


def _place(signed: SignedReceipt) -> tuple[str, int]:
    return signed.receipt.payee, signed.receipt.epoch
