"""When the default engine acknowledges: with words of its own if it can, soon in any case. In memory."""

from __future__ import annotations

import datetime

import pytest

from routing.identity import Identity
from routing.membership import OPEN_SWARM
from routing.quic.certificate import make_certificate
from routing.quic.core import CoreSettings, QuicCore
from routing.quic.limits import CONNECTION_WINDOW, STREAM_WINDOW
from routing.quic.qh3_core import Qh3Core
from tests.unit.test_quic_tls import CLIENT, SERVER, Notes

ONE_WAY = 0.02
NOW = datetime.datetime.now(datetime.UTC)


class Distance:
    """Two engines that are ONE_WAY apart; nothing is lost and nothing takes time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.on_the_way: list[tuple[float, QuicCore, bytes]] = []
        self.notes = Notes()
        self.client = self._engine(Notes(), None)
        self.client.connect(SERVER, self.now)
        first = self.client.datagrams_to_send(self.now)
        size = first[0][0][5]
        self.server = self._engine(self.notes, first[0][0][6 : 6 + size])
        self.on_the_way = [(self.now + ONE_WAY, self.server, data) for data, *_ in first]
        self.run(1.0)

    @staticmethod
    def _engine(notes: Notes, original_destination: bytes | None) -> Qh3Core:
        certificate = make_certificate(Identity.generate(), NOW)
        settings = CoreSettings(
            certificate, STREAM_WINDOW, CONNECTION_WINDOW, idle_timeout=30.0, swarm=OPEN_SWARM
        )
        return Qh3Core(settings, notes, original_destination, None)

    def flush(self, core: QuicCore) -> int:
        """Have an engine send; how many datagrams."""
        datagrams = core.datagrams_to_send(self.now)
        other = self.server if core is self.client else self.client
        self.on_the_way += [(self.now + ONE_WAY, other, data) for data, *_ in datagrams]
        return len(datagrams)

    def run(self, seconds: float) -> list[tuple[float, QuicCore]]:
        """Let time pass; when who sent something by itself."""
        sent: list[tuple[float, QuicCore]] = []
        end = self.now + seconds
        while True:
            engines: tuple[QuicCore, ...] = (self.client, self.server)
            timers = [(core.next_timer() or end, core) for core in engines]
            due = min([when for when, _ in timers] + [when for when, *_ in self.on_the_way])
            if due >= end:
                self.now = end
                return sent
            self.now = max(self.now, due)
            touched = [core for when, core in timers if when <= self.now]
            for core in touched:
                core.handle_timer(self.now)
            arrived = [each for each in self.on_the_way if each[0] <= self.now]
            self.on_the_way = [each for each in self.on_the_way if each[0] > self.now]
            for _, core, data in arrived:
                core.receive_datagram(data, CLIENT if core is self.server else SERVER, self.now)
                touched.append(core)
            sent += [(self.now, core) for core in touched if self.flush(core)]


@pytest.fixture(scope="module")
def distance() -> Distance:
    return Distance()


def send(distance: Distance, core: QuicCore, count: int) -> int:
    stream_id = core.open_stream()
    assert stream_id is not None
    core.send(stream_id, bytes(count), True)
    return distance.flush(core)


def test_an_acknowledgement_waits_for_a_part_of_the_round_trip(distance: Distance) -> None:
    distance.run(1.0)
    assert send(distance, distance.client, 3000) == 3
    begun = distance.now
    sent = [when - begun for when, core in distance.run(0.2) if core is distance.server]
    assert sent == pytest.approx([ONE_WAY + 0.008], abs=0.0015)


def test_it_goes_with_what_is_sent_meanwhile(distance: Distance) -> None:
    distance.run(1.0)
    send(distance, distance.client, 3000)
    assert distance.run(ONE_WAY + 0.004) == []
    send(distance, distance.server, 100)
    assert [core for _, core in distance.run(0.2)] == [distance.client], "only the answer's own"


def test_many_bytes_are_acknowledged_at_once(distance: Distance) -> None:
    distance.run(1.0)
    assert send(distance, distance.client, 13_500) == 10
    begun = distance.now
    first = next(when - begun for when, core in distance.run(0.2) if core is distance.server)
    assert first == pytest.approx(ONE_WAY, abs=0.0005)


def test_the_round_trip_is_measured_without_the_wait(distance: Distance) -> None:
    for _ in range(20):
        send(distance, distance.client, 3000)
        distance.run(0.2)
    assert distance.client.rtt == pytest.approx(2 * ONE_WAY, abs=0.001)


def test_a_lost_last_packet_is_sent_again_before_two_round_trips(distance: Distance) -> None:
    for _ in range(20):  # a steady line
        send(distance, distance.client, 100)
        distance.run(0.2)
    send(distance, distance.client, 100)
    distance.on_the_way.clear()
    begun = distance.now
    first = next(when - begun for when, core in distance.run(1.0) if core is distance.client)
    assert first < 4 * ONE_WAY
