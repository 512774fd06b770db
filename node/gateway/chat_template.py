"""A model's chat template: messages in, the tokens of a prompt out.

Templates are programs by strangers, so they are rendered in processes of their own (`node.confined`), within
limits. What users write steers nothing (`template_marks`, `prompt_tokens`).
"""

from __future__ import annotations

import logging
import secrets
import string
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import trio

from node.confined.frames import ConfinedFailed, Refused
from node.confined.process import Confined, Confinement
from node.engine.control_tokens import ControlTokens, control_tokens
from node.engine.llama_model import LlamaModel
from node.engine.tokenizer import Tokenizer
from node.gateway.prompt_tokens import prompt_tokens
from node.gateway.template_marks import unmark
from node.gateway.template_messages import prepared
from node.gateway.template_questions import Inspect, Inspected, Question, Render, Rendered, Setup
from node.gateway.tool_calls import MARKERS, ToolCalls, ToolFormat
from routing.errors import LocalError

log = logging.getLogger("panal.chat")

WORK = "node.gateway.template_work"

CPU_SECONDS, SECONDS = 2.0, 20.0
"""For a chat: of the processor, and of the clock on a machine that does much else. Usual ones take some
milliseconds; 500 kB, which is 130,000 tokens or more, 0.04 s."""

AT_ONCE = 4
"""Processes that render: one long chat does not keep the others waiting."""

MOST_TEMPLATE_BYTES = 1 << 20
"""Known ones have 1 to 30 kB."""

MOST_CHAT_BYTES = 8 << 20
"""Of messages and tools, as JSON: past every context."""

ID_CHARACTERS, ID_LENGTH = string.ascii_letters + string.digits, 9
"""Of a call's id: what templates of Mistral insist on when they get it back; others take any."""

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') + "
    "'<|im_end|>\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n' }}"
)
CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")
LINES = "{% for message in messages %}{{ message.role }}: {{ message.content or '' }}\n{% endfor %}assistant:"
"""What is used where a model brings no template: the form most models were taught, if theirs may be one of
them; else lines that any model can go on with."""

LINES_STOPS = ("\nuser:", "\nsystem:", "\nassistant:")
"""Where an answer to LINES ends: there is no token for it."""


class TemplateError(LocalError):
    """A chat that cannot be made a prompt; in one line, for the client."""


