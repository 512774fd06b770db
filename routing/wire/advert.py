"""A node's advert: who it is, how it can be reached, what it serves; signed and short-lived
(docs/protocol.md, "Adverts").

1. On the wire an advert is one version byte, a 64-byte Ed25519 signature and a msgpack body. The
   signature covers a domain, so that it means nothing anywhere else, and the body as it was sent. The
   peer id in the body carries the key.
2. Any bytes give a `SignedAdvert` or an `AdvertError` that names one fault. Sizes are checked before
   anything is read, dates and swarm before the signature, which costs the most.
3. Clocks may differ by CLOCK_SKEW. By its dates alone an advert is usable from issued_at - CLOCK_SKEW to
   issued_at + lifetime + CLOCK_SKEW; a table that knows how old it is ends it sooner (routing/adverts.py).
4. Whoever passes an advert on passes on the bytes it was given: `SignedAdvert.data`.
5. Unknown fields are ignored, so that later versions can add some.

Pure: `now` is unix time in seconds, given by the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from cryptography.exceptions import InvalidSignature

from routing.control_address import ControlAddress
from routing.errors import LocalError, PeerError
from routing.identity import Identity, PeerId, parse_peer_id, public_key_of
from routing.multiaddr import MAX_MULTIADDR_CHARS, PeerAddress
from routing.wire.codecs import Buffer
from routing.wire.holdings import MAX_NAME_BYTES, MAX_SLICES, MAX_WORDS, Slice, slice_fault
from routing.wire.limits import MAX_ROWS
from routing.wire.quote import MAX_QUOTES, Quote, quotes_fault
from routing.wire.text import sanitise

ADVERT_VERSION = 1
"""First byte of every advert; another number is another format."""

SIGNING_DOMAIN = b"panal-advert-1\0"
"""Stands before the body under the signature: a key that also signs other things signs no advert by it."""

SIGNATURE_BYTES = 64
HEADER_BYTES = 1 + SIGNATURE_BYTES

MAX_ADVERT_BYTES = 9_000
"""Envelope and body. A record of the libp2p DHT must stay under 10 KB, with room for its own frame."""

ADVERT_LIFETIME = 600
"""Seconds, unless the owner says otherwise: a node that vanished is forgotten in ten minutes."""

MIN_LIFETIME = 10
"""Seconds. A shorter one would be over before it had crossed the swarm."""

MAX_LIFETIME = 3_600
"""Seconds. A row of a vanished node misleads for no longer than an hour."""

CLOCK_SKEW = 300
"""Seconds that a peer's clock may differ from ours either way."""

MAX_ADDRESSES = 16
"""Addresses of each kind: a laptop with two interfaces, both families, has eight."""

MAX_RELAYS = 8
"""Relays that hold a reservation for a node; two or three are enough for anyone."""

MAX_CONTROL_CHARS = 200
"""A TCP or WebSocket multiaddr; the longest host name people use is far below."""

MAX_RELAY_CHARS = MAX_CONTROL_CHARS + 60
"""The same, and `/p2p/PEER-ID`."""

MAX_MEMBER_BYTES = 1_024
"""A member certificate is a few hundred bytes."""

MAX_VERSIONS = 16
"""Protocol versions spoken; there is one."""

MAX_LOAD = 65_535
"""Milliseconds a new call would wait, u16 as in an answer of `/panal/experts`."""

MAX_PRICE = 2**53
"""Integers above this are not exact everywhere (JavaScript)."""

MAX_SEQ = 2**53
"""The same; milliseconds since 1970 reach it in the year 287,396."""

_MAX_TIME = 2**40  # year 36,812; keeps sums of times far from any overflow

_GONE = ("addresses", "control", "relays", "slices", "quotes")  # what a farewell does not carry

_Words = Annotated[
    list[Annotated[str, msgspec.Meta(pattern="^[a-z0-9_.-]{1,32}\\Z")]], msgspec.Meta(max_length=MAX_WORDS)
]
_Address = Annotated[str, msgspec.Meta(max_length=MAX_MULTIADDR_CHARS)]
_Control = Annotated[str, msgspec.Meta(max_length=MAX_CONTROL_CHARS)]
_Relay = Annotated[str, msgspec.Meta(max_length=MAX_RELAY_CHARS)]


