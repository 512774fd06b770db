"""The table of adverts: its rules one by one, its limits, clocks that are wrong, and those who lie."""

from __future__ import annotations

import gc
import itertools
import tracemalloc
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from routing.advert_rows import Cursor, Outcome, TableLimits
from routing.adverts import ADVERT_BURST, MAX_BLAMED, PROBATION, AdvertTable
from routing.errors import LocalError
from routing.identity import peer_id_of
from routing.wire.advert import CLOCK_SKEW, MAX_ADVERT_BYTES, SIGNING_DOMAIN, Advert, farewell, sign_advert
from routing.wire.exchange import MAX_ADVERTS, MAX_ANSWER_BYTES, ChangesAnswer, encode_answer
from routing.wire.holdings import Slice
from tests.adverts import MODEL, NOW, SWARM, advert, identity, signed

OWN = str(identity("own").peer_id)
ANA = str(identity("ana").peer_id)
FRIEND = "12D3KooWfriend"
INSTANCE = 99


def table(limits: TableLimits | None = None, member: str = "") -> AdvertTable:
    return AdvertTable(SWARM, OWN, INSTANCE, lambda advert, now: member, limits or TableLimits())


def own(seq: int, **fields: Any) -> bytes:
    return signed("own", seq=seq, **({"instance": INSTANCE} | fields))


def put(known: AdvertTable, data: bytes, now: float = NOW, **how: Any) -> Outcome:
    arguments: dict[str, Any] = {"from_peer": FRIEND, "age": 0.0}
    return known.offer(data, now, **(arguments | how)).outcome


def at(host: str) -> list[str]:
    return [f"/ip{6 if ':' in host else 4}/{host}/udp/4001/quic-v1"]


def last_words(who: str, seq: int, issued_at: float = NOW) -> bytes:
    return sign_advert(farewell(advert(who), seq=seq, issued_at=int(issued_at)), identity(who))


# ---- one identity, one row ----------------------------------------------------------------------


def test_new_known_refreshed() -> None:
    known = table()
    first, second = signed(seq=1, load=3), signed(seq=2, load=4)
    offer = known.offer(first, NOW, from_peer=FRIEND)
    assert offer.outcome is Outcome.NEW and offer.changed and offer.peer_id == ANA
    assert put(known, first) is Outcome.KNOWN
    assert put(known, second) is Outcome.REFRESHED
    row = known.get(ANA)
    assert row is not None and row.advert.load == 4 and row.data == second and row.source == FRIEND
    assert len(known) == 1 and [each.advert.peer_id for each in known.rows()] == [ANA]


def test_replays_are_refused_and_change_nothing() -> None:
    known = table()
    put(known, signed(seq=5))
    before, cursor = known.get(ANA), known.cursor
    for replay in (signed(seq=4), signed(seq=5, load=9)):
        offer = known.offer(replay, NOW, from_peer=FRIEND)
        assert offer.outcome is Outcome.REFUSED and "a replay" in offer.reason
    assert known.get(ANA) == before and known.cursor == cursor
    assert known.refusals(FRIEND) == 0  # slower ways bring them in all honesty


def test_holders_and_relays_are_others() -> None:
    known = table()
    known.put_own(own(1, serves_relay=True), NOW)
    put(known, signed("ana", serves_relay=True))
    put(known, signed("bea", slices=[Slice("experts", "ab" * 32, "x", experts=[(0, 1, [(0, 1)])])]))
    assert [row.advert.peer_id for row in known.holders_of(MODEL)] == [ANA]
    assert [row.advert.peer_id for row in known.relays()] == [ANA]
    assert known.holders_of("00" * 32) == [] and len(known) == 3


# ---- hostile ------------------------------------------------------------------------------------


