"""One llama.cpp context: a KV cache and the passes run over it. Plain or hooked, the same calls."""

from __future__ import annotations

import ctypes as C
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from node.engine.library import EngineError
from node.engine.llama_model import LlamaModel
from node.engine.structs import EvalCallback

DEFAULT_UBATCH = 512  # llama.cpp's own: the most rows one graph computes
POOLING_NONE = 0  # encoders: one vector a token, so that every token can be compared


@dataclass(frozen=True, slots=True)
class Row:
    """One token of a pass.

    Attributes:
        position: place in its sequence, from 0.
        sequence: which KV sequence it belongs to.
        wanted: whether its logits (encoders: its vector) are returned.
    """

    token: int
    position: int
    sequence: int = 0
    wanted: bool = True


class Context:
    """A context with its KV cache.

    Args:
        n_ctx: tokens the cache holds, over all sequences.
        unified: sequences share the cache, and what they have in common is stored once. Without, each has the
            same share of it to itself: its bits do not depend on who else has come and gone, and a pass is
            one graph only if its sequences have consecutive numbers and equally many rows.
        n_ubatch: rows one graph computes.
        n_batch: rows of a pass, run as several graphs where that is more than n_ubatch; None for n_ubatch.
            Encoders compute a pass in one graph.
        threads: of llama.cpp's own compute.
        callback: `cb_eval`; must outlive the context.

    Raises:
        EngineError: llama.cpp refuses the parameters (e.g. too little memory for the cache).
    """

    def __init__(
        self,
        model: LlamaModel,
        *,
        n_ctx: int = 512,
        n_ubatch: int = DEFAULT_UBATCH,
        n_batch: int | None = None,
        n_sequences: int = 1,
        unified: bool = True,
        threads: int = 1,
        callback: Any = None,
    ) -> None:
        library = model.library
        self.library = library
        self.model = model
        parameters = library.llama_context_default_params()
        parameters.n_ctx = n_ctx
        parameters.n_batch = n_batch or n_ubatch
        parameters.n_ubatch = n_ubatch
        parameters.n_seq_max = n_sequences
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.kv_unified = unified
        parameters.pooling_type = POOLING_NONE
        # Hook and comparison read and write tensors through pointers: with a GPU build, too, all of it is
        # computed where they lie.
        parameters.offload_kqv = parameters.op_offload = False
        if callback is not None:
            parameters.cb_eval = callback
        self._callback: EvalCallback | None = callback  # type: ignore[valid-type]
        library.forget_errors()
        self.handle: Any = library.llama_init_from_model(model.handle, parameters)
        if not self.handle:
            raise EngineError(
                f"{model.paths[0]}: llama.cpp makes no context of {n_ctx} tokens: "
                f"{library.last_errors() or 'no reason given'}"
            )
        self.memory: Any = library.llama_get_memory(self.handle)
        # BERT-like models have no memory: every pass stands alone and gives vectors instead of logits.
        self.is_encoder = not self.memory
        if self.is_encoder:
            library.llama_set_embeddings(self.handle, True)
        # llama.cpp rounds a cache up, and a pass down to the cache. It aborts on a pass of more.
        self.n_ctx: int = min(n_ctx, library.llama_n_ctx(self.handle))
        self.n_ubatch: int = min(library.llama_n_ubatch(self.handle), library.llama_n_batch(self.handle))
        self._max_rows: int = self.n_ubatch if self.is_encoder else library.llama_n_batch(self.handle)
        self.width: int = model.n_embd if self.is_encoder else model.n_vocab

    def run(self, rows: Sequence[Row]) -> npt.NDArray[np.float32]:
        """One pass; returns [n_wanted, n_vocab] logits (encoders: [n_wanted, n_embd] vectors)."""
        self.compute(rows)
        return self.outputs([i for i, row in enumerate(rows) if row.wanted])

    def compute(self, rows: Sequence[Row]) -> None:
        """One pass, whose outputs stay inside until `outputs` or a sampler asks for them.

        Raises:
            EngineError: llama.cpp refuses the batch (cache full, token out of range, too many rows).
        """
        library = self.library
        if len(rows) > self._max_rows:
            raise EngineError(
                f"a pass of {len(rows)} tokens, at most {self._max_rows} are possible; raise backbone.ubatch"
            )
        for row in rows:
            if not 0 <= row.token < self.model.n_vocab:
                raise EngineError(f"token {row.token} is outside the vocabulary of {self.model.n_vocab}")
        library.forget_errors()
        batch = library.llama_batch_init(len(rows), 0, 1)
        try:
            batch.n_tokens = len(rows)
            for i, row in enumerate(rows):
                batch.token[i] = row.token
                batch.pos[i] = row.position
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = row.sequence
                batch.logits[i] = row.wanted
            code = (library.llama_encode if self.is_encoder else library.llama_decode)(self.handle, batch)
            if code != 0:
                raise EngineError(_refusal(code, len(rows), self.n_ctx, library.last_errors()))
        finally:
            library.llama_batch_free(batch)

    def outputs(self, wanted: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits (encoders: vectors) of these rows of the last pass, copied."""
        library = self.library
        result = np.empty((len(wanted), self.width), np.float32)
        read = library.llama_get_embeddings_ith if self.is_encoder else library.llama_get_logits_ith
        for k, i in enumerate(wanted):
            pointer = read(self.handle, i)
            if not pointer:
                raise EngineError(f"llama.cpp has no output for row {i}: {library.last_errors()}")
            result[k] = np.ctypeslib.as_array(pointer, (self.width,))
        return result

    def remove(self, sequence: int, start: int, end: int = -1) -> bool:
        """Forget positions [start, end) of a sequence; False if this kind of memory cannot (recurrent)."""
        if self.is_encoder:
            return True
        return bool(self.library.llama_memory_seq_rm(self.memory, sequence, start, end))

    def copy(self, source: int, target: int) -> None:
        """Let sequence `target` share all that `source` has in the cache."""
        self.library.llama_memory_seq_cp(self.memory, source, target, -1, -1)

    def copy_state(self, source: int, target: int) -> None:
        """Let sequence `target` have all that `source` has, by way of a buffer, in places of its own.

        For memories whose parts `copy` does not take along: deepseek4 (measured: wrong logits at once).

        Raises:
            EngineError: llama.cpp does not take it (cache full).
        """
        library = self.library
        size = library.llama_state_seq_get_size(self.handle, source)
        buffer = C.create_string_buffer(size)
        library.forget_errors()
        read = library.llama_state_seq_get_data(self.handle, buffer, size, source)
        if read == 0 or library.llama_state_seq_set_data(self.handle, buffer, read, target) == 0:
            raise EngineError(
                f"llama.cpp does not copy a sequence: {library.last_errors() or 'no reason given'}"
            )

    def clear(self) -> None:
        if self.memory:
            self.library.llama_memory_clear(self.memory, True)

    def close(self) -> None:
        if self.handle:
            self.library.llama_free(self.handle)
            self.handle = None

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _refusal(code: int, rows: int, n_ctx: int, reason: str) -> str:
    if code == 1:  # llama_decode: no KV slot for the batch
        return (
            f"the context of {n_ctx} tokens has no room for {rows} more; "
            f"raise backbone.context or shorten the prompt"
        )
    return f"llama.cpp refused a pass of {rows} tokens (code {code}): {reason or 'no reason given'}"