class Fault(StrEnum):
    """What is wrong with an advert; each has its own words for people."""

    OVERSIZED = "oversized"
    VERSION = "wrong version"
    MALFORMED = "malformed"
    ADDRESSES = "addresses malformed"
    FOREIGN = "foreign swarm"
    EXPIRED = "expired"
    FUTURE = "issued in the future"
    SIGNATURE = "wrong signature"


class AdvertError(PeerError):
    """Bytes that are no advert we may use.

    Attributes:
        fault: which of the reasons.
        peer: whose advert it says it is, unproven; "" if that could not be read.
    """

    def __init__(self, fault: Fault, text: str, *, peer: str = "") -> None:
        super().__init__(f"advert of {peer or 'a peer'}: {sanitise(text, 300)}", peer=peer)
        self.fault = fault


class Advert(msgspec.Struct, frozen=True):
    """What a node says of itself.

    Attributes:
        swarm_id: 32 bytes, of the swarm it belongs to.
        peer_id: whose advert it is; the signature must be by this id's key.
        instance: random u64 of the process; a second one in use at the same time is a copied key.
        seq: grows with every advert of an identity, over restarts too (`next_seq`).
        issued_at: unix time in seconds, by its own clock.
        lifetime: seconds.
        name: what its owner calls it; printable, at most MAX_NAME_BYTES.
        addresses: QUIC multiaddrs, `/ip4/../udp/../quic-v1`, without /p2p.
        control: libp2p TCP and WebSocket multiaddrs, without /p2p.
        relays: multiaddrs of relays, with /p2p/RELAY, that hold a reservation for it.
        reach: whether strangers can dial its QUIC socket, by evidence.
        mapping: what its NAT's choice of port depends on.
        filtering: what its NAT or firewall lets in.
        udp: UDP works where it is.
        serves_relay: it relays for others.
        slices: what it serves.
        codecs, combines: names as in `/panal/slices`; unknown ones are a later version's.
        max_rows: rows of x it takes in one request.
        load: milliseconds that a call arriving now would wait. A hint.
        price: micro-credits, 0 free; nothing reads it since there are quotes.
        quotes: what it asks for its cells, one a model at most; none: nothing.
        versions: of `/panal/experts` it speaks.
        member: its member certificate in a private swarm, else empty.
        leaving: a farewell: whoever reads it forgets the node. It carries no addresses, relays, slices or
            quotes.
    """

    swarm_id: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
    peer_id: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    instance: Annotated[int, msgspec.Meta(ge=0)]
    seq: Annotated[int, msgspec.Meta(ge=1, le=MAX_SEQ)]
    issued_at: Annotated[int, msgspec.Meta(ge=0, le=_MAX_TIME)]
    lifetime: Annotated[int, msgspec.Meta(ge=MIN_LIFETIME, le=MAX_LIFETIME)] = ADVERT_LIFETIME
    name: Annotated[str, msgspec.Meta(max_length=MAX_NAME_BYTES * 4)] = ""
    addresses: Annotated[list[_Address], msgspec.Meta(max_length=MAX_ADDRESSES)] = []
    control: Annotated[list[_Control], msgspec.Meta(max_length=MAX_ADDRESSES)] = []
    relays: Annotated[list[_Relay], msgspec.Meta(max_length=MAX_RELAYS)] = []
    reach: Literal["unknown", "public", "private"] = "unknown"
    mapping: Literal["unknown", "none", "independent", "dependent"] = "unknown"
    filtering: Literal["unknown", "none", "address", "port"] = "unknown"
    udp: bool = True
    serves_relay: bool = False
    slices: Annotated[list[Slice], msgspec.Meta(max_length=MAX_SLICES)] = []
    codecs: _Words = []
    combines: _Words = []
    max_rows: Annotated[int, msgspec.Meta(ge=1, le=MAX_ROWS)] = 1
    load: Annotated[int, msgspec.Meta(ge=0, le=MAX_LOAD)] = 0
    price: Annotated[int, msgspec.Meta(ge=0, le=MAX_PRICE)] = 0
    quotes: Annotated[list[Quote], msgspec.Meta(max_length=MAX_QUOTES)] = []
    versions: Annotated[
        list[Annotated[int, msgspec.Meta(ge=1, le=255)]], msgspec.Meta(max_length=MAX_VERSIONS)
    ] = []
    member: Annotated[bytes, msgspec.Meta(max_length=MAX_MEMBER_BYTES)] = b""
    leaving: bool = False

    def serves(self, model_id: str) -> bool:
        """Whether it serves anything of a model."""
        return any(held.model_id == model_id for held in self.slices)

    def quote(self, model_id: str) -> Quote | None:
        """What it asks for its cells of a model; None: nothing."""
        return next((quote for quote in self.quotes if quote.model_id == model_id), None)

    def hosts(self) -> list[str]:
        """The IP addresses it names as its own, QUIC and control; not its relays'."""
        control = [ControlAddress.parse(each) for each in self.control]
        named = [each.host for each in control if each.family in ("ip4", "ip6")]
        return [PeerAddress.parse(each).host for each in self.addresses] + named


