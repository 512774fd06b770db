"""A connection of the default engine survives loss: reserved.py says what would end it. In memory."""

from __future__ import annotations

import random
from dataclasses import dataclass

from routing.quic.core import DATAGRAM_BYTES, QuicCore
from routing.quic.reserved import LEAST_DATAGRAM_BYTES, PROBES, Reserved
from tests.unit.test_quic_acks import ONE_WAY, Distance
from tests.unit.test_quic_tls import Notes

AT_ONCE = 8
SMALL, LARGE = 400, 17_028
STEP = 0.005
PATIENCE = 30.0


@dataclass
class Question:
    asked: float
    got: bytes = b""
    ended: bool = False


def words(stream_id: int) -> bytes:
    """The answer on a stream; every fourth is small."""
    return (stream_id.to_bytes(8, "big") * LARGE)[: LARGE if stream_id // 4 % 4 else SMALL]


class Heard(Notes):
    """One end: what has come on the streams it opened, and what was asked on the peer's."""

    def __init__(self, opens: int) -> None:
        super().__init__()
        self.opens = opens  # the ids' lowest bit
        self.open: dict[int, Question] = {}
        self.to_answer: list[int] = []

    def on_stream_data(self, stream_id: int, data: bytes, end: bool) -> None:
        if stream_id & 1 != self.opens:
            if end:
                self.to_answer.append(stream_id)
        elif (question := self.open.get(stream_id)) is not None:
            question.got += data
            question.ended |= end


class Lossy(Distance):
    """Of what is sent after the handshake a share is lost."""

    def __init__(self, seed: int, loss: float) -> None:
        self.rng = random.Random(seed)
        self.loss = 0.0
        super().__init__()
        self.loss = loss
        self.client_heard, self.server_heard = Heard(0), Heard(1)
        for core, heard in ((self.client, self.client_heard), (self.server, self.server_heard)):
            core._listener = heard
        self.answered = 0

    def flush(self, core: QuicCore) -> int:
        datagrams = core.datagrams_to_send(self.now)
        other = self.server if core is self.client else self.client
        self.on_the_way += [
            (self.now + ONE_WAY, other, data) for data, *_ in datagrams if self.rng.random() >= self.loss
        ]
        return len(datagrams)

    def ask(self, core: QuicCore, heard: Heard, ending: float = 1.0) -> None:
        """Open streams, or some of them without an end, which are never answered but reset."""
        while len(heard.open) < AT_ONCE and (stream_id := core.open_stream()) is not None:
            heard.open[stream_id] = Question(self.now)
            core.send(stream_id, bytes(self.rng.choice((10, 3000))), self.rng.random() < ending)
        self.flush(core)

    def answer(self, core: QuicCore, heard: Heard, asker: Heard) -> None:
        for stream_id in heard.to_answer:
            if stream_id in asker.open:
                core.send(stream_id, words(stream_id), True)
        heard.to_answer.clear()
        self.flush(core)

    def check(self, heard: Heard) -> None:
        assert not heard.closed
        for stream_id, question in list(heard.open.items()):
            if question.ended:
                assert question.got == words(stream_id)
                del heard.open[stream_id]
                self.answered += 1
            assert self.now - question.asked < PATIENCE, "an answer is stuck"


def test_thousands_of_answers_survive_loss() -> None:
    for seed, loss in enumerate((0.05, 0.05, 0.05, 0.02)):
        lossy = Lossy(seed, loss)
        while lossy.answered < 600:
            lossy.ask(lossy.client, lossy.client_heard)
            lossy.run(STEP)
            lossy.answer(lossy.server, lossy.server_heard, lossy.client_heard)
            lossy.check(lossy.client_heard)


def test_streams_that_are_reset_or_stopped_survive_loss() -> None:
    for seed in range(4):
        lossy = Lossy(seed, 0.05)
        ends = (
            (lossy.client, lossy.client_heard, lossy.server_heard),
            (lossy.server, lossy.server_heard, lossy.client_heard),
        )
        resets = 0
        while resets < 600:
            for core, heard, _ in ends:
                lossy.ask(core, heard, ending=0.7)
            lossy.run(STEP)
            for core, heard, asker in ends:
                lossy.answer(core, heard, asker)
                lossy.check(heard)
                for stream_id in [each for each in heard.open if lossy.rng.random() < 0.02]:
                    del heard.open[stream_id]
                    core.reset_stream(stream_id, 0)
                    core.stop_stream(stream_id, 0)
                    resets += 1
        assert lossy.answered > 0


def test_requests_come_in_while_a_lossy_connection_never_stops_sending() -> None:
    """Events may wait for what is reserved, never for the end of all sending."""
    lossy = Lossy(3, 0.05)
    core, heard = lossy.server, lossy.server_heard
    uploads = [core.open_stream() for _ in range(AT_ONCE)]
    waited: list[float] = []
    asked: dict[int, float] = {}
    end = lossy.now + 60.0
    while lossy.now < end:
        for upload in uploads:
            assert upload is not None
            if core.unsent(upload) < 100_000:
                core.send(upload, bytes(100_000), False)
        lossy.flush(core)
        stream_id = lossy.client.open_stream()
        if stream_id is not None:
            asked[stream_id] = lossy.now
            lossy.client.send(stream_id, b"?", True)
        lossy.flush(lossy.client)
        lossy.run(STEP)
        for stream_id in heard.to_answer:
            waited.append(lossy.now - asked.pop(stream_id))
            core.send(stream_id, b"!", True)
        heard.to_answer.clear()
    assert len(waited) > 500
    assert sorted(waited)[len(waited) * 9 // 10] < 1.2, "2 s and more if no PING asks for what is reserved"


def test_room_in_the_window_shows_that_nothing_is_reserved() -> None:
    reserved = Reserved()
    assert not reserved.may_remain
    reserved.doubt()
    reserved.finished(DATAGRAM_BYTES - 1, 9000, DATAGRAM_BYTES)
    assert reserved.may_remain
    reserved.finished(DATAGRAM_BYTES, 9000, DATAGRAM_BYTES)
    assert (reserved.may_remain, reserved.in_doubt) == (False, True)
    reserved.finished(DATAGRAM_BYTES, 0, DATAGRAM_BYTES)
    assert not reserved.in_doubt


def test_so_does_a_datagram_that_goes_without_room() -> None:
    reserved = Reserved()
    reserved.doubt()
    reserved.sent(LEAST_DATAGRAM_BYTES - 1)
    assert not reserved.may_remain
    reserved.sent(LEAST_DATAGRAM_BYTES)
    assert reserved.may_remain, "of several streams, the others are left"


def test_probes_go_without_room_and_show_nothing() -> None:
    reserved = Reserved()
    reserved.timed_out()
    for _ in range(PROBES):
        reserved.sent(0)
        assert reserved.may_remain
    reserved.sent(0)
    assert not reserved.may_remain
