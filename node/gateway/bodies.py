"""The JSON that clients send, field by field: types and ranges. Pure.

What is not listed is ignored, as OpenAI does it: clients send fields of other servers. What is listed and
wrong is refused, naming the field. `null` is the default, whatever the field.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from node.http.refusals import Refusal

MOST_CHOICES = 8
"""`n`: answers to one prompt. All sessions of a usual node."""

MOST_STOPS = 16
MOST_STOP_CHARS = 256
"""OpenAI takes 4, others more; the text that may be the beginning of one is held back."""

MOST_BIASES = 1024
"""What the sampler takes."""

MOST_TOP_LOGPROBS = 20
"""OpenAI's."""

MOST_TOKENS = 1 << 24
"""Of an answer: past every context."""

MOST_MESSAGES = 16384
"""Of a chat: past every context."""

T = TypeVar("T", bound=Struct)

_WHERE = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)

Seed = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Tokens = Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
StopText = Annotated[str, Meta(min_length=1, max_length=MOST_STOP_CHARS)]


class StreamOptions(Struct):
    """`stream_options`."""

    include_usage: bool | None = None


class JsonSchema(Struct):
    """`response_format.json_schema`."""

    schema: dict[str, Any] | bool | None = None
    name: str | None = None


class ResponseFormat(Struct):
    """`response_format`."""

    type: str
    json_schema: JsonSchema | None = None


class Body(Struct, kw_only=True):
    """What both endpoints take. Names and meanings are OpenAI's; those after `user` are llama.cpp's."""

    model: str | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=MOST_STOPS)] | None = None
    max_tokens: Tokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Seed | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: (
        Annotated[dict[int, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=MOST_BIASES)] | None
    ) = None
    response_format: ResponseFormat | None = None
    user: Annotated[str, Meta(max_length=512)] | None = None
    top_k: Annotated[int, Meta(ge=-1, lt=1 << 31)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    repeat_last_n: Annotated[int, Meta(ge=-1, le=65536)] | None = None
    grammar: str | None = None


class ChatBody(Body, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=MOST_MESSAGES)]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MOST_TOP_LOGPROBS)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionBody(Body, kw_only=True):
    """POST /v1/completions."""

    prompt: Any = None
    logprobs: Annotated[int, Meta(ge=0, le=MOST_TOP_LOGPROBS)] | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None


def decode(data: bytes, kind: type[T]) -> T:
    """A request's body.

    Raises:
        Refusal: it is no JSON, or a field is wrong.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        found = _WHERE.match(str(error))
        assert found is not None
        what, param = found["what"].replace("`", ""), found["path"]
        missing = re.fullmatch(r"Object missing required field (\w+)", what)
        if missing:
            param = ".".join(filter(None, (param, missing[1])))
            raise Refusal(400, f"{param} is missing", param=param, code="missing_field") from None
        told = (
            f"{param}: {what[:1].lower()}{what[1:]}"
            if param
            else f"the body is not what it should be: {what}"
        )
        raise Refusal(400, told, param=param or None, code="invalid_value") from None
    except (msgspec.DecodeError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Refusal(400, f"the body is no JSON: {why}", code="invalid_json") from None