@dataclass(frozen=True)
class UnprovenAdvert:
    """An advert whose form is right. Nobody has looked at its signature: good for refusing it early only.

    Attributes:
        advert: what it says.
        data: the bytes, envelope included.
    """

    advert: Advert
    data: bytes

    def check(self, *, swarm_id: bytes, now: float) -> None:
        """Swarm and dates.

        Raises:
            AdvertError: FOREIGN, EXPIRED or FUTURE.
        """
        self.check_swarm(swarm_id)
        advert = self.advert
        ahead = advert.issued_at - now
        if ahead > CLOCK_SKEW:
            text = (
                f"issued {ahead:.0f} s in the future: its clock is {ahead:.0f} s ahead of ours, or ours is "
                f"behind ({CLOCK_SKEW} s are tolerated): set both by NTP"
            )
            raise AdvertError(Fault.FUTURE, text, peer=advert.peer_id)
        late = -ahead - advert.lifetime
        if late >= CLOCK_SKEW:
            text = (
                f"expired {late:.0f} s ago by our clock ({CLOCK_SKEW} s are tolerated): "
                "it is old, or its clock is behind ours"
            )
            raise AdvertError(Fault.EXPIRED, text, peer=advert.peer_id)

    def check_swarm(self, swarm_id: bytes) -> None:
        """Raises AdvertError (FOREIGN) if it is of another swarm."""
        if self.advert.swarm_id != swarm_id:
            text = f"it is of swarm {self.advert.swarm_id.hex()[:12]}, this node of {swarm_id.hex()[:12]}"
            raise AdvertError(Fault.FOREIGN, text, peer=self.advert.peer_id)

    def prove(self) -> SignedAdvert:
        """Check the signature; some 0.15 ms.

        Raises:
            AdvertError: SIGNATURE.
        """
        signature, body = self.data[1:HEADER_BYTES], self.data[HEADER_BYTES:]
        try:
            public_key_of(PeerId(self.advert.peer_id)).verify(signature, SIGNING_DOMAIN + body)
        except (InvalidSignature, ValueError):
            text = "its signature is not by that peer's key: forged, or damaged on the way"
            raise AdvertError(Fault.SIGNATURE, text, peer=self.advert.peer_id) from None
        return SignedAdvert(self.advert, self.data)


@dataclass(frozen=True)
class SignedAdvert:
    """An advert whose signature is its peer's.

    Attributes:
        advert: what it says, with the name made printable.
        data: the bytes, to be passed on as they are.
    """

    advert: Advert
    data: bytes


_decoder = msgspec.msgpack.Decoder(Advert)
_encoder = msgspec.msgpack.Encoder()


def next_seq(now: float, last: int) -> int:
    """The sequence number after `last`: unix time in milliseconds, but always greater than `last`."""
    return max(int(now * 1000), last + 1)


def refresh_after(lifetime: float) -> float:
    """Seconds after which a node issues its next advert.

    A third of the lifetime: two may be lost. At the default it is also below lifetime - CLOCK_SKEW, so that
    a peer that lies about an advert's age cannot end a row before the next advert comes.
    """
    return lifetime / 3


def farewell(advert: Advert, *, seq: int, issued_at: int) -> Advert:
    """The same node's last advert."""
    return msgspec.structs.replace(
        advert, seq=seq, issued_at=issued_at, leaving=True, **{each: [] for each in _GONE}
    )


