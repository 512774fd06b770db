"""An invitation into a private swarm: one line of text that makes one node a member.

`panal-invite:` and base64url (no padding) of

    1     version, 1
    1     length of the name in bytes, then the name in UTF-8
    32    the swarm's public key
    145   the member certificate (routing.membership)
    1     how many addresses follow, at most MAX_ADDRESSES
          each: u16 length, little endian, then a multiaddr with /p2p/ as text: whom to dial first
    64    Ed25519 signature of the swarm's key over "panal-invite-1\\0" and all of the above

It holds no secret: the certificate in it is for one peer id, and of no use without that node's key. The
swarm's private key never leaves the machine it was made on.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from routing.control_address import MAX_ADDRESS_CHARS, ControlAddress
from routing.errors import LocalError
from routing.membership import (
    CERTIFICATE_BYTES,
    KEY_BYTES,
    SIGNATURE_BYTES,
    BadCertificateBytes,
    MemberCertificate,
    Swarm,
)
from routing.multiaddr import PeerAddress

PREFIX = "panal-invite:"
MAX_ADDRESSES = 8  # one that answers is enough; an invitation should fit into a message
MAX_CHARS = 6000  # the longest name and addresses make some 4,500; line breaks of mail on top

_VERSION = 1
_DOMAIN = b"panal-invite-1\0"


@dataclass(frozen=True)
class Invitation:
    """What an invitation says.

    Attributes:
        swarm: a private one.
        certificate: for whom, and for how long.
        addresses: of nodes to dial first, as `check_address` gives them.
    """

    swarm: Swarm
    certificate: MemberCertificate
    addresses: tuple[str, ...] = ()

    def encode(self, swarm_key: Ed25519PrivateKey) -> str:
        """The line to hand over, signed by the swarm's key.

        Raises:
            LocalError: too many addresses.
        """
        if len(self.addresses) > MAX_ADDRESSES:
            raise LocalError(f"{len(self.addresses)} addresses: an invitation carries up to {MAX_ADDRESSES}")
        assert self.swarm.public_key is not None
        name = self.swarm.name.encode()
        body = bytes([_VERSION, len(name)]) + name + self.swarm.public_key + self.certificate.encode()
        body += bytes([len(self.addresses)])
        for address in self.addresses:
            body += len(address).to_bytes(2, "little") + address.encode()
        signed = body + swarm_key.sign(_DOMAIN + body)
        return PREFIX + base64.urlsafe_b64encode(signed).rstrip(b"=").decode()

    @classmethod
    def decode(cls, text: str) -> Invitation:
        """Read an invitation that was pasted; spaces and line ends in it are passed over.

        The signature is checked, and that the certificate is the swarm's. Whether it is for this node and
        still valid is `check_member`'s to say.

        Raises:
            LocalError: it is none, incomplete or forged.
        """
        if len(text) > MAX_CHARS:
            raise LocalError(f"not a panal invitation: {len(text)} characters, {MAX_CHARS} are the most")
        text = "".join(text.split())
        if not text.startswith(PREFIX):
            raise LocalError(f"not a panal invitation: it should begin with {PREFIX!r}")
        try:
            invitation, signed, signature = _read(_from_base64(text.removeprefix(PREFIX)))
        except (ValueError, LocalError) as error:
            raise LocalError(
                f"the invitation is damaged or incomplete ({error}): copy the whole line once more"
            ) from None
        swarm = invitation.swarm
        assert swarm.public_key is not None
        try:
            Ed25519PublicKey.from_public_bytes(swarm.public_key).verify(signature, _DOMAIN + signed)
        except InvalidSignature:
            raise LocalError("the invitation is not signed by its swarm's key: ask for it again") from None
        if invitation.certificate.swarm_id != swarm.id:
            raise LocalError("the invitation's certificate is for another swarm: ask for it again")
        return invitation


def check_address(text: str) -> str:
    """A multiaddr to dial, of either plane and with a peer id, in its one form.

    Raises:
        LocalError: names the bad part.
    """
    address: PeerAddress | ControlAddress
    address = ControlAddress.parse(text) if "/tcp/" in text else PeerAddress.parse(text)
    if address.peer_id is None:
        raise LocalError(f"{text!r} does not say who must answer; add /p2p/PEER-ID")
    return str(address)


MIN_BYTES = 1 + 1 + 1 + KEY_BYTES + CERTIFICATE_BYTES + 1 + SIGNATURE_BYTES
"""Version, a name of one letter, key, certificate, no addresses, signature."""


def _from_base64(text: str) -> bytes:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not base64url") from None
    if base64.urlsafe_b64encode(data).rstrip(b"=").decode() != text:
        raise ValueError("not base64url")
    return data


def _read(data: bytes) -> tuple[Invitation, bytes, bytes]:
    """The invitation, the bytes that are signed, and the signature."""
    reader = _Reader(data)
    if len(data) < MIN_BYTES:
        raise ValueError("cut short, copy the whole line")
    version = reader.take(1)[0]
    if version != _VERSION:
        raise ValueError(f"version {version} is unknown here, a newer panal may know it")
    name = reader.take(reader.take(1)[0]).decode()
    swarm = Swarm(name, reader.take(KEY_BYTES))
    try:
        certificate = MemberCertificate.decode(reader.take(CERTIFICATE_BYTES))
    except BadCertificateBytes as error:
        raise ValueError(f"its certificate: {error}") from None
    count = reader.take(1)[0]
    if count > MAX_ADDRESSES:
        raise ValueError(f"{count} addresses")
    addresses = []
    for _ in range(count):
        size = int.from_bytes(reader.take(2), "little")
        if size > MAX_ADDRESS_CHARS:
            raise ValueError(f"an address of {size} bytes")
        text = reader.take(size).decode()
        if check_address(text) != text:
            raise ValueError("an address that is not in its one form")
        addresses.append(text)
    signed = data[: reader.position]
    signature = reader.take(SIGNATURE_BYTES)
    if reader.position != len(data):
        raise ValueError("bytes after its end")
    return Invitation(swarm, certificate, tuple(addresses)), signed, signature


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def take(self, size: int) -> bytes:
        part = self._data[self.position : self.position + size]
        if len(part) < size:
            raise ValueError("cut short, copy the whole line")
        self.position += size
        return part
