"""Text to tokens and back, by llama.cpp's own tokenizer: exact by construction."""

from __future__ import annotations

import codecs
import ctypes as C
from collections.abc import Sequence

from node.engine.library import EngineError
from node.engine.llama_model import LlamaModel

PIECE_BYTES = 256  # longer than any token of known vocabularies; a longer one is asked for again


class Tokenizer:
    """A model's vocabulary.

    Raises:
        EngineError: the model comes without one.
    """

    def __init__(self, model: LlamaModel) -> None:
        if not model.has_vocab:
            raise EngineError(f"{model.paths[0]}: has no tokenizer, so no text can go in or come out")
        self._library = model.library
        self._vocab = model.vocab

    def encode(self, text: str, *, special: bool = False, whole: bool = True) -> list[int]:
        """Token ids, with BOS where the model wants it.

        Args:
            special: let the text contain control tokens (chat templates do; users' words must not).
            whole: it is all there is; else a part of a text, and no BOS is put before it.

        What is no character (a lone surrogate, from bytes that are no UTF-8) becomes a question mark.
        """
        raw = text.encode(errors="replace")
        room = len(raw) + 8
        tokens = (C.c_int32 * room)()
        count = self._library.llama_tokenize(self._vocab, raw, len(raw), tokens, room, whole, special)
        if count < 0:
            tokens = (C.c_int32 * -count)()
            count = self._library.llama_tokenize(self._vocab, raw, len(raw), tokens, -count, whole, special)
        return list(tokens[:count])

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for; parts of one character may be spread over several tokens."""
        buffer = C.create_string_buffer(PIECE_BYTES)
        size = self._library.llama_token_to_piece(self._vocab, token, buffer, PIECE_BYTES, 0, False)
        if size < 0:
            buffer = C.create_string_buffer(-size)
            size = self._library.llama_token_to_piece(self._vocab, token, buffer, -size, 0, False)
        return buffer.raw[: max(size, 0)]

    def is_end(self, token: int) -> bool:
        """Does the token end a generation (EOS, EOT, ...)?"""
        return bool(self._library.llama_vocab_is_eog(self._vocab, token))


class TextStream:
    """Pieces to text as they come: holds back the bytes of a character until it is whole."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, tokens: Sequence[int]) -> str:
        return "".join(self._decoder.decode(self._tokenizer.piece(token)) for token in tokens)

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)