def sign_advert(advert: Advert, identity: Identity) -> bytes:
    """Envelope and body.

    Raises:
        LocalError: the identity is another's, the advert is too large, or breaks a rule, so that no peer
            would take it.
    """
    if advert.peer_id != identity.peer_id:
        raise LocalError(f"an advert of {advert.peer_id} can't be signed with the key of {identity.peer_id}")
    fields = msgspec.structs.asdict(advert)
    if not advert.quotes:  # a node that asks nothing says the same bytes as before there were quotes
        del fields["quotes"]
    body = _encoder.encode(fields)
    size = HEADER_BYTES + len(body)
    if size > MAX_ADVERT_BYTES:
        raise LocalError(
            f"this node's advert takes {size} bytes, at most {MAX_ADVERT_BYTES} are allowed: its slices have "
            f"too many separate runs ({_count_runs(advert)}); serve fewer models, or experts that are "
            "neighbours and the same in every layer"
        )
    signature = identity.private_key.sign(SIGNING_DOMAIN + body)
    data = bytes([ADVERT_VERSION]) + signature + body
    try:
        decode_advert(data).prove()
    except AdvertError as error:
        raise LocalError(f"this node's advert can't be sent: {error}") from error
    return data


def decode_advert(data: Buffer) -> UnprovenAdvert:
    """Read the form alone: no swarm, no dates, no signature.

    Raises:
        AdvertError: OVERSIZED, VERSION, MALFORMED or ADDRESSES.
    """
    size = memoryview(data).nbytes
    if size > MAX_ADVERT_BYTES:
        raise AdvertError(Fault.OVERSIZED, f"{size} bytes, more than the {MAX_ADVERT_BYTES} allowed")
    raw = bytes(data)
    if not raw:
        raise AdvertError(Fault.MALFORMED, "no bytes at all")
    if raw[0] != ADVERT_VERSION:
        text = f"version {raw[0]}, this node reads {ADVERT_VERSION}: one of the two needs an update"
        raise AdvertError(Fault.VERSION, text)
    if size <= HEADER_BYTES:
        raise AdvertError(Fault.MALFORMED, f"{size} bytes are too few for a signature and a body")
    try:
        advert = _decoder.decode(raw[HEADER_BYTES:])
        parse_peer_id(advert.peer_id)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LocalError) as error:
        raise AdvertError(Fault.MALFORMED, str(error)) from None
    _check_meaning(advert)
    return UnprovenAdvert(
        msgspec.structs.replace(advert, name=sanitise(advert.name, MAX_NAME_BYTES)), data=raw
    )


def read_advert(data: Buffer, *, swarm_id: bytes, now: float) -> SignedAdvert:
    """Read and check an advert in every respect that needs no memory of others.

    Raises:
        AdvertError: its `fault` says which.
    """
    unproven = decode_advert(data)
    unproven.check(swarm_id=swarm_id, now=now)
    return unproven.prove()


def _check_meaning(advert: Advert) -> None:
    peer = advert.peer_id
    _check_addresses("addresses", advert.addresses, PeerAddress.parse, peer, with_peer=False)
    _check_addresses("control", advert.control, ControlAddress.parse, peer, with_peer=False)
    _check_addresses("relays", advert.relays, _parse_relay, peer, with_peer=True)
    for number, held in enumerate(advert.slices):
        if fault := slice_fault(held):
            raise AdvertError(Fault.MALFORMED, f"slice {number}: {fault}", peer=peer)
    if len({(held.kind, held.model_id) for held in advert.slices}) < len(advert.slices):
        # Replicas are counted slice by slice: who said the same forty times would be forty of them.
        raise AdvertError(Fault.MALFORMED, "two slices of one kind are for one model", peer=peer)
    if fault := quotes_fault(advert.quotes, advert.issued_at, advert.lifetime):
        raise AdvertError(Fault.MALFORMED, fault, peer=peer)
    if advert.leaving and any(getattr(advert, each) for each in _GONE):
        text = "a farewell carries no addresses, relays, slices or quotes"
        raise AdvertError(Fault.MALFORMED, text, peer=peer)


def _check_addresses(
    field: str,
    texts: list[str],
    parse: Callable[[str], PeerAddress | ControlAddress],
    peer: str,
    *,
    with_peer: bool,
) -> None:
    for text in texts:
        try:
            has_peer = parse(text).peer_id is not None
        except LocalError as error:
            raise AdvertError(Fault.ADDRESSES, f"{field}: {error}", peer=peer) from None
        if has_peer is not with_peer:
            fault = "lacks /p2p/RELAY" if with_peer else "has /p2p, which has no place in it"
            raise AdvertError(Fault.ADDRESSES, f"{field}: {text!r} {fault}", peer=peer)


def _parse_relay(text: str) -> PeerAddress | ControlAddress:
    return PeerAddress.parse(text) if "/udp/" in text else ControlAddress.parse(text)


def _count_runs(advert: Advert) -> int:
    return sum(len(held.layers) + sum(len(runs) for *_, runs in held.experts) for held in advert.slices)
