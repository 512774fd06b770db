"""An exchange on a stream of its own gives its credit back, whatever is lost; and a connection whose credit
has leaked is given up (starved.py). Two connections over the default engine, in memory.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Coroutine, Sequence
from typing import Any, TypeVar

import pytest

from routing.quic.connection import Connection
from routing.quic.core import Datagram
from routing.quic.errors import StreamClosed
from routing.quic.limits import MAX_STREAMS_PER_CONNECTION, Limits
from routing.quic.qh3_core import Qh3Core
from routing.quic.starved import FEW_STREAMS, STARVED_SECONDS, Starved
from routing.quic.stream import LENGTH_BYTES, Stream
from routing.quic.unfinished import Budget
from tests.unit.test_quic_acks import ONE_WAY
from tests.unit.test_quic_lost import LARGE, PATIENCE, SMALL, STEP, Lossy
from tests.unit.test_quic_tls import CLIENT, SERVER

PROTOCOL = "/x/1"
QUESTION = 3000

T = TypeVar("T")


def at_once(doing: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that has nothing to wait for."""
    try:
        doing.send(None)
    except StopIteration as ended:
        value: T = ended.value
        return value
    raise AssertionError("it waits")


class Side:
    """One end's plane: a `connection.Plane`."""

    def __init__(self, lossy: Lossy, core: Qh3Core, *, dialed: bool) -> None:
        self.lossy, self.core = lossy, core
        self.limits = Limits()
        self.next_timer = math.inf
        self.arriving, self.sending = Budget(self.limits.arriving), Budget(self.limits.sending)
        self.asked: list[Stream] = []
        self.connection = Connection(self, SERVER if dialed else CLIENT, dialed=dialed)
        self.connection.core = core
        self.connection.peer_id = core.peer_id or ""
        core._listener = self.connection

    def now(self) -> float:
        return self.lossy.now

    def transmit(self, datagrams: Sequence[Datagram]) -> int:
        lossy = self.lossy
        other = lossy.server if self.core is lossy.client else lossy.client
        kept = [data for data, *_ in datagrams if lossy.rng.random() >= lossy.loss]
        lossy.on_the_way += [(lossy.now + ONE_WAY, other, data) for data in kept]
        return sum(len(data) for data, *_ in datagrams)

    def protocols(self) -> Collection[str]:
        return (PROTOCOL,)

    def start_handler(self, stream: Stream) -> None:
        self.asked.append(stream)

    def arm_timer(self, when: float) -> None: ...
    def route(self, connection_id: bytes, connection: Connection) -> None: ...
    def unroute(self, connection_id: bytes) -> None: ...
    def established(self, connection: Connection) -> None: ...
    def lost(self, connection: Connection) -> None: ...
    def forget(self, connection: Connection) -> None: ...


class Exchanges:
    """Questions of a client to a server, a stream for each."""

    def __init__(self, seed: int = 0, loss: float = 0.0) -> None:
        self.lossy = Lossy(seed, loss)
        client, server = self.lossy.client, self.lossy.server
        assert isinstance(client, Qh3Core)
        assert isinstance(server, Qh3Core)
        self.client, self.server = (
            Side(self.lossy, client, dialed=True),
            Side(self.lossy, server, dialed=False),
        )

    def run(self, seconds: float) -> None:
        self.lossy.run(seconds)
        for side in (self.client, self.server):
            side.connection.after_batch()

    def ask(self) -> Stream:
        stream = self.client.connection.open_stream(PROTOCOL)
        at_once(stream.send_message(bytes(QUESTION), end=True))
        return stream

    def asked(self) -> Stream:
        """The next question, once it has come whole."""
        asked = self.server.asked
        self.until(lambda: bool(asked) and asked[0].unread == LENGTH_BYTES + QUESTION)
        stream = asked.pop()
        assert at_once(stream.receive_message(QUESTION)) == bytes(QUESTION)
        return stream

    def read(self, stream: Stream, size: int) -> None:
        """The answer."""
        self.until(lambda: stream.unread == LENGTH_BYTES + size)
        assert at_once(stream.receive_message(size)) == bytes(size)
        stream.reset()

    def lose_first_answer(self, *, end: bool) -> None:
        """An exchange whose answer comes at the second attempt, after the end if that goes apart."""
        stream = self.ask()
        asked = self.asked()
        before = len(self.lossy.on_the_way)
        at_once(asked.send_message(bytes(SMALL), end=end))
        del self.lossy.on_the_way[before:]
        asked.finish()
        self.read(stream, SMALL)
        self.run(1.0)

    def until(self, it_is_so: Any) -> None:
        deadline = self.lossy.now + PATIENCE
        while not it_is_so():
            assert self.lossy.now < deadline
            self.run(STEP)

    def credit(self) -> int:
        """How many streams the client could open now."""
        allowed, _, opened, *_ = self.client.core._core.stream_limits
        left: int = allowed - opened
        return left


