"""Which swarm a node is in, and who may be in it.

1. A swarm is a name and, if it is private, an Ed25519 public key. Its id is a digest of both: swarms that
   differ in either never mix, whatever models they share.
2. In an open swarm everybody is a member. In a private one a member holds a certificate: the swarm's key
   has signed this peer id for a span of time. The certificate is worth nothing to any other peer id.
3. A *proof* is what a node shows to others: the swarm's id, then its certificate (empty in an open swarm).
   It holds no secret. That the node is who the certificate is for, the channel has to prove (TLS, Noise,
   an advert's signature).
4. Nothing is revoked. A certificate ends by its date; to put somebody out at once, make a new swarm.

All integers are little endian. Times are seconds since 1970 (UTC), `now` is given by the caller.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from functools import cached_property

from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from routing.errors import LocalError
from routing.identity import PeerId, peer_id_of, public_key_of

MAX_NAME_CHARS = 40  # a column of the status table
SWARM_ID_BYTES = 32
KEY_BYTES = 32
SIGNATURE_BYTES = 64

CLOCK_SKEW = 300  # seconds that the clocks of issuer, member and verifier may differ
MAX_DAYS = 3650  # of one certificate: there is no revocation, so none lives for ever
SECONDS_A_DAY = 86400

_SWARM_DOMAIN = b"panal-swarm-1\0"
_MEMBER_DOMAIN = b"panal-member-1\0"
_VERSION = 1

# version 1, swarm id 32, the member's public key 32, issued at 8, not after 8
_BODY_BYTES = 1 + SWARM_ID_BYTES + KEY_BYTES + 8 + 8
CERTIFICATE_BYTES = _BODY_BYTES + SIGNATURE_BYTES

# The year 9999, the last one that can be shown to a person.
_LAST_TIME = 253402300799


@dataclass(frozen=True)
class Swarm:
    """A swarm's name and key.

    Attributes:
        name: 1 to MAX_NAME_CHARS printable characters, no space at either end.
        public_key: of a private swarm, 32 raw bytes (Ed25519); None: the swarm is open.

    Raises:
        LocalError: the name or the key cannot be one.
    """

    name: str
    public_key: bytes | None = None

    def __post_init__(self) -> None:
        name = self.name
        if not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable() or name != name.strip():
            shown = name if len(name) <= MAX_NAME_CHARS else name[: MAX_NAME_CHARS - 3] + "..."
            raise LocalError(
                f"swarm name {shown!r}: a name has 1 to {MAX_NAME_CHARS} printable characters "
                "and no space at its ends"
            )
        key = self.public_key
        if key is not None and len(key) != KEY_BYTES:
            raise LocalError(f"swarm {name!r}: its public key has {len(key)} bytes, {KEY_BYTES} are needed")

    @cached_property
    def id(self) -> bytes:
        """BLAKE3 of "panal-swarm-1\\0", the name in UTF-8 with its length (one byte) before it, the key."""
        name = self.name.encode()  # of at most 160 bytes; no printable character is beyond UTF-8
        return blake3(_SWARM_DOMAIN + bytes([len(name)]) + name + (self.public_key or b"")).digest()

    @property
    def is_private(self) -> bool:
        """Whether only holders of a certificate are members."""
        return self.public_key is not None


OPEN_SWARM = Swarm("panal", None)
"""Where a node is that says nothing else."""


class BadCertificateBytes(ValueError):
    """The bytes are no member certificate."""


@dataclass(frozen=True)
class MemberCertificate:
    """The swarm's key says: this peer is a member, from then to then.

    Attributes:
        swarm_id: of the swarm.
        peer_id: whom it is for.
        issued_at, not_after: seconds since 1970.
        signature: Ed25519, by the swarm's key, over "panal-member-1\\0" and the body.
    """

    swarm_id: bytes
    peer_id: PeerId
    issued_at: int
    not_after: int
    signature: bytes

    @classmethod
    def issue(
        cls, swarm_key: Ed25519PrivateKey, swarm: Swarm, peer_id: PeerId, now: float, days: int
    ) -> MemberCertificate:
        """A certificate for a peer, valid from `now` for `days`.

        Raises:
            LocalError: the key is not the swarm's, the peer id is none, the days are out of range.
        """
        if swarm_key.public_key().public_bytes_raw() != swarm.public_key:
            raise LocalError(f"this key is not the key of swarm {swarm.name!r}: invite with its own")
        if not 1 <= days <= MAX_DAYS:
            raise LocalError(f"{days} days: a membership lasts 1 to {MAX_DAYS} days")
        issued_at = int(now)
        body = _body(swarm.id, peer_id, issued_at, issued_at + days * SECONDS_A_DAY)
        return cls.decode(body + swarm_key.sign(_MEMBER_DOMAIN + body))

    @classmethod
    def decode(cls, data: bytes) -> MemberCertificate:
        """Read a certificate. The signature is not checked: `check_member` does.

        Raises:
            BadCertificateBytes: the length, the version, the key or a time is wrong.
        """
        if len(data) != CERTIFICATE_BYTES:
            raise BadCertificateBytes(f"it is not {CERTIFICATE_BYTES} bytes long")
        if data[0] != _VERSION:
            raise BadCertificateBytes(f"version {data[0]} is unknown here")
        key_start = 1 + SWARM_ID_BYTES
        issued_at = int.from_bytes(data[key_start + KEY_BYTES :][:8], "little")
        not_after = int.from_bytes(data[key_start + KEY_BYTES + 8 :][:8], "little")
        if not issued_at < not_after <= _LAST_TIME:
            raise BadCertificateBytes("its times make no sense")
        key = Ed25519PublicKey.from_public_bytes(data[key_start : key_start + KEY_BYTES])
        return cls(data[1:key_start], peer_id_of(key), issued_at, not_after, data[_BODY_BYTES:])

    def encode(self) -> bytes:
        """CERTIFICATE_BYTES bytes."""
        return self._body() + self.signature

    def is_signed_by(self, public_key: bytes) -> bool:
        """Whether the key (32 raw bytes) has signed this certificate."""
        try:
            Ed25519PublicKey.from_public_bytes(public_key).verify(
                self.signature, _MEMBER_DOMAIN + self._body()
            )
        except (InvalidSignature, ValueError):
            return False
        return True

    def _body(self) -> bytes:
        return _body(self.swarm_id, self.peer_id, self.issued_at, self.not_after)


def _body(swarm_id: bytes, peer_id: PeerId, issued_at: int, not_after: int) -> bytes:
    return (
        bytes([_VERSION])
        + swarm_id
        + public_key_of(peer_id).public_bytes_raw()
        + issued_at.to_bytes(8, "little")
        + not_after.to_bytes(8, "little")
    )


@dataclass(frozen=True)
class Membership:
    """What our node presents.

    Attributes:
        swarm: ours.
        certificate: encoded MemberCertificate for our peer id; b"" in an open swarm.
    """

    swarm: Swarm = OPEN_SWARM
    certificate: bytes = b""


def check_member(swarm: Swarm, data: bytes, peer_id: PeerId, now: float) -> str:
    """Is this peer a member? "" if it is, else one line that says why not, to be put after its id.

    The caller has made sure that it talks to `peer_id`. The reasons name no swarm: strangers are told them.

    Args:
        swarm: ours.
        data: the peer's certificate; b"" if it has none.
    """
    if swarm.public_key is None:
        return "" if not data else "shows a member certificate, which an open swarm does not have"
    if not data:
        return "is not a member of this swarm: it has no member certificate"
    try:
        certificate = MemberCertificate.decode(data)
    except BadCertificateBytes as error:
        return f"shows a malformed member certificate: {error}"
    if certificate.swarm_id != swarm.id:
        return "shows a member certificate of another swarm"
    if not certificate.is_signed_by(swarm.public_key):
        return "shows a member certificate that was signed by another key than the swarm's"
    if certificate.peer_id != peer_id:
        return f"shows the member certificate of another peer id, {certificate.peer_id}"
    if certificate.issued_at > now + CLOCK_SKEW:
        issued = utc(certificate.issued_at)
        return f"shows a member certificate that is issued in the future ({issued}): check the clocks"
    if certificate.not_after < now - CLOCK_SKEW:
        ended = utc(certificate.not_after)
        return f"is no longer a member: its certificate expired on {ended}, ask for a new invitation"
    return ""


def proof(membership: Membership) -> bytes:
    """What a node shows to others to be let in: SWARM_ID_BYTES, then its certificate. Not secret."""
    return membership.swarm.id + membership.certificate


def check_proof(swarm: Swarm, shown: bytes | None, peer_id: PeerId, now: float) -> str:
    """May this peer be talked to? "" if so, else one line that says why not, to be put after its id.

    Args:
        swarm: ours.
        shown: the peer's proof; None if it shows none, as nodes of other programs do. An open swarm
            takes those.
    """
    if shown is None:
        return "is not a member of this swarm: it shows no membership" if swarm.is_private else ""
    if len(shown) < SWARM_ID_BYTES:
        return f"shows a malformed membership of {len(shown)} bytes"
    if shown[:SWARM_ID_BYTES] != swarm.id:
        return f"belongs to another swarm ({shown[:8].hex()}...)"
    return check_member(swarm, shown[SWARM_ID_BYTES:], peer_id, now)


def utc(seconds: int) -> str:
    """A time as a person reads it: "2027-03-01 12:30 UTC"."""
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d %H:%M} UTC"
