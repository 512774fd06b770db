"""Who gives what: every connected peer is asked for its list of models."""

from __future__ import annotations

from collections.abc import Iterator

import trio

from node.home.call_bits import run_bits
from node.model.manifest import Manifest
from node.share.download import Key
from node.share.work import EVERY
from node.swarm.node import SwarmNode
from routing.errors import PeerError
from routing.quic.connection import Connection
from routing.routes import Kind
from routing.table import CallShape
from routing.wire import model_list
from routing.wire.model_files import ModelFile
from routing.wire.model_list import Offer

LOOK_SECONDS = 0.1
"""Between looks for peers that have come."""

AGAIN_SECONDS = 30.0
"""Before a peer is asked anew: it may share more by then."""

REPLY_SECONDS = 10.0
"""For a list of 256 KiB over the slowest line that is worth it."""


class Offers:
    """What the peers of a node offer.

    Attributes:
        by_peer: as last told.
        reasons: why peers told nothing.
    """

    def __init__(self, node: SwarmNode) -> None:
        self._node = node
        self._asked: dict[Connection, float] = {}
        self.by_peer: dict[str, list[Offer]] = {}
        self.reasons: dict[str, str] = {}

    async def run(self) -> None:
        """Ask whoever comes, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                now = trio.current_time()
                for peer_id in self._node.links.serving:
                    link = self._node.links.link(peer_id)
                    if link is None:
                        continue
                    if link.route.kind is Kind.RELAYED:
                        self.reasons[peer_id] = "is reached by a relay only, which is not used for this"
                    elif now - self._asked.get(link.connection, -AGAIN_SECONDS) >= AGAIN_SECONDS:
                        self._asked[link.connection] = now
                        nursery.start_soon(self._ask, link.connection)
                self._asked = {each: at for each, at in self._asked.items() if each.is_open}
                await trio.sleep(LOOK_SECONDS)

    @property
    def is_asking(self) -> bool:
        """Whether a connected peer has not said yet what it offers."""
        told = self.by_peer.keys() | self.reasons.keys()
        return any(peer_id not in told for peer_id in self._node.links.serving)

    def of(self, model_id: str) -> dict[str, Offer]:
        """What connected peers offer of a model."""
        return {
            peer_id: offer
            for peer_id, offers in self.by_peer.items()
            if self._node.links.link(peer_id) is not None
            for offer in offers
            if offer.model_id == model_id
        }

    async def _ask(self, connection: Connection) -> None:
        peer_id = connection.peer_id
        try:
            with trio.fail_after(REPLY_SECONDS):
                stream = connection.open_stream(model_list.PROTOCOL_ID)
                try:
                    await stream.send_message(model_list.encode_request())
                    told = await stream.receive_message(model_list.MAX_ANSWER_BYTES)
                finally:
                    stream.reset()
            self.by_peer[peer_id] = model_list.decode_list(told, peer=peer_id).models
            self.reasons.pop(peer_id, None)
        except trio.TooSlowError:
            self.reasons[peer_id] = f"did not say within {REPLY_SECONDS:g} s what it shares"
        except PeerError as error:
            self.reasons[peer_id] = f"shares nothing: {error}"


class Holding:
    """Who holds units of what is fetched of one model.

    Args:
        manifest_bytes, metadata: whose word is taken: only peers that say the same are asked for these files.
    """

    def __init__(self, offers: Offers, model_id: str, *, manifest_bytes: int = 0, metadata: str = "") -> None:
        self._offers = offers
        self._model_id = model_id
        self._manifest_bytes = manifest_bytes
        self._metadata = metadata
        self._shapes: dict[tuple[int, int], CallShape] = {}
        self._units: dict[tuple[str, Key], tuple[Offer, int]] = {}

    def take_manifest(self, manifest: Manifest) -> None:
        """With it cells can be found."""
        firsts = {call.layer: call.n_experts for call in manifest.calls if not call.index}
        self._shapes = {
            (call.layer, call.index): CallShape(call.n_experts, firsts[call.layer]) for call in manifest.calls
        }

    def experts(self, peer_id: str, offer: Offer, key: Key) -> int:
        """The experts of a call that a peer gives, as bits."""
        known = self._units.get((peer_id, key))
        if known is not None and known[0] is offer:
            return known[1]
        shape, found = self._shapes[key.layer, key.call], 0
        for first, last in offer.cells.expert_runs(key.layer) if offer.cells is not None else ():
            if first < shape.n_cells:
                start, end = shape.run(first, min(last, shape.n_cells - 1))
                found |= run_bits(start, end - start + 1)
        self._units[peer_id, key] = (offer, found)
        return found

    def holders(self, key: Key) -> Iterator[tuple[str, int]]:
        """Peers that give something of a key; of files all, of cells the experts, as bits."""
        for peer_id, offer in self._offers.of(self._model_id).items():
            if key.file is None:
                held = self.experts(peer_id, offer, key.data)
            elif key.file is ModelFile.MANIFEST:
                held = EVERY if offer.manifest_bytes == self._manifest_bytes else 0
            elif key.file is ModelFile.METADATA:
                held = EVERY if offer.trunk is not None and offer.trunk.digest == self._metadata else 0
            else:
                held = EVERY if offer.trunk is not None else 0
            if held:
                yield peer_id, held
