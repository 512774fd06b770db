"""Holding answers to a grammar, as llama.cpp follows it, in processes of its own.

llama.cpp's grammars cannot run in this one: some abort it (nesting too deep, `{5,2}`, hidden left recursion,
a token that is not permitted), some take exponential time or all memory, when they are parsed or after some
tokens. There, all of these are one answer that fails, in words.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from node.confined.frames import ConfinedFailed
from node.confined.process import Confined, Confinement
from node.engine.grammar_questions import Check, Close, Convert, Copy, Open, Question, Setup, Take
from routing.errors import LocalError

MOST_BYTES = 256 << 10
"""Of a grammar, and of a JSON schema: hundreds of times what people write."""
STEP_CPU_SECONDS = 2.0
"""For parsing, or for a token: with 150,000 tokens, a rich grammar takes 0.05 s."""
STEP_SECONDS = 20.0
"""The same by the clock: on a machine that does much else."""
FREE_SECONDS, SECONDS_A_TOKEN = 4.0, 0.3
"""CPU time of a whole answer: the others in the batch wait for it."""
MOST_CHECKS = 2
"""At once: each may take its time and memory."""
SIMPLER = "use a simpler one"
FAILED = {
    "time": "the {what} takes too long to follow; " + SIMPLER,
    "crash": "the {what} needs too much memory or nests too deeply; " + SIMPLER,
    "start": "no {what} can be followed here: {reason}",
    "closed": "the {what} is not followed any more: the model was closed",
}


class GrammarError(LocalError):
    """A grammar or schema that is wrong, or takes too much."""


def refusal_of_text(text: str, what: str) -> str:
    """Why a text is not even read; "" if it may be."""
    if "\0" in text:
        return f"the {what} contains a NUL character"
    size = len(text.encode(errors="replace"))
    return f"the {what} has {size} bytes; at most {MOST_BYTES} are possible" if size > MOST_BYTES else ""


class Grammars:
    """The grammars of one model's answers. Any thread may ask, and waits, within the limits above.

    The first question waits for a process that reads the vocabulary: 0.3 s, or some 5 s and 300 MB for
    150,000 tokens. Each answer that follows a grammar has one more, forked from it.
    """

    def __init__(self, model: Sequence[Path]) -> None:
        setup = msgspec.msgpack.encode(Setup([str(path.absolute()) for path in model]))
        self.processes = Confinement("node.engine.grammar_work", setup)
        self._json_object = ""
        self._checking = threading.BoundedSemaphore(MOST_CHECKS)

    def check(self, text: str) -> None:
        """Is it a grammar that answers can be held to?

        Raises:
            GrammarError: no; says why.
        """
        _refuse(refusal_of_text(text, "grammar"))
        self._ask(Check(text), "grammar")

    def of_schema(self, schema: object) -> str:
        """The grammar of a JSON schema, by llama.cpp's own converter: Lark, for llguidance.

        Args:
            schema: as parsed from JSON.

        Raises:
            GrammarError: it cannot be converted; says why.
        """
        try:
            text = json.dumps(schema, allow_nan=False)
        except (ValueError, TypeError):
            raise GrammarError("the JSON schema is not JSON") from None
        except RecursionError:
            raise GrammarError(f"the JSON schema is nested too deeply; {SIMPLER}") from None
        _refuse(refusal_of_text(text, "JSON schema"))
        grammar = self._ask(Convert(text), "JSON schema").decode()
        _refuse(refusal_of_text(grammar, "JSON schema's grammar"))
        return grammar

    def json_object(self) -> str:
        """The grammar of any JSON object."""
        self._json_object = self._json_object or self.of_schema({"type": "object"})
        return self._json_object

    def open(self, text: str) -> Grammar:
        """The start of a grammar.

        Raises:
            GrammarError: it is none, or takes too much.
        """
        _refuse(refusal_of_text(text, "grammar"))
        return Grammar(_Following(self.processes, text))

    def close(self) -> None:
        self.processes.close()

    def _ask(self, question: Question, what: str) -> bytes:
        try:
            with self._checking:
                process = self.processes.fork()
                try:
                    return _ask(process, question)
                finally:
                    process.close()
        except LocalError as error:
            raise _error(what, error) from None


class _Following:
    """One answer's process, for the places where it and its clones stand in the grammar."""

    def __init__(self, processes: Confinement, text: str) -> None:
        self._numbers = itertools.count()
        self._open: set[int] = set()
        self._seconds = 0.0
        self._tokens = 0
        try:
            self._process = processes.fork()
        except LocalError as error:
            raise _error("grammar", error) from None
        self.begin(lambda number: Open(number, text))

    def begin(self, question: Callable[[int], Open | Copy]) -> int:
        """A new place; its number."""
        number = next(self._numbers)
        self._open.add(number)
        self.ask(question(number))
        return number

    def take(self, number: int, token: int) -> bytes:
        self._tokens += 1
        return self.ask(Take(number, token))

    def ask(self, question: Question) -> bytes:
        try:
            answer = _ask(self._process, question)
        except LocalError as error:
            self._process.close()
            raise _error("grammar", error) from None
        self._seconds += self._process.seconds
        if self._seconds > FREE_SECONDS + SECONDS_A_TOKEN * self._tokens:
            self._process.close()
            raise _error("grammar", ConfinedFailed("took too long", "time"))
        return answer

    def end(self, number: int) -> None:
        """Forget a place; with the last, the process."""
        if number not in self._open:
            return
        self._open.discard(number)
        if not self._open:
            self._process.close()
            return
        try:
            self.ask(Close(number))
        except GrammarError:
            pass  # nobody waits for what it followed


class Grammar:
    """Where one answer stands in its grammar. One thread at a time, for it and its clones."""

    def __init__(self, following: _Following, number: int = 0) -> None:
        self._following = following
        self._number = number

    def take(self, token: int) -> npt.NDArray[np.bool_] | None:
        """Go on by a token.

        Returns:
            None if it was permitted; else which ones are, [n_vocab] and possibly a few more.

        Raises:
            GrammarError: to say so takes too much. No clone can go on, either.
        """
        mask = self._following.take(self._number, token)
        return np.unpackbits(np.frombuffer(mask, np.uint8)).astype(np.bool_) if mask else None

    def clone(self) -> Grammar:
        """Another that stands in the same place."""
        return Grammar(self._following, self._following.begin(lambda copy: Copy(self._number, copy)))

    def close(self) -> None:
        self._following.end(self._number)


def _ask(process: Confined, question: Question) -> bytes:
    return process.ask(msgspec.msgpack.encode(question), cpu=STEP_CPU_SECONDS, wall=STEP_SECONDS)


def _refuse(reason: str) -> None:
    if reason:
        raise GrammarError(reason)


def _error(what: str, error: LocalError) -> GrammarError:
    if isinstance(error, ConfinedFailed):
        return GrammarError(FAILED[error.failure].format(what=what, reason=error))
    reason = " ".join(str(error).split())[:200]
    return GrammarError(f"the {what} is not valid: {reason}")
