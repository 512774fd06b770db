"""The door: accepts connections, lets routes answer them, and ends within a second whatever is open."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import trio
from starlette.routing import BaseRoute, Router

from node.http.authority import KnownHosts
from node.http.connection import Behind, Connection
from node.http.exchange import Bodies
from node.http.guard import Guard
from node.http.listening import DoorSettings, bind

log = logging.getLogger("panal.http")

MAX_CONNECTIONS = 512
"""Open at once: clients of a household many times over, and half of the file descriptors that a process
usually gets. Idle ones give way to new ones."""

END_SECONDS = 1.0
"""From being cancelled to the last connection closed. A command ends within 3 s of Ctrl-C."""

MAX_TURNED_AWAY = 64
TURN_AWAY_SECONDS = 1.0
"""So many are told at once that there is no room, for so long; the rest is just closed."""

ACCEPT_PAUSE_SECONDS = 0.1
"""After accepting failed, as it does without a free file descriptor."""

_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
)
_FULL_BODY = (
    b'{"error": {"message": "this node has as many connections as it takes: try again in a moment", '
    b'"type": "server_error", "param": null, "code": "busy"}}'
)


class _Begun:
    """The nursery of connections, once it is there."""

    def __init__(self) -> None:
        self._event = trio.Event()
        self._nursery: trio.Nursery | None = None

    def set(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._event.set()

    async def wait(self) -> trio.Nursery:
        await self._event.wait()
        assert self._nursery is not None
        return self._nursery


class HttpDoor:
    """One listener; `await nursery.start(door.run)`, once.

    Attributes:
        host, port: where it listens; bound: both; address: the same as text; url: for a browser
            of this machine.
        most_connections: that were open at once so far.
    """

    def __init__(self, settings: DoorSettings) -> None:
        """Binds the socket; nobody is answered before `run`.

        Raises:
            LocalError: the address cannot be listened at.
        """
        self._socket = bind(settings)
        host, self.port = self._socket.getsockname()[:2]
        self.host: str = host
        self.bound: tuple[str, int] = (host, self.port)
        self.address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        # "Every address" is none that a browser goes to, or that a Host names.
        reached = {"0.0.0.0": f"127.0.0.1:{self.port}", "::": f"[::1]:{self.port}"}
        self.url = f"http://{reached.get(host, self.address)}"
        self._router = Router(redirect_slashes=False)
        hosts = KnownHosts(settings.hosts)
        self._behind = Behind(Guard(hosts, settings.keys), self._router, Bodies())
        self._open: set[Connection] = set()
        self._turned_away = 0
        self.most_connections = 0

    @property
    def connections(self) -> int:
        """That are open now."""
        return len(self._open)

    def mount(self, routes: Sequence[BaseRoute]) -> None:
        """Add routes, with whole paths."""
        self._router.routes.extend(routes)

    def close(self) -> None:
        """Release the socket, of a door that was never run."""
        self._socket.close()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer until cancelled."""
        self._socket.setblocking(False)
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(self._socket))
        async with listener, trio.open_nursery() as nursery:
            over, begun = trio.Event(), _Begun()
            # Not by `nursery.start`: cancelled, that would wait for a task that waits, shielded, for `over`.
            nursery.start_soon(self._answer_until, over, begun)
            try:
                answering = await begun.wait()
                task_status.started()
                while True:
                    await self._accept(listener, answering)
            finally:
                over.set()

    async def _answer_until(self, over: trio.Event, begun: _Begun) -> None:
        """The nursery of all connections: when the door is cancelled they end in their own order, in time."""
        with trio.CancelScope(shield=True) as ending:
            async with trio.open_nursery() as answering:
                begun.set(answering)
                await over.wait()
                ending.deadline = trio.current_time() + END_SECONDS
                for connection in self._open:
                    connection.end()

    async def _accept(self, listener: trio.SocketListener, answering: trio.Nursery) -> None:
        try:
            stream = await listener.accept()
        except OSError as error:
            log.warning("http: a connection could not be accepted: %s", error)
            await trio.sleep(ACCEPT_PAUSE_SECONDS)
            return
        if len(self._open) >= MAX_CONNECTIONS and not self._make_room():
            answering.start_soon(self._turn_away, stream)
            return
        connection = Connection(stream, self._behind)
        self._open.add(connection)
        self.most_connections = max(self.most_connections, len(self._open))
        answering.start_soon(self._answer, connection)

    async def _answer(self, connection: Connection) -> None:
        try:
            await connection.run()
        except Exception:  # the task boundary: a bug in one connection is not the end of the others
            log.exception("http: a connection failed: this is a bug")
        finally:
            self._open.discard(connection)

    def _make_room(self) -> bool:
        """Close the connection that has been idle longest, else the one whose head has been coming
        longest: an honest one comes at once. False if there is neither."""
        idle = [(each.idle_since, each) for each in self._open if each.idle_since is not None]
        idle = idle or [(each.head_since, each) for each in self._open if each.head_since is not None]
        if not idle:
            return False
        _, longest = min(idle, key=lambda pair: pair[0])
        longest.give_way()
        self._open.discard(longest)
        return True

    async def _turn_away(self, stream: trio.SocketStream) -> None:
        """Say that there is no room, to as many as can be told."""
        try:
            if self._turned_away < MAX_TURNED_AWAY:
                self._turned_away += 1
                try:
                    with trio.move_on_after(TURN_AWAY_SECONDS):
                        await stream.send_all(_FULL % (len(_FULL_BODY), _FULL_BODY))
                        await stream.send_eof()
                        while await stream.receive_some(4096):  # else the answer may be lost on its way
                            pass
                finally:
                    self._turned_away -= 1
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await trio.aclose_forcefully(stream)
