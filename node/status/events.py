"""The status as server-sent events: all of it first, then what changes, at most once a second.

Nothing is queued for whoever follows: each time it is told what is newer than what it has. So one who reads
slowly skips what was in between; one who does not read is dropped by the door.
"""

from __future__ import annotations

import trio

from node.http.event_stream import EventStream, Write
from node.http.refusals import Refusal
from node.status.board import StatusBoard

MAX_FOLLOWERS = 16
"""Pages open at once: a household's, with forgotten tabs."""

BEAT_SECONDS = 10.0
"""Something is sent at least so often, that both ends notice when the other is gone."""

RETRY_MS = 1_000
"""After so long a browser asks again when the stream has ended."""

BUSY_SECONDS = 5
"""What one more is told to wait."""


def event_stream(board: StatusBoard) -> EventStream:
    """The response.

    Raises:
        Refusal: too many follow already, or there is nothing to tell yet.
    """
    if board.followers >= MAX_FOLLOWERS:
        raise Refusal(
            503,
            f"{MAX_FOLLOWERS} pages follow this node already: close one",
            code="too_many_followers",
            headers=[("Retry-After", str(BUSY_SECONDS))],
        )
    board.status()

    async def follow(write: Write) -> None:
        with board.following():
            await write(b"retry: %d\n\n" % RETRY_MS)
            board.status()
            number = 0
            while True:
                told = board.editions.since(number)
                number = board.editions.number
                await write(b"".join(_event(*each) for each in told) or b": beat\n\n")
                with trio.move_on_after(BEAT_SECONDS):
                    await board.newer(number)

    return EventStream(follow)


def _event(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)  # JSON has no line ends of its own
