"""What a client wants: a body's fields put together, defaults filled in. Pure.

Defaults are OpenAI's: 16 tokens of a plain completion, and of a chat whatever the context holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from node.gateway.bodies import Body, ChatBody, CompletionBody
from node.http.refusals import Refusal

COMPLETION_TOKENS = 16
"""OpenAI's, of a plain completion that says nothing."""

MOST_PROMPTS = 64
"""In one request of plain completions."""

MOST_ANSWERS = 128
"""n times prompts: the client waits for all of them."""

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_KEPT = ("name", "tool_calls", "tool_call_id", "reasoning_content")
"""Fields of a message that templates may look at, besides role and content."""


@dataclass(frozen=True)
class Shape:
    """What the answer must look like.

    Attributes:
        kind: "text", "json_object", "json_schema" or "grammar".
        schema: of json_schema; grammar: of grammar.
    """

    kind: str = "text"
    schema: Any = None
    grammar: str = ""


@dataclass(frozen=True)
class Tools:
    """Functions that the model may call.

    Attributes:
        tools, raw_choice: as the client sent them.
        choice: "none", "auto", "required", or the name of the one function to be called (`named`).
        several: calls at once are allowed.
    """

    tools: Sequence[dict[str, Any]] = ()
    choice: str = "none"
    named: bool = False
    several: bool = True
    raw_choice: str | Mapping[str, Any] | None = None

    @property
    def forced(self) -> bool:
        """Whether there must be a call."""
        return self.named or self.choice == "required"


@dataclass(frozen=True)
class Wanted:
    """What both endpoints have in common.

    Attributes:
        model: "" for whatever is there.
        limit: tokens at most; None: as many as fit.
        top_logprobs: None: no logprobs; n: with the n likeliest.
        shape: of the text.
        user: the client's own word for who asks.
    """

    body: Body
    model: str
    n: int
    stream: bool
    include_usage: bool
    stops: tuple[str, ...]
    limit: int | None
    top_logprobs: int | None
    shape: Shape
    user: str


@dataclass(frozen=True)
class ChatWanted(Wanted):
    """A chat.

    Attributes:
        messages: role, content as one text (None where there is none), and what templates may look at.
        extra: further variables of the template.
    """

    messages: Sequence[dict[str, Any]]
    tools: Tools
    extra: Mapping[str, Any]

    @property
    def shown_tools(self) -> Sequence[dict[str, Any]]:
        """The tools that the model is shown."""
        return () if self.tools.choice == "none" else self.tools.tools


@dataclass(frozen=True)
class CompletionWanted(Wanted):
    """Plain completions.

    Attributes:
        prompts: texts, or tokens.
        echo: the prompt comes before the answer.
    """

    prompts: Sequence[str | Sequence[int]]
    echo: bool


def chat_wanted(body: ChatBody) -> ChatWanted:
    """What a chat's client wants.

    Raises:
        Refusal: fields that do not go together, or content that is no text.
    """
    if body.top_logprobs is not None and not body.logprobs:
        raise _wrong("top_logprobs", "goes with logprobs: true")
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    tools = _tools(body)
    if tools.forced and _shape(body).kind != "text":
        raise _wrong("tool_choice", "a call that must come has a shape of its own: no response_format")
    return ChatWanted(
        **_common(body),
        limit=limit,
        top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        messages=[_message(f"messages[{i}]", each) for i, each in enumerate(body.messages)],
        tools=tools,
        extra=body.chat_template_kwargs or {},
    )


def completion_wanted(body: CompletionBody) -> CompletionWanted:
    """What a client of plain completions wants.

    Raises:
        Refusal: fields that do not go together, or a prompt that is none.
    """
    if body.suffix:
        raise _wrong("suffix", "text after the answer is not possible: leave it out")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise _wrong("best_of", "choosing among more answers than n is not possible: leave it out")
    if body.echo and body.logprobs is not None:
        raise _wrong("echo", "the prompt's logprobs are not known: ask for echo or for logprobs")
    prompts = _prompts(body.prompt)
    if len(prompts) * (body.n or 1) > MOST_ANSWERS:
        raise _wrong("n", f"{len(prompts)} prompts times {body.n} is more than {MOST_ANSWERS} answers")
    return CompletionWanted(
        **_common(body),
        limit=body.max_tokens or COMPLETION_TOKENS,
        top_logprobs=body.logprobs,
        prompts=prompts,
        echo=bool(body.echo),
    )


