"""The part of a node that people see: its HTTP door with the page, the status and the API."""

from __future__ import annotations

import contextlib
import ipaddress
import os
from importlib.metadata import version
from typing import TYPE_CHECKING

import msgspec
import trio

from node.app.answering import AnsweringPart
from node.app.serving import ServingPart
from node.config import NodeConfig
from node.device.folder import NodeFolder
from node.device.pausing import Pausing
from node.device.running_node import HttpNote
from node.gateway.app import make_gateway
from node.gateway.speaker import Answered
from node.http.door import HttpDoor
from node.http.listening import DoorSettings
from node.model.store import Store
from node.status.board import Sources, StatusBoard
from node.status.market_routes import make_market_routes
from node.status.routes import make_routes
from node.status.token import Token
from node.swarm.node import SwarmNode

if TYPE_CHECKING:
    from node.market.told import MarketTold

NOTE_MODE = 0o600


class HttpPart:
    """Binds the door; nobody is answered before `run`.

    Attributes:
        board: what is shown; there with or without a door.
        bound: (host, port) of the door; None without one.
        url: "" without one.

    Raises:
        LocalError: the address is in use, or the key file cannot be used.
    """

    def __init__(self, config: NodeConfig, folder: NodeFolder) -> None:
        self._folder = folder
        settings = DoorSettings.of(config.http, avoid=_control_port(config))
        self._door = None if settings is None else HttpDoor(settings)
        self.bound = None if self._door is None else self._door.bound
        self.url = "" if self._door is None else self._door.url
        self._sources = Sources(
            name=config.name or "",
            store=Store(config.store),
            has_backbone=config.backbone is not None,
            door=self._door,
        )
        self.board = StatusBoard(self._sources)

    def mount(
        self,
        node: SwarmNode,
        answering: AnsweringPart,
        pausing: Pausing,
        market: MarketTold | None,
    ) -> None:
        """Say what there is to show. What is opened later is told by `opened`.

        Raises:
            LocalError: the token file cannot be used.
        """
        sources = self._sources
        sources.node = node
        sources.pauser = pausing
        sources.why_not = answering.why_not
        sources.market = market
        if self._door is None:
            return
        token = Token.load_or_create(self._folder.http_token, node.identity.peer_id)
        self._door.mount([*make_routes(self.board, token), *make_market_routes(self.board, token)])
        self._door.mount(make_gateway(answering.standing, self._answered))

    def opened(self, serving: ServingPart, answering: AnsweringPart) -> None:
        """Parts have been opened."""
        sources = self._sources
        sources.server = serving.server
        sources.givers = serving.givers
        if serving.chosen is not None:
            sources.chosen = serving.chosen.facts
        sources.live, sources.decoder = answering.live, answering.decoder
        sources.model_id = answering.model_id
        self.board.changed()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer until cancelled; commands find the door by a file meanwhile."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.board.run)
            if self._door is not None:
                await nursery.start(self._door.run)
                self._write_note()
            try:
                task_status.started()
                await trio.sleep_forever()
            finally:
                if self._door is not None:
                    with contextlib.suppress(OSError):
                        self._folder.http.unlink()

    def close(self) -> None:
        """Release the socket, also of a door that was never run."""
        if self._door is not None:
            self._door.close()

    def _write_note(self) -> None:
        note = msgspec.json.encode(HttpNote(self.url, os.getpid(), version("panal")))
        half = self._folder.http.with_suffix(".half")
        half.write_bytes(note)
        half.chmod(NOTE_MODE)
        half.replace(self._folder.http)

    def _answered(self, answered: Answered) -> None:
        self.board.answers.note(answered.report, answered.model_id, answered.at, answered.error)


def _control_port(config: NodeConfig) -> frozenset[int]:
    """The port that the control plane will have on loopback itself, and cannot share there."""
    control = config.swarm.control
    if control is None or not ipaddress.ip_address(control[0]).is_loopback:
        return frozenset()
    return frozenset({control[1]})
