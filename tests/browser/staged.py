"""A node that tells what a test says: the real door, routes, editions and page; only the facts are staged."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from node.status import facts
from node.status.board import NotYet, Sources, StatusBoard
from node.status.routes import make_routes
from node.status.token import Token
from tests.adverts import identity
from tests.open_door import OpenDoor


class StagedBoard(StatusBoard):
    """Its status is set, not gathered."""

    def __init__(self) -> None:
        super().__init__(Sources())
        self._trio: trio.lowlevel.TrioToken | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self._trio = trio.lowlevel.current_trio_token()
        task_status.started()

    def changed(self) -> None:
        """Nothing is gathered."""

    def status(self) -> facts.Status:
        """What was shown last.

        Raises:
            NotYet: nothing was.
        """
        if self._status is None:
            raise NotYet("this node is still starting: ask again in a moment")
        return self._status

    def show(self, status: facts.Status) -> None:
        """Tell this from now on; called by the test's thread."""
        done = threading.Event()

        def take() -> None:
            self._status = status
            if self.editions.take(status):
                self._news.set()
                self._news = trio.Event()
            done.set()

        assert self._trio is not None
        self._trio.run_sync_soon(take)
        assert done.wait(10)


@contextmanager
def staged(folder: Path, status: facts.Status | None = None) -> Iterator[tuple[StagedBoard, str]]:
    """A board behind a door, and its URL."""
    board = StagedBoard()
    token = Token.load_or_create(folder / "http-token", str(identity("kitchen").peer_id))
    with OpenDoor(make_routes(board, token), beside=board.run) as door:
        door.until(lambda: board._trio is not None)
        if status is not None:
            board.show(status)
        yield board, door.door.url
