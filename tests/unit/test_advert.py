"""The signed advert: golden bytes, one refusal for each rule, clocks that are wrong."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from routing.errors import LocalError
from routing.identity import Identity
from routing.wire.advert import (
    CLOCK_SKEW,
    HEADER_BYTES,
    MAX_ADVERT_BYTES,
    MAX_SEQ,
    SIGNING_DOMAIN,
    Advert,
    AdvertError,
    Fault,
    decode_advert,
    farewell,
    next_seq,
    read_advert,
    refresh_after,
    sign_advert,
)
from routing.wire.holdings import Slice
from tests.adverts import MODEL, NOW, SWARM, advert, identity, signed

PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol.md"
RELAY = str(identity("relay").peer_id)


def enveloped(fields: dict[str, Any] | bytes, name: str = "ana") -> bytes:
    """A properly signed envelope around any body."""
    body = fields if isinstance(fields, bytes) else msgspec.msgpack.encode(fields)
    return b"\x01" + identity(name).private_key.sign(SIGNING_DOMAIN + body) + body


def as_fields(value: Advert) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(value))
    return fields


def refused(data: bytes, now: float = NOW, swarm_id: bytes = SWARM) -> AdvertError:
    with pytest.raises(AdvertError) as caught:
        read_advert(data, swarm_id=swarm_id, now=now)
    text = str(caught.value)
    assert "\n" not in text and text.isprintable() and len(text) < 500
    return caught.value


# ---- golden bytes -------------------------------------------------------------------------------


def documented() -> tuple[Identity, Advert]:
    """The example of docs/protocol.md."""
    key = Identity.from_private_key(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
    return key, Advert(
        swarm_id=bytes(range(32)),
        peer_id=str(key.peer_id),
        instance=0x0123456789ABCDEF,
        seq=1_800_000_000_000,
        issued_at=1_800_000_000,
        lifetime=600,
        name="casa de Ana",
        addresses=["/ip4/203.0.113.7/udp/4001/quic-v1"],
        reach="public",
        mapping="none",
        filtering="none",
        udp=True,
        slices=[Slice("experts", MODEL, "qwen3moe", experts=[(0, 47, [(0, 39), (64, 64)])])],
        codecs=["f32", "f16", "int8"],
        combines=["rows", "sum"],
        max_rows=512,
        versions=[1],
    )


GOLDEN = bytes.fromhex(
    """
    01 49 c8 05 94 1e 2d 31 f5 e0 d6 25 f3 d7 a4 68 da 72 f0 e0 57 ca 71 7d 3d ef f4 a6 cf cf 79 1d
    a9 6f df 57 cb 93 5c 72 33 9c 94 7b 2b 3d 65 06 e5 79 60 1c 8d 3e 4e 72 3a 00 97 2c 1f bb ec 5e
    02 de 00 18 a8 73 77 61 72 6d 5f 69 64 c4 20 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f 10
    11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f a7 70 65 65 72 5f 69 64 d9 34 31 32 44 33 4b 6f 6f
    57 41 34 58 6f 70 31 4a 61 54 33 4d 48 78 77 59 4d 6b 43 65 70 59 73 76 34 69 50 56 6f 70 4d 58
    77 43 7a 35 69 48 59 64 42 66 65 53 42 a8 69 6e 73 74 61 6e 63 65 cf 01 23 45 67 89 ab cd ef a3
    73 65 71 cf 00 00 01 a3 18 5c 50 00 a9 69 73 73 75 65 64 5f 61 74 ce 6b 49 d2 00 a8 6c 69 66 65
    74 69 6d 65 cd 02 58 a4 6e 61 6d 65 ab 63 61 73 61 20 64 65 20 41 6e 61 a9 61 64 64 72 65 73 73
    65 73 91 d9 21 2f 69 70 34 2f 32 30 33 2e 30 2e 31 31 33 2e 37 2f 75 64 70 2f 34 30 30 31 2f 71
    75 69 63 2d 76 31 a7 63 6f 6e 74 72 6f 6c 90 a6 72 65 6c 61 79 73 90 a5 72 65 61 63 68 a6 70 75
    62 6c 69 63 a7 6d 61 70 70 69 6e 67 a4 6e 6f 6e 65 a9 66 69 6c 74 65 72 69 6e 67 a4 6e 6f 6e 65
    a3 75 64 70 c3 ac 73 65 72 76 65 73 5f 72 65 6c 61 79 c2 a6 73 6c 69 63 65 73 91 85 a4 6b 69 6e
    64 a7 65 78 70 65 72 74 73 a8 6d 6f 64 65 6c 5f 69 64 d9 40 30 66 30 66 30 66 30 66 30 66 30 66
    30 66 30 66 30 66 30 66 30 66 30 66 30 66 30 66 30 66 30 66 30 66 30 66 30 66 30 66 30 66 30 66
    30 66 30 66 30 66 30 66 30 66 30 66 30 66 30 66 30 66 30 66 ac 61 72 63 68 69 74 65 63 74 75 72
    65 a8 71 77 65 6e 33 6d 6f 65 a6 6c 61 79 65 72 73 90 a7 65 78 70 65 72 74 73 91 93 00 2f 92 92
    00 27 92 40 40 a6 63 6f 64 65 63 73 93 a3 66 33 32 a3 66 31 36 a4 69 6e 74 38 a8 63 6f 6d 62 69
    6e 65 73 92 a4 72 6f 77 73 a3 73 75 6d a8 6d 61 78 5f 72 6f 77 73 cd 02 00 a4 6c 6f 61 64 00 a5
    70 72 69 63 65 00 a8 76 65 72 73 69 6f 6e 73 91 01 a6 6d 65 6d 62 65 72 c4 00 a7 6c 65 61 76 69
    6e 67 c2
    """
)


def test_golden_bytes() -> None:
    key, example = documented()
    assert sign_advert(example, key) == GOLDEN
    read = read_advert(GOLDEN, swarm_id=bytes(range(32)), now=NOW)
    assert read.advert == example and read.data == GOLDEN


def test_the_documented_example_is_the_golden_one() -> None:
    block = re.search(r"^```advert\n(.*?)^```$", PROTOCOL.read_text(), re.DOTALL | re.MULTILINE)
    assert block is not None
    assert bytes.fromhex(re.sub(r"#.*", "", block[1])) == GOLDEN


# ---- what is refused ----------------------------------------------------------------------------


def test_a_signed_advert_is_read_as_it_was_written() -> None:
    value = advert(
        control=["/ip4/192.168.1.7/tcp/4001", "/dns4/example.org/tcp/443/tls/ws"],
        relays=[f"/ip4/203.0.113.9/tcp/4001/p2p/{RELAY}", f"/ip4/203.0.113.9/udp/1/quic-v1/p2p/{RELAY}"],
        member=b"certificate",
        price=12,
    )
    read = read_advert(sign_advert(value, identity("ana")), swarm_id=SWARM, now=NOW)
    assert read.advert == value
    assert value.hosts() == ["192.168.1.7", "192.168.1.7"]
    assert value.serves(MODEL) and not value.serves("00" * 32)


def test_oversized() -> None:
    error = refused(b"\x01" * (MAX_ADVERT_BYTES + 1))
    assert error.fault is Fault.OVERSIZED and "9001 bytes, more than the 9000" in str(error)


def test_another_version() -> None:
    error = refused(b"\x02" + signed()[1:])
    assert error.fault is Fault.VERSION and "version 2" in str(error)


@pytest.mark.parametrize(
    "data", [b"", b"\x01", b"\x01" * HEADER_BYTES, b"\x01" * 500, enveloped(b""), enveloped(b"\xc0")]
)
def test_what_is_no_advert(data: bytes) -> None:
    assert refused(data).fault is Fault.MALFORMED


@pytest.mark.parametrize("where", [1, 40, 64, HEADER_BYTES + 200, -1])
def test_one_wrong_bit(where: int) -> None:
    data = bytearray(signed(name="casa " * 12, price=2**40))
    data[where] ^= 1
    assert refused(bytes(data)).fault in (Fault.SIGNATURE, Fault.MALFORMED, Fault.FOREIGN)


def test_a_signature_by_another_key() -> None:
    forged = enveloped(as_fields(advert("ana")), name="mallory")
    error = refused(forged)
    assert error.fault is Fault.SIGNATURE
    assert error.peer == identity("ana").peer_id and error.peer in str(error)


@pytest.mark.parametrize("domain", [b"", b"panal-advert-2\0", b"panal-receipt-1\0"])
def test_a_signature_in_another_domain(domain: bytes) -> None:
    body = msgspec.msgpack.encode(advert())
    data = b"\x01" + identity("ana").private_key.sign(domain + body) + body
    assert refused(data).fault is Fault.SIGNATURE


def test_another_swarm_with_the_same_model() -> None:
    error = refused(signed(), swarm_id=bytes(32))
    assert error.fault is Fault.FOREIGN and "swarm 000102030405" in str(error)


@pytest.mark.parametrize("peer_id", ["", "12D3KooW", "x" * 64, "Qm" + "a" * 44, str(RELAY)[:-1] + "é"])
def test_peer_ids(peer_id: str) -> None:
    assert refused(enveloped(as_fields(advert()) | {"peer_id": peer_id})).fault is Fault.MALFORMED


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"swarm_id": bytes(31)}, "swarm_id"),
        ({"instance": -1}, "instance"),
        ({"seq": 0}, "seq"),
        ({"seq": MAX_SEQ + 1}, "seq"),
        ({"issued_at": 2**41}, "issued_at"),
        ({"lifetime": 9}, "lifetime"),
        ({"lifetime": 3_601}, "lifetime"),
        ({"name": "n" * 257}, "name"),
        ({"addresses": ["/ip4/1.2.3.4/udp/1/quic-v1"] * 17}, "addresses"),
        ({"addresses": ["/" * 201]}, "addresses"),
        ({"control": ["/ip4/1.2.3.4/tcp/1"] * 17}, "control"),
        ({"relays": ["x"] * 9}, "relays"),
        ({"reach": "maybe"}, "reach"),
        ({"mapping": "odd"}, "mapping"),
        ({"filtering": "odd"}, "filtering"),
        ({"udp": 1}, "udp"),
        ({"serves_relay": None}, "serves_relay"),
        ({"codecs": ["F32"]}, "codecs"),
        ({"codecs": ["f32"] * 17}, "codecs"),
        ({"combines": ["a b"]}, "combines"),
        ({"max_rows": 0}, "max_rows"),
        ({"max_rows": 16_385}, "max_rows"),
        ({"load": 65_536}, "load"),
        ({"price": -1}, "price"),
        ({"price": 2**53 + 1}, "price"),
        ({"price": 0.5}, "price"),
        ({"versions": [0]}, "versions"),
        ({"versions": [1] * 17}, "versions"),
        ({"member": bytes(1_025)}, "member"),
        ({"slices": [{"kind": "spans", "model_id": MODEL, "architecture": "a"}]}, "kind"),
        ({"slices": [{"kind": "experts", "model_id": MODEL, "architecture": "a"}]}, "slice 0: kind experts"),
        (
            {
                "slices": [
                    {"kind": "layers", "model_id": MODEL, "architecture": "a", "layers": [[3, 4], [4, 5]]}
                ]
            },
            "slice 0: its runs of layers",
        ),
        ({"leaving": True}, "a farewell carries no"),
    ],
)
def test_field(change: dict[str, Any], match: str) -> None:
    error = refused(enveloped(as_fields(advert()) | change))
    assert error.fault is Fault.MALFORMED and match in str(error)


@pytest.mark.parametrize("missing", ["swarm_id", "peer_id", "instance", "seq", "issued_at"])
def test_fields_that_must_be_there(missing: str) -> None:
    fields = as_fields(advert())
    del fields[missing]
    error = refused(enveloped(fields))
    assert error.fault is Fault.MALFORMED and missing in str(error)


@pytest.mark.parametrize(
    "change",
    [
        {"addresses": ["/ip4/1.2.3.4/tcp/1"]},
        {"addresses": ["/ip4/1.2.3.4/udp/0/quic-v1"]},
        {"addresses": ["/ip4/0.0.0.0/udp/1/quic-v1"]},
        {"addresses": [f"/ip4/1.2.3.4/udp/1/quic-v1/p2p/{RELAY}"]},
        {"addresses": ["/dns4/example.org/udp/1/quic-v1"]},
        {"addresses": ["\x1b[2J"]},
        {"control": ["/ip4/1.2.3.4/udp/1/quic-v1"]},
        {"control": ["/ip4/1.2.3/tcp/1"]},
        {"control": ["/ip6/1.2.3.4/tcp/1"]},
        {"control": ["/ip4/0.0.0.0/tcp/1"]},
        {"control": ["/ip4/1.2.3.4/tcp/65536"]},
        {"control": ["/ip4/1.2.3.4/tcp/1\n"]},
        {"control": ["/ip4/1.2.3.4/tcp/1/"]},
        {"control": [f"/ip4/1.2.3.4/tcp/1/p2p/{RELAY}"]},
        {"control": ["/ip4/1.2.3.4/tcp/1/ws/p2p-circuit"]},
        {"relays": ["/ip4/1.2.3.4/tcp/1"]},
        {"relays": ["/ip4/1.2.3.4/tcp/1/p2p/me"]},
        {"relays": [f"/p2p/{RELAY}"]},
        {"relays": [f"/ip4/1.2.3.4/tcp/1/p2p/{RELAY}/p2p-circuit/p2p/{RELAY}"]},
    ],
)
def test_addresses(change: dict[str, Any]) -> None:
    error = refused(enveloped(as_fields(advert()) | change))
    assert error.fault is Fault.ADDRESSES and next(iter(change)) in str(error)


def test_a_claimed_size_is_not_believed() -> None:
    fields = msgspec.msgpack.encode(as_fields(advert()))[1:]
    bodies = [
        b"\xdf\xff\xff\xff\xff",  # a map of 2^32 - 1
        b"\x81\xa9addresses\xdd\xff\xff\xff\xff",  # a list of as many
        b"\x81\xa6member\xc6\xff\xff\xff\xff",
        b"\x81\xa4name\xdb\xff\xff\xff\xff",
        b"\x81\xa6slices\xdc\x00\x40" + b"\x81\xa7experts\xdc\xff\xff" * 64,
        b"\xde\xff\xff" + fields,
        b"\x81\xa4mood" + b"\x91" * 8_000,  # deep, in a field we do not know
        b"\x81\xa6slices" + b"\x91" * 8_000,
    ]
    tracemalloc.start()
    for body in bodies:
        assert refused(enveloped(body)).fault is Fault.MALFORMED
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


def test_unknown_fields_and_words_are_a_later_versions() -> None:
    fields = as_fields(advert()) | {"mood": {"deep": [1, 2, 3]}, "codecs": ["f32", "int4"]}
    read = read_advert(enveloped(fields), swarm_id=SWARM, now=NOW)
    assert read.advert.codecs == ["f32", "int4"] and read.data == enveloped(fields)


def test_a_name_is_made_printable_and_the_bytes_stay() -> None:
    data = signed(name="Ana\x1b[2J\n\u202ecasa  ")
    read = read_advert(data, swarm_id=SWARM, now=NOW)
    assert read.advert.name == "Ana [2J casa" and read.data == data


# ---- time ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew", [-CLOCK_SKEW, -30, 0, 30, CLOCK_SKEW])
def test_a_fresh_advert_is_good_whatever_its_clock_says_within_the_skew(skew: int) -> None:
    data = signed(issued_at=int(NOW) + skew)
    assert read_advert(data, swarm_id=SWARM, now=NOW).advert.issued_at == NOW + skew
    read_advert(data, swarm_id=SWARM, now=NOW + 299)


def test_a_clock_too_far_ahead_is_named() -> None:
    error = refused(signed(issued_at=int(NOW) + 421))
    assert error.fault is Fault.FUTURE
    assert "its clock is 421 s ahead of ours, or ours is behind" in str(error)


def test_expired() -> None:
    data = signed(lifetime=60)
    read_advert(data, swarm_id=SWARM, now=NOW + 60 + CLOCK_SKEW - 0.1)
    error = refused(data, now=NOW + 60 + CLOCK_SKEW)
    assert error.fault is Fault.EXPIRED and "expired 300 s ago" in str(error)


def test_sequence_numbers_grow_with_the_clock_and_without_it() -> None:
    assert next_seq(NOW, 0) == int(NOW * 1000)
    assert next_seq(NOW, int(NOW * 1000)) == int(NOW * 1000) + 1
    assert next_seq(5.0, 10**12) == 10**12 + 1


def test_the_next_advert_comes_before_a_liar_can_end_the_row() -> None:
    assert refresh_after(600) < 600 - CLOCK_SKEW


# ---- our own ------------------------------------------------------------------------------------


def test_a_farewell_says_nothing_but_that() -> None:
    last = farewell(advert(relays=[f"/ip4/1.2.3.4/tcp/1/p2p/{RELAY}"]), seq=5, issued_at=6)
    data = sign_advert(last, identity("ana"))
    assert decode_advert(data).advert == last and last.leaving and last.hosts() == [] and len(data) < 500


def test_too_many_slices_to_announce() -> None:
    scattered = [(layer, layer, [(each, each) for each in range(0, 256, 2)]) for layer in range(48)]
    held = Slice("experts", MODEL, "qwen3moe", experts=scattered)
    with pytest.raises(
        LocalError, match=r"advert takes \d+ bytes, at most 9000.*serve fewer models"
    ) as caught:
        signed(slices=[held])
    assert "(6144)" in str(caught.value) and "\n" not in str(caught.value)


def test_one_peer_is_one_replica_however_often_it_says_so() -> None:
    held = Slice("experts", MODEL, "qwen3moe", experts=[(0, 47, [(0, 127)])])
    signed(slices=[held, Slice("experts", "00" * 32, "qwen3moe", experts=[(0, 1, [(0, 7)])])])
    signed(slices=[held, Slice("layers", MODEL, "qwen3moe", layers=[(0, 3)])])
    for again in (held, Slice("experts", MODEL, "qwen3moe", experts=[(0, 0, [(0, 0)])])):
        with pytest.raises(LocalError, match="two slices of one kind are for one model"):
            signed(slices=[held, again])


def test_half_of_a_large_model_fits_however_it_is_spread() -> None:
    """48 layers, 128 experts: sixteen runs in each layer, other ones in every layer."""
    scattered = [
        (layer, layer, [(8 * each + layer % 5, 8 * each + 3 + layer % 5) for each in range(16)])
        for layer in range(48)
    ]
    data = signed(slices=[Slice("experts", MODEL, "qwen3moe", experts=scattered)])
    assert len(data) < MAX_ADVERT_BYTES


def test_what_no_peer_would_take_is_not_signed() -> None:
    with pytest.raises(LocalError, match="can't be signed with the key of"):
        sign_advert(advert("ana"), identity("bea"))
    with pytest.raises(LocalError, match="can't be sent"):
        signed(addresses=["/ip4/0.0.0.0/udp/1/quic-v1"])
    with pytest.raises(LocalError, match="can't be sent"):
        signed(lifetime=1)
