"""The processes that follow grammars: llama.cpp's own samplers over a vocabulary, no weights."""

from __future__ import annotations

import ctypes as C
import math
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from node.confined.frames import Refused
from node.confined.serving import Answerer
from node.engine import library as llama
from node.engine.grammar_questions import Check, Close, Convert, Copy, Open, Question, Setup, Take
from node.engine.llama_model import LlamaModel
from node.engine.structs import TokenData, TokenDataArray

MEMORY = 384 << 20
"""With 150,000 tokens a grammar of JSON takes 40 MB at a step; what explodes takes all there is."""
MAY_OPEN = True  # C libraries may
LLGUIDANCE = "%llguidance"
"""How a grammar begins that is Lark, for llguidance: as llama.cpp makes of JSON schemas, where it has it."""
# C++, but with the arguments of C: llama.cpp's `common/llguidance.cpp` and `common/log.cpp`.
INIT_LLGUIDANCE = "_Z22llama_sampler_init_llgPK11llama_vocabPKcS3_"
LOG_MAIN, LOG_FLUSH = "_Z15common_log_mainv", "_Z16common_log_flushP10common_log"
REASON_AFTER = ("error parsing grammar: ", "llg error: ")  # on stderr


def prepare(setup: bytes) -> Answerer:
    settings = msgspec.msgpack.decode(setup, type=Setup)
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - llama.cpp writes reasons to stderr, for as long as this runs
    os.dup2(errors.fileno(), 2)
    # Always the pinned build, whichever computes: tokens are numbers, and it can do JSON schemas.
    model = LlamaModel(llama.load(), [Path(path) for path in settings.model], vocab_only=True)
    if not model.has_vocab:
        raise Refused("the model comes without a tokenizer")
    work = _Work(model)
    work.warm()
    return work.answer


@dataclass
class _Place:
    sampler: Any
    of_llguidance: bool
    ended: bool = False  # an end of generation was taken; nothing else can follow


class _Work:
    def __init__(self, model: LlamaModel) -> None:
        self._library = model.library
        self._model = model
        self._all = np.arange(model.n_vocab, dtype=np.int32)
        self._decoder = msgspec.msgpack.Decoder(Question)
        self._places: dict[int, _Place] = {}
        everything = C.CDLL(str(model.library.path))  # the one that is loaded already
        self._init_llguidance = getattr(everything, INIT_LLGUIDANCE)
        self._init_llguidance.restype = C.c_void_p
        self._init_llguidance.argtypes = (C.c_void_p, C.c_char_p, C.c_char_p)
        self._log_main = getattr(everything, LOG_MAIN)
        self._log_main.restype = C.c_void_p
        self._log_flush = getattr(everything, LOG_FLUSH)
        self._log_flush.argtypes = (C.c_void_p,)

    def warm(self) -> None:
        """Load the converter, and let llguidance read the vocabulary: seconds, if that is large."""
        self._library.llama_sampler_free(self._parse(self._convert("{}")).sampler)

    def answer(self, raw: bytes) -> bytes:
        question = self._decoder.decode(raw)
        library = self._library
        match question:
            case Check(text):
                self._check(text)
            case Convert(schema):
                text = self._convert(schema)
                self._check(text)
                return text.encode()
            case Open(number, text):
                self._places[number] = self._parse(text)
            case Take(number, token):
                return self._take(self._places[number], token)
            case Copy(number, copy):
                place = self._places[number]
                self._places[copy] = replace(place, sampler=library.llama_sampler_clone(place.sampler))
            case Close(number):
                library.llama_sampler_free(self._places.pop(number).sampler)
        return b""

    def _parse(self, text: str) -> _Place:
        os.ftruncate(2, 0)
        os.lseek(2, 0, os.SEEK_SET)
        self._library.forget_errors()
        vocab = self._model.vocab
        if text.startswith(LLGUIDANCE):
            place = _Place(self._init_llguidance(vocab, b"lark", text.encode()), of_llguidance=True)
            self._permitted(place, self._all)  # says whether it is one
            return place
        sampler = self._library.llama_sampler_init_grammar(vocab, text.encode(), b"root")
        if not sampler:
            raise Refused(self._reason())
        return _Place(sampler, of_llguidance=False)

    def _reason(self) -> str:
        """Why it is none, as llama.cpp says on stderr or in its log."""
        self._log_flush(self._log_main())
        said = os.pread(2, 2000, 0).decode(errors="replace")
        for before in REASON_AFTER:
            if before in said:
                return said.partition(before)[2].splitlines()[0]
        return self._library.last_errors() or "it has no rules"

    def _check(self, text: str) -> None:
        place = self._parse(text)
        permitted = self._permitted(place, self._all)
        self._library.llama_sampler_free(place.sampler)
        if not permitted.any():
            raise Refused("it permits no token to begin with")

    def _take(self, place: _Place, token: int) -> bytes:
        is_end = bool(self._library.llama_vocab_is_eog(self._model.vocab, token))
        if place.ended:
            permitted = np.array([self._library.llama_vocab_is_eog(self._model.vocab, i) for i in self._all])
            return b"" if is_end else np.packbits(permitted).tobytes()
        # Accepting a token that is not permitted would end the process: so it is asked for first.
        if not self._permitted(place, np.array([token], np.int32))[0]:
            return np.packbits(self._permitted(place, self._all)).tobytes()
        self._library.llama_sampler_accept(place.sampler, token)
        place.ended = is_end
        return b""

    def _permitted(self, place: _Place, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Which of the tokens may come next.

        llguidance gives up on a grammar in silence and permits everything from then on, even control
        tokens, which no grammar does: so all of them are asked for.
        """
        asked = self._all if place.of_llguidance else tokens
        candidates = np.zeros(len(asked), [("id", "i4"), ("logit", "f4"), ("p", "f4")])
        candidates["id"] = asked
        data = candidates.ctypes.data_as(C.POINTER(TokenData))
        self._library.llama_sampler_apply(
            place.sampler, C.byref(TokenDataArray(data, len(candidates), -1, False))
        )
        permitted: npt.NDArray[np.bool_] = candidates["logit"] > -math.inf
        if not place.of_llguidance:
            return permitted
        if permitted.all():
            raise Refused(self._reason())
        asked_for: npt.NDArray[np.bool_] = permitted[tokens]
        return asked_for

    def _convert(self, schema: str) -> str:
        import xllamacpp  # the same shared object; what it exports of this takes C++ objects

        try:
            text: str = xllamacpp.json_schema_to_grammar(schema)
        except RuntimeError as error:
            raise Refused(str(error)) from None
        return text
