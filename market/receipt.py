"""Receipts: what one node owes another for work, as both have signed it (docs/protocol.md, "Receipts").

1. A receipt states totals of one (payer, payee, kind, epoch): they only grow, and so does its number `n` with
   each that is signed. The last stands for all before it: to lose, repeat or reorder some changes nothing.
2. Work is signed by the payer, then by the payee; a settlement, which lowers a debt, by the creditor (the
   payee), then by the debtor. Who signs first is its *issuer*. Signed by both it is *full*, and counts.
3. `previous` names the last full receipt of an earlier epoch. The second signer checks it against its own, so
   that what one epoch has covered is not in the next once more.
4. An issuer that signs two receipts which cannot both be true (`contradiction`) has signed double: the two
   prove it to anyone.

Amounts are whole micro-credits (µcr). All integers are little endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from market.credits import MICRO
from routing.identity import PeerId, peer_id_of, public_key_of

CREDIT = MICRO
"""µcr of one credit: about a token of Qwen3-30B-A3B."""

EPOCH_SECONDS = 3_600
"""An hour: what is in dispute, or lost with a file, is an hour's work at most."""

MAX_TOTAL = 2**53
"""Pairs, or µcr, in one receipt: 9,000 million credits an hour, and exact in every program's numbers. A
thousand epochs of it add up within 63 bits."""

MAX_N = 2**32 - 1
"""Receipts in one stream: one a second for 130 years."""

KEY_BYTES, SIGNATURE_BYTES, MODEL_ID_BYTES = 32, 64, 32

NO_MODEL = "0" * 64
"""Of a settlement."""

_VERSION = 1
_ISSUER_DOMAIN = b"panal-receipt-1\0"
_COUNTER_DOMAIN = b"panal-countersign-1\0"

# version, kind, payer, payee, epoch, n, previous epoch, previous n, pairs, credits, model id, quote number
_BODY = struct.Struct("<BB32s32sIIIIQQ32sQ")
BODY_BYTES = _BODY.size
OFFERED_BYTES = BODY_BYTES + SIGNATURE_BYTES
FULL_BYTES = OFFERED_BYTES + SIGNATURE_BYTES