class ChatTemplate:
    """How a model is asked for the next message. Any task or thread may ask.

    Attributes:
        source: where the template is from: "gguf", "gguf, with one for tools", "chatml" or "lines".
        note: one sentence on the last two; else "".
        has_tools: it tells the model of tools.
        stops: strings that end an answer, where no token does.
    """

    def __init__(
        self,
        plain: str,
        tools: str,
        controls: ControlTokens,
        tokenizer: Tokenizer,
        *,
        source: str = "gguf",
        note: str = "",
        stops: tuple[str, ...] = (),
    ) -> None:
        self.source = source
        self.note = note
        self.stops = stops
        self._controls = controls
        self._tokenizer = tokenizer
        self._format = ToolFormat.of(tools or plain)
        self._spelt = {
            each.token: each.text.encode()
            for each in controls.tokens
            if each.is_hidden and each.text in MARKERS
        }
        setup = Setup(plain, tools, [each.text for each in controls.tokens], controls.names)
        self._confinement = Confinement(WORK, msgspec.msgpack.encode(setup))
        self._room = trio.CapacityLimiter(AT_ONCE)
        self._lock = threading.Lock()
        self._idle: list[Confined] = []
        self._closed = False
        self._inspected = Inspected()
        self._inspect()

    @classmethod
    def from_model(cls, model: LlamaModel) -> ChatTemplate | None:
        """The template in a model's file, or one that may do. None: the model has no vocabulary.

        Takes a second or so: on a thread.
        """
        if not model.has_vocab:
            return None
        controls, tokenizer = control_tokens(model), Tokenizer(model)
        plain, tools = (_metadata(model, name) for name in (None, b"tool_use"))
        if plain or tools:
            source = "gguf, with one for tools" if plain and tools else "gguf"
            return cls(plain or tools, tools, controls, tokenizer, source=source)
        stops: tuple[str, ...] = ()
        if {each.text for each in controls.tokens}.issuperset(CHATML_TOKENS):
            source, plain, note = "chatml", CHATML, "The model has no chat template; ChatML is used."
        else:
            source, plain, stops = "lines", LINES, LINES_STOPS
            note = "The model has no chat template; lines of role and text are used."
        log.warning("%s", note)
        return cls(plain, "", controls, tokenizer, source=source, note=note, stops=stops)

    @property
    def has_tools(self) -> bool:
        return self._inspected.shows_tools

    async def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: object = None,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt that asks for the next message, as a text.

        Raises:
            TemplateError: the template refuses, fails, or takes too much.
        """
        question = self._question(messages, tools, tool_choice, extra)

        def render() -> str:
            rendered = self._render(question())
            return unmark(rendered.text, rendered.marks)

        return await trio.to_thread.run_sync(render, abandon_on_cancel=True, limiter=self._room)

    async def tokens(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: object = None,
        extra: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The same, as tokens. What is in the messages never becomes a control token.

        Args:
            messages: role, content, tool_calls, ... as OpenAI has them, each content one text or None.
            tools: as OpenAI has them; None where none may be called.
            tool_choice: the same, for templates that look at it.
            extra: further variables of the template.

        Raises:
            TemplateError: the template refuses, fails, or takes too much.
        """
        question = self._question(messages, tools, tool_choice, extra)

        def tokens() -> list[int]:
            return prompt_tokens(self._render(question()), self._controls, self._tokenizer)

        return await trio.to_thread.run_sync(tokens, abandon_on_cancel=True, limiter=self._room)

    def calls(self, tools: Sequence[Mapping[str, Any]]) -> ToolCalls:
        """What reads calls out of one answer to a prompt that showed these tools."""
        names = {tool["function"]["name"] for tool in tools}
        return ToolCalls(self._format, names, _make_id, self._spelt)

    def close(self) -> None:
        """End the processes; whoever waits for one gets a TemplateError."""
        self._closed = True
        self._confinement.close()
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            process.close()

    def _inspect(self) -> None:
        try:
            self._inspected = msgspec.msgpack.decode(self._ask(Inspect()), type=Inspected)
        except TemplateError as error:
            log.warning("%s", error)

    def _question(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        tool_choice: object,
        extra: Mapping[str, Any] | None,
    ) -> Callable[[], Render]:
        variables = dict(extra or {})
        if tools and tool_choice is not None:
            variables["tool_choice"] = tool_choice
        return lambda: Render(
            prepared(messages, self._inspected),
            [dict(tool) for tool in tools] if tools else None,
            time.time(),
            variables,
        )

    def _render(self, question: Render) -> Rendered:
        return msgspec.msgpack.decode(self._ask(question), type=Rendered)

    def _ask(self, question: Question) -> bytes:
        try:
            data = msgspec.json.encode(question)
        except (UnicodeEncodeError, OverflowError, RecursionError):
            raise TemplateError("the messages are no sound JSON") from None
        if len(data) > MOST_CHAT_BYTES:
            raise TemplateError(
                f"the chat has {len(data)} bytes; at most {MOST_CHAT_BYTES} are possible: shorten it"
            )
        try:
            return self._answer(data)
        except Refused as refused:
            raise TemplateError(f"the chat template {refused}") from None
        except ConfinedFailed as failed:
            raise TemplateError(f"the chat template cannot be used: {failed}") from None

    def _answer(self, data: bytes) -> bytes:
        while (process := self._idle_one()) is not None:
            try:
                return self._ask_one(process, data)
            except ConfinedFailed as failed:
                if failed.failure != "crash":
                    raise
                # Perhaps somebody killed it while it was idle, which is not this chat's fault: once more.
        process = self._new_one()
        return self._ask_one(process, data)

    def _idle_one(self) -> Confined | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _new_one(self) -> Confined:
        try:
            return self._confinement.fork()
        except ConfinedFailed as failed:
            if failed.failure != "start":
                raise
        return self._confinement.fork()  # the origin had been killed; there is another now

    def _ask_one(self, process: Confined, data: bytes) -> bytes:
        try:
            answer = process.ask(data, cpu=CPU_SECONDS, wall=SECONDS)
        except Refused:
            process.close()  # the next one begins afresh, whatever the template has left there
            raise
        with self._lock:
            if not self._closed:
                self._idle.append(process)
                return answer
        process.close()
        return answer


def _metadata(model: LlamaModel, name: bytes | None) -> str:
    text: bytes | None = model.library.llama_model_chat_template(model.handle, name)
    if text is None:
        return ""
    if len(text) > MOST_TEMPLATE_BYTES:
        log.warning("%s: a chat template of %d bytes is left out", model.paths[0].name, len(text))
        return ""
    return text.decode(errors="replace")


def _make_id() -> str:
    return "".join(secrets.choice(ID_CHARACTERS) for _ in range(ID_LENGTH))
