"""A vocabulary's control tokens: those that steer a model and stand for no text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from node.engine.llama_model import LlamaModel

ATTR_UNKNOWN, ATTR_CONTROL, ATTR_LSTRIP, ATTR_RSTRIP = 1 << 0, 1 << 3, 1 << 7, 1 << 8  # llama_token_attr
ATTR_USER_DEFINED = 1 << 4
STEERING = ("<|", "<\uff5c")
"""How tokens begin that steer a model, although some files have them as ordinary words of its users."""


@dataclass(frozen=True)
class ControlToken:
    """One of them.

    Attributes:
        text: how it is written.
        eats_left, eats_right: white space beside it belongs to it.
        is_hidden: llama.cpp reads it out of a text only if told to (`parse_special`), and writes nothing for
            it. The others are wrong in the file: told to or not, it reads them.
    """

    token: int
    text: str
    eats_left: bool = False
    eats_right: bool = False
    is_hidden: bool = True


@dataclass(frozen=True)
class ControlTokens:
    """All of them.

    Attributes:
        tokens: in the order in which llama.cpp looks for them: longer texts first.
        names: "bos_token", "eos_token", ... and what chat templates are given for them.
        bos: the token a text begins with; None if the model has none.
        adds_bos: the model wants it at the beginning of every text.
    """

    tokens: tuple[ControlToken, ...]
    names: dict[str, str]
    bos: int | None
    adds_bos: bool


def control_tokens(model: LlamaModel) -> ControlTokens:
    """Read them from a model with a vocabulary; some 0.1 s for 150,000 tokens."""
    library, vocab = model.library, model.vocab
    tokens = []
    for token in range(model.n_vocab):
        attributes = library.llama_vocab_get_attr(vocab, token)
        is_hidden = bool(attributes & (ATTR_CONTROL | ATTR_UNKNOWN))
        if not is_hidden and not attributes & ATTR_USER_DEFINED:
            continue
        text = _text(library.llama_vocab_get_text(vocab, token))
        if text and (is_hidden or text.startswith(STEERING)):
            tokens.append(
                ControlToken(
                    token, text, bool(attributes & ATTR_LSTRIP), bool(attributes & ATTR_RSTRIP), is_hidden
                )
            )
    tokens.sort(key=lambda each: -len(each.text.encode(errors="replace")))
    names = {}
    for name in ("bos", "eos", "eot", "sep", "pad"):
        token = getattr(library, f"llama_vocab_{name}")(vocab)
        if token >= 0:
            names[f"{name}_token"] = _text(library.llama_vocab_get_text(vocab, token))
    bos = library.llama_vocab_bos(vocab)
    return ControlTokens(
        tuple(tokens),
        names,
        bos if bos >= 0 else None,
        bool(library.llama_vocab_get_add_bos(vocab)),
    )


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode(errors="replace")