def forged() -> bytes:
    data = bytearray(signed("ana"))
    data[10] ^= 1
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (bytes(MAX_ADVERT_BYTES + 1), "more than the 9000"),
        (b"\x02" * 700, "version 2"),
        (b"\x01" * 700, "advert of a peer"),
        (forged(), "signature"),
        (signed(swarm_id=bytes(32)), "of swarm 000000000000"),
    ],
    ids=["oversized", "version", "malformed", "forged", "foreign"],
)
def test_bad_adverts_are_refused_counted_and_not_passed_on(data: bytes, match: str) -> None:
    known = table()
    cursor = known.cursor
    for _ in range(3):
        offer = known.offer(data, NOW, from_peer=FRIEND, age=0)
        assert offer.outcome is Outcome.REFUSED and match in offer.reason and not offer.changed
    assert known.rows() == [] and known.cursor == cursor and known.changes(Cursor(), NOW).adverts == []
    assert known.refusals(FRIEND) == 3
    known.forgive(FRIEND)
    assert known.refusals(FRIEND) == 0
    assert put(known, signed()) is Outcome.NEW  # a forgery keeps no place from the real one


def test_expired_and_future_adverts_are_refused_without_blame() -> None:
    known = table()
    old = known.offer(signed(issued_at=int(NOW) - 901), NOW, from_peer=FRIEND, age=0)
    early = known.offer(signed(issued_at=int(NOW) + 301), NOW, from_peer=FRIEND, age=0)
    assert "expired" in old.reason and "ahead of ours" in early.reason
    assert known.rows() == [] and known.refusals(FRIEND) == 0


def test_who_is_no_member_is_refused() -> None:
    known = table(member="its member certificate has run out")
    offer = known.offer(signed(), NOW, from_peer=FRIEND)
    assert offer.outcome is Outcome.REFUSED and "certificate has run out" in offer.reason
    assert known.rows() == [] and known.refusals(FRIEND) == 1


def test_nobody_is_blamed_for_what_no_peer_brought() -> None:
    known = table()
    assert put(known, forged(), from_peer="") is Outcome.REFUSED
    assert known.refusals("") == 0


def test_the_blamed_are_bounded() -> None:
    known = table()
    for number in range(MAX_BLAMED + 10):
        put(known, b"", from_peer=f"peer {number}")
    assert known.refusals("peer 9") == 0 and known.refusals("peer 10") == 1


def test_one_identity_cannot_flood() -> None:
    known = table()
    outcomes = [put(known, signed(seq=seq)) for seq in range(1, 20)]
    assert outcomes.count(Outcome.REFUSED) == 19 - ADVERT_BURST
    assert put(known, signed(seq=50), NOW + 0.5) is Outcome.REFUSED
    assert put(known, signed(seq=50), NOW + 1.0) is Outcome.REFRESHED
    assert put(known, last_words("ana", 51), NOW + 1.0) is Outcome.LEFT  # always heard
    assert put(known, signed(seq=52), NOW + 1.0) is Outcome.REFUSED


def flood(numbers: range, subnet: str) -> Iterator[bytes]:
    """Valid adverts, each of an identity nobody has seen; made one by one, kept by nobody."""
    for number in numbers:
        key = Ed25519PrivateKey.from_private_bytes(number.to_bytes(32, "big"))
        host = subnet.format(number % 250 + 1)
        fields = {"peer_id": str(peer_id_of(key.public_key())), "addresses": at(host)}
        body = msgspec.msgpack.encode(advert(**fields))
        yield b"\x01" + key.sign(SIGNING_DOMAIN + body) + body


@pytest.mark.parametrize(
    ("subnet", "count"),
    [
        ("203.0.114.{}", 1_000),
        ("192.168.1.{}", 1_000),
        pytest.param("203.0.114.{}", 5_000, marks=pytest.mark.slow),
    ],
)
def test_a_flood_of_true_identities_from_one_subnet(subnet: str, count: int) -> None:
    """Refused at the limit, memory flat, and others come in as before."""
    known = table(TableLimits(per_subnet=64, local=64))
    tracemalloc.start()
    outcomes = [put(known, data) for data in flood(range(500), subnet)]
    assert outcomes.count(Outcome.NEW) == 64
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()  # caches of the standard library are full by now
    refused = sum(put(known, data) is Outcome.REFUSED for data in flood(range(500, count), subnet))
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused == count - 500 and len(known) == 64
    # an entry kept of each would be some 500 bytes times all of them; what else the process does is less
    assert after - before < 20_000
    assert known.refusals(FRIEND) == 0  # they are not the bringer's fault
    assert put(known, signed(addresses=at("203.0.115.1"))) is Outcome.NEW


