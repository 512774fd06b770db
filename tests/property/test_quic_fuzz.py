"""Whatever bytes are thrown at a node's UDP socket, its live connections go on."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterable

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routing.identity import Identity
from routing.multiaddr import PeerAddress
from routing.quic.core import BACKENDS
from routing.quic.endpoint import Endpoint
from routing.quic.errors import StreamClosed
from routing.quic.stream import Stream
from tests.integration.udp_proxy import UdpProxy, through

ECHO = "/test/echo/1"
MAX_BYTES = 1 << 20

# first bytes that look like QUIC: short header, Initial, 0-RTT, Handshake, Retry, and others
first_bytes = st.sampled_from([0x40, 0x5F, 0x7F, 0xC0, 0xC3, 0xD0, 0xE0, 0xF0, 0x80, 0x00, 0x01, 0xFF])
versions = st.sampled_from([b"\0\0\0\1", b"\0\0\0\0", b"\x6b\x33\x43\xcf", b"\xff\0\0\x1d"])
junk = st.binary(max_size=60)
# None stands for a connection id that is really in use, filled in when it is known
pieces = st.one_of(
    junk, versions, first_bytes.map(lambda byte: bytes([byte])), st.none(), st.just(bytes(1200))
)
datagrams = st.lists(st.tuples(first_bytes, st.lists(pieces, max_size=5)), min_size=1, max_size=40)

few = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


async def echo(stream: Stream) -> None:
    while True:
        await stream.send_message(await stream.receive_message(MAX_BYTES))


async def talk(stream: Stream, rounds: int, seed: int) -> None:
    for number in range(rounds):
        message = random.Random(seed + number).randbytes(20_000)
        await stream.send_message(message)
        assert await stream.receive_message(MAX_BYTES) == message


async def start(nursery: trio.Nursery, backend: str) -> Endpoint:
    endpoint = Endpoint(Identity.generate(), listen=("127.0.0.1", 0), backend=backend, handlers={ECHO: echo})
    await nursery.start(endpoint.run)
    return endpoint


@pytest.mark.parametrize("backend", BACKENDS)
@given(thrown=datagrams)
@few
def test_strangers_datagrams_hurt_nobody(backend: str, thrown: list[tuple[int, list[bytes | None]]]) -> None:
    async def test() -> None:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                server, client = await start(nursery, backend), await start(nursery, backend)
                connection = await client.connect(PeerAddress(*server.local_address, server.identity.peer_id))
                stream = connection.open_stream(ECHO)
                await talk(stream, 1, 0)
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                    for first, parts in thrown:
                        for target in (server, client):
                            known = next(iter(target._routes))
                            data = bytes([first]) + b"".join(known if p is None else p for p in parts)
                            stranger.sendto(data, target.local_address)
                await talk(stream, 2, 1)
                assert connection.is_open and len(server.connections) == 1
                nursery.cancel_scope.cancel()

    trio.run(test)


def spoiler(seed: int) -> Callable[[bytes], Iterable[bytes]]:
    """Turns real datagrams into extra ones: flipped, cut, lengthened, repeated, glued together."""
    rng = random.Random(seed)
    before = b""

    def extra(data: bytes) -> list[bytes]:
        nonlocal before
        made: list[bytes] = []
        if rng.random() < 0.5:
            changed = bytearray(data)
            for _ in range(rng.randint(1, 4)):
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            made.append(bytes(changed))
        if rng.random() < 0.3:
            made.append(data[: rng.randrange(1, len(data))])
        if rng.random() < 0.3:
            made.append(data + rng.randbytes(rng.randint(1, 40)))
        if rng.random() < 0.3:
            made.extend([before, data, data + before])
        before = data
        return [each for each in made if each]

    return extra


@pytest.mark.parametrize("backend", BACKENDS)
@given(seed=st.integers(0, 2**32))
@few
def test_spoiled_copies_of_real_datagrams_hurt_nobody(backend: str, seed: int) -> None:
    """Somebody on the path who can read, change, add and repeat, but lets the originals through."""

    async def test() -> None:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                server, client = await start(nursery, backend), await start(nursery, backend)
                proxy = await nursery.start(UdpProxy(server.local_address).run)
                connection = await client.connect(through(proxy, server))
                proxy.extra = spoiler(seed)
                await talk(connection.open_stream(ECHO), 10, seed)
                assert connection.is_open and connection.close_reason is None
                nursery.cancel_scope.cancel()

    trio.run(test)


@pytest.mark.parametrize("backend", BACKENDS)
@given(chunks=st.lists(st.binary(max_size=300), max_size=12), end=st.booleans())
@few
def test_any_bytes_on_a_stream_cost_at_most_that_stream(backend: str, chunks: list[bytes], end: bool) -> None:
    """An authenticated peer that speaks neither multistream-select nor our framing."""

    async def test() -> None:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                server, client = await start(nursery, backend), await start(nursery, backend)
                connection = await client.connect(PeerAddress(*server.local_address, server.identity.peer_id))
                for opening in (b"", b"\x13/multistream/1.0.0\n\x0d/test/echo/1\n"):
                    bad = connection.open_stream(ECHO)
                    for chunk in (opening, *chunks):
                        if connection.core.unsent(bad.stream_id) == 0 and chunk:
                            try:
                                connection.core.send(bad.stream_id, chunk, False)
                            except (ValueError, RuntimeError):
                                break  # the server has already refused the stream
                        connection.flush()
                        await trio.sleep(0)
                    bad._opening = b""
                    if end:
                        await bad.aclose()
                good = connection.open_stream(ECHO)
                try:
                    await talk(good, 1, 7)
                except StreamClosed as error:
                    raise AssertionError(f"a good stream suffered: {error}") from error
                assert connection.is_open
                nursery.cancel_scope.cancel()

    trio.run(test)
