"""The DHT in use: this node's advert is kept in it, and others' are looked for, about once a minute.

What changes in the advert (a relay that can be called now) goes there at once: a peer behind another NAT has
nothing else to find this node by.

It is for finding a swarm, not for running it: as soon as two nodes are connected, adverts travel between
them directly (routing.exchange), and nothing here is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

import trio

from node.swarm.candidates import Candidates
from node.swarm.control import Control
from routing.adverts import AdvertTable
from routing.control_address import ControlAddress
from routing.errors import LocalError, PeerError
from routing.exchange import AdvertExchange
from routing.identity import PeerId
from routing.libp2p.directory import Directory, Mode
from routing.not_reached import describe
from routing.quic.carried import PROTOCOL_ID as DATAGRAMS

log = logging.getLogger("panal.directory")

FIRST_PAUSE, ALONE_PAUSE, PAUSE = 2.0, 15.0, 60.0
"""Seconds between rounds: the first, and while no DHT server answers; doubled up to the second while no peer
of the swarm is connected; then the third."""

LOOK_SECONDS = 0.5
"""Between looks at whether the advert has changed."""

CONNECT_TIMEOUT = 5.0

MAX_SERVERS = 6
"""Control connections kept to DHT servers: three may go, and a lookup still begins at three places."""


class DirectoryKeeper:
    """Publishes, looks, and keeps control connections to a few servers.

    Args:
        configured: control addresses from the config, which are tried for ever.
        model: what to look for; None looks for the swarm.
        advert: this node's newest advert; b"" if it has none.
        is_server: whether this node should answer the DHT's questions now.
        in_touch: whether any peer of the swarm is connected: news comes from there.
        on_panal_peer: told of configured control peers that are panal nodes.

    Attributes:
        has_looked: the first search is over.
    """

    def __init__(
        self,
        control: Control,
        directory: Directory,
        exchange: AdvertExchange,
        table: AdvertTable,
        candidates: Candidates,
        *,
        configured: Sequence[ControlAddress],
        own_id: PeerId,
        model: Callable[[], str | None],
        advert: Callable[[], bytes],
        is_server: Callable[[], bool],
        in_touch: Callable[[], bool],
        on_panal_peer: Callable[[str], None],
    ) -> None:
        self._control = control
        self._directory = directory
        self._exchange = exchange
        self._table = table
        self._candidates = candidates
        self._configured = [each for each in configured if each.peer_id != own_id]
        self._own_id = own_id
        self._model = model
        self._advert = advert
        self._is_server = is_server
        self._in_touch = in_touch
        self._on_panal_peer = on_panal_peer
        self._failures: dict[ControlAddress, str] = {}
        self.has_looked = False

    def failures(self) -> dict[str, str]:
        """Configured control addresses that cannot be reached now, with the reason."""
        connected = self._control.host.connected_peers
        return {
            str(each): self._failures[each]
            for each in self._configured
            if each in self._failures and not _is_connected(connected, each)  # it may have dialed us since
        }

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._directory.run)
            pause = FIRST_PAUSE
            while True:
                self._directory.set_mode(Mode.SERVER if self._is_server() else Mode.CLIENT)
                published = self._advert()
                joined = await self._round()
                self.has_looked = True
                if joined and self._in_touch():
                    pause = PAUSE
                with trio.move_on_after(pause):
                    while self._advert() == published:
                        await trio.sleep(LOOK_SECONDS)
                pause = min(2 * pause, ALONE_PAUSE) if joined else FIRST_PAUSE

    async def _round(self) -> bool:
        """One publication and one search; False if no DHT server answers."""
        async with trio.open_nursery() as nursery:
            for address in self._servers():
                nursery.start_soon(self._connect, address)
        connected = self._control.host.connected_peers
        if not connected or not await self._directory.join(connected):
            return False
        data = self._advert()
        row = self._table.get(self._own_id)
        if data and row is not None:
            models = list(dict.fromkeys(held.model_id for held in row.advert.slices))
            taken = await self._directory.publish(data, models)
            log.debug("advert taken by %d DHT servers", taken)
        found = await self._directory.find(self._model())
        log.debug("%d adverts found in the DHT", len(found))
        for advert in found:
            offer = self._exchange.offer(advert, from_peer="")
            if offer.reason:
                log.debug("from the DHT: %s", offer.reason)
        return True

    def _servers(self) -> list[ControlAddress]:
        """Whom to be connected to: the config's, then public nodes of the swarm, until there are enough."""
        host = self._control.host
        wanted = [each for each in self._configured if not _is_connected(host.connected_peers, each)]
        lacking = MAX_SERVERS - len(host.connected_peers) - len(wanted)
        if lacking > 0:
            wanted += list(self._known(host.connected_peers))[:lacking]
        return wanted

    def _known(self, connected: Iterable[PeerId]) -> Iterable[ControlAddress]:
        have = {*connected, self._own_id, *(each.peer_id for each in self._configured)}
        public = [row.advert.peer_id for row in self._table.rows() if row.advert.reach != "private"]
        for peer_id in dict.fromkeys([*self._candidates.configured, *map(PeerId, public)]):
            candidate = self._candidates.find(peer_id)
            if peer_id not in have and candidate is not None and candidate.control:
                yield candidate.control[0].with_peer(peer_id)

    async def _connect(self, address: ControlAddress) -> None:
        assert address.peer_id is not None
        try:
            await self._control.connect(address, timeout=CONNECT_TIMEOUT)
            info = await self._control.host.wait_identified(address.peer_id)
        except (PeerError, LocalError) as error:
            if address in self._configured:
                if self._failures.get(address) != str(error):
                    log.warning("%s", describe(str(address), str(error)))
                self._failures[address] = str(error)
            return
        self._failures.pop(address, None)
        if info is not None and DATAGRAMS in info.protocols and address in self._configured:
            self._on_panal_peer(address.peer_id)


def _is_connected(connected: Iterable[PeerId], address: ControlAddress) -> bool:
    return any(peer_id == address.peer_id for peer_id in connected)
