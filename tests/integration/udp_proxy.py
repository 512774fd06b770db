"""A UDP relay for tests: it can go silent, change the port it sends from, and add datagrams of its own."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from typing import Any

import trio

from routing.multiaddr import PeerAddress
from routing.quic.endpoint import Endpoint

Address = tuple[str, int]


class UdpProxy:
    """Relays between one client and a server, like a NAT on the client's side.

    Attributes:
        address: where the client should send to.
        silent: True drops everything, both ways.
        extra: called with each datagram; what it returns is sent in addition, before the original.
    """

    def __init__(self, server: Address) -> None:
        self._server = server
        self._inner = _bound()
        self._outer = _bound()
        self._client: Address | None = None
        self._scope: trio.CancelScope | None = None
        self.address: Address = self._inner.getsockname()
        self.silent = False
        self.extra: Callable[[bytes], Iterable[bytes]] = lambda _: ()

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._from_client)
                nursery.start_soon(self._from_server)
                task_status.started(self)
        finally:
            self._inner.close()
            self._outer.close()

    def rebind(self) -> tuple[int, int]:
        """From now on the server sees another port, as after a NAT's reboot; returns old and new port."""
        old = self._outer.getsockname()[1]
        fresh = _bound()
        if self._scope is not None:
            self._scope.cancel()
        self._outer.close()
        self._outer = fresh
        return old, fresh.getsockname()[1]

    async def _from_client(self) -> None:
        while True:
            data, self._client = await _receive(self._inner)
            if not self.silent:
                for each in (*self.extra(data), data):
                    _send(self._outer, each, self._server)

    async def _from_server(self) -> None:
        while True:
            with trio.CancelScope() as self._scope:
                data, _ = await _receive(self._outer)
                if not self.silent and self._client is not None:
                    for each in (*self.extra(data), data):
                        _send(self._inner, each, self._client)


def through(proxy: UdpProxy, server: Endpoint) -> PeerAddress:
    """How to dial a server by way of a proxy."""
    host, port = proxy.address
    return PeerAddress(host, port, server.identity.peer_id)


def _bound() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", 0))
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    return made


async def _receive(source: socket.socket) -> tuple[bytes, Address]:
    while True:
        try:
            return source.recvfrom(65536)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(source.fileno())


def _send(target: socket.socket, data: bytes, address: Address) -> None:
    try:
        target.sendto(data, address)
    except (BlockingIOError, OSError):
        pass  # a relay may lose datagrams