def _common(body: Body) -> dict[str, Any]:
    stream = bool(body.stream)
    if body.stream_options is not None and not stream:
        raise _wrong("stream_options", "goes with stream: true")
    stop = body.stop or []
    return {
        "body": body,
        "model": body.model or "",
        "n": body.n or 1,
        "stream": stream,
        "include_usage": bool(body.stream_options and body.stream_options.include_usage),
        "stops": (stop,) if isinstance(stop, str) else tuple(stop),
        "shape": _shape(body),
        "user": body.user or "",
    }


def _shape(body: Body) -> Shape:
    format_ = body.response_format
    kind = "text" if format_ is None else format_.type
    if kind not in ("text", "json_object", "json_schema"):
        raise _wrong("response_format.type", f"{kind!r} is none of text, json_object, json_schema")
    if body.grammar:
        if kind != "text":
            raise _wrong("grammar", "response_format makes a grammar already: leave one of them out")
        return Shape("grammar", grammar=body.grammar)
    if kind == "json_schema":
        named = None if format_ is None else format_.json_schema
        if named is None or named.schema is None:
            raise _wrong("response_format.json_schema", "a schema is missing: json_schema.schema")
        return Shape(kind, schema=named.schema)
    return Shape(kind)


def _message(where: str, message: Mapping[str, Any]) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise _wrong(f"{where}.role", f"{_shown(role)} is none of {', '.join(sorted(_ROLES))}")
    kept = {name: message[name] for name in _KEPT if message.get(name) is not None}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if not isinstance(kept.get(name, ""), str):
            raise _wrong(f"{where}.{name}", "expected a text")
    calls = kept.get("tool_calls", [])
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise _wrong(f"{where}.tool_calls", "expected a list of calls")
    content = _content(f"{where}.content", message.get("content"))
    if content is None and not (role == "assistant" and calls):
        raise _wrong(f"{where}.content", "is missing")
    return {"role": "system" if role == "developer" else role, "content": content, **kept}


def _content(where: str, content: object) -> str | None:
    """A message's text; parts are put together, one a line."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong(where, f"expected a text or a list of parts, got {_shown(content)}")
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
        if kind not in ("text", "refusal"):
            raise _wrong(
                f"{where}[{i}]", f"this model reads text alone, and {_shown(kind)} is none: leave it out"
            )
        if not isinstance(text, str):
            raise _wrong(f"{where}[{i}].{kind}", "expected a text")
        texts.append(text)
    return "\n".join(texts)


def _tools(body: ChatBody) -> Tools:
    tools, choice = tuple(body.tools or ()), body.tool_choice
    names = []
    for i, tool in enumerate(tools):
        function = tool.get("function") if tool.get("type") == "function" else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not name:
            raise _wrong(f"tools[{i}]", 'expected {"type": "function", "function": {"name": ...}}')
        names.append(name)
    several = body.parallel_tool_calls is not False
    if choice is None:
        return Tools(tools, "auto" if tools else "none", several=several)
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            raise _wrong("tool_choice", f"{_shown(choice)} is none of none, auto, required")
        if choice == "required" and not tools:
            raise _wrong("tool_choice", "a call is required, and there are no tools")
        return Tools(tools, choice if tools else "none", several=several, raw_choice=choice)
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if choice.get("type") != "function" or name not in names:
        raise _wrong("tool_choice", f"{_shown(name)} is none of the tools")
    return Tools(tools, str(name), named=True, several=several, raw_choice=choice)


def _prompts(prompt: object) -> list[str | Sequence[int]]:
    """A text, texts, tokens or lists of tokens."""
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise _wrong("prompt", "expected a text, a list of texts, or tokens")
    if all(_is_token(each) for each in prompt):
        return [prompt]
    if len(prompt) > MOST_PROMPTS:
        raise _wrong("prompt", f"{len(prompt)} prompts at once; at most {MOST_PROMPTS} are possible")
    for i, each in enumerate(prompt):
        if not isinstance(each, str) and not (
            isinstance(each, list) and each and all(_is_token(token) for token in each)
        ):
            raise _wrong(f"prompt[{i}]", "expected a text, or tokens")
    return prompt


def _is_token(value: object) -> bool:
    return type(value) is int


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _wrong(param: str, why: str) -> Refusal:
    return Refusal(400, f"{param}: {why}", param=param, code="invalid_value")