# ---- room ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        (["203.0.114.1", "203.0.114.2", "203.0.114.200"], "203.0.115.1"),
        (["2001:470:1:1::1", "2001:470:1:2::1", "2001:470:1:ffff::9"], "2001:470:2::1"),
        (["203.0.114.1", "::ffff:203.0.114.2", "::ffff:203.0.114.3"], "::ffff:203.0.115.1"),
    ],
)
def test_a_subnet_has_its_share(inside: list[str], outside: str) -> None:
    known = table(TableLimits(per_subnet=2))
    for number, host in enumerate(inside):
        offer = known.offer(signed(number, addresses=at(host)), NOW, from_peer=FRIEND)
        assert offer.changed is (number < 2)
    assert "there are 2 nodes in" in offer.reason
    assert put(known, signed(9, addresses=at(outside))) is Outcome.NEW
    # a refresh needs no new room; to move into a full subnet does
    assert put(known, signed(0, seq=2 * 10**12, addresses=at(inside[0]))) is Outcome.REFRESHED
    assert put(known, signed(9, seq=2 * 10**12, addresses=at(inside[0]))) is Outcome.REFUSED


def test_nodes_without_a_public_address_share_one_limit() -> None:
    known = table(TableLimits(local=3))
    hosts = ["127.0.0.1", "10.1.2.3", "fe80::1", "192.168.1.1"]
    outcomes = [put(known, signed(number, addresses=at(host))) for number, host in enumerate(hosts)]
    assert outcomes == [Outcome.NEW] * 3 + [Outcome.REFUSED]
    assert put(known, signed(7, addresses=[], control=["/ip4/203.0.114.1/tcp/1"])) is Outcome.NEW
    assert put(known, signed(8, addresses=[])) is Outcome.REFUSED


def test_one_peer_cannot_fill_the_table() -> None:
    known = table(TableLimits(rows=10, per_source=3))
    assert [put(known, signed(number)) for number in range(5)].count(Outcome.NEW) == 3
    assert put(known, signed(8), from_peer="another") is Outcome.NEW
    assert put(known, signed(9), from_peer="") is Outcome.NEW
    late = NOW + 600  # what it introduced is over: it may introduce again
    assert put(known, signed(5, issued_at=int(late)), late) is Outcome.NEW


def test_a_full_table_keeps_whom_it_has_until_they_are_over() -> None:
    known = table(TableLimits(rows=2))
    put(known, signed(0, lifetime=10))
    put(known, signed(1, lifetime=600))
    offer = known.offer(signed(2), NOW, from_peer=FRIEND)
    assert not offer.changed and "the table is full, 2 rows" in offer.reason
    assert put(known, signed(0, seq=2 * 10**12, lifetime=10)) is Outcome.REFRESHED
    assert put(known, signed(2, issued_at=int(NOW) + 10), NOW + 10) is Outcome.NEW  # expired ones go first
    assert known.expire(NOW + 10) == [str(identity(0).peer_id)]
    assert len(known) == 2 and known.expire(NOW + 11) == []


def test_pinned_peers_always_have_room() -> None:
    known = table(TableLimits(rows=1, per_source=1, local=1))
    put(known, signed(0))
    known.pin(ANA)
    assert put(known, signed("bea")) is Outcome.REFUSED
    assert put(known, signed("ana")) is Outcome.NEW
    row = known.get(ANA)
    assert row is not None and row.pinned
    known.unpin(ANA)
    row = known.get(ANA)
    assert row is not None and not row.pinned


# ---- time ---------------------------------------------------------------------------------------


def over_at(known: AdvertTable, who: str = ANA) -> float:
    row = known.get(who)
    assert row is not None
    return row.expires - NOW


@pytest.mark.parametrize("skew", [-CLOCK_SKEW, -120, 0, 120, CLOCK_SKEW])
@pytest.mark.parametrize("lifetime", [20, 600])
def test_a_row_lives_for_the_lifetime_whatever_its_clock_says(skew: int, lifetime: int) -> None:
    known = table()
    data = signed(issued_at=int(NOW) + skew, lifetime=lifetime)
    assert put(known, data, NOW + 1, age=1.0) is Outcome.NEW
    assert over_at(known) == pytest.approx(lifetime)
    assert known.expire(NOW + lifetime - 0.1) == [] and known.get(ANA) is not None
    assert known.expire(NOW + lifetime + 0.1) == [ANA] and known.get(ANA) is None


