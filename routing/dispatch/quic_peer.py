"""An expert server over a QUIC connection: the `ExpertPeer` that the star asks.

A stream carries one request at a time; calls that overlap use more streams, and idle ones are kept, so that
a warm call costs no set-up. A call that is given up resets its stream: a late answer must not meet the
next request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from routing.errors import PeerError
from routing.quic.connection import Connection
from routing.quic.errors import MessageTooLarge, StreamClosed
from routing.quic.stream import Stream
from routing.wire.experts import (
    ExpertsAnswer,
    ExpertsRequest,
    ProtocolError,
    Refusal,
    Refused,
    max_reply_bytes,
)
from routing.wire.messages import PROTOCOL_ID, decode_message, encode_message

IDLE_STREAMS = 8
"""Streams kept for the next calls: as many layers' calls as ever overlap on one connection (microbatches)."""


class QuicExpertPeer:
    """A connected expert server (`routing.dispatch.star.ExpertPeer`).

    Attributes:
        path: the route the connection takes, as a key for what is measured on it.
    """

    def __init__(
        self,
        connection: Connection,
        label: Callable[[str], str] = lambda peer: peer,
        *,
        path: str = "direct",
    ) -> None:
        self.connection = connection
        self.path = path
        self._label = label
        self._idle: list[Stream] = []
        self._calls = 0
        self._all_done = trio.Event()

    @property
    def peer_id(self) -> str:
        return self.connection.peer_id

    @property
    def rtt(self) -> float:
        return self.connection.rtt

    @contextmanager
    def calling(self) -> Iterator[None]:
        """While this lasts the connection is in use (`wait_idle`)."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._all_done.set()

    async def wait_idle(self) -> None:
        """Return once no call is under way."""
        while self._calls:
            self._all_done = trio.Event()
            await self._all_done.wait()

    async def call(self, request: ExpertsRequest) -> ExpertsAnswer:
        """Ask once.

        Raises:
            Refused: it refused.
            PeerError: it is gone, or what it sent is no reply.
        """
        with self.calling():
            return await self._call(request)

    async def _call(self, request: ExpertsRequest) -> ExpertsAnswer:
        stream = self._idle.pop() if self._idle else self.connection.open_stream(PROTOCOL_ID)
        clean = False
        try:
            await stream.send_message(encode_message(request))
            reply = decode_message(await stream.receive_message(max_reply_bytes(request)), peer=self.peer_id)
            clean = True
        except MessageTooLarge as error:
            raise ProtocolError(f"{self._label(self.peer_id)}: {error}", peer=self.peer_id) from None
        except StreamClosed:
            if self.connection.is_open:
                raise PeerError(
                    f"{self._label(self.peer_id)} broke off the call", peer=self.peer_id
                ) from None
            reason = self.connection.close_reason
            raise PeerError(
                f"connection to {self._label(self.peer_id)} lost" + (f" ({reason})" if reason else ""),
                peer=self.peer_id,
            ) from None
        finally:
            if clean and len(self._idle) < IDLE_STREAMS:
                self._idle.append(stream)
            elif clean:
                await stream.aclose()
            else:
                stream.reset()
        if isinstance(reply, Refusal):
            raise Refused(reply, peer=self.peer_id)
        if not isinstance(reply, ExpertsAnswer):
            raise ProtocolError(
                f"{self._label(self.peer_id)} sent a request where a reply belongs", peer=self.peer_id
            )
        return reply
