"""`/panal/punch/1`: two NAT-bound peers that can talk through a relay get a connection of their own.

What a peer could do with it, and why it gains nothing: it can have us send probes to addresses it claims.
They hold 18 bytes, none of which it chose; a punch sends at most MAX_CANDIDATES x 20 of them, punches are
counted for each peer, each address and in all, and no QUIC packet (1,200 bytes) goes to an address before
the peer's nonce has come back from there. `relay.punch_plan.targets` says which addresses are never probed.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import trio

from relay.probes import Probes
from relay.punch_plan import (
    MAX_MESSAGE_BYTES,
    PROBE_SECONDS,
    CallBack,
    Connect,
    Message,
    Outcome,
    PunchFailed,
    Sync,
    decode,
    dials,
    encode,
    expect,
    pack_addresses,
    pauses,
    targets,
    unpack_addresses,
)
from relay.rate import Rate
from relay.reach_wire import NONCE_BYTES, ProbeKind
from relay.targets import Address
from routing.errors import PeerError
from routing.identity import parse_peer_id
from routing.multiaddr import PeerAddress
from routing.quic.connection import Connection
from routing.quic.endpoint import Endpoint
from routing.quic.stream import Stream

log = logging.getLogger("panal.punch")

ANSWER_TIMEOUT = 5.0
"""Seconds for a message of the exchange: relayed round trips take up to a second."""

DIAL_TIMEOUT = 5.0
"""Seconds for the handshake on a path that has just answered a probe."""

SEEN_TIMEOUT = 2.0
"""Seconds between the dialer's word that it is connected and our own end of the connection being up."""

EXCHANGE_TIMEOUT = ANSWER_TIMEOUT + PROBE_SECONDS + DIAL_TIMEOUT
"""Until the end that dials has said how it ended."""

LOOK_PAUSE = 0.01
"""Seconds between looks for that connection."""

MAX_ANSWERS = 64
"""Probes answered in one punch: more than a peer sends."""

PER_MINUTE = 60.0
PUNCHES_PER_PEER = 6
PUNCHES_PER_TARGET = 20
"""To one IP address in a minute, whoever asks: 20 KB at most, spread over a minute."""
PUNCHES = 120


class _Refused(PunchFailed):
    """This node does not take part now."""

    def __init__(self, reason: str, peer: str) -> None:
        super().__init__(f"punching to {peer}: {reason}", peer=peer)
        self.reason = reason


class Channel(Protocol):
    """What the two talk over: a stream of a relayed connection."""

    async def send_message(self, *parts: bytes) -> None: ...
    async def receive_message(self, max_bytes: int) -> bytes: ...


class _Hearing:
    """What one punch hears: the first address from which the peer has reached us."""

    def __init__(self, probes: Probes, nonce: bytes) -> None:
        self.nonce = nonce
        self.address: Address | None = None
        self.heard = trio.Event()
        self._probes = probes
        self._answers = 0

    def take(self, kind: ProbeKind, sender: Address) -> None:
        if self.address is None:
            self.address = sender
            self.heard.set()
        if kind is ProbeKind.PUNCH and self._answers < MAX_ANSWERS:
            self._answers += 1
            self._probes.send(self.nonce, ProbeKind.PUNCH_ANSWER, sender)


