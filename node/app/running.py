"""A node that runs: its place in the swarm, its work for others, its answers, its page; one nursery."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import trio

from node.app.answering import AnsweringPart
from node.app.http import HttpPart
from node.app.serving import ServingPart
from node.config import NodeConfig
from node.decode.configured import opened_market
from node.device.effect import PauseEffect
from node.device.folder import NodeFolder
from node.device.lock import NodeLock
from node.device.pausing import Pausing
from node.importing import Progress
from node.serve.cells import Cells
from node.swarm.node import Role, SwarmNode
from node.swarm.place import Place
from node.swarm.watching import NOBODY, Watching
from routing.wire.holdings import Slice


@dataclass(frozen=True)
class Running:
    """What a node does once it is up.

    Attributes:
        address: where others on the network reach it, with its peer id: what they put into their peers.
        cells, slices: what it serves.
        relay: where it takes connections as a relay, as multiaddrs; empty if it is none.
        url: of its page and its API; "" where the config wants none.
        model: what the API calls the backbone's model; "" without a backbone.
        answering: that backbone, which may still be loading.
    """

    config: NodeConfig
    node: SwarmNode
    address: str
    cells: int
    slices: Sequence[Slice]
    relay: Sequence[str]
    url: str
    model: str
    pausing: Pausing
    answering: AnsweringPart


async def run_node(
    config: NodeConfig,
    *,
    on_ready: Callable[[Running], Awaitable[None]],
    progress: Progress | None = None,
    watching: Watching = NOBODY,
) -> None:
    """Be the config's node until `on_ready` returns, or forever if it does not, or until cancelled.

    Raises:
        LocalError: another node has this folder or a port; a model cannot be opened.
    """
    folder = NodeFolder.of(config)
    with ExitStack() as ends:
        ends.enter_context(NodeLock.take(folder, name=config.name or "", config=config.path))
        # Ports first: one that is in use is told at once, not after minutes of opening models.
        http = HttpPart(config, folder)
        ends.callback(http.close)
        place = Place.of(config)
        market = ends.enter_context(opened_market(config, place))
        serving = ServingPart(config, market)
        ends.callback(serving.close)

        def at_home(cells: Cells) -> None:
            nursery.start_soon(answering.serve_at_home, cells)

        def on_ready_to_answer() -> None:
            http.opened(serving, answering)
            if serving.chosen is not None and serving.chosen.chooses:
                at_home(serving.cells)

        answering = AnsweringPart(config, on_ready=on_ready_to_answer, market=market)
        answering.check()
        role = Role(
            serves=True,
            offered=serving.offered,
            handlers={**serving.handlers(), **({} if market is None else market.handlers)},
            any_port=not serving.is_wanted and not config.relay.table.serve,
        )
        node = SwarmNode(place, role, watching=watching, http=http.bound)
        ends.callback(node.close)
        effect = PauseEffect(node)
        pausing = Pausing(folder, config.device, effect.take)
        http.mount(node, answering, pausing, None if market is None else market.told(node))
        async with trio.open_nursery() as nursery:
            await nursery.start(http.run)
            await trio.to_thread.run_sync(serving.open, progress)
            effect.serve(serving.server, serving.chosen, *serving.givers)
            http.opened(serving, answering)
            await nursery.start(pausing.run)
            if market is not None and serving.is_wanted:
                market.sell(node, serving)
            await nursery.start(node.run)
            if market is not None:
                await nursery.start(market.run, node)
            nursery.start_soon(serving.choose, node, at_home)
            if answering.is_wanted:
                nursery.start_soon(answering.run, node)
            await on_ready(
                Running(
                    config=config,
                    node=node,
                    address=node.address,
                    cells=serving.cells.count(),
                    slices=serving.cells.slices(),
                    relay=node.relay_addresses,
                    url=http.url,
                    model=answering.model,
                    pausing=pausing,
                    answering=answering,
                )
            )
            nursery.cancel_scope.cancel()
