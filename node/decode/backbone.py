"""The backbone: a model's trunk in llama.cpp with its experts elsewhere. One pass at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from node.decode.exactness import LEAST_ROWS, MOST_ROWS, can_rewind, most_rows
from node.engine.context import DEFAULT_UBATCH, Context, Row
from node.engine.early_router import EarlyRouter
from node.engine.expert_holes import ExpertHoles, ExpertPort
from node.engine.hook import GraphHook
from node.engine.library import EngineError, Library
from node.engine.llama_model import LlamaModel
from node.model.store import StoredModel

DEFAULT_CONTEXT = 4096
"""Tokens of a KV cache that nobody asked for: 0.4 GB for a 30B model. Past what a model was trained with, it
only writes gibberish."""


def default_context(model: LlamaModel) -> int:
    """Tokens of a cache that nobody asked for."""
    return min(model.n_ctx_train, DEFAULT_CONTEXT)


class SequenceLost(EngineError):
    """A pass failed and its sequences could not be rolled back; they are empty now."""


class Backbone:
    """A trunk, its context and the hook that sends experts' work out.

    Args:
        port: computes the experts of each call; used on the thread that calls `compute`.
        n_ctx: tokens the KV cache holds; None for what the model was trained with, `DEFAULT_CONTEXT` at most.
        n_ubatch: rows of one graph; a pass may not have more.
        n_sequences: with one cache for all; own_caches: each with one of its own, of `n_ctx` tokens each.
        model: the trunk as another backbone has it, to share its weights; that one is to be closed last.

    Attributes:
        n_ctx: tokens that sequences may have together, or each; beside them is room for a pass of guesses.
        can_rewind: positions can be taken back, so guesses can be made.
        most_rows: rows of a pass of guesses at most (node.decode.exactness).
    """

    def __init__(
        self,
        library: Library,
        stored: StoredModel,
        port: ExpertPort,
        *,
        n_ctx: int | None = None,
        n_ubatch: int = DEFAULT_UBATCH,
        threads: int = 1,
        n_sequences: int = 1,
        own_caches: bool = False,
        model: LlamaModel | None = None,
    ) -> None:
        calls = {(call.layer, call.group): call for call in stored.manifest.calls}
        self.stored = stored
        self._early = EarlyRouter(library, threads=threads)
        self._holes = ExpertHoles(calls, port, self._early)
        self.hook = GraphHook(library, self._holes)
        self.own_caches = own_caches
        self._owns_model = model is None
        self.model = model or LlamaModel(library, [stored.trunk])
        self.threads = threads
        self.can_rewind = can_rewind(self.model)
        if own_caches and not self.can_rewind:
            n_sequences = _dividing(n_ubatch, n_sequences)
        self.most_rows = min(most_rows(stored.manifest), n_ubatch)
        try:
            self.n_ctx = n_ctx or default_context(self.model)
            self.context = Context(
                self.model,
                n_ctx=self.n_ctx * (n_sequences if own_caches else 1) + MOST_ROWS * n_sequences,
                unified=not own_caches,
                n_ubatch=n_ubatch,
                threads=threads,
                n_sequences=n_sequences,
                callback=self.hook.callback,
            )
        except BaseException:
            self._close_model()
            raise

    def run(self, rows: Sequence[Row]) -> npt.NDArray[np.float32]:
        """One pass; outputs of the wanted rows as `Context.run` gives them. Raises as `compute` does."""
        self.compute(rows)
        return self.context.outputs([i for i, row in enumerate(rows) if row.wanted])

    def compute(self, rows: Sequence[Row], *, junk: int = 0, at_home_only: bool = False) -> None:
        """One pass. If it fails, its positions are gone from the cache and the pass can be made again.

        Args:
            junk: how many of the last rows nobody reads: nobody is asked for their experts. They are wanted
                rows like others, and the caller takes them out of the cache afterwards.
            at_home_only: a guess: experts that are not at home are left out.

        Raises:
            SequenceLost: and the cache cannot be rolled back (recurrent models): the sequences are empty now.
            PanalError: what went wrong, with the cache as it was before.
        """
        self.hook.begin()
        self._holes.junk_rows, self._holes.at_home_only = junk, at_home_only
        try:
            try:
                self.context.compute(rows)
            except EngineError:
                self.hook.finish()  # what the hook met is the cause of what llama.cpp says
                raise
            self.hook.finish()
        except BaseException as error:  # a bug in a port must leave no half pass behind either
            self._roll_back(rows, error)
            raise

    def compute_in_company(self, rows: Sequence[Row]) -> None:
        """As `compute`, but a single row gets company (node.decode.exactness), which leaves the cache again.

        Not in models that cannot rewind.

        Raises:
            EngineError: and the second row does not leave the cache.
        """
        if len(rows) >= LEAST_ROWS or not self.can_rewind or self.context.n_ubatch < LEAST_ROWS:
            self.compute(rows)
            return
        only = rows[0]
        self.compute([only, Row(only.token, only.position + 1, only.sequence)], junk=1)
        if not self.context.remove(only.sequence, only.position + 1):
            raise EngineError("llama.cpp does not take back a row that kept another company")

    def _roll_back(self, rows: Sequence[Row], error: BaseException) -> None:
        starts: dict[int, int] = {}
        for row in rows:
            starts[row.sequence] = min(row.position, starts.get(row.sequence, row.position))
        kept = [self.context.remove(sequence, start) for sequence, start in starts.items()]
        if not all(kept):
            for sequence in starts:
                self.context.remove(sequence, 0)
            raise SequenceLost(
                f"{error} (this kind of model cannot go back: the sequence starts anew)"
            ) from error

    def close(self) -> None:
        self.context.close()
        self._early.close()
        self._close_model()

    def _close_model(self) -> None:
        if self._owns_model:
            self.model.close()


def _dividing(n_ubatch: int, n_sequences: int) -> int:
    """Sequences at least so many, by which the rows of a graph can be divided, if that is not many more.

    llama.cpp measures its largest graph with the rows spread over all sequences, and aborts the process where
    that does not come out even (minimax-01).
    """
    return next((n for n in range(n_sequences, 2 * n_sequences) if n_ubatch % n == 0), n_sequences)