class Puncher:
    """Punches, and serves those that peers begin. Any number may be under way, one with each peer."""

    def __init__(
        self,
        probes: Probes,
        candidates: Callable[[], Sequence[Address]],
        *,
        on_connected: Callable[[Connection], None] | None = None,
    ) -> None:
        """
        Args:
            candidates: where this node might be reached, outer addresses first (ReachProber.candidates).
            on_connected: told of each connection that a punch has brought, whoever began it.
        """
        self._probes = probes
        self._endpoint: Endpoint = probes.endpoint
        self._candidates = candidates
        self._on_connected = on_connected
        self._busy: dict[str, trio.Event] = {}
        self._by_peer = Rate(PUNCHES_PER_PEER, PER_MINUTE)
        self._by_target = Rate(PUNCHES_PER_TARGET, PER_MINUTE)
        self._in_all = Rate(PUNCHES, PER_MINUTE)

    # --- beginning one ---

    async def punch(self, channel: Channel, peer_id: str) -> Connection:
        """A direct connection to a peer we can only talk to through `channel` so far.

        Raises:
            PunchFailed: in one line, why not. The channel is no longer of use, whatever happens.
            PeerError: the peer broke the rules, or the channel.
        """
        before = set(self._direct(peer_id))
        with self._only_one(peer_id), self._hearing() as hearing:
            begun = self._endpoint.now()
            ours = list(self._candidates())
            await channel.send_message(encode(Connect(hearing.nonce, pack_addresses(ours))))
            reply = await _receive(channel, peer_id)
            if not (isinstance(reply, Outcome) and reply.crossed):
                theirs = expect(reply, Connect, peer=peer_id)
                round_trip = self._endpoint.now() - begun
                await channel.send_message(encode(Sync()))
                await trio.sleep(round_trip / 2)
                return await self._meet(
                    channel, peer_id, hearing, theirs, ours, dial=dials(self._endpoint.peer_id, peer_id)
                )
        # `serve_channel` has waited for this and goes on with the peer's
        with trio.move_on_after(EXCHANGE_TIMEOUT):
            return await self._new_connection(peer_id, before)
        raise PunchFailed(f"punching to {peer_id}: both began, and the peer's attempt failed", peer=peer_id)

    async def ask_to_call_back(self, channel: Channel, peer_id: str) -> Connection:
        """The same where this node is public: the peer dials it.

        Raises:
            PunchFailed: in one line, why not.
            PeerError: the peer broke the rules, or the channel.
        """
        with self._only_one(peer_id), self._hearing() as hearing:
            ours = list(self._candidates())
            await channel.send_message(encode(CallBack(hearing.nonce, pack_addresses(ours))))
            return await self._be_dialed(channel, peer_id)

    # --- serving those of peers ---

    async def serve(self, stream: Stream) -> None:
        """Handler of PROTOCOL_ID.

        Raises:
            PeerError: the peer broke the rules, or the channel.
        """
        try:
            await self.serve_channel(stream, stream.peer_id)
        except PunchFailed as error:
            # The peer has been told why: to fail here would reset the stream and overtake the words.
            log.debug("%s", error)
        await stream.aclose()

    async def serve_channel(self, channel: Channel, peer_id: str) -> Connection | None:
        """One exchange that the peer has begun; None if our own with the same peer goes first.

        Raises:
            PunchFailed: the two did not meet; the peer has been told.
            PeerError: the peer broke the rules, or the channel.
        """
        first = await _receive(channel, peer_id)
        dial = dials(self._endpoint.peer_id, peer_id)
        if isinstance(first, CallBack):
            dial = True
        else:
            first = expect(first, Connect, peer=peer_id)
            busy = self._busy.get(peer_id)
            if busy is not None:
                if dial:
                    text = "both have begun: the attempt of the lower peer id goes on"
                    await channel.send_message(encode(Outcome(False, text, True)))
                    return None
                await busy.wait()  # until the peer has answered ours in the same way
        try:
            with self._only_one(peer_id), self._hearing() as hearing:
                ours = list(self._candidates())
                if isinstance(first, Connect):
                    await channel.send_message(encode(Connect(hearing.nonce, pack_addresses(ours))))
                    expect(await _receive(channel, peer_id), Sync, peer=peer_id)
                return await self._meet(channel, peer_id, hearing, first, ours, dial=dial)
        except _Refused as refusal:
            await channel.send_message(encode(Outcome(False, refusal.reason)))
            raise

    # --- inside ---

    async def _meet(
        self,
        channel: Channel,
        peer_id: str,
        hearing: _Hearing,
        theirs: Connect | CallBack,
        ours: Sequence[Address],
        *,
        dial: bool,
    ) -> Connection:
        claimed = unpack_addresses(theirs.addresses)
        where = [each for each in targets(claimed, ours) if self._may_probe(each)]
        if not dial:
            result: Connection | PeerError
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._probe, hearing, theirs.nonce, where)
                try:
                    result = await self._be_dialed(channel, peer_id)
                except PeerError as error:  # kept out of the nursery, which would wrap it
                    result = error
                nursery.cancel_scope.cancel()
            if isinstance(result, PeerError):
                raise result
            return result
        if where or isinstance(theirs, Connect):  # who asks to be called back does not come by itself
            await self._probe(hearing, theirs.nonce, where)
        try:
            connection = await self._dial(peer_id, hearing, where, len(claimed))
        except PunchFailed as error:
            await channel.send_message(encode(Outcome(False, str(error))))
            raise
        try:
            await channel.send_message(encode(Outcome(True)))
        except PeerError:
            log.debug("the relayed way to %s ended before it could be told", peer_id)
        self._report(connection)
        return connection

    async def _probe(self, hearing: _Hearing, nonce: bytes, where: Sequence[Address]) -> None:
        """Until something is heard, or nothing will be."""
        with self._probes.expecting(nonce, ProbeKind.PUNCH_ANSWER, then=hearing.take):
            for pause in pauses():
                if hearing.address is not None:
                    return
                for address in where:
                    self._probes.send(nonce, ProbeKind.PUNCH, address)
                with trio.move_on_after(pause):
                    await hearing.heard.wait()

    async def _dial(
        self, peer_id: str, hearing: _Hearing, where: Sequence[Address], claimed: int
    ) -> Connection:
        if hearing.address is None:
            reason = f"no probe came through within {PROBE_SECONDS:g} s ({_places(where)} tried)"
            if not where:
                reason = f"none of the {claimed} addresses that {peer_id} claims may be probed"
            raise PunchFailed(f"punching to {peer_id}: {reason}", peer=peer_id)
        host, port = hearing.address
        address = PeerAddress(host, port, parse_peer_id(peer_id))
        try:
            return await self._endpoint.connect(address, timeout=DIAL_TIMEOUT, fresh=True)
        except PeerError as error:
            raise PunchFailed(
                f"punching to {peer_id}: a probe came through, but {error}", peer=peer_id
            ) from None

    async def _be_dialed(self, channel: Channel, peer_id: str) -> Connection:
        """Wait for the other end's outcome, and for our end of its connection."""
        before = set(self._direct(peer_id))
        outcome = expect(await _receive(channel, peer_id, EXCHANGE_TIMEOUT), Outcome, peer=peer_id)
        if not outcome.connected:
            raise PunchFailed(f"{peer_id} could not dial this node: {outcome.text}", peer=peer_id)
        with trio.move_on_after(SEEN_TIMEOUT):
            connection = await self._new_connection(peer_id, before)
            self._report(connection)
            return connection
        raise PunchFailed(f"{peer_id} says it is connected, but no connection has come", peer=peer_id)

    async def _new_connection(self, peer_id: str, before: set[Connection]) -> Connection:
        """Wait for a direct connection that was not there before."""
        while True:
            for each in self._direct(peer_id):
                if each not in before:
                    return each
            await trio.sleep(LOOK_PAUSE)

    def _direct(self, peer_id: str) -> list[Connection]:
        return [each for each in self._endpoint.connections_to(peer_id) if not each.is_carried]

    def _report(self, connection: Connection) -> None:
        if self._on_connected is not None:
            self._on_connected(connection)

    def _may_probe(self, address: Address) -> bool:
        return self._by_target.allows(address[0], self._endpoint.now())

    @contextmanager
    def _only_one(self, peer_id: str) -> Iterator[None]:
        """One punch with a peer at a time, and not too many."""
        if peer_id in self._busy:
            raise _Refused("a punch between the two is under way already", peer_id)
        now = self._endpoint.now()
        if not self._by_peer.allows(peer_id, now) or not self._in_all.allows("", now):
            raise _Refused("too many punches, of the two or in all: wait a minute", peer_id)
        over = self._busy[peer_id] = trio.Event()
        try:
            yield
        finally:
            del self._busy[peer_id]
            over.set()

    @contextmanager
    def _hearing(self) -> Iterator[_Hearing]:
        hearing = _Hearing(self._probes, secrets.token_bytes(NONCE_BYTES))
        with self._probes.expecting(hearing.nonce, ProbeKind.PUNCH, then=hearing.take):
            yield hearing


async def _receive(channel: Channel, peer_id: str, timeout: float = ANSWER_TIMEOUT) -> Message:
    with trio.move_on_after(timeout):
        return decode(await channel.receive_message(MAX_MESSAGE_BYTES), peer=peer_id)
    raise PunchFailed(f"punching to {peer_id}: no answer through the relay in {timeout:g} s", peer=peer_id)


def _places(where: Sequence[Address]) -> str:
    return ", ".join(f"{host} port {port}" for host, port in where)