def test_a_vanished_node_is_gone_everywhere_within_two_lifetimes_however_it_was_passed_on() -> None:
    """Each table hears of it just before its row ends in the one before."""
    data = signed(issued_at=int(NOW) + CLOCK_SKEW, lifetime=600)  # its clock was ahead: the worst case
    tables = [table() for _ in range(10)]
    now, age = NOW, 0.0
    for number, known in enumerate(tables):
        outcome = known.offer(data, now, from_peer=FRIEND, age=age).outcome
        if number and outcome is Outcome.REFUSED:
            break
        now = max(now, over_at(known) + NOW - 0.5)
        changes = known.changes(Cursor(), now)
        ((age, _),) = changes.adverts
    for known in tables:
        known.expire(NOW + 600)
        assert known.rows() == []


def test_a_known_number_never_comes_back() -> None:
    known = table()
    data = signed(lifetime=20)
    put(known, data)
    assert known.expire(NOW + 20) == [ANA]
    assert put(known, data, NOW + 21, age=0.0) is Outcome.KNOWN
    assert put(known, data, NOW + 21, age=None, from_peer="") is Outcome.KNOWN
    assert put(known, signed(seq=1, issued_at=int(NOW) + 21), NOW + 21) is Outcome.REFUSED
    assert known.get(ANA) is None
    # and once it is forgotten, its dates refuse it
    known.expire(NOW + 20 + CLOCK_SKEW)
    assert "expired" in known.offer(data, NOW + 20 + CLOCK_SKEW, from_peer=FRIEND, age=0).reason


def test_a_liar_cannot_end_a_row_before_the_next_advert_nor_keep_it_beyond_its_dates() -> None:
    known = table()
    put(known, signed(), NOW, age=599.0)
    assert over_at(known) == 600 - CLOCK_SKEW
    known = table()
    put(known, signed(), NOW + 590, age=0.0)
    assert over_at(known) == 600 + CLOCK_SKEW
    known = table()
    assert put(known, signed(), NOW + 400, age=3_600.0) is Outcome.REFUSED
    assert put(known, signed(), NOW + 400, age=400.0) is Outcome.NEW  # the refusal left no trace


@pytest.mark.parametrize(("late", "left"), [(0, 600), (400, 200), (600, PROBATION), (890, 10)])
def test_without_an_age_the_dates_count(late: int, left: float) -> None:
    known = table()
    assert put(known, signed(), NOW + late, age=None, from_peer="") is Outcome.NEW
    assert over_at(known) - late == left


def test_an_age_that_is_told_later_replaces_a_guess() -> None:
    known = table()
    data = signed(issued_at=int(NOW) - 290)  # a clock that is behind
    put(known, data, NOW, age=None, from_peer="")
    assert over_at(known) == 310
    assert put(known, data, NOW + 5, age=5.0) is Outcome.KNOWN
    assert over_at(known) == 600
    assert put(known, data, NOW + 5, age=100.0) is Outcome.KNOWN  # the first one told stays
    assert over_at(known) == 600


def test_a_node_that_comes_back_is_new_again() -> None:
    known = table()
    put(known, signed(lifetime=20))
    assert known.expire(NOW + 20) == [ANA]
    again = signed(lifetime=20, issued_at=int(NOW) + 30, instance=8)
    assert put(known, again, NOW + 30) is Outcome.NEW
    assert known.clones() == []


def test_what_is_remembered_of_the_gone_is_bounded() -> None:
    known = table(TableLimits(gone=3))
    for number in range(10):
        put(known, signed(number, lifetime=20))
    assert len(known.expire(NOW + 20)) == 10
    outcomes = [put(known, signed(number, lifetime=20), NOW + 21, age=0.0) for number in range(10)]
    assert outcomes == [Outcome.NEW] * 7 + [Outcome.KNOWN] * 3


# ---- farewell -----------------------------------------------------------------------------------


