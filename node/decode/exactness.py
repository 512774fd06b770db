"""When a pass over several guessed tokens gives the bytes that passes of one token each would give.

Measured on CPU with one build of llama.cpp (design/round-trips.md; tests/integration/test_exactness.py):
another kernel multiplies a single row than several, and for some types another one from eight rows on. Within
these bounds a row's bytes do not depend on how many rows are beside it:

1. No pass of one row: a second one, of which nobody reads anything, keeps it company. Its experts are
   answered with zeros and cost no trip.
2. At most FEW_ROWS rows where a tensor has one of the types that need it.

Experts elsewhere keep to it by themselves with combine rows and stable. With sum, who adds up what depends
on all experts that a pass needs, wherever several peers hold some of the same: guessing may change last bits.
"""

from __future__ import annotations

from node.engine.llama_model import LlamaModel
from node.model.gguf.types import TENSOR_TYPES
from node.model.manifest import Manifest

LEAST_ROWS = 2

FEW_ROWS = 7
"""Rows of a pass for all types but ANY_ROWS: from the eighth on K-quants and IQ4_XS go another way."""

MOST_ROWS = 16
"""Rows of a pass for the others. Fifteen guesses in a row are rarely right, and their rows cost time."""

ANY_ROWS = frozenset({"F32", "F16", "BF16", "Q8_0", "Q5_0"})
"""Types whose rows were seen not to depend on their number, up to MOST_ROWS."""


def most_rows(manifest: Manifest) -> int:
    """How many rows a pass may have whose guesses must come out as single tokens would."""
    types = {tensor.type for tensor in manifest.trunk}
    types |= {tensor.type for call in manifest.calls for tensor in call.tensors}
    return MOST_ROWS if all(TENSOR_TYPES[each].name in ANY_ROWS for each in types) else FEW_ROWS


def can_rewind(model: LlamaModel) -> bool:
    """Whether single positions can leave the cache again: without it nothing can be guessed.

    Recurrent models keep one state, hybrid ones keep it in some layers; encoders keep nothing.
    """
    library = model.library
    return not (library.llama_model_is_recurrent(model.handle) or library.llama_model_is_hybrid(model.handle))
