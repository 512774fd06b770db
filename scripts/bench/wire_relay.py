"""A UDP relay on loopback that counts what passes between a client and a server."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

IP_UDP_BYTES = 20 + 8
"""Headers of a datagram over IPv4."""

IDLE_SECONDS = 1.0
QUIET_SECONDS = 0.5

QUIET_BYTES = 4096
"""On a connection, in QUIET_SECONDS: with less than this the warm-up (routing.quic.warmup) is over."""


class CountingRelay:
    """Passes datagrams between one client and one server, and counts them.

    Attributes:
        address: where the client sends to.
        datagrams, payload: that have passed, both ways; bytes without IP and UDP headers.
    """

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._inner, self._outer = _bound(), _bound()
        self._client: tuple[str, int] | None = None
        self.address: tuple[str, int] = self._inner.getsockname()
        self.datagrams = 0
        self.payload = 0

    async def run(self) -> None:
        with self._inner, self._outer:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pass, self._inner, True)
                nursery.start_soon(self._pass, self._outer, False)

    async def _pass(self, source: socket.socket, from_client: bool) -> None:
        while True:
            await trio.lowlevel.wait_readable(source)
            try:
                while True:
                    data, sender = source.recvfrom(65536)
                    self.datagrams += 1
                    self.payload += len(data)
                    if from_client:
                        self._client = sender
                        self._outer.sendto(data, self._server)
                    elif self._client is not None:
                        self._inner.sendto(data, self._client)
            except BlockingIOError:
                pass


@asynccontextmanager
async def relayed(server: tuple[str, int]) -> AsyncIterator[CountingRelay]:
    relay = CountingRelay(server)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relay.run)
        yield relay
        nursery.cancel_scope.cancel()


def _bound() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", 0))
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    return made


def totals(relays: Sequence[CountingRelay]) -> tuple[int, int]:
    """Datagrams, and bytes on the link."""
    datagrams = sum(relay.datagrams for relay in relays)
    return datagrams, sum(relay.payload for relay in relays) + IP_UDP_BYTES * datagrams


async def settled(relays: Sequence[CountingRelay]) -> None:
    """Until the connections' warm-up is over."""
    while True:
        before = totals(relays)[1]
        await trio.sleep(QUIET_SECONDS)
        if totals(relays)[1] - before < QUIET_BYTES * len(relays):
            return


async def idle_rates(relays: Sequence[CountingRelay]) -> tuple[float, float]:
    """Datagrams and bytes a second while nobody asks: PINGs and their acknowledgements."""
    before = totals(relays)
    await trio.sleep(IDLE_SECONDS)
    after = totals(relays)
    return (after[0] - before[0]) / IDLE_SECONDS, (after[1] - before[1]) / IDLE_SECONDS
