"""Making a plan: text in, calibration within a time, home sets for several budgets out."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from node.engine.library import Library
from node.engine.tokenizer import Tokenizer
from node.home.calibration import MOST_TEXTS, Calibrator
from node.home.choosing import outside_in
from node.home.estimate import Estimator
from node.home.heat import Heat, HeatNumbers
from node.home.home_set import HomeSet, Shapes, total_bytes
from node.home.measured import Measured
from node.home.plan import best_known, search
from node.home.plan_file import BudgetChoice, HomePlan, MeasuredSet, PlanLayer
from node.home.worth import Sample, Worth, fit
from node.importing import Progress
from node.model.gguf.map import MappedModel
from node.model.gguf.split import ModelFile
from node.model.store import StoredModel
from routing.errors import LocalError

PROMPT_TOKENS = 64
"""Of a prompt cut from the text: enough for the model to know what kind of text it is in."""

MOST_CONTINUED = 64
LEAST_CONTINUED = 16
"""Tokens decoded after each prompt. The guesses at the end of one are not counted, so few are a waste."""

LEAST_TEXTS = 4

ROWS_A_TOKEN = 2.0
"""Rows that trying a home set takes for each token of the texts: passes of two guesses, some of eight."""

TRIES_BESIDES_LAYERS = 16
"""Sets that are to be tried besides one without each layer, when a plan is fitted into its time."""

READING_SHARE = 0.3
LAYERS_SHARE = 0.4
"""Of the time: for decoding the texts, and for trying the layers one by one. The rest goes to the budgets."""

EXCERPT_CHARS = 1_000
"""Characters of text that are tokenized for a prompt: more than PROMPT_TOKENS in any language."""

LEAST_CHARS = 400
"""Of a text. Less is no sample of anything."""

USUAL_SHARES = (0.25, 0.5, 0.75, 0.9)
"""Of all cells: budgets that every plan tells of."""


@dataclass(frozen=True)
class TextSource:
    """Text to calibrate on.

    Attributes:
        name: for people.
    """

    name: str
    text: str


def make_plan(
    library: Library,
    stored: StoredModel,
    model: ModelFile,
    source: TextSource,
    budgets: Sequence[int],
    *,
    seconds: float,
    seed: int = 0,
    threads: int = 1,
    progress: Progress = lambda what, done, total: None,
    now: Callable[[], float] = time.monotonic,
) -> HomePlan:
    """Calibrate a model on text, and choose what to have at home for several budgets.

    Args:
        model: the file, or files, with all its experts.
        budgets: bytes; the first one matters most.
        seconds: after which no further set is tried. A set that is being tried is finished.
        seed: which places of the text are taken.

    Raises:
        LocalError: the text is too short, or the model cannot be run.
    """
    with (
        MappedModel(model) as mapped,
        Calibrator(
            library, stored, mapped, threads=threads, most_tokens=PROMPT_TOKENS + MOST_CONTINUED + 1
        ) as calibrator,
    ):
        planning = _Planning(calibrator, seconds, progress, now)
        planning.read(source, seed)
        planning.try_layers()
        chosen = planning.choose(budgets)
        return planning.plan(stored.model_id, source, seed, budgets, chosen)


class _Planning:
    """One calibration under way."""

    def __init__(
        self, calibrator: Calibrator, seconds: float, progress: Progress, now: Callable[[], float]
    ) -> None:
        self._calibrator = calibrator
        self._seconds = seconds
        self._progress = progress
        self._now = now
        self._begun = now()
        self._measured: dict[HomeSet, Measured] = {}
        self._trips: dict[HomeSet, float] = {}
        self._waits: dict[tuple[int, int], float] = {}
        self._heat = Heat(calibrator.shapes)

    @property
    def _shapes(self) -> Shapes:
        return self._calibrator.shapes

    def _spent(self) -> float:
        """Share of the time that is gone."""
        return (self._now() - self._begun) / self._seconds

    def read(self, source: TextSource, seed: int) -> None:
        """Decode on from places of the text, as many and as far as time allows."""
        calibrator = self._calibrator
        tokenizer = Tokenizer(calibrator.model)
        prompts = cut_prompts(source, tokenizer, MOST_TEXTS, random.Random(seed))
        self._progress(f"reading {source.name}", 0, 0)
        # One prompt tells how fast this machine is, once its experts have been read from the disk.
        calibrator.read(prompts[:1], 1, tokenizer.is_end)
        first = self._now()
        calibrator.read(prompts[:1], 1, tokenizer.is_end)
        a_row = max(self._now() - first, 1e-6) / len(prompts[0])
        tries = len(self._shapes) + TRIES_BESIDES_LAYERS
        tokens = self._seconds / (ROWS_A_TOKEN * a_row * tries)
        each = max(LEAST_CONTINUED, min(MOST_CONTINUED, int(math.sqrt(tokens * 2))))
        texts = max(min(LEAST_TEXTS, len(prompts)), min(len(prompts), int(tokens / each)))
        rows = 0

        def on_pass(count: int) -> bool:
            nonlocal rows
            rows += count
            self._progress(f"decoding {source.name}: {rows} tokens", 0, 0)
            return self._spent() < READING_SHARE

        # Evenly over the text, also where not all prompts are used.
        some = [prompts[i * len(prompts) // texts] for i in range(texts)]
        calibrator.read(some, each + calibrator.drafts, tokenizer.is_end, on_pass)
        if not any(length > calibrator.drafts for length in calibrator.chosen.lengths):
            raise LocalError(
                f"{source.name}: the model ends every text before {calibrator.drafts + 1} tokens, or "
                "--seconds is too short to decode as many; give another text or more seconds"
            )
        counts = {
            layer: tuple(map(float, calibrator.chosen.counts(layer, shape.n_experts)))
            for layer, shape in self._shapes.items()
            if layer in calibrator.chosen.layers
        }
        self._heat = Heat(self._shapes, HeatNumbers(float(sum(calibrator.chosen.lengths)), counts))

    def try_layers(self) -> None:
        """Everything at home but one layer, for each: what is it worth?"""
        layers = list(self._shapes)
        self._measure(HomeSet.whole(layers, self._shapes), "all layers at home")
        for i, layer in enumerate(outside_in(layers)):
            if self._spent() >= READING_SHARE + LAYERS_SHARE:
                break
            others = [each for each in layers if each != layer]
            self._measure(HomeSet.whole(others, self._shapes), f"layer {i + 1} of {len(layers)}")

    def choose(self, budgets: Sequence[int]) -> list[HomeSet]:
        """The best set for each budget."""
        left = 1 - self._spent()
        for i, budget in enumerate(budgets):
            until = 1 - left * (len(budgets) - i - 1) / len(budgets)
            label = f"{budget / total_bytes(self._shapes):.0%} at home"
            search(
                self._estimator,
                lambda home, label=label: self._measure(home, label),  # type: ignore[misc]
                self._trips,
                budget,
                may_go_on=lambda until=until: self._spent() < until,  # type: ignore[misc]
            )
        # What was tried for one may be best for another.
        found = [best_known(self._trips, self._shapes, budget) for budget in budgets]
        assert all(home is not None for home in found), "each search measures one that fits"
        return [home for home in found if home is not None]

    def plan(
        self,
        model_id: str,
        source: TextSource,
        seed: int,
        budgets: Sequence[int],
        chosen: Sequence[HomeSet],
    ) -> HomePlan:
        worth = self._worth()
        sets = list(self._measured)
        counts = self._heat.numbers().layers
        whole = total_bytes(self._shapes)
        return HomePlan(
            version=1,
            model_id=model_id,
            made_at=round(time.time(), 1),
            seconds=round(self._now() - self._begun, 1),
            seed=seed,
            text=source.name,
            text_tokens=sum(self._calibrator.chosen.lengths),
            drafts=self._calibrator.drafts,
            n_used=self._calibrator.chosen.n_used,
            base=round(worth.base, 5) if worth else 0.0,
            layers=tuple(
                PlanLayer(layer, round(worth.layers[layer], 5) if worth else 0.0, counts[layer])
                for layer in self._shapes
            ),
            measured=tuple(_entry(home, self._measured[home], self._shapes) for home in sets),
            budgets=tuple(
                BudgetChoice(budget, round(budget / whole, 6), sets.index(home))
                for budget, home in zip(budgets, chosen, strict=True)
            ),
        )

    def _measure(self, home: HomeSet, label: str) -> float:
        if home not in self._measured:
            tried = len(self._measured) + 1
            self._progress(f"trying home sets: {tried} ({label})", 0, 0)
            found = self._calibrator.measure(
                home, lambda rows: self._progress(f"trying home sets: {tried} ({label})", 0, 0)
            )
            self._measured[home] = found
            self._trips[home] = found.trips_per_layer_token
        return self._trips[home]

    def _worth(self) -> Worth | None:
        if not self._calibrator.drafts:
            return None
        bare = Estimator(self._shapes, self._heat, None, 1)
        samples = [
            Sample(bare.missing(home), found.tokens_per_pass, found.passes)
            for home, found in self._measured.items()
            if home  # with nothing there, nothing guessed
        ]
        return fit(list(self._shapes), samples, self._calibrator.drafts)

    def _estimator(self) -> Estimator:
        chosen = self._calibrator.chosen
        return Estimator(self._shapes, self._heat, self._worth(), chosen.n_used, self._waits_of)

    def _waits_of(self, layer: int, home: HomeSet) -> float:
        """Counted on the texts."""
        key = layer, home.held(layer)
        if key not in self._waits:
            rows = self._calibrator.drafts + 1
            self._waits[key] = self._calibrator.chosen.waits(layer, home, self._shapes, rows)
        return self._waits[key]


def cut_prompts(source: TextSource, tokenizer: Tokenizer, count: int, rng: random.Random) -> list[list[int]]:
    """Up to so many prompts that begin at lines of a text, spread over it.

    Raises:
        LocalError: the text is too short.
    """
    text = source.text
    if len(text.strip()) < LEAST_CHARS:
        raise LocalError(f"{source.name}: has fewer than {LEAST_CHARS} characters; a longer text is needed")
    room = max(1, len(text) - EXCERPT_CHARS)
    starts = set()
    for i in range(count):
        at = int((i + rng.random()) * room / count)
        line = text.find("\n", at, at + EXCERPT_CHARS) + 1
        starts.add(line or at)
    prompts = [
        tokenizer.encode(text[start : start + EXCERPT_CHARS])[:PROMPT_TOKENS] for start in sorted(starts)
    ]
    return [prompt for prompt in prompts if len(prompt) > 1]


def _entry(home: HomeSet, found: Measured, shapes: Shapes) -> MeasuredSet:
    return MeasuredSet(
        experts=home.as_ranges(),
        n_bytes=home.n_bytes(shapes),
        trips=round(found.trips_per_layer_token, 5),
        plain=round(found.plain, 5),
        tokens_per_pass=round(found.tokens_per_pass, 3),
        tokens=found.tokens,
    )
