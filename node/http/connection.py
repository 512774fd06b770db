"""One TCP connection: requests one after another, until either side has had enough."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

import h11
import trio

from node.http.authority import IpAddress, parse_address
from node.http.exchange import Application, Bodies, Exchange, refusal_headers
from node.http.guard import Guard, Head
from node.http.refusals import INVALID, Refusal
from node.http.response_headers import complete
from node.http.wire import ClientGone, Sendable, Wire, in_words

HEAD_SECONDS = 10.0
"""For a request's line and headers, from its first byte; and for the first byte of a new connection."""

KEEP_ALIVE_SECONDS = 75.0
"""Between two requests; what nginx gives."""

PROBE_AFTER_SECONDS = 30
PROBE_EVERY_SECONDS = 10
PROBES = 3
"""TCP's own probes: a client whose machine has vanished is noticed after a minute, though nothing is sent."""


@dataclass(frozen=True)
class Behind:
    """What a door's connections share.

    Attributes:
        application: the routes.
    """

    guard: Guard
    application: Application
    bodies: Bodies


class Connection:
    """`run` it once; it closes its stream.

    Attributes:
        idle_since: since when no request has been under way; None while one is.
        head_since: since when the head of one has been coming; None while none is.
    """

    def __init__(self, stream: trio.SocketStream, behind: Behind) -> None:
        self._wire = Wire(stream)
        self._behind = behind
        self._socket = stream.socket
        self._waiting = trio.CancelScope()
        self._exchange: Exchange | None = None
        self._ending = False
        self._gives_way = False
        self.idle_since: float | None = trio.current_time()
        self.head_since: float | None = None

    async def run(self) -> None:
        """Answer until the connection ends."""
        try:
            client, server = _places(self._socket)
            seconds = HEAD_SECONDS
            while await self._one(client, server, seconds):
                seconds = KEEP_ALIVE_SECONDS
        except (ClientGone, OSError):
            pass
        finally:
            await self._wire.close()

    def give_way(self) -> None:
        """Close it, as nothing whole has come and others wait."""
        self._gives_way = True
        self._waiting.cancel()

    def end(self) -> None:
        """The node ends."""
        self._ending = True
        self._waiting.cancel()
        if self._exchange is not None:
            self._exchange.end()

    async def _one(self, client: tuple[str, int], server: tuple[str, int], seconds: float) -> bool:
        """One request; whether another may follow."""
        wire = self._wire
        request: h11.Request | None = None
        try:
            request = await self._head(seconds)
            if request is None:
                return False
            if not request.http_version.startswith(b"1."):
                version = request.http_version.decode("ascii")
                told = f"this is HTTP/{version}: send HTTP/1.1"
                raise Refusal(505, told, kind=INVALID, code="http_version")
            own = parse_address(server[0])
            assert own is not None
            admitted = self._behind.guard.admit(_head_of(request, own))
        except h11.RemoteProtocolError as error:
            await self._refuse(
                Refusal(error.error_status_hint, f"this is no HTTP request: {in_words(error)}")
            )
            return False
        except Refusal as refusal:
            await self._refuse(refusal, only_head=request is not None and request.method == b"HEAD")
            return False
        self._exchange = Exchange(
            wire,
            request,
            admitted,
            self._behind.application,
            self._behind.bodies,
            client=client,
            server=server,
        )
        if self._ending:
            self._exchange.end()
        try:
            await self._exchange.run()
        finally:
            self._exchange = None
        if wire.http.our_state is wire.http.their_state is h11.DONE and not self._ending:
            wire.http.start_next_cycle()
            return True
        if not self._ending:
            await wire.linger()
        return False

    async def _head(self, seconds: float) -> h11.Request | None:
        """The next request; None if there is none.

        Raises:
            Refusal, h11.RemoteProtocolError: it is none, or came too slowly.
        """
        http = self._wire.http
        self.idle_since = trio.current_time()
        self._waiting = trio.CancelScope(deadline=self.idle_since + seconds)
        if self._ending:
            return None
        try:
            with self._waiting:
                while (event := http.next_event()) is h11.NEED_DATA:
                    if not await self._wire.read():
                        return None
                    if self.idle_since is not None:
                        self.idle_since, self.head_since = None, trio.current_time()
                        self._waiting.deadline = self.head_since + HEAD_SECONDS
                self.idle_since = None
                return event if isinstance(event, h11.Request) else None
        finally:
            self.head_since = None
        if self.idle_since is None and not (self._ending or self._gives_way):
            raise Refusal(408, "the request did not come in time", code="timeout")
        return None

    async def _refuse(self, refusal: Refusal, *, only_head: bool = False) -> None:
        """Turn down what nobody handles, and close."""
        body = refusal.body()
        headers = complete(refusal_headers(refusal, body), time.time(), closes=True)
        events: list[Sendable] = [h11.Response(status_code=refusal.status, headers=headers)]
        if not only_head:
            events.append(h11.Data(data=body))
        await self._wire.send(*events, h11.EndOfMessage())
        await self._wire.linger()


def _head_of(request: h11.Request, own: IpAddress) -> Head:
    return Head(
        request.method.decode("latin-1"), request.target.decode("latin-1"), list(request.headers), own
    )


def _places(sock: trio.socket.SocketType) -> tuple[tuple[str, int], tuple[str, int]]:
    """(address, port) of both ends; and TCP set so that a vanished client is noticed.

    Raises:
        OSError: it has gone already.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", PROBE_AFTER_SECONDS),
        ("TCP_KEEPINTVL", PROBE_EVERY_SECONDS),
        ("TCP_KEEPCNT", PROBES),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return _place(sock.getpeername()), _place(sock.getsockname())


def _place(name: tuple[str, int]) -> tuple[str, int]:
    address = parse_address(name[0])
    return str(address or name[0]), name[1]
