"""Whether two models mean the same by a token: same count, and text, kind and special ids of each."""

from __future__ import annotations

from node.engine.llama_model import LlamaModel

SPECIAL = ("bos", "eos", "eot", "sep", "nl", "pad")
"""Special tokens that llama.cpp knows by name (llama_vocab_*)."""


def difference(model: LlamaModel, other: LlamaModel) -> str:
    """The first thing in which the vocabularies differ, as `it has ..., the other ...`; "" if in nothing.

    Merges and scores are not compared: guesses come as tokens, no text is cut into them.
    """
    library, mine, theirs = model.library, model.vocab, other.vocab
    if not model.has_vocab or not other.has_vocab:
        return "one of them has no tokenizer"
    if model.n_vocab != other.n_vocab:
        return f"it has {model.n_vocab} tokens, the other {other.n_vocab}"
    for name in SPECIAL:
        special = getattr(library, f"llama_vocab_{name}")
        if special(mine) != special(theirs):
            return f"its {name.upper()} token is {special(mine)}, the other's {special(theirs)}"
    text, kind = library.llama_vocab_get_text, library.llama_vocab_get_attr
    for token in range(model.n_vocab):
        if text(mine, token) != text(theirs, token):
            return (
                f"its token {token} is {_shown(text(mine, token))}, the other's {_shown(text(theirs, token))}"
            )
        if kind(mine, token) != kind(theirs, token):
            return f"its token {token} is of another kind (control, byte, normal)"
        if library.llama_vocab_is_eog(mine, token) != library.llama_vocab_is_eog(theirs, token):
            return f"its token {token} ends a text in one of them only"
    return ""


def _shown(text: bytes) -> str:
    return repr(text.decode(errors="replace")[:40])
