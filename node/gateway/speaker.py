"""Who answers, as far as the API needs to know."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from node.gateway.calls import ReadsCalls

if TYPE_CHECKING:
    from node.decode.continuous.ask import Ask, Chosen
    from node.decode.continuous.report import AnswerReport


class Answering(Protocol):
    """An answer under way: an async iterator of tokens, chosen one after another.

    Attributes:
        report: what it took, so far.
    """

    @property
    def report(self) -> AnswerReport: ...

    async def settled(self) -> None:
        """Wait until its audits have ended. Raises Spoiled if it rests on false answers."""
        ...

    def __aiter__(self) -> AsyncIterator[Chosen]: ...


class Vocabulary(Protocol):
    """Text to tokens and back."""

    def encode(self, text: str, *, special: bool = False) -> list[int]: ...

    def piece(self, token: int) -> bytes: ...


class Grammars(Protocol):
    """Checks and makes grammars. Each call blocks its thread.

    Each raises LocalError in one line for what is no grammar, or takes too much.
    """

    def check(self, text: str) -> None: ...

    def of_schema(self, schema: object) -> str: ...

    def json_object(self) -> str: ...


class Chat(Protocol):
    """A model's chat template.

    Attributes:
        has_tools: it shows tools to the model.
        source: where the template is from; note: one sentence about it, where the model has none.
        stops: strings that end an answer besides the client's.
    """

    @property
    def has_tools(self) -> bool: ...

    @property
    def source(self) -> str: ...

    @property
    def note(self) -> str: ...

    @property
    def stops(self) -> Sequence[str]: ...

    async def tokens(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The prompt that asks for the next message. Raises LocalError in one line."""
        ...

    def calls(self, tools: Sequence[Mapping[str, Any]]) -> ReadsCalls | None:
        """What reads one answer to a prompt that showed these tools."""
        ...


class Speaker(Protocol):
    """A model that answers.

    Attributes:
        name: what the API calls it; aliases: other names it is known by.
        created: when it was loaded, seconds since 1970.
        n_ctx: tokens of a prompt and its answer.
        chat: None: the model comes without a template.
    """

    @property
    def name(self) -> str: ...

    @property
    def aliases(self) -> Sequence[str]: ...

    @property
    def model_id(self) -> str: ...

    @property
    def architecture(self) -> str: ...

    @property
    def created(self) -> int: ...

    @property
    def n_ctx(self) -> int: ...

    @property
    def n_vocab(self) -> int: ...

    @property
    def tokenizer(self) -> Vocabulary: ...

    @property
    def grammars(self) -> Grammars: ...

    @property
    def chat(self) -> Chat | None: ...

    def ask(self, ask: Ask) -> AbstractAsyncContextManager[Answering]: ...


@dataclass(frozen=True)
class NotReady:
    """Nobody answers now.

    Attributes:
        model: what it will be called; "": this node runs no model.
        why: one line: what is being done, or what is missing.
        missing: the swarm lacks experts; else the model is being opened.
        retry_after: seconds.
    """

    model: str
    why: str = ""
    missing: bool = False
    retry_after: float = 2.0


@dataclass(frozen=True)
class Answered:
    """An answer that has ended, for whoever keeps a list.

    Attributes:
        at: seconds since 1970.
        finish: "stop", "length", "tool_calls", "left" (the client went away) or "failed".
        error: one line, of what failed.
    """

    report: AnswerReport
    model: str
    model_id: str
    at: float
    finish: str
    error: str = ""
