"""`/panal/market/1`: who asked offers receipts to who computed, off the hot path. Books and file meet here.

One stream is one exchange: a message there, a message back (market.market_wire). What a step of the books
says is on the disk before it is sent: who signs, is killed and forgets it, would sign twice.

A peer that misuses this costs little: messages are short, few at a time and a minute, and must come at once.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import trio

from market.ledger import Evidence
from market.market_wire import MAX_MESSAGE_BYTES, PROTOCOL_ID
from market.receipt import Kind
from market.step import Step, together
from relay.rate import Rate
from routing.backoff import Backoff
from routing.errors import LocalError, PeerError
from routing.quic.admission import origin_of
from routing.quic.connection import Connection
from routing.quic.stream import Stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from market.books import Books
    from market.ledger import Ledger

log = logging.getLogger("panal.market")

LOOK_SECONDS = 1.0
"""Between looks at whom to settle with; what is urgent is looked at once."""

FLUSH_SECONDS = 10.0
"""Between writings of what is said to nobody: newcomers' credit that was granted."""

ANSWER_SECONDS = 5.0
"""For a peer's reply: two round trips and a write to its disk."""

ASKED_SECONDS = 5.0
"""For a request to come, once its stream is there, and for its reply to be taken."""

QUIET_SECONDS = 1.0
"""After the last answer of a peer its receipt is offered: the next question may be long in coming."""

FINAL_SECONDS = 0.8
"""For the last receipts when the node ends, all together: Ctrl-C must end it in under three seconds. What
does not get through is offered when the two meet again."""

DONE_SECONDS = 3.0
"""The same where a command is done and nobody wants it to end: two round trips and a write at each end."""

MOST_AT_ONCE = 16
"""Peers settled with at the same time: more would only wait for the disk."""

STREAMS_PER_PEER = 2
"""Exchanges of a peer under way: it needs one, and a second while the first one's connection dies."""

ASKED_PER_MINUTE, MINUTE = 120, 60.0
"""Exchanges a peer may begin: one every ten seconds, and one for each half of what goes unsigned, need a
tenth."""

ASKED_PER_MINUTE_FROM_ONE_PLACE = 600
"""The same of all peers at one address: each costs two signatures and a write, 0.5 ms; identities cost
nothing. Who comes from elsewhere is not kept from settling."""

MOST_ASKERS = 8_192
"""Peers, and places, counted at once; 1 MB. The plane takes far fewer handshakes a minute."""

MOST_IN_A_ROW = 8
"""Messages to a peer in one go: a receipt for an epoch or two, a settlement, what was adopted."""

FIRST_PAUSE, LAST_PAUSE, FORGIVEN = 2.0, 60.0, 600.0
"""Seconds before a peer that did not answer, or refused, is offered something again."""

Now = Callable[[], float]


