"""Identify with each peer at its first connection, and push to all of them what changes on our side.

The message is in identify.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import trio

from routing.errors import PeerError
from routing.identity import PeerId
from routing.libp2p.delimited import DelimitedReader, MalformedMessage, write_delimited
from routing.libp2p.identify import (
    IDENTIFY,
    IDENTIFY_PUSH,
    MAX_IDENTIFY_BYTES,
    PeerInfo,
    decode_identify,
    encode_identify,
)
from routing.libp2p.muxed_stream import MuxedStream

_log = logging.getLogger(__name__)

# One exchange: a round trip or two on the worst of links.
IDENTIFY_SECONDS = 10.0

Observer = Callable[[PeerId, PeerInfo], None]


class Streams(Protocol):
    """What is needed of the host."""

    async def open_stream(self, peer_id: str, protocol: str, *, timeout: float) -> MuxedStream: ...
    def own_info(self, peer_id: str) -> PeerInfo: ...


class Introductions:
    """What connected peers have said of themselves."""

    def __init__(self, streams: Streams, public_key: bytes) -> None:
        """
        Args:
            public_key: ours, in libp2p's protobuf form.
        """
        self._streams = streams
        self._public_key = public_key
        self._infos: dict[PeerId, PeerInfo] = {}
        self._settled: dict[PeerId, trio.Event] = {}
        self._observers: list[Observer] = []

    def watch(self, observer: Observer) -> None:
        """Be told when a peer has told about itself, or tells anew."""
        self._observers.append(observer)

    def info(self, peer_id: str) -> PeerInfo | None:
        """What a connected peer said of itself; None while it has not."""
        return self._infos.get(PeerId(peer_id))

    def all(self) -> list[PeerInfo]:
        """What all connected peers said."""
        return list(self._infos.values())

    async def wait(self, peer_id: str) -> PeerInfo | None:
        """Until the exchange with a connected peer is over; None if it failed."""
        settled = self._settled.get(PeerId(peer_id))
        if settled is not None:
            await settled.wait()
        return self.info(peer_id)

    def expect(self, peer_id: PeerId) -> None:
        """A peer has connected: `meet` will follow."""
        self._settled[peer_id] = trio.Event()

    def forget(self, peer_id: PeerId) -> None:
        """Its last connection has ended."""
        self._infos.pop(peer_id, None)
        settled = self._settled.pop(peer_id, None)
        if settled is not None:
            settled.set()

    def willing(self) -> list[PeerId]:
        """Peers that take pushes."""
        return [peer_id for peer_id, info in self._infos.items() if IDENTIFY_PUSH in info.protocols]

    async def meet(self, peer_id: PeerId) -> None:
        """Ask a peer that has connected; a failure leaves it without an introduction."""
        settled = self._settled.get(peer_id)
        try:
            with trio.fail_after(IDENTIFY_SECONDS):
                stream = await self._streams.open_stream(peer_id, IDENTIFY, timeout=IDENTIFY_SECONDS)
                try:
                    await self._read(stream)
                finally:
                    stream.abort()
        except (PeerError, trio.TooSlowError) as error:
            _log.debug("identify with %s: %s", peer_id, error)
        finally:
            if settled is not None:
                settled.set()

    async def answer(self, stream: MuxedStream) -> None:
        """Handler of IDENTIFY."""
        await write_delimited(stream, self._encoded(stream.peer_id))

    async def take_push(self, stream: MuxedStream) -> None:
        """Handler of IDENTIFY_PUSH."""
        with trio.fail_after(IDENTIFY_SECONDS):
            await self._read(stream)

    async def push(self, peer_id: PeerId) -> None:
        """Tell one peer what we are now."""
        try:
            stream = await self._streams.open_stream(peer_id, IDENTIFY_PUSH, timeout=IDENTIFY_SECONDS)
            try:
                await write_delimited(stream, self._encoded(peer_id))
                await stream.aclose()
            except BaseException:
                stream.abort()
                raise
        except PeerError as error:
            _log.debug("identify push to %s: %s", peer_id, error)

    def _encoded(self, peer_id: str) -> bytes:
        return encode_identify(self._public_key, self._streams.own_info(peer_id))

    async def _read(self, stream: MuxedStream) -> None:
        message = await DelimitedReader(stream).read(MAX_IDENTIFY_BYTES)
        if message is None:
            return
        peer_id = PeerId(stream.peer_id)
        try:
            info = decode_identify(message)
        except ValueError as error:
            raise MalformedMessage(f"{peer_id}: identify: {error}", peer=peer_id) from None
        if peer_id in self._settled:
            self._infos[peer_id] = info
            for observer in self._observers:
                observer(peer_id, info)
