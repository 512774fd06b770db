"""`/panal/dial-me/1`: a public node asks a peer whose network blocks UDP to dial it over TCP.

The two are connected through a relay then. The request is one empty message: the peer dials where the asker's
own advert says it takes TCP, as it would if it wanted something of it, and nowhere else. The answer is one
message, empty if the dial worked, else one line that says why not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from relay.rate import Rate
from routing.errors import LocalError, PeerError
from routing.quic.connection import Connection
from routing.quic.stream import Stream
from routing.wire.text import sanitise

PROTOCOL_ID = "/panal/dial-me/1"

MAX_ANSWER_BYTES = 400
"""One line."""

ANSWER_TIMEOUT = 12.0
"""Seconds: the peer dials several addresses one after another, each with three handshakes."""

ASKED_PER_MINUTE, MINUTE = 4, 60.0
"""Dials one peer may cause; it needs one."""

ASKED_PER_MINUTE_IN_ALL = 30
"""Dials all peers together may cause: identities cost nothing."""

Dial = Callable[[str], Awaitable[Connection]]
"""Dials a peer over TCP."""


async def ask(over: Connection) -> None:
    """Ask the peer at the other end to dial this node over TCP; returns when it is connected.

    Raises:
        PeerError: it could not, or does not speak the protocol.
    """
    stream = over.open_stream(PROTOCOL_ID)
    try:
        with trio.move_on_after(ANSWER_TIMEOUT):
            await stream.send_message(b"")
            answer = await stream.receive_message(MAX_ANSWER_BYTES)
            if answer:
                reason = sanitise(answer.decode("utf-8", "replace"), MAX_ANSWER_BYTES)
                raise PeerError(
                    f"{over.peer_id} could not dial this node over TCP: {reason}", peer=over.peer_id
                )
            return
        raise PeerError(f"{over.peer_id} did not dial this node in {ANSWER_TIMEOUT:g} s", peer=over.peer_id)
    finally:
        stream.reset()


class DialMeService:
    """Serves PROTOCOL_ID."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._rate = Rate(ASKED_PER_MINUTE, MINUTE)
        self._in_all = Rate(ASKED_PER_MINUTE_IN_ALL, MINUTE)

    async def serve(self, stream: Stream) -> None:
        """Handler of inbound streams: one request, one answer.

        Raises:
            PeerError: the peer sent more than an empty message, or is gone.
        """
        await stream.receive_message(0)
        answer = ""
        now = trio.current_time()
        if not self._rate.allows(stream.peer_id, now) or not self._in_all.allows("", now):
            answer = "asked too often, wait a minute"
        else:
            try:
                await self._dial(stream.peer_id)
            except (PeerError, LocalError) as error:
                answer = str(error)
        await stream.send_message(answer.encode()[:MAX_ANSWER_BYTES], end=True)
