"""A rendered chat as tokens: the template's control tokens are read as such, those that users wrote as text.

Where users wrote none, that is the whole text in one go, as llama.cpp reads it. Else the text is cut at the
template's own control tokens, the way llama.cpp does it, and what lies between is read as mere text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from node.engine.control_tokens import ControlToken, ControlTokens
from node.gateway.template_marks import unmark
from node.gateway.template_questions import Rendered


class Encoder(Protocol):
    """A tokenizer."""

    def encode(self, text: str, *, special: bool = False, whole: bool = True) -> list[int]: ...


def prompt_tokens(rendered: Rendered, controls: ControlTokens, tokenizer: Encoder) -> list[int]:
    """The tokens of a chat, with BOS where the model wants it, and never twice."""
    text = unmark(rendered.text, rendered.marks)
    present = [each for each in controls.tokens if each.text in text]
    pieces = [
        piece if isinstance(piece, ControlToken) else unmark(piece, rendered.marks)
        for piece in _cut(rendered.text, present)
    ]
    if pieces == _cut(text, present):
        tokens = tokenizer.encode(text, special=True, whole=False)
    else:
        tokens = []
        for piece in pieces:
            if isinstance(piece, ControlToken):
                tokens.append(piece.token)
            else:
                tokens += _as_text(piece, present, controls, tokenizer)
    return _with_one_bos(tokens, controls)


def _cut(text: str, present: Sequence[ControlToken]) -> list[str | ControlToken]:
    """The control tokens of a text and what lies between them."""
    pieces: list[str | ControlToken] = [text]
    for control in present:
        cut: list[str | ControlToken] = []
        for piece in pieces:
            if isinstance(piece, ControlToken) or control.text not in piece:
                cut.append(piece)
                continue
            parts = piece.split(control.text)
            for i, part in enumerate(parts):
                if i:
                    cut.append(control)
                    part = part.lstrip() if control.eats_right else part
                if i < len(parts) - 1 and control.eats_left:
                    part = part.rstrip()
                if part:
                    cut.append(part)
        pieces = cut
    return pieces


def _as_text(
    text: str, present: Sequence[ControlToken], controls: ControlTokens, tokenizer: Encoder
) -> list[int]:
    """Text without control tokens, whatever it names.

    Some vocabularies make one of its letters all the same, or have it as an ordinary word: there it is read
    in two parts.
    """
    tokens = tokenizer.encode(text, whole=False)
    steering = {control.token for control in controls.tokens}
    if not steering.intersection(tokens):
        return tokens
    tokens = []
    for piece in _cut(text, present):
        parts = (piece.text[:1], piece.text[1:]) if isinstance(piece, ControlToken) else (piece,)
        for part in parts:
            tokens += tokenizer.encode(part, whole=False) if part else []
    return [token for token in tokens if token not in steering]


def _with_one_bos(tokens: list[int], controls: ControlTokens) -> list[int]:
    bos = controls.bos
    if bos is None:
        return tokens
    begin = 0
    while tokens[begin : begin + 2] == [bos, bos]:
        begin += 1
    tokens = tokens[begin:]
    return [bos, *tokens] if controls.adds_bos and tokens[:1] != [bos] else tokens