def test_a_farewell_ends_the_row_at_once_and_is_passed_on() -> None:
    known = table()
    put(known, signed(seq=5))
    cursor = known.cursor
    offer = known.offer(last_words("ana", 6), NOW, from_peer=FRIEND)
    assert offer.outcome is Outcome.LEFT and offer.changed and offer.peer_id == ANA
    assert known.get(ANA) is None and len(known) == 0
    assert known.expire(NOW) == []  # the offer has said so
    assert known.changes(cursor, NOW).adverts == [(0.0, last_words("ana", 6))]
    assert put(known, signed(seq=5)) is Outcome.REFUSED
    assert put(known, last_words("ana", 6)) is Outcome.KNOWN
    assert known.changes(Cursor(), NOW + 600).adverts == []
    assert put(known, signed(seq=7, instance=8)) is Outcome.NEW


def test_a_strangers_farewell_leaves_no_trace() -> None:
    known = table()
    assert put(known, last_words("ana", 6)) is Outcome.KNOWN
    assert known.cursor == Cursor(INSTANCE, 0)


def test_a_forged_farewell_ends_nothing() -> None:
    known = table()
    put(known, signed(seq=5))
    data = bytearray(last_words("ana", 6))
    data[5] ^= 1
    assert put(known, bytes(data)) is Outcome.REFUSED
    assert known.get(ANA) is not None


# ---- one key on two machines --------------------------------------------------------------------


def test_a_restart_is_no_clone() -> None:
    known = table()
    for seq, instance in [(1, 1), (2, 1), (3, 2), (4, 3)]:
        assert known.offer(signed(seq=seq, instance=instance), NOW, from_peer=FRIEND).clone is None
    assert known.clones() == []


def test_an_instance_that_speaks_after_its_successor_is_a_clone() -> None:
    known = table()
    put(known, signed(seq=1, instance=1, addresses=at("10.0.0.1")))
    put(known, signed(seq=2, instance=2, addresses=at("10.0.0.2")))
    offer = known.offer(signed(seq=3, instance=1, addresses=at("10.0.0.1")), NOW, from_peer=FRIEND)
    assert offer.outcome is Outcome.REFRESHED  # one identity, one row: the newest counts
    assert offer.clone is not None and offer.clone.peer_id == ANA and not offer.clone.own
    text = str(offer.clone)
    assert ANA in text and "10.0.0.1" in text and "10.0.0.2" in text and "\n" not in text
    assert known.clones() == [offer.clone]
    again = known.offer(signed(seq=4, instance=2), NOW, from_peer=FRIEND)
    assert again.changed and again.clone is None  # said once


def test_a_late_advert_of_the_old_instance_is_no_clone() -> None:
    known = table()
    put(known, signed(seq=1, instance=1))
    put(known, signed(seq=3, instance=2))
    assert put(known, signed(seq=2, instance=1)) is Outcome.REFUSED
    assert known.clones() == []


def test_our_own_identity_elsewhere() -> None:
    known = table()
    start = int(NOW)
    known.put_own(own(10, issued_at=start, addresses=at("10.0.0.1")), NOW)
    elsewhere = signed("own", seq=11, instance=5, issued_at=start + 3, addresses=at("10.0.0.9"))
    offer = known.offer(elsewhere, NOW + 3, from_peer=FRIEND)
    assert offer.outcome is Outcome.REFUSED and offer.clone is not None and offer.clone.own
    assert "10.0.0.9" in str(offer.clone) and "10.0.0.1" in str(offer.clone)
    row = known.get(OWN)
    assert row is not None and row.advert.instance == INSTANCE
    assert known.own_seq == 11  # the next one must be above
    assert known.offer(elsewhere, NOW + 3, from_peer=FRIEND).clone is None
    assert known.clones() == [offer.clone] and known.refusals(FRIEND) == 0


def test_what_an_earlier_run_of_ours_said_is_no_clone() -> None:
    known = table()
    known.put_own(own(10), NOW)
    earlier = signed("own", seq=20, instance=5, issued_at=int(NOW) - 60)
    assert put(known, earlier) is Outcome.KNOWN
    assert known.own_seq == 20 and known.clones() == []


def test_our_own_echo_is_known_and_a_forged_one_refused() -> None:
    known = table()
    known.put_own(own(10), NOW)
    assert put(known, own(10)) is Outcome.KNOWN
    fake = bytearray(signed("own", seq=2**52, instance=5, issued_at=int(NOW) + 9))
    fake[3] ^= 1
    assert put(known, bytes(fake)) is Outcome.REFUSED
    assert known.own_seq == 10 and known.clones() == []


