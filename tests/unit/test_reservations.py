"""The relay's table: who gets a place, who is refused and with what status, what runs out when."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from relay.hop_wire import Limit, Status
from relay.reservations import Circuit, RelayLimits, RelayRefused, Reservations, TokenBucket
from routing.identity import PeerId, decode_public_key, peer_id_of

SMALL = RelayLimits(
    reservations=4,
    reservations_per_ip=2,
    reservation_seconds=100,
    circuits=5,
    circuits_per_ip=4,
    circuits_per_source=2,
    circuits_per_target=3,
    circuit_seconds=60,
    circuit_bytes=1000,
    circuit_bytes_per_second=500,
    bytes_per_second=800,
)


def peer(number: int) -> PeerId:
    return peer_id_of(decode_public_key(b"\x08\x01\x12\x20" + number.to_bytes(32, "big")))


@contextmanager
def refused(status: Status, why: str) -> Iterator[None]:
    with pytest.raises(RelayRefused, match=why) as caught:
        yield
    assert caught.value.status == status


@pytest.fixture
def table() -> Reservations:
    return Reservations(SMALL, now=0)


def reserve(table: Reservations, number: int, ip: str, now: float = 0) -> float:
    return table.reserve(peer(number), ip, now, relayed=False).expires_at


def connect(table: Reservations, source: int, target: int, ip: str = "", now: float = 0) -> Circuit:
    return table.open_circuit(peer(source), ip or f"10.9.0.{source}", peer(target), now, relayed=False)


def test_a_reservation_lives_its_time_and_a_refresh_prolongs_it(table: Reservations) -> None:
    assert reserve(table, 1, "10.0.0.1", 0) == 100
    assert reserve(table, 1, "10.0.0.1", 90) == 190
    assert len(table.reservations(189)) == 1
    assert table.reservations(190) == ()


def test_places_are_bounded_in_all_and_come_free_again(table: Reservations) -> None:
    for number in range(4):
        reserve(table, number, f"10.0.0.{number}", now=number)
    with refused(Status.RESERVATION_REFUSED, "all 4 reservations"):
        reserve(table, 9, "10.0.0.9", now=50)
    reserve(table, 3, "10.0.0.3", now=50)  # a refresh needs no place
    table.disconnected(peer(2))
    reserve(table, 9, "10.0.0.9", now=50)
    with refused(Status.RESERVATION_REFUSED, "all 4 reservations"):
        reserve(table, 2, "10.0.0.2", now=99)
    reserve(table, 2, "10.0.0.2", now=100)  # peer 0's has run out


def test_one_address_gets_its_share_only(table: Reservations) -> None:
    reserve(table, 1, "10.0.0.1")
    reserve(table, 2, "10.0.0.1")
    for number in range(3, 1003):
        with refused(Status.RESERVATION_REFUSED, r"10\.0\.0\.1 has 2 reservations"):
            reserve(table, number, "10.0.0.1")
    reserve(table, 1, "10.0.0.1")
    reserve(table, 3, "10.0.0.2")
    with refused(Status.RESERVATION_REFUSED, r"10\.0\.0\.1 has 2"):  # by moving there neither
        reserve(table, 3, "10.0.0.1")
    assert {each.origin for each in table.reservations(0)} == {"10.0.0.1", "10.0.0.2"}
    reserve(table, 1, "10.0.0.2")  # a peer that moved frees its place at the old address
    reserve(table, 4, "10.0.0.1")


def test_no_relay_over_relay(table: Reservations) -> None:
    reserve(table, 2, "10.0.0.1")
    with refused(Status.PERMISSION_DENIED, "no relay over relay"):
        table.reserve(peer(1), "10.0.0.1", 0, relayed=True)
    with refused(Status.PERMISSION_DENIED, "no relay over relay"):
        table.open_circuit(peer(1), "10.0.0.1", peer(2), 0, relayed=True)


def test_members_only() -> None:
    members = {peer(1), peer(2)}
    table = Reservations(SMALL, 0, allow=members.__contains__)
    reserve(table, 1, "10.0.0.1")
    with refused(Status.PERMISSION_DENIED, "not served here"):
        reserve(table, 3, "10.0.0.1")
    with refused(Status.PERMISSION_DENIED, "not served here"):
        connect(table, 3, 1)
    connect(table, 2, 1)
    members.discard(peer(1))  # expelled while its reservation lasts
    with refused(Status.NO_RESERVATION, "no reservation"):
        connect(table, 2, 1)


def test_circuits_need_a_reservation_at_the_other_end(table: Reservations) -> None:
    with refused(Status.NO_RESERVATION, "no reservation here"):
        connect(table, 1, 2)
    reserve(table, 2, "10.0.0.1", now=0)
    connect(table, 1, 2, now=99)
    with refused(Status.NO_RESERVATION, "no reservation here"):
        connect(table, 1, 2, now=100)
    reserve(table, 2, "10.0.0.1", now=100)
    with refused(Status.PERMISSION_DENIED, "itself"):
        connect(table, 2, 2, now=100)


def test_circuits_are_bounded_per_caller_per_target_per_address_and_in_all(table: Reservations) -> None:
    for number in (1, 2, 3):
        reserve(table, number, f"10.0.0.{number}")
    open_ = [connect(table, 11, 1), connect(table, 11, 2)]
    with refused(Status.RESOURCE_LIMIT_EXCEEDED, "all 2 circuits of caller"):
        connect(table, 11, 3)
    open_ += [connect(table, 12, 1), connect(table, 13, 1)]
    with refused(Status.RESOURCE_LIMIT_EXCEEDED, "all 3 circuits of target"):
        connect(table, 14, 1)
    open_.append(connect(table, 14, 2))
    with refused(Status.RESOURCE_LIMIT_EXCEEDED, "all 5 circuits of this relay"):
        connect(table, 15, 3)
    assert table.circuits == 5
    for circuit in open_:
        table.close_circuit(circuit)
        table.close_circuit(circuit)
    assert table.circuits == 0
    for number in (21, 22, 23, 24):
        connect(table, number, 1 + number % 3, ip="10.7.7.7")
    with refused(Status.RESOURCE_LIMIT_EXCEEDED, r"all 4 circuits of 10\.7\.7\.7"):
        connect(table, 25, 3, ip="10.7.7.7")
    connect(table, 25, 3)


def test_nothing_is_kept_of_those_who_are_gone(table: Reservations) -> None:
    for number in range(500):
        reserve(table, number, f"10.0.{number // 250}.{number % 250}")
        if number % 2:
            circuit = connect(table, number, number - 1)
            table.close_circuit(circuit)
            table.disconnected(peer(number - 1))
            table.disconnected(peer(number))
    sizes = [len(value) for value in vars(table).values() if hasattr(value, "__len__")]
    assert sizes and max(sizes) == 0


def test_bytes_run_out_each_way(table: Reservations) -> None:
    reserve(table, 2, "10.0.0.2")
    circuit = connect(table, 1, 2)
    assert circuit.over_at == 60
    circuit.passed(700, 0, to_target=True)
    assert circuit.room(to_target=True, at_most=65536) == 300
    assert circuit.room(to_target=False, at_most=100) == 100
    circuit.passed(300, 0, to_target=True)
    assert circuit.room(to_target=True, at_most=65536) == 0
    assert circuit.room(to_target=False, at_most=65536) == 1000
    assert (circuit.to_target, circuit.to_source) == (1000, 0)


def test_who_sends_little_waits_little_when_the_relay_is_full() -> None:
    limits = RelayLimits(circuit_bytes_per_second=10**9, bytes_per_second=1_000_000)
    table = Reservations(limits, 0)
    reserve(table, 1, "10.0.0.1")
    hungry = [connect(table, number, 1) for number in range(2, 11)]
    modest = connect(table, 11, 1)
    ready = dict.fromkeys(hungry, 0.0)
    passed, now, waits = 0, 0.0, []
    next_modest = 5.0
    while now < 20:
        circuit = min(ready, key=lambda each: ready[each])
        now = ready[circuit]
        if now >= next_modest:
            waits.append(modest.passed(12_000, now, to_target=True))
            next_modest += 1
        passed += 65_536
        ready[circuit] = now + circuit.passed(65_536, now, to_target=False)
    assert waits and max(waits) <= 0.12 + 1e-9  # a tenth of the rate is 100 KB/s
    assert 0.9 * 20_000_000 < passed < 1.1 * 20_000_000 + 1_000_000


def test_zero_means_without_limit() -> None:
    table = Reservations(RelayLimits(circuit_bytes=0, circuit_seconds=0), 0)
    reserve(table, 2, "10.0.0.2")
    circuit = connect(table, 1, 2)
    circuit.passed(10**15, 0, to_target=True)
    assert circuit.over_at is None
    assert circuit.room(to_target=True, at_most=65536) == 65536
    assert RelayLimits(circuit_bytes=0, circuit_seconds=0).limit() == Limit(0, 0)


def test_a_circuit_waits_for_its_own_rate_and_for_that_of_all(table: Reservations) -> None:
    reserve(table, 2, "10.0.0.2")
    one, two = connect(table, 1, 2), connect(table, 3, 2)
    assert one.passed(500, 0, to_target=True) == 0  # the burst
    assert one.passed(250, 0, to_target=False) == 0.5  # both ways together
    assert two.passed(450, 0, to_target=True) == 0.5  # 1,200 of 800 in all, though 450 of its own 500
    assert two.passed(0, 0.5, to_target=True) == 0


@pytest.mark.parametrize("rate", [1, 1000, 8 * 2**20])
def test_a_bucket_lets_through_its_rate_and_one_burst(rate: int) -> None:
    bucket, now, passed = TokenBucket(rate, 0), 0.0, 0
    while now < 100:
        passed += max(1, rate // 7)
        now += bucket.take(max(1, rate // 7), now)
    assert 100 * rate <= passed <= 102 * rate


def test_a_clock_that_stands_still_or_steps_back_gives_nothing() -> None:
    bucket = TokenBucket(100, 10)
    assert bucket.take(100, 10) == 0
    assert bucket.take(100, 5) == 1.0
