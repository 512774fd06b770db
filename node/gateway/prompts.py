"""From texts to tokens that fit: what is wanted becomes what is asked of the decoder."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence

import trio

from node.decode.continuous.ask import Ask
from node.engine.tokenizer import PIECE_BYTES
from node.gateway.answering import Part
from node.gateway.calls import ReadsCalls
from node.gateway.chat_template import ID_CHARACTERS, ID_LENGTH
from node.gateway.errors import too_long
from node.gateway.forced_call import ForcedCall, schema_of
from node.gateway.reading import Reading
from node.gateway.requests import ChatWanted, CompletionWanted, Shape, Wanted
from node.gateway.sampling import sampling_of, seed_of
from node.gateway.speaker import Speaker
from node.http.refusals import Refusal
from routing.errors import LocalError

LONG_TEXT = 8192
"""Characters from which on reading a text takes milliseconds: not on the event loop."""


async def completion_prompts(speaker: Speaker, wanted: CompletionWanted) -> list[list[int]]:
    """The tokens of each prompt. The client wrote all of a text, so it may name control tokens in it.

    Raises:
        Refusal: a token that the model does not have, none at all, or more than a context holds.
    """
    found = []
    for i, prompt in enumerate(wanted.prompts):
        if isinstance(prompt, str):
            _check_text(speaker, len(prompt), "prompt")
            tokens = await _encode(speaker, prompt)
        else:
            if len(prompt) > speaker.n_ctx:
                raise too_long(len(prompt), speaker.n_ctx, "prompt")
            tokens = list(prompt)
            _check_tokens(speaker, tokens, "prompt")
        if not tokens:
            where = "prompt" if len(wanted.prompts) == 1 else f"prompt[{i}]"
            raise Refusal(
                400,
                f"{where} is empty, and this model needs at least one token: give it some text",
                param=where,
                code="invalid_value",
            )
        found.append(tokens)
    return found


async def chat_prompt(speaker: Speaker, wanted: ChatWanted) -> list[int]:
    """The tokens of a chat.

    Raises:
        Refusal: the model has no template, it fails, or the chat is longer than a context.
    """
    chat = speaker.chat
    if chat is None:
        raise Refusal(
            400,
            f"{speaker.name} comes without a chat template, so it cannot chat: use /v1/completions",
            param="messages",
            code="no_chat_template",
        )
    tools = wanted.shown_tools or None
    if tools and not chat.has_tools:
        raise Refusal(
            400,
            f"the chat template of {speaker.name} knows no tools: leave them out",
            param="tools",
            code="no_tools",
        )
    _check_text(speaker, sum(len(each["content"] or "") for each in wanted.messages), "messages")
    try:
        return await chat.tokens(
            wanted.messages, tools=tools, tool_choice=wanted.tools.raw_choice, extra=wanted.extra
        )
    except LocalError as error:
        raise Refusal(400, str(error), param="messages", code="chat_template") from error


def reading_of(speaker: Speaker, wanted: Wanted) -> Reading:
    """How the answers are read."""
    if not isinstance(wanted, ChatWanted) or speaker.chat is None:
        return Reading(wanted.stops)
    chat, tools = speaker.chat, wanted.tools

    def calls() -> ReadsCalls | None:
        if tools.forced:
            return ForcedCall(_make_id)
        return chat.calls(wanted.shown_tools) if wanted.shown_tools else None

    return Reading((*wanted.stops, *chat.stops), calls, tools.several)


async def grammar_of(speaker: Speaker, wanted: Wanted) -> str:
    """The grammar that holds an answer to its shape, or to the call that must come; "" for none.

    Raises:
        Refusal: it is no grammar, or no schema that can be made one.
    """

    shape = wanted.shape
    if isinstance(wanted, ChatWanted) and (schema := schema_of(wanted.tools)) is not None:
        shape = Shape("json_schema", schema=schema)

    def make() -> str:
        grammars = speaker.grammars
        if shape.kind == "json_object":
            return grammars.json_object()
        if shape.kind == "json_schema":
            return grammars.of_schema(shape.schema)
        grammars.check(shape.grammar)
        return shape.grammar

    if shape.kind == "text":
        return ""
    try:
        return await trio.to_thread.run_sync(make, abandon_on_cancel=True)
    except LocalError as error:
        param = "grammar" if shape.kind == "grammar" else "response_format"
        raise Refusal(400, f"{param}: {error}", param=param, code="invalid_grammar") from error


def parts_of(
    speaker: Speaker,
    wanted: Wanted,
    prompts: Sequence[Sequence[int]],
    *,
    grammar: str,
    user: str,
    draw: Callable[[], int],
) -> list[Part]:
    """One part for each answer to each prompt.

    Args:
        draw: a random seed.

    Raises:
        Refusal: a prompt does not fit the context, or a biased token is none.
    """
    _check_tokens(speaker, wanted.body.logit_bias or (), "logit_bias")
    param = "messages" if isinstance(wanted, ChatWanted) else "prompt"
    parts: list[Part] = []
    for number, tokens in enumerate(prompts):
        if len(tokens) > speaker.n_ctx:
            raise too_long(len(tokens), speaker.n_ctx, param)
        # The last token that is chosen is not computed, so it needs no room.
        room = speaker.n_ctx - len(tokens) + 1
        drawn = draw()
        for i in range(wanted.n):
            seed = seed_of(wanted.body, i, drawn)
            ask = Ask(
                tuple(tokens),
                room if wanted.limit is None else min(wanted.limit, room),
                sampling_of(wanted.body, seed, grammar=grammar, n_ctx=speaker.n_ctx),
                user,
                wanted.top_logprobs,
            )
            parts.append(Part(len(parts), number, ask))
    return parts


def _make_id() -> str:
    return "".join(secrets.choice(ID_CHARACTERS) for _ in range(ID_LENGTH))


def _check_tokens(speaker: Speaker, tokens: Iterable[int], param: str) -> None:
    wrong = next((token for token in tokens if not 0 <= token < speaker.n_vocab), None)
    if wrong is not None:
        raise Refusal(
            400,
            f"{param}: {wrong} is no token; this model has 0 to {speaker.n_vocab - 1}",
            param=param,
            code="invalid_value",
        )


def _check_text(speaker: Speaker, characters: int, param: str) -> None:
    """Turn down what is too long however it is read: reading a text takes a hundred times its memory."""
    least = characters // PIECE_BYTES
    if least > speaker.n_ctx:
        raise too_long(least, speaker.n_ctx, param, at_least=True)


async def _encode(speaker: Speaker, text: str) -> list[int]:
    def encode() -> list[int]:
        return speaker.tokenizer.encode(text, special=True)

    if len(text) < LONG_TEXT:
        return encode()
    return await trio.to_thread.run_sync(encode, abandon_on_cancel=True)
