"""`/panal/vouch/1`: a node tells whom it paid, and hears of others whom they paid, off the hot path.

Only peers whose word counts are asked, seldom, and one after the other. A peer that tells what is not so is
not asked for a day, and nothing of its answer counts.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

import trio

from market.hearsay import MAX_VOUCHERS
from market.receipt import SignedReceipt
from market.reputation import Reputation
from market.vouch_wire import (
    ASK_BYTES,
    MAX_ANSWER_BYTES,
    PROTOCOL_ID,
    check_ask,
    decode_told,
    encode_ask,
    encode_told,
)
from market.vouching import Vouched
from relay.rate import Rate
from routing.errors import PeerError
from routing.quic.connection import Connection
from routing.quic.errors import MessageTooLarge
from routing.quic.stream import Stream
from routing.wire.experts import ProtocolError

log = logging.getLogger("panal.market")

ASK_SECONDS = 600.0
"""Between questions to one peer: receipts are of an hour, and two hours of each are told."""

MET_SECONDS = 60.0
"""The same where it has been away: whose connection comes and goes is not asked each time."""

FALSE_SECONDS = 86_400.0
"""Before a peer is asked again that told what is not so."""

LOOK_SECONDS = 15.0
"""Between looks at whom to ask."""

ANSWER_SECONDS = 10.0
"""For a peer's answer of 17 KB, at a relay's worst."""

ASKED_SECONDS = 5.0
"""For a question to come, once its stream is there, and for its answer to be taken."""

ASKED_PER_MINUTE, MINUTE = 4, 60.0
"""Questions of a peer that are answered: one in ten minutes is of use."""

Now = Callable[[], float]


class Teller:
    """Tells peers whom this node has paid.

    Args:
        is_told: whether a peer is told anything (market.books.Books.has_receipts).
        vouches: the receipts for it (`Books.vouches`).
        now: unix seconds.
    """

    def __init__(
        self,
        is_told: Callable[[str], bool],
        vouches: Callable[[str, float], Sequence[SignedReceipt]],
        now: Now,
    ) -> None:
        self._is_told = is_told
        self._vouches = vouches
        self._now = now
        self._rate = Rate(ASKED_PER_MINUTE, MINUTE)

    async def serve(self, stream: Stream) -> None:
        """Handler of PROTOCOL_ID.

        Raises:
            PeerError: asked too often or too slowly, or in unknown bytes.
        """
        peer_id = stream.peer_id
        with trio.move_on_after(ASKED_SECONDS):
            check_ask(await stream.receive_message(ASK_BYTES), peer_id)
            # Of strangers no count is kept: they are without number, and to tell them nothing costs nothing.
            told: Sequence[SignedReceipt] = ()
            if self._is_told(peer_id):
                if not self._rate.allows(peer_id, trio.current_time()):
                    raise PeerError(f"{peer_id} asks whom we paid more often than is of use", peer=peer_id)
                told = self._vouches(peer_id, self._now())
            await stream.send_message(encode_told(told), end=True)
            return
        raise PeerError(f"{peer_id} was too slow to ask whom we paid", peer=peer_id)


class Asker:
    """Asks peers whom they have paid, for a node that has audits.

    Args:
        we: our peer id.
        reputation: whose word counts, and where what they say goes. It is not kept: after a restart peers are
            asked again.
        connection: to a peer; None if there is none.
        tells: whether a peer would tell us anything: only if there are receipts with it.
        now: unix seconds.
    """

    def __init__(
        self,
        we: str,
        reputation: Reputation,
        connection: Callable[[str], Connection | None],
        tells: Callable[[str], bool],
        now: Now,
    ) -> None:
        self._reputation = reputation
        self._connection = connection
        self._tells = tells
        self._now = now
        self._vouched = Vouched(we)
        self._asked: dict[str, float] = {}  # when each was asked last; to come, if it told what is not so
        self._met: set[str] = set()  # who has come anew since
        self._wake = trio.Event()

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            self._wake = trio.Event()
            for peer_id in self._due():
                connection = self._connection(peer_id)
                if connection is not None:
                    self._asked[peer_id] = trio.current_time()
                    self._met.discard(peer_id)
                    await self._try_ask(connection)
            with trio.move_on_after(LOOK_SECONDS):
                await self._wake.wait()

    def met(self, peer_id: str) -> None:
        """A peer is connected, anew perhaps."""
        if peer_id in self._asked:
            self._met.add(peer_id)
        self._wake.set()

    def _due(self) -> list[str]:
        """Who is to be asked now, of those with the most standing: theirs are the words that are kept."""
        now = trio.current_time()
        self._asked = {peer: asked for peer, asked in self._asked.items() if now - asked < ASK_SECONDS}
        self._met.intersection_update(self._asked)
        return [
            peer
            for peer in self._reputation.vouchers(MAX_VOUCHERS)
            if now - self._asked.get(peer, -math.inf) >= (MET_SECONDS if peer in self._met else ASK_SECONDS)
            and self._tells(peer)
            and self._connection(peer) is not None
        ]

    async def _try_ask(self, connection: Connection) -> None:
        """Ask; what goes wrong costs the peer its word, and nobody anything else."""
        peer_id = connection.peer_id
        try:
            told = await self._ask(connection)
        except (ProtocolError, MessageTooLarge) as error:
            self._asked[peer_id] = trio.current_time() + FALSE_SECONDS
            log.warning("%s; it is not asked for a day", error)
        except PeerError as error:
            log.debug("%s does not tell whom it paid: %s", peer_id, error)
        else:
            for payee, credits in told:
                self._reputation.heard(peer_id, payee, credits)

    async def _ask(self, connection: Connection) -> list[tuple[str, float]]:
        """What a peer has signed for, by payee.

        Raises:
            ProtocolError: what it tells is not so.
            PeerError: it does not tell.
        """
        peer_id = connection.peer_id
        stream = connection.open_stream(PROTOCOL_ID)
        data: bytes | None = None
        try:
            with trio.move_on_after(ANSWER_SECONDS):
                await stream.send_message(encode_ask(), end=True)
                data = await stream.receive_message(MAX_ANSWER_BYTES)
        finally:
            stream.reset()
        if data is None:
            raise PeerError(f"{peer_id} gave no answer in {ANSWER_SECONDS:g} s", peer=peer_id)
        now = self._now()
        news = self._vouched.news(peer_id, decode_told(data, peer_id), now)
        for signed in news:
            await trio.lowlevel.checkpoint()  # each takes 0.2 ms: calls of the swarm come first
            if fault := signed.fault():
                raise ProtocolError(
                    f"vouching: {peer_id} tells of a receipt to {signed.receipt.payee} that {fault}",
                    peer=peer_id,
                )
        self._vouched.take(peer_id, news)
        return list(self._vouched.totals(peer_id))
