"""`panal bench trips` on a configured swarm: opens it, makes the cases, runs them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import trio

from node.bench.trips import Case, TripsRow, prompts_from, run_cases
from node.config import NodeConfig
from node.decode.configured import opened_market
from node.decode.drafting.choice import Guessers
from node.decode.drafting.guessing import Guessing
from node.decode.drafting.rule import AlwaysRule
from node.decode.live_backbone import BackboneSettings, LiveBackbone, live_backbone
from node.decode.wire_choice import wire_for
from node.engine import library as llama
from node.engine.library import Library
from node.engine.sampler import SamplingSettings
from node.engine.tokenizer import Tokenizer
from node.home.choosing import heat_now
from node.home.home_set import HomeSet, total_bytes
from node.home.opening import OpenHome, open_home
from node.importing import Progress
from node.model.store import Store, StoredModel
from node.serve.cells import Cells
from node.serve.opening import open_trunk
from node.sizes import MemoryBudget
from node.swarm.place import Place
from routing.errors import LocalError
from routing.wire.experts import Combine

SEED = 4190
"""Of the token ids for models without a tokenizer."""

DRAFT = re.compile(r"(off|auto|self|ngram|model)(\d{0,2})")


@dataclass(frozen=True)
class TripsBench:
    """What is to be measured; see `panal bench trips --help`."""

    homes: Sequence[str]
    drafts: Sequence[str]
    draft_model: Path | None
    text: str
    prompts: int
    prompt_tokens: int
    tokens: int
    sampling: SamplingSettings

    def check(self) -> None:
        """What can be told before anything is opened.

        Raises:
            LocalError: a share or a guesser that is none.
        """
        for draft in self.drafts:
            if DRAFT.fullmatch(draft) is None:
                raise LocalError(
                    f"{draft!r} guesses nothing: off, auto, self, ngram or model, perhaps a number"
                )
            if draft.startswith("model") and (self.draft_model is None or not self.draft_model.is_file()):
                raise LocalError(
                    f"draft model: {self.draft_model or 'none'}: no such file; name it with --draft-model"
                )
        for home in self.homes:
            if home != "0":
                MemoryBudget.parse(home.removeprefix("hot:"))

    async def run(self, config: NodeConfig, progress: Progress) -> list[TripsRow]:
        """All rows, the plain one first.

        Raises:
            LocalError: a text too short, cells that are not here; what `check` raises.
            NotCovered: experts that nobody holds.
        """
        self.check()
        wanted = config.require_backbone()
        library = llama.load(config.engine.library)
        store = Store(config.store)
        stored = await trio.to_thread.run_sync(open_trunk, library, store, wanted.model, progress)
        settings = BackboneSettings(
            threads=config.engine.threads,
            combine=Combine[wanted.combine.upper()],
            wire=wire_for(wanted.wire, wanted.combine, stored, library, None).codec,
            context=max(self.prompt_tokens + self.tokens, wanted.context or 0),
            ubatch=wanted.ubatch,
            deadline=wanted.deadline,
            exact=wanted.exact,
        )
        with ExitStack() as opened:
            homes = await trio.to_thread.run_sync(
                self._homes, opened, library, store, stored, config, progress
            )
            place = Place.of(config)
            market = opened.enter_context(opened_market(config, place))
            async with live_backbone(library, stored, place=place, settings=settings, market=market) as live:
                tokens = self._tokens(live)
                trained = live.backbone.model.n_ctx_train
                if wanted.context is None and self.prompt_tokens + self.tokens > trained:
                    raise LocalError(
                        f"prompts of {self.prompt_tokens} tokens and {self.tokens} more pass the {trained} "
                        "that the model was trained with: take fewer, or set backbone.context"
                    )
                if len(tokens) < self.prompt_tokens + self.prompts:
                    raise LocalError(
                        f"the text has {len(tokens)} tokens, too few for {self.prompts} prompts of "
                        f"{self.prompt_tokens}: give a longer one (--text) or take fewer"
                    )
                await live.covered(progress=progress)
                prompts = prompts_from(tokens, self.prompts, self.prompt_tokens)
                cases = [Case("0", "off", Cells(), lambda live: None)]
                cases += [
                    Case(home, draft, cells, self._guessing(draft, cells, wanted.exact))
                    for home, cells in homes
                    for draft in self.drafts
                    # off is the first case, and self has nothing to guess with
                    if cells.count() or draft.startswith(("ngram", "model", "auto"))
                ]
                return await live.in_thread(
                    run_cases,
                    live,
                    prompts,
                    self.tokens,
                    self.sampling,
                    cases,
                    lambda what: progress(what, 0, 0),
                )

    def _tokens(self, live: LiveBackbone) -> list[int]:
        """The text's; seeded ones for a model without a tokenizer."""
        model = live.backbone.model
        if model.has_vocab:
            return Tokenizer(model).encode(self.text)
        rng = np.random.default_rng(SEED)
        return [
            int(token) for token in rng.integers(0, model.n_vocab, self.prompt_tokens * (self.prompts + 1))
        ]

    def _homes(
        self,
        opened: ExitStack,
        library: Library,
        store: Store,
        stored: StoredModel,
        config: NodeConfig,
        progress: Progress,
    ) -> list[tuple[str, Cells]]:
        """What is at home in each case, with its name."""
        wanted = replace(config.require_backbone(), home=(), home_memory=MemoryBudget(share=1.0))
        home = opened.enter_context(
            open_home(library, store, stored, replace(config, backbone=wanted, serve=()), progress)
        )
        found = []
        for text in self.homes:
            chosen = self._home_set(home, text)
            if lacking := home.lacks(chosen):
                raise LocalError(
                    f"--home {text}: {lacking.count()} experts of it are in no file here; take less, or have "
                    "them fetched first (panal home fetch -c)"
                )
            found.append((text, home.cells_for(chosen)))
        return found

    @staticmethod
    def _home_set(home: OpenHome, text: str) -> HomeSet:
        """Of "0", a budget, or "hot:" and a budget: the hottest cells of every layer, not whole layers."""
        if text == "0":
            return HomeSet()
        budget = MemoryBudget.parse(text.removeprefix("hot:")).of(total_bytes(home.shapes))
        if text.startswith("hot:"):
            heat = heat_now(home.shapes, home.plan, home.heat)
            share = budget / total_bytes(home.shapes)
            hottest = {layer: np.argsort(-heat.shares(layer), kind="stable") for layer in home.shapes}
            return HomeSet.of(
                {layer: order[: round(share * len(order))].tolist() for layer, order in hottest.items()}
            )
        return home.choice_for(budget).wanted

    def _guessing(self, draft: str, cells: Cells, exact: bool) -> Callable[[LiveBackbone], Guessing | None]:
        found = DRAFT.fullmatch(draft)
        assert found is not None
        who, always = found.groups()

        def make(live: LiveBackbone) -> Guessing | None:
            guessers = Guessers(
                draft=who,
                draft_model=self.draft_model if who == "model" else None,
                exact=exact,
                backbone=live.backbone,
                has_home=lambda: cells.count() > 0,
                left_out=live.port.left_out,
            )
            guessing = guessers.make()
            if guessing is not None and always:
                most = live.backbone.most_rows - 1
                guessing = replace(guessing, rule=AlwaysRule(min(int(always), most)))
            return guessing

        return make
