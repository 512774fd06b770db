"""The config's backbone: its trunk, what is at home, how it asks and who guesses, put together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from node.config import BackboneConfig, NodeConfig
from node.config.shape import Draft
from node.decode.backbone import Backbone
from node.decode.live_backbone import BackboneSettings, LiveBackbone, Market, backbone_on, live_backbone
from node.decode.session import Session
from node.decode.wire_choice import wire_for
from node.engine import library as llama
from node.engine.library import EngineError, Library
from node.engine.tokenizer import Tokenizer
from node.home.opening import open_home
from node.home.watching import keep_home
from node.importing import Progress
from node.model.store import Store
from node.serve.opening import open_trunk, open_whole
from node.swarm.node import SwarmNode
from node.swarm.place import Place
from routing.errors import LocalError
from routing.wire.experts import Combine

if TYPE_CHECKING:
    from node.market.part import MarketPart


@asynccontextmanager
async def configured_backbone(
    config: NodeConfig,
    progress: Progress | None = None,
    *,
    prompt: str | None = None,
    tell: Callable[[str], None] = lambda line: None,
    context: int | None = None,
    draft: Draft | None = None,
    look: Callable[[LiveBackbone], None] = lambda live: None,
    node: SwarmNode | None = None,
    market: Market | None = None,
) -> AsyncIterator[LiveBackbone]:
    """The config's backbone, with all its experts in reach if it is a node of its own.

    What the config serves is computed at home, with whatever else it wants there.

    Args:
        prompt: what will be asked, looked at before anybody is waited for.
        tell: gets lines: what is at home, and where `wire = "auto"` could come to less.
        context: tokens of its own cache, if it is not the config's.
        draft: who guesses, if not whom the config names; what is at home stays as the config has it.
        look: called before anybody is waited for; may refuse.
        node: a running one that it is a part of; then nobody is waited for.
        market: of that node; one that is a node of its own makes what the config says.

    Raises:
        EngineError: the prompt has no tokens, or more than the context.
        LocalError: model, identity or library cannot be used.
        NotCovered: experts that neither this node nor a connected peer holds.
    """
    wanted = config.require_backbone()
    place = Place.of(config) if node is None else node.place
    library = llama.load(config.engine.library)
    store = Store(config.store)
    with ExitStack() as opened:
        stored = await trio.to_thread.run_sync(open_trunk, library, store, wanted.model, progress)
        home = opened.enter_context(
            await trio.to_thread.run_sync(open_home, library, store, stored, config, progress)
        )
        if line := home.choice.line():
            tell(line)
        choice = wire_for(wanted.wire, wanted.combine, stored, library, home.cells)
        if hint := choice.hint(config.path):
            tell(hint)
        settings = BackboneSettings(
            threads=config.engine.threads,
            combine=Combine[wanted.combine.upper()],
            wire=choice.codec,
            context=context or wanted.context,
            ubatch=wanted.ubatch,
            deadline=wanted.deadline,
            draft=draft or wanted.draft,
            draft_model=await trio.to_thread.run_sync(
                _draft_file, library, store, wanted, draft or wanted.draft
            ),
            exact=wanted.exact,
        )
        if node is None:
            market = opened.enter_context(opened_market(config, place))
            opening = live_backbone(
                library, stored, place=place, settings=settings, home=home.cells, market=market
            )
        else:
            opening = backbone_on(node, library, stored, settings=settings, home=home.cells, market=market)
        async with opening as live:
            if prompt is not None:
                check_prompt(live.backbone, prompt)
            look(live)
            if node is None:
                await live.covered(progress=progress or _unseen)
            async with keep_home(home, live, tell) as keeper:
                live.home_report, live.serve_at_home = keeper.as_dict, keeper.serve
                yield live


@contextmanager
def opened_market(config: NodeConfig, place: Place) -> Iterator[MarketPart | None]:
    """The market of the config's node; None where everything is free: nothing of it is even imported then.

    Raises:
        LocalError: another process keeps this node's books, or they cannot be read.
    """
    if config.market.is_free:
        yield None
        return
    from node.market.part import MarketPart

    with MarketPart.opened(config, place.identity) as market:
        yield market


def check_prompt(backbone: Backbone, prompt: str) -> None:
    """Refuse what no pass can be made of.

    Raises:
        EngineError: the prompt has no tokens, or more than the context.
    """
    tokens = Tokenizer(backbone.model).encode(prompt)
    if not tokens:
        raise EngineError("the prompt is empty, and this model needs at least one token: give it some text")
    Session(backbone).append(tokens)


def _draft_file(library: Library, store: Store, wanted: BackboneConfig, draft: Draft) -> Path | None:
    """The small model's file, if one is named and may be asked.

    Raises:
        LocalError: it is named or asked for, but not there.
    """
    named = wanted.draft_model
    if named is None or draft not in ("auto", "model"):
        if draft == "model":
            raise LocalError(
                'draft model: the config names none; add draft_model = "small.gguf" to [backbone]'
            )
        return None
    if named.path is None:
        _, model = open_whole(library, store, named)
        return model.path
    if not named.path.is_file():
        raise LocalError(f"{named.path}: no such file; backbone.draft_model names a small model's GGUF")
    return named.path


def _unseen(what: str, done: int, total: int) -> None:
    """Progress that nobody looks at."""