class Settler:
    """Keeps this node's books in step with its peers'.

    Args:
        connection: to a peer; None if there is none.
        now: unix seconds.
    """

    def __init__(
        self, books: Books, ledger: Ledger, connection: Callable[[str], Connection | None], now: Now
    ) -> None:
        self._books = books
        self._ledger = ledger
        self._connection = connection
        self._now = now
        self._writing = trio.Lock()  # the file has one writer
        self._locks: dict[str, tuple[trio.Lock, int]] = {}
        self._greeted: dict[str, Connection] = {}
        self._under_way: set[str] = set()
        self._answered: dict[str, float] = {}  # peers that were owed something since their last receipt
        self._inbound: Counter[str] = Counter()
        self._pauses = Backoff(FIRST_PAUSE, LAST_PAUSE, FORGIVEN)
        self._rate = Rate(ASKED_PER_MINUTE, MINUTE, max_keys=MOST_ASKERS)
        self._places = Rate(ASKED_PER_MINUTE_FROM_ONE_PLACE, MINUTE, max_keys=MOST_ASKERS)
        self._wake = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._cannot_write = ""

    # --- from the hot path ---

    def answered(self, peer_id: str) -> None:
        """This node owes a peer for one more answer."""
        self._answered[peer_id] = trio.current_time()
        if self._books.payer.urgent(peer_id):
            self._wake.set()

    # --- tasks ---

    async def run(self) -> None:
        """Settle until cancelled."""
        flushed = trio.current_time()
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                while True:
                    self._wake = trio.Event()
                    self._settle_with([*self._books.payer.due(self._now()), *self._quiet()])
                    if trio.current_time() - flushed >= FLUSH_SECONDS:
                        flushed = trio.current_time()
                        await self._write(self._books.flush())
                    with trio.move_on_after(LOOK_SECONDS):
                        await self._wake.wait()
        finally:
            self._nursery = None

    async def finish(self, seconds: float = FINAL_SECONDS) -> None:
        """Offer everybody what is still owed, and write down the rest.

        Args:
            seconds: it takes at most, but for a write that has begun.
        """
        end = trio.current_time() + seconds
        peers = sorted({*self._answered, *self._books.payer.open_accounts()})
        await self._sign(peers, end)  # written first: then it is offered again after a restart
        with trio.move_on_at(end):
            async with trio.open_nursery() as nursery:
                for peer_id in peers:
                    if self._connection(peer_id) is not None:
                        nursery.start_soon(self._try_exchange, peer_id)
        await self._write(self._books.flush())

    async def _sign(self, peers: Sequence[str], end: float) -> None:
        """Write down what is owed to peers, all in one write, without telling them yet.

        Args:
            end: when no further is signed for; a thousand take 0.1 s. Of all are the locks held until it
                is written: whoever else holds several has to take them in this order.
        """
        steps: list[Step] = []
        try:
            async with AsyncExitStack() as stack:
                for peer_id in peers:
                    await stack.enter_async_context(self._one_step(peer_id))
                    step = self._books.sign_all(peer_id, self._now())
                    if step is not None:
                        steps.append(step)
                    if trio.current_time() > end:
                        break
                await self._written(together(steps))
        except LocalError as error:
            self._complain(error)

    def _quiet(self) -> list[str]:
        """Peers that are owed something, and whose answers have ended for now."""
        before = trio.current_time() - QUIET_SECONDS
        quiet = [peer_id for peer_id, at in self._answered.items() if at <= before]
        for peer_id in quiet:
            if self._connection(peer_id) is None:  # who comes back is met; the books know what is owed
                del self._answered[peer_id]
        return quiet

    def _settle_with(self, peers: Sequence[str]) -> None:
        now = trio.current_time()
        for peer_id in dict.fromkeys(peers):
            if len(self._under_way) >= MOST_AT_ONCE:
                return
            if (
                self._nursery is not None
                and peer_id not in self._under_way
                and self._connection(peer_id) is not None
                and self._pauses.ready_at(peer_id, now) <= now
            ):
                self._under_way.add(peer_id)
                self._nursery.start_soon(self._try_exchange, peer_id)

    def met(self, peer_id: str) -> None:
        """A peer that this node may come to owe something is connected: books are compared at once."""
        self._pauses.worked(peer_id)
        self._settle_with([peer_id])

    async def settle(self, peer_id: str, credits: int, kind: Kind) -> None:
        """Sign off a peer's debt, and show it the receipt as soon as it is there.

        Raises:
            LocalError: it does not owe as much, or the books cannot be written.
        """
        async with self._one_step(peer_id):
            await self._written(self._books.settle(peer_id, credits, kind, self._now()))
        self._settle_with([peer_id])

    async def pardon(self, peer_id: str) -> None:
        """Forgive a peer that it has signed double, and compare books with it as soon as it is there.

        Raises:
            LocalError: it has not, or the books cannot be written.
        """
        async with self._one_step(peer_id):
            await self._written(self._books.pardon(peer_id, self._now()))
        self._greeted.pop(peer_id, None)
        self.met(peer_id)

    async def _try_exchange(self, peer_id: str) -> None:
        """Settle with a peer; what goes wrong is tried again later."""
        try:
            await self._exchange(peer_id)
        except (PeerError, LocalError) as error:
            if isinstance(error, LocalError):
                self._complain(error)
            pause = self._pauses.failed(peer_id, trio.current_time())
            log.info("no receipt from %s, again in %.0f s: %s", peer_id, pause, error)
        finally:
            self._under_way.discard(peer_id)

    async def _exchange(self, peer_id: str) -> None:
        """Offer a peer what is owed to it, until it has countersigned.

        Raises:
            PeerError: it is gone, answers nothing or refuses.
            LocalError: the books cannot be written.
        """
        connection = self._connection(peer_id)
        if connection is None:
            return
        # Its account may have been forgotten meanwhile, to make room, and it is a stranger again.
        if self._greeted.get(peer_id) is not connection or not self._books.account(peer_id).caught_up:
            await self._say(connection, self._books.hello(peer_id))
            self._greeted[peer_id] = connection
            self._greeted = {peer: each for peer, each in self._greeted.items() if each.is_open}
        self._answered.pop(peer_id, None)  # what comes from here on is for the next receipt
        for _ in range(MOST_IN_A_ROW):
            async with self._one_step(peer_id):
                step = self._books.offer(peer_id, self._now())
                if step is not None:
                    await self._written(step)
            if step is None or not step.message:
                break
            refused = await self._say(connection, step.message)
            if refused and step.kind is not Kind.WORK:
                log.info("a settlement waits for %s: %s", peer_id, refused)  # and no receipt for it
            elif refused:
                raise PeerError(f"{peer_id} takes no receipt: {refused}", peer=peer_id)
        self._pauses.worked(peer_id)

    async def _say(self, connection: Connection, message: bytes) -> str:
        """One exchange; why the peer refused, or "".

        Raises:
            PeerError: no reply, or none that is one.
        """
        peer_id = connection.peer_id
        stream = connection.open_stream(PROTOCOL_ID)
        reply: bytes | None = None
        try:
            with trio.move_on_after(ANSWER_SECONDS):
                await stream.send_message(message, end=True)
                reply = await stream.receive_message(MAX_MESSAGE_BYTES)
        finally:
            stream.reset()
        if reply is None:
            raise PeerError(f"{peer_id} gave no reply in {ANSWER_SECONDS:g} s", peer=peer_id)
        async with self._one_step(peer_id):
            step = self._books.replied(peer_id, reply, self._now())
            await self._written(step)
        return step.refused

    # --- what peers ask ---

    async def serve(self, stream: Stream) -> None:
        """Handler of PROTOCOL_ID.

        Raises:
            PeerError: too many at once or a minute, too slow, what came is no message, or books that cannot
                be written: then nothing is signed.
        """
        peer_id = stream.peer_id
        now = trio.current_time()
        if self._inbound[peer_id] >= STREAMS_PER_PEER:
            raise PeerError(f"{peer_id} settles in {STREAMS_PER_PEER} streams already", peer=peer_id)
        place = _place_of(stream.connection)
        # Places first: a flood of identities from one must not fill the table of peers.
        if not self._places.allows(place, now) or not self._rate.allows(peer_id, now):
            raise PeerError(f"{peer_id} settles more often than is of use", peer=peer_id)
        self._inbound[peer_id] += 1
        try:
            with trio.move_on_after(ASKED_SECONDS):
                request = await stream.receive_message(MAX_MESSAGE_BYTES)
                async with self._one_step(peer_id):
                    step = self._books.received(peer_id, request, self._now())
                    await self._written(step)
                if step.message:
                    await stream.send_message(step.message, end=True)
                if peer_id in self._books.payer.open_accounts():
                    self._settle_with([peer_id])  # it is there: what waits for it can be said
                return
            raise PeerError(f"{peer_id} was too slow to settle", peer=peer_id)
        except LocalError as error:
            self._complain(error)
            raise PeerError(f"{peer_id} settles, but {error}", peer=peer_id) from None
        finally:
            self._inbound[peer_id] -= 1
            if not self._inbound[peer_id]:
                del self._inbound[peer_id]

    # --- the file ---

    async def _written(self, step: Step) -> None:
        """Put a step on the disk; only then is it so, and may be sent.

        Raises:
            LocalError: it cannot be written.
        """
        if step.write:
            try:
                async with self._writing:
                    await trio.to_thread.run_sync(self._ledger.write, step.write)
            except BaseException:  # not written, or cancelled before it was begun
                self._books.abandoned(step)
                raise
        self._books.written(step)
        for record in step.write:
            if isinstance(record, Evidence):
                told = "%s has signed double, and gets no work here: %s (panal market audits)"
                log.warning(told, record.peer, record.why)

    async def _write(self, step: Step) -> None:
        """Write down what nobody waits for; what cannot be written is there the next time."""
        if not step.write:
            return
        try:
            await self._written(step)
            self._cannot_write = ""
        except LocalError as error:
            self._complain(error)

    def _complain(self, error: LocalError) -> None:
        """Say once that the books cannot be written."""
        if str(error) != self._cannot_write:
            log.error("%s", error)
        self._cannot_write = str(error)

    @asynccontextmanager
    async def _one_step(self, peer_id: str) -> AsyncIterator[None]:
        """The books take one step at a time with each peer."""
        lock, users = self._locks.get(peer_id, (trio.Lock(), 0))
        self._locks[peer_id] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            users = self._locks[peer_id][1] - 1
            if users:
                self._locks[peer_id] = lock, users
            else:
                del self._locks[peer_id]


def _place_of(connection: Connection) -> str:
    """Where a peer is: an address, since of identities anybody has as many as he likes."""
    return connection.peer_id if connection.is_carried else origin_of(connection.first_address[0])
