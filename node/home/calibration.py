"""Trying home sets on text, on this machine: how far guesses by some of the cells are right, what passes
would wait for.

Every expert is computed here, from the model's file, so no swarm is needed. Several texts are decoded side by
side, greedily, as prompts cut from the text go on (`Calibrator.read`). Then a home set is tried (`measure`):
from a place in each text the tokens that are known to follow are run by the cells of the set alone, which
shows how many guesses would have been right; from there on, again. That is self-drafting
(node.decode.drafting.self_draft), but all guesses of a pass and all texts go in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from node.decode.at_home import at_home
from node.decode.backbone import Backbone
from node.engine.context import Row
from node.engine.expert_holes import ExpertInputs
from node.engine.kernels import Kernels
from node.engine.library import Library
from node.home.call_bits import CallBits, cells_of, numbers
from node.home.home_set import HomeSet, shapes_of
from node.home.measured import Chosen, Measured, Replay
from node.model.gguf.map import MappedModel
from node.model.held import HeldExperts, hold
from node.model.manifest import Manifest
from node.model.store import StoredModel
from node.serve.cells import HeldCall
from routing.wire.codecs import Float32Array

MOST_TEXTS = 24
"""Texts side by side: with a second sequence each for guesses 48, under the 64 that llama.cpp was seen to
take."""

MOST_DRAFTS = 8
"""Guesses of a pass that are tried. Nine rows are what was measured; more are rarely right."""

FIRST_GUESSES = 2
"""Guesses of a pass that are looked at first; the others only where these were right: it halves the rows."""

UBATCH = 512


class _Experts:
    """An `ExpertPort` with all cells of the model, some of them at home."""

    def __init__(
        self, kernels: Kernels, manifest: Manifest, held: Mapping[tuple[int, str], HeldExperts]
    ) -> None:
        self._kernels = kernels
        self._manifest = manifest
        self._held = held
        self._whole = self._calls(None)
        self._home: dict[tuple[int, str], HeldCall] = {}
        self.noted: list[tuple[int, npt.NDArray[np.int32]]] = []  # choices of passes over all experts

    def set_home(self, home: HomeSet) -> None:
        self._home = self._calls(cells_of(self._manifest, home.experts()))

    def leave(self, inputs: ExpertInputs) -> Float32Array:
        key = (inputs.call.layer, inputs.call.group)
        if inputs.at_home_only:
            return at_home(inputs, self._home.get(key), self._kernels)[0]
        if inputs.call.index == 0:
            self.noted.append((inputs.call.layer, inputs.ids))
        return self._whole[key].routed(self._kernels, inputs.x, inputs.ids, inputs.weights)

    def enter(self, ticket: Float32Array) -> Float32Array:
        return ticket

    def _calls(self, cells: CallBits | None) -> dict[tuple[int, str], HeldCall]:
        """Calls with these cells of each; None for all."""
        found = {}
        for call in self._manifest.calls:
            bits = None if cells is None else cells.get((call.layer, call.index), 0)
            if bits == 0:
                continue
            mask = None if bits is None else np.isin(np.arange(call.n_experts), numbers(bits))
            held = found[call.layer, call.group] = HeldCall(call)
            held.add(self._held[call.layer, call.group], mask)
        return found


class Calibrator:
    """A model with all its experts here.

    Args:
        mapped: a file, or files, with all tensors of the model.
        most_tokens: of a text, prompt and continuation.

    Attributes:
        drafts: guesses of a pass; 0 for models that cannot take guesses back.
        chosen: what `read` found.
    """

    def __init__(
        self, library: Library, stored: StoredModel, mapped: MappedModel, *, threads: int, most_tokens: int
    ) -> None:
        manifest = stored.manifest
        self.shapes = shapes_of(manifest)
        self._kernels = Kernels(library, threads=threads)
        held = {
            (call.layer, call.group): hold(mapped, call, range(call.n_experts)) for call in manifest.calls
        }
        self._experts = _Experts(self._kernels, manifest, held)
        try:
            self._backbone = Backbone(
                library,
                stored,
                self._experts,
                n_ctx=MOST_TEXTS * (most_tokens + MOST_DRAFTS),
                n_ubatch=UBATCH,
                threads=threads,
                n_sequences=2 * MOST_TEXTS,
            )
        except BaseException:
            self._kernels.close()
            raise
        self.model = self._backbone.model
        self.drafts = min(MOST_DRAFTS, self._backbone.most_rows - 1) if self._backbone.can_rewind else 0
        self.chosen = Chosen({}, ())
        self._texts: list[list[int]] = []
        self._starts: list[int] = []  # where each text's continuation begins

    def read(
        self,
        prompts: Sequence[Sequence[int]],
        tokens: int,
        is_end: Callable[[int], bool],
        on_pass: Callable[[int], bool] = lambda rows: True,
    ) -> None:
        """Decode on from each prompt, greedily, by all experts.

        Args:
            prompts: at most MOST_TEXTS.
            tokens: of each continuation.
            is_end: tokens that end a text early.
            on_pass: told the rows of each pass; False ends all texts there.
        """
        self._backbone.context.clear()
        self._texts = [list(prompt) for prompt in prompts]
        self._starts = [len(prompt) for prompt in prompts]
        going_on = True
        for text, prompt in enumerate(prompts):
            for start in range(0, len(prompt), UBATCH):
                part = prompt[start : start + UBATCH]
                rows = [Row(token, start + i, text, wanted=False) for i, token in enumerate(part)]
                rows[-1] = Row(part[-1], start + len(part) - 1, text)
                last = self._backbone.run(rows)
                going_on = on_pass(len(rows)) and going_on
            self._texts[text].append(int(last[0].argmax()))
        steps: list[tuple[list[int], dict[int, npt.NDArray[np.int32]]]] = []
        for _ in range(tokens):
            live = [text for text, known in enumerate(self._texts) if not is_end(known[-1])]
            if not live or not going_on:
                break
            self._experts.noted.clear()
            found = self._backbone.run(
                [Row(self._texts[text][-1], len(self._texts[text]) - 1, text) for text in live]
            )
            steps.append((live, dict(self._experts.noted)))
            for text, logits in zip(live, found, strict=True):
                self._texts[text].append(int(logits.argmax()))
            going_on = on_pass(len(live))
        self.chosen = _chosen(steps, len(prompts), self.shapes)

    def choices(self, tokens: Sequence[int]) -> dict[int, npt.NDArray[np.int32]]:
        """The experts that a text's own tokens choose, [n_tokens, n_used] by layer; at most UBATCH tokens."""
        self._backbone.context.clear()
        self._experts.noted.clear()
        self._backbone.compute([Row(token, place) for place, token in enumerate(tokens)])
        return dict(self._experts.noted)

    def measure(self, home: HomeSet, on_pass: Callable[[int], Any] = lambda rows: None) -> Measured:
        """Replay the texts with these cells at home."""
        replay = Replay(self.chosen, home, self.shapes)
        self._experts.set_home(home)
        places = {text: 0 for text, length in enumerate(self.chosen.lengths) if length > self.drafts}
        while places:
            guesses = self.drafts and home  # without anything at home a backbone does not guess by it
            right = self._right_guesses(places, on_pass) if guesses else dict.fromkeys(places, 0)
            for text, count in right.items():
                replay.add(text, places[text], self.drafts, count)
                places[text] += count + 1
                if places[text] + self.drafts >= self.chosen.lengths[text]:
                    del places[text]
        return replay.measured()

    def _right_guesses(self, places: Mapping[int, int], on_pass: Callable[[int], Any]) -> dict[int, int]:
        """How many guesses in a row are right from a place of each text on."""
        context = self._backbone.context
        right = dict.fromkeys(places, 0)
        for text, place in places.items():
            context.copy(text, _twin(text))
            context.remove(_twin(text), self._starts[text] + place)
        live = list(places)
        for first, last in ((0, min(FIRST_GUESSES, self.drafts)), (FIRST_GUESSES, self.drafts)):
            count = last - first
            for some in _batches(live, count):
                rows = []
                for text in some:
                    start = self._starts[text] + places[text] + first
                    rows += [
                        Row(token, start + i, _twin(text))
                        for i, token in enumerate(self._texts[text][start : start + count])
                    ]
                self._backbone.compute(rows, at_home_only=True)
                found = context.outputs(range(len(rows))).argmax(axis=1).reshape(len(some), count)
                on_pass(len(rows))
                for text, guesses in zip(some, found.tolist(), strict=True):
                    start = self._starts[text] + places[text] + first + 1
                    for guess, token in zip(guesses, self._texts[text][start : start + count], strict=True):
                        if guess != token:
                            break
                        right[text] += 1
            live = [text for text in live if right[text] == last]
        for text in places:
            context.remove(_twin(text), 0)
        return right

    def close(self) -> None:
        self._backbone.close()
        self._kernels.close()

    def __enter__(self) -> Calibrator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _twin(text: int) -> int:
    """The sequence in which a text's guesses are made."""
    return MOST_TEXTS + text


def _batches(texts: Sequence[int], rows: int) -> list[Sequence[int]]:
    """So many texts at a time as a graph takes, with so many rows each."""
    if rows <= 0:
        return []
    size = max(1, UBATCH // rows)
    return [texts[i : i + size] for i in range(0, len(texts), size)]


def _chosen(
    steps: Sequence[tuple[Sequence[int], Mapping[int, npt.NDArray[np.int32]]]], n_texts: int, layers: Any
) -> Chosen:
    lengths = [0] * n_texts
    found: dict[int, npt.NDArray[np.int32]] = {}
    for step, (live, noted) in enumerate(steps):
        for layer, ids in noted.items():
            if layer not in found:
                found[layer] = np.zeros((n_texts, len(steps), ids.shape[1]), np.int32)
            found[layer][live, step] = ids
        for text in live:
            lengths[text] = step + 1
    return Chosen({layer: found[layer] for layer in layers if layer in found}, lengths)