def test_own_adverts_must_be_ours_and_newer() -> None:
    known = table()
    assert known.put_own(own(10), NOW).outcome is Outcome.NEW
    for data in (own(10), own(9), own(11, instance=1), signed("ana"), b"", own(11, swarm_id=bytes(32))):
        with pytest.raises(LocalError):
            known.put_own(data, NOW)
    assert known.put_own(own(11), NOW).outcome is Outcome.REFRESHED
    bye: Advert = farewell(advert("own", instance=INSTANCE), seq=12, issued_at=int(NOW))
    assert known.put_own(sign_advert(bye, identity("own")), NOW).outcome is Outcome.LEFT


# ---- cursors ------------------------------------------------------------------------------------


def read_all(known: AdvertTable, cursor: Cursor, now: float = NOW, not_via: int = 0) -> list[list[bytes]]:
    answers = []
    while True:
        changes = known.changes(cursor, now, not_via=not_via)
        answers.append([data for _, data in changes.adverts])
        cursor = changes.cursor
        if not changes.more:
            assert cursor == known.cursor
            return answers


def joined(answers: list[list[bytes]]) -> list[bytes]:
    return list(itertools.chain.from_iterable(answers))


def test_a_cursor_tells_each_change_once_and_only_the_newest_of_each_peer() -> None:
    known = table()
    put(known, signed("ana", seq=1))
    put(known, signed("bea", seq=1))
    cursor = known.cursor
    assert read_all(known, Cursor()) == [[signed("ana", seq=1), signed("bea", seq=1)]]
    assert read_all(known, cursor) == [[]]
    put(known, signed("ana", seq=2))
    put(known, signed("ana", seq=3))
    assert read_all(known, cursor) == [[signed("ana", seq=3)]]
    assert read_all(known, Cursor()) == [[signed("bea", seq=1), signed("ana", seq=3)]]


def test_a_cursor_of_another_run_reads_from_the_start_and_one_from_the_future_nothing() -> None:
    known = table()
    put(known, signed())
    assert read_all(known, Cursor(INSTANCE + 1, 5)) == [[signed()]]
    assert read_all(known, Cursor(INSTANCE, 2**63)) == [[]]


def test_answers_are_bounded_by_number_and_by_bytes() -> None:
    known = table()
    small = [signed(number, slices=[]) for number in range(MAX_ADVERTS * 2 + 5)]
    for data in small:
        put(known, data)
    answers = read_all(known, Cursor())
    assert [len(each) for each in answers] == [MAX_ADVERTS, MAX_ADVERTS, 5] and joined(answers) == small
    scattered = [
        (layer, layer, [(each + layer % 2, each + layer % 2) for each in range(0, 100, 2)])
        for layer in range(48)
    ]
    large = [
        signed(number, seq=2 * 10**12, slices=[Slice("experts", MODEL, "x", experts=scattered)])
        for number in range(60)
    ]
    cursor = known.cursor
    for data in large:
        put(known, data)
    changes = known.changes(cursor, NOW + 1e-3)
    answer = ChangesAnswer(2**64 - 1, 2**64 - 1, True, [(3_600_000, data) for _, data in changes.adverts])
    assert changes.more and 0.9 * MAX_ANSWER_BYTES < len(encode_answer(answer)) <= MAX_ANSWER_BYTES
    assert joined(read_all(known, cursor)) == large


def test_nothing_goes_back_over_the_connection_it_came_by() -> None:
    known = table()
    put(known, signed("ana"), via=1)
    put(known, signed("bea"), via=2)
    assert read_all(known, Cursor(), not_via=1) == [[signed("bea")]]
    assert read_all(known, Cursor(), not_via=3) == [[signed("ana"), signed("bea")]]


def test_ages_grow_from_table_to_table_and_the_expired_are_not_told() -> None:
    known = table()
    put(known, signed(lifetime=60), NOW, age=10.0)
    assert known.changes(Cursor(), NOW + 20).adverts == [(30.0, signed(lifetime=60))]
    assert known.changes(Cursor(), NOW + 50).adverts == []
