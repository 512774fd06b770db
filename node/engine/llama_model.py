"""A GGUF loaded by llama.cpp: weights and vocabulary, no context yet."""

from __future__ import annotations

import ctypes as C
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from node.engine.grammar import Grammars
from node.engine.library import EngineError, Library


class LlamaModel:
    """A model's weights in llama.cpp, shared by every context made on it.

    Args:
        paths: the file, or all parts of a split file in order.
        vocab_only: leave the weights out: tokens and text, nothing to compute with.

    Attributes:
        grammars: what this model's answers can be held to.

    Repacked weights are off (`use_extra_bufts`): with them on, results differ in their last bits from
    those of the expert kernels, which read the file as it is.

    Raises:
        EngineError: llama.cpp refuses the file; carries its reason.
    """

    def __init__(self, library: Library, paths: Sequence[Path], *, vocab_only: bool = False) -> None:
        self.library = library
        self.paths = tuple(paths)
        parameters = library.llama_model_default_params()
        parameters.n_gpu_layers = 0
        parameters.use_extra_bufts = False
        parameters.vocab_only = vocab_only
        library.forget_errors()
        names = [os.fsencode(path) for path in paths]
        if len(names) == 1:
            handle = library.llama_model_load_from_file(names[0], parameters)
        else:
            handle = library.llama_model_load_from_splits(
                (C.c_char_p * len(names))(*names), len(names), parameters
            )
        if not handle:
            raise EngineError(
                f"{paths[0]}: llama.cpp cannot load it: {library.last_errors() or 'no reason given'}"
            )
        self.handle: Any = handle
        self.vocab: Any = library.llama_model_get_vocab(handle)
        self.n_embd: int = library.llama_model_n_embd(handle)
        self.n_vocab: int = library.llama_vocab_n_tokens(self.vocab)
        self.n_ctx_train: int = library.llama_model_n_ctx_train(handle)
        self.has_vocab: bool = library.llama_vocab_type(self.vocab) != 0  # LLAMA_VOCAB_TYPE_NONE
        self.grammars = Grammars(self.paths)

    def close(self) -> None:
        self.grammars.close()
        if self.handle:
            self.library.llama_model_free(self.handle)
            self.handle = None

    def __enter__(self) -> LlamaModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