@pytest.mark.parametrize("loss", [0.02, 0.005])
def test_an_end_that_goes_with_the_last_bytes_gives_the_credit_back(loss: float) -> None:
    exchanges = Exchanges(1, loss)
    for _ in range(400):
        stream = exchanges.ask()
        asked = exchanges.asked()
        at_once(asked.send_message(bytes(LARGE), end=True))
        asked.finish()
        exchanges.read(stream, LARGE)
    exchanges.lossy.loss = 0.0
    exchanges.run(5.0)
    assert exchanges.credit() == MAX_STREAMS_PER_CONNECTION


def test_so_it_does_if_the_last_bytes_are_lost() -> None:
    exchanges = Exchanges()
    for _ in range(2 * MAX_STREAMS_PER_CONNECTION):
        exchanges.lose_first_answer(end=True)
    assert exchanges.credit() == MAX_STREAMS_PER_CONNECTION


def test_after_the_end_nothing_is_sent() -> None:
    exchanges = Exchanges()
    stream = exchanges.ask()
    with pytest.raises(StreamClosed, match="already closed"):
        at_once(stream.send_message(b"more"))
    asked = exchanges.asked()
    at_once(asked.send_message(b"", end=True))
    exchanges.read(stream, 0)
    asked.finish()
    exchanges.run(1.0)
    assert exchanges.credit() == MAX_STREAMS_PER_CONNECTION


def test_a_connection_whose_credit_has_leaked_is_given_up() -> None:
    """What qh3 2.1.0 does: an end alone comes in before the bytes that belong before it."""
    exchanges = Exchanges()
    for _ in range(3 * MAX_STREAMS_PER_CONNECTION):
        if not exchanges.credit():
            break
        exchanges.lose_first_answer(end=False)
    assert exchanges.credit() == 0, "qh3 is mended: then all this can go"
    connection = exchanges.client.connection
    for _ in range(2):
        with pytest.raises(StreamClosed, match="allows no further stream now, 0 are open"):
            connection.open_stream(PROTOCOL)
        assert connection.is_open
        exchanges.run(STARVED_SECONDS * 0.6)
    with pytest.raises(StreamClosed, match="dial anew"):
        connection.open_stream(PROTOCOL)
    exchanges.run(1.0)
    for each in (connection, exchanges.server.connection):
        assert each.close_reason == "no further stream was allowed, 0 were open"


def test_bursts_of_all_the_streams_there_are_give_nothing_up() -> None:
    exchanges = Exchanges()
    connection = exchanges.client.connection
    for _ in range(30):
        for stream in [exchanges.ask() for _ in range(MAX_STREAMS_PER_CONNECTION)]:
            stream.reset()
        with pytest.raises(StreamClosed, match="allows no further stream now, 0 are open"):
            connection.open_stream(PROTOCOL)
        exchanges.run(STARVED_SECONDS)
    assert connection.is_open


def test_only_a_long_time_without_any_credit_counts() -> None:
    starved = Starved()
    assert not starved.refused(FEW_STREAMS, 100.0)
    assert not starved.refused(FEW_STREAMS, 100.0 + STARVED_SECONDS - 0.01)
    assert starved.refused(0, 100.0 + STARVED_SECONDS)
    starved.opened()
    assert not starved.refused(0, 200.0)
    assert not starved.refused(FEW_STREAMS + 1, 200.0 + STARVED_SECONDS), "they are in use"
    assert not starved.refused(FEW_STREAMS, 201.0 + STARVED_SECONDS)