def epoch_of(now: float) -> int:
    """The epoch of a moment (unix seconds), at least 1: a clock that was not set yet begins in 1970."""
    return max(1, int(now) // EPOCH_SECONDS)


class Kind(IntEnum):
    """What a receipt's credits are."""

    WORK = 1
    """Owed for pairs computed."""
    PAID = 2
    """A debt that was paid in some other way, as the creditor says."""
    FORGIVEN = 3
    """A debt that the creditor gives up."""


class BadReceiptBytes(ValueError):
    """The bytes are no receipt."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Totals of one stream in one epoch.

    Attributes:
        kind: what they are.
        payer, payee: debtor and creditor.
        epoch: `epoch_of` the time of signing.
        n: from 1, grows with each receipt that the issuer signs in this stream, over epochs too.
        previous: epoch and n of the stream's last full receipt of an earlier epoch; (0, 0) if there is none.
        pairs: computed in this epoch; 0 in a settlement.
        credits: µcr in this epoch, at least 1.
        model_id: 64 hex digits, and `quote` its number: the last quote by which the work was priced. A
            receipt may cover work at several.
    """

    kind: Kind
    payer: PeerId
    payee: PeerId
    epoch: int
    n: int
    previous: tuple[int, int]
    pairs: int
    credits: int
    model_id: str = NO_MODEL
    quote: int = 0

    @property
    def issuer(self) -> PeerId:
        """Who signs first."""
        return self.payer if self.kind is Kind.WORK else self.payee

    @property
    def second(self) -> PeerId:
        """Who countersigns."""
        return self.payee if self.kind is Kind.WORK else self.payer

    def encode(self) -> bytes:
        """BODY_BYTES bytes: what is signed."""
        return _BODY.pack(
            _VERSION,
            self.kind,
            public_key_of(self.payer).public_bytes_raw(),
            public_key_of(self.payee).public_bytes_raw(),
            self.epoch,
            self.n,
            *self.previous,
            self.pairs,
            self.credits,
            bytes.fromhex(self.model_id),
            self.quote,
        )

    @classmethod
    def decode(cls, data: bytes) -> Receipt:
        """Read a body; every receipt has exactly one encoding.

        Raises:
            BadReceiptBytes: what is wrong with it.
        """
        if len(data) != BODY_BYTES:
            raise BadReceiptBytes(f"a body of {len(data)} bytes, not {BODY_BYTES}")
        version, kind, payer, payee, epoch, n, before, before_n, pairs, credits, model, quote = _BODY.unpack(
            data
        )
        if version != _VERSION:
            raise BadReceiptBytes(f"version {version} is unknown here")
        if kind not in tuple(Kind):
            raise BadReceiptBytes(f"kind {kind} is unknown here")
        if payer == payee:
            raise BadReceiptBytes("payer and payee are the same")
        if epoch < 1 or n < 1 or not 1 <= credits <= MAX_TOTAL or pairs > MAX_TOTAL or quote > MAX_TOTAL:
            raise BadReceiptBytes("a number is out of range")
        if before >= epoch or (before == 0) != (before_n == 0):
            raise BadReceiptBytes("its previous receipt is not of an earlier epoch")
        if kind != Kind.WORK and (pairs or quote or any(model)):
            raise BadReceiptBytes("a settlement with pairs or a quote")
        return cls(
            Kind(kind), _peer_id(payer), _peer_id(payee), epoch, n, (before, before_n), pairs, credits,
            model.hex(), quote,
        )  # fmt: skip


@dataclass(frozen=True)
class SignedReceipt:
    """A receipt with its issuer's signature, and the other side's once it has countersigned.

    Attributes:
        first: of the issuer, over "panal-receipt-1\\0" and the body.
        second: over "panal-countersign-1\\0", the body and the first; b"": not countersigned yet.
    """

    receipt: Receipt
    first: bytes
    second: bytes = b""

    @property
    def full(self) -> bool:
        """Whether both have signed."""
        return bool(self.second)

    def encode(self) -> bytes:
        """OFFERED_BYTES, or FULL_BYTES if full."""
        return self._body + self.first + self.second

    @classmethod
    def decode(cls, data: bytes) -> SignedReceipt:
        """Read one; its signatures are not checked: `fault` does.

        Raises:
            BadReceiptBytes: what is wrong with it.
        """
        if len(data) not in (OFFERED_BYTES, FULL_BYTES):
            raise BadReceiptBytes(f"{len(data)} bytes, not {OFFERED_BYTES} or {FULL_BYTES}")
        receipt = Receipt.decode(data[:BODY_BYTES])
        return cls(receipt, data[BODY_BYTES:OFFERED_BYTES], data[OFFERED_BYTES:])

    def fault(self) -> str:
        """Which of its signatures is not what it should be; "" if none. Takes 0.1 ms for each."""
        body, receipt = self._body, self.receipt
        if not _signed(receipt.issuer, self.first, _ISSUER_DOMAIN + body):
            return "is not signed by its issuer"
        if self.full and not _signed(receipt.second, self.second, _COUNTER_DOMAIN + body + self.first):
            return "is not countersigned by the other side"
        return ""

    def countersigned(self, key: Ed25519PrivateKey) -> SignedReceipt:
        """The same, full, by the key of the second signer."""
        return SignedReceipt(self.receipt, self.first, key.sign(_COUNTER_DOMAIN + self._body + self.first))

    @cached_property
    def _body(self) -> bytes:
        return self.receipt.encode()


def sign(receipt: Receipt, key: Ed25519PrivateKey) -> SignedReceipt:
    """A receipt signed by its issuer's key."""
    return SignedReceipt(receipt, key.sign(_ISSUER_DOMAIN + receipt.encode()))


def contradiction(one: Receipt, other: Receipt) -> str:
    """Why an honest issuer cannot have signed both; "" if it can.

    Receipts of different streams or epochs never contradict each other.
    """
    if _stream(one) != _stream(other) or one == other:
        return ""
    low, high = sorted((one, other), key=lambda receipt: receipt.n)
    if low.n == high.n:
        return f"two receipts number {low.n} of epoch {low.epoch} say different things"
    if high.previous < low.previous:
        return f"receipt number {high.n} of epoch {high.epoch} follows an earlier one than number {low.n}"
    # One that follows a later receipt of the epoch before covers less of this one: nothing to compare.
    if high.previous == low.previous and (high.credits < low.credits or high.pairs < low.pairs):
        return f"receipt number {high.n} of epoch {high.epoch} says less than number {low.n}"
    return ""


def signed_double(one: SignedReceipt, other: SignedReceipt) -> str:
    """As `contradiction`, with the issuer's signatures looked at: what convinces a third party."""
    why = contradiction(one.receipt, other.receipt)
    if not why or one.fault() or other.fault():
        return ""
    return why


def _stream(receipt: Receipt) -> tuple[Kind, PeerId, PeerId, int]:
    return receipt.kind, receipt.payer, receipt.payee, receipt.epoch


def _peer_id(key: bytes) -> PeerId:
    return peer_id_of(Ed25519PublicKey.from_public_bytes(key))


def _signed(peer_id: PeerId, signature: bytes, data: bytes) -> bool:
    try:
        public_key_of(peer_id).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True
