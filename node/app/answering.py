"""The part of a node that answers people: the backbone, its decoder, and what /v1 says meanwhile."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING

import trio

from node.config import NodeConfig
from node.decode.backbone import default_context
from node.decode.configured import configured_backbone
from node.decode.continuous.decoder import Decoder
from node.decode.continuous.opening import DecoderSettings
from node.decode.live_backbone import LiveBackbone
from node.decode.not_covered import NotCovered
from node.gateway.backbone_speaker import BackboneSpeaker
from node.gateway.chat_template import ChatTemplate
from node.gateway.speaker import NotReady, Speaker
from node.model.gguf.split import open_model
from node.model.store import Store
from node.serve.cells import Cells
from node.swarm.node import SwarmNode

if TYPE_CHECKING:
    from node.market.part import MarketPart

log = logging.getLogger("panal.answers")

OWN_CONTEXT = 64
"""Tokens of the cache that the backbone has to itself: the decoder makes its own, of the size that the config
wants, and only looks at a model through this one."""


class AnsweringPart:
    """A node's backbone.

    Attributes:
        live, decoder: None while the model is being opened.
        model: what the API calls it; model_id: "" while it is being opened.
    """

    def __init__(
        self,
        config: NodeConfig,
        on_ready: Callable[[], None] = lambda: None,
        market: MarketPart | None = None,
    ) -> None:
        self._config = config
        self._market = market
        self._on_ready = on_ready
        self._why = "opening the model"
        self._speaker: Speaker | None = None
        self._covered = trio.Event()
        self.live: LiveBackbone | None = None
        self.decoder: Decoder | None = None
        self.model = "" if config.backbone is None else model_name(config)
        self.model_id = ""

    @property
    def is_wanted(self) -> bool:
        """Whether the config has a backbone."""
        return self._config.backbone is not None

    def check(self) -> None:
        """Look whether the model is there, before anybody is told where its API is.

        Raises:
            LocalError: its file cannot be read, or the store does not have it.
        """
        if self._config.backbone is None:
            return
        model = self._config.backbone.model
        if model.path is None:
            assert model.model_id is not None
            Store(self._config.store).get(model.model_id)
        elif not os.access(model.path, os.R_OK):
            open_model(model.path)  # which says why

    def standing(self) -> Speaker | NotReady:
        """Who answers now, or why nobody does."""
        if self._speaker is None or self.live is None:
            return NotReady(self.model, self._why if self.is_wanted else "")
        lacking = self.live.lacking()
        if lacking is not None:
            return NotReady(self.model, str(lacking), missing=True)
        return self._speaker

    async def ready(self) -> None:
        """Wait until the model is open and every expert was looked for once."""
        await self._covered.wait()

    def why_not(self) -> str:
        """Why nobody answers now; "" if somebody does, and without a backbone."""
        standing = self.standing()
        return standing.why if isinstance(standing, NotReady) else ""

    async def run(self, node: SwarmNode) -> None:
        """Until cancelled.

        Raises:
            LocalError: the model cannot be opened, or there is too little memory for its caches.
        """
        wanted = self._config.require_backbone()
        async with configured_backbone(
            self._config, self._report, tell=log.info, context=OWN_CONTEXT, node=node, market=self._market
        ) as live:
            self.live, self.model_id = live, live.backbone.stored.model_id
            settings = DecoderSettings(
                sessions=wanted.sessions,
                queue=wanted.queue,
                prefix_cache=wanted.prefix_cache,
                context=wanted.context or default_context(live.backbone.model),
            )
            self.decoder = decoder = Decoder(live, settings)
            chat = await trio.to_thread.run_sync(ChatTemplate.from_model, live.backbone.model)
            with nullcontext() if chat is None else closing(chat):
                async with trio.open_nursery() as nursery:
                    self._why = "making room for answers"
                    await nursery.start(decoder.run)
                    self._speaker = BackboneSpeaker(live.backbone, decoder, self.model, chat=chat)
                    self._on_ready()
                    await self._say_when_covered(live)

    async def serve_at_home(self, cells: Cells) -> None:
        """What this node serves from now on; the backbone computes that itself."""
        if self.live is not None:
            await self.live.serve_at_home(cells)

    async def _say_when_covered(self, live: LiveBackbone) -> None:
        """Tell the log once whether all experts are in reach; and then wait for the end."""
        try:
            await live.covered()
            log.info("%s answers: every expert is in reach", self.model)
        except NotCovered as error:
            log.warning("%s", error)
        self._covered.set()
        await trio.sleep_forever()

    def _report(self, what: str, done: int, total: int) -> None:
        self._why = f"{what}, {100 * done // total} %" if total else what


def model_name(config: NodeConfig) -> str:
    """What the API calls the config's model: its file's name without the ending, or its id."""
    model = config.require_backbone().model
    return model.path.stem if model.path is not None else str(model)
