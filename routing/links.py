"""Keeps configured peers connected, learns what they serve, and says so in the table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import trio

from routing.dispatch.quic_peer import QuicExpertPeer
from routing.errors import LocalError, PeerError
from routing.multiaddr import PeerAddress
from routing.quic.connection import Connection
from routing.quic.endpoint import Endpoint
from routing.wire import holdings
from routing.wire.messages import VERSION

log = logging.getLogger("panal.links")

DIAL_TIMEOUT = 5.0
"""Seconds for a dial and for the first answer: three handshake round trips over the worst links in use."""

FIRST_RETRY = 0.25
"""Seconds before a lost peer is dialled again; doubles up to LAST_RETRY while nobody answers."""

LAST_RETRY = 5.0
"""A peer that comes back is in use again within this many seconds."""


async def ask_holdings(connection: Connection) -> holdings.Holdings:
    """What a connected peer serves.

    Raises:
        PeerError: no answer in time, or none that is valid.
    """
    stream = connection.open_stream(holdings.PROTOCOL_ID)
    with trio.move_on_after(DIAL_TIMEOUT):
        await stream.send_message(holdings.encode_request(holdings.HoldingsRequest(versions=[VERSION])))
        answer = await stream.receive_message(holdings.MAX_ANSWER_BYTES)
        await stream.aclose()
        return holdings.decode_holdings(answer, peer=connection.peer_id)
    stream.reset()
    raise PeerError(
        f"{connection.peer_id} did not say what it serves in {DIAL_TIMEOUT:g} s", peer=connection.peer_id
    )


class PeerLinks:
    """One task per configured peer: dial, ask, watch, dial again.

    Args:
        on_connected: called with (peer id, what it serves).
        on_lost: called with (peer id, reason in words).
    """

    def __init__(
        self,
        endpoint: Endpoint,
        peers: Sequence[PeerAddress],
        *,
        on_connected: Callable[[str, holdings.Holdings], None],
        on_lost: Callable[[str, str], None],
    ) -> None:
        self._endpoint = endpoint
        self._peers = peers
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._connected: dict[str, QuicExpertPeer] = {}
        self._failures: dict[PeerAddress, str] = {}
        self._tried: set[PeerAddress] = set()
        self._first_round = trio.Event()

    def find(self, peer_id: str) -> QuicExpertPeer | None:
        """A connected peer, for the star."""
        peer = self._connected.get(peer_id)
        return peer if peer is not None and peer.connection.is_open else None

    def failures(self) -> dict[PeerAddress, str]:
        """Peers that are not connected now, with the reason."""
        return dict(self._failures)

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            for address in self._peers:
                nursery.start_soon(self._keep, address)
            if not self._peers:
                self._first_round.set()

    async def first_round(self) -> None:
        """Wait until every peer was dialled once, with or without success."""
        await self._first_round.wait()

    def _tried_once(self, address: PeerAddress) -> None:
        self._tried.add(address)
        if len(self._tried) == len(set(self._peers)):
            self._first_round.set()

    async def _keep(self, address: PeerAddress) -> None:
        pause = FIRST_RETRY
        while True:
            try:
                connection = await self._endpoint.connect(address, timeout=DIAL_TIMEOUT)
                told = await ask_holdings(connection)
            except (PeerError, LocalError) as error:
                if self._failures.get(address) != str(error):
                    log.warning("%s", error if str(address) in str(error) else f"{address}: {error}")
                self._failures[address] = str(error)
                self._tried_once(address)
                await trio.sleep(pause)
                pause = min(pause * 2, LAST_RETRY)
                continue
            pause = FIRST_RETRY
            peer_id = connection.peer_id
            self._failures.pop(address, None)
            self._connected[peer_id] = QuicExpertPeer(connection)
            self._on_connected(peer_id, told)
            self._tried_once(address)
            log.info("connected to %s (%s)", peer_id, told.name or "no name")
            await connection.closed.wait()
            reason = connection.close_reason or "connection closed"
            self._failures[address] = reason
            self._on_lost(peer_id, reason)
            log.warning("lost %s: %s", peer_id, reason)
            await trio.sleep(pause)
