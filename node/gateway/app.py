"""The routes of the API: what comes in, who answers, what goes out."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from node.gateway.answering import Answers, Part
from node.gateway.answers import Heading, event
from node.gateway.bodies import ChatBody, CompletionBody, T, decode
from node.gateway.errors import not_ready, unknown_model
from node.gateway.naming import answers_to, describe
from node.gateway.prompts import chat_prompt, completion_prompts, grammar_of, parts_of, reading_of
from node.gateway.requests import Wanted, chat_wanted, completion_wanted
from node.gateway.sampling import SEEDS
from node.gateway.speaker import Answered, NotReady, Speaker
from node.gateway.usage import server_timing
from node.gateway.writing import Stream, Whole, Writing
from node.http.caller import caller_of
from node.http.event_stream import EventStream, Write
from node.http.exchange import refusal_of
from node.http.refusals import Refusal
from node.software import software

LONG_BODY = 256 << 10
"""Bytes from which on reading a body takes milliseconds: not on the event loop."""

U = TypeVar("U")

_ENDING = event(Refusal(503, "this node is ending", code="ending").as_dict())


def make_gateway(
    standing: Callable[[], Speaker | NotReady],
    on_answer: Callable[[Answered], None] = lambda answered: None,
) -> list[BaseRoute]:
    """The API's routes, for an HttpDoor.

    Args:
        standing: who answers now, or why nobody does; asked at every request.
        on_answer: told of each answer that has ended, however it did.
    """
    gateway = _Gateway(standing, on_answer)
    return [
        Route("/v1/chat/completions", gateway.chat, methods=["POST"]),
        Route("/v1/completions", gateway.complete, methods=["POST"]),
        Route("/v1/models", gateway.models),
        Route("/v1/models/{name:path}", gateway.model),
        Route("/health", gateway.health),
    ]


class _Gateway:
    def __init__(
        self, standing: Callable[[], Speaker | NotReady], on_answer: Callable[[Answered], None]
    ) -> None:
        self._standing = standing
        self._on_answer = on_answer

    # --- what may be asked ---

    async def health(self, request: Request) -> Response:
        """Whether somebody answers: for scripts that wait."""
        standing = self._standing()
        if not isinstance(standing, NotReady):
            return _json({"status": "ok", "model": standing.name})
        status = "loading" if standing.model and not standing.missing else "unavailable"
        refusal = not_ready(standing)
        return _json({"status": status, "model": standing.model, "why": refusal.message}, status=503)

    async def models(self, request: Request) -> Response:
        """The one model there is."""
        standing = self._standing()
        known = [] if isinstance(standing, NotReady) and not standing.model else [describe(standing)]
        return _json({"object": "list", "data": known})

    async def model(self, request: Request) -> Response:
        """The same, by name."""
        standing, asked = self._standing(), str(request.path_params["name"])
        if isinstance(standing, NotReady) and not standing.model:
            raise not_ready(standing)
        if not answers_to(standing, asked):
            raise unknown_model(asked, "" if isinstance(standing, NotReady) else standing.name)
        return _json(describe(standing))

    async def chat(self, request: Request) -> Response:
        """The next message of a chat."""
        wanted = await _wanted(request, ChatBody, chat_wanted)
        speaker = self._speaker(wanted.model)
        prompt = await chat_prompt(speaker, wanted)
        return await self._answer(request, speaker, wanted, [prompt], [])

    async def complete(self, request: Request) -> Response:
        """How texts go on."""
        wanted = await _wanted(request, CompletionBody, completion_wanted)
        speaker = self._speaker(wanted.model)
        prompts = await completion_prompts(speaker, wanted)
        echoes = []
        if wanted.echo:
            for prompt in wanted.prompts:
                text = prompt if isinstance(prompt, str) else _text(speaker, prompt)
                echoes += [text] * wanted.n
        return await self._answer(request, speaker, wanted, prompts, echoes)

    # --- how it is answered ---

    def _speaker(self, asked: str) -> Speaker:
        standing = self._standing()
        if isinstance(standing, NotReady):
            raise not_ready(standing)
        if asked and not answers_to(standing, asked):
            raise unknown_model(asked, standing.name)
        return standing

    async def _answer(
        self,
        request: Request,
        speaker: Speaker,
        wanted: Wanted,
        prompts: Sequence[Sequence[int]],
        echoes: Sequence[str],
    ) -> Response:
        parts = parts_of(
            speaker,
            wanted,
            prompts,
            grammar=await grammar_of(speaker, wanted),
            user=_user(request, wanted.user),
            draw=lambda: secrets.randbelow(SEEDS),
        )
        is_chat = request.url.path.endswith("/chat/completions")
        heading = Heading(
            chat=is_chat,
            id=("chatcmpl-" if is_chat else "cmpl-") + secrets.token_hex(12),
            created=int(time.time()),
            model=speaker.name,
            fingerprint=f"{software().replace(' ', '-')}-{speaker.model_id[:12]}",
        )
        writing = Writing(heading, wanted.top_logprobs, echoes, speaker.tokenizer.piece)
        answers = Answers(
            speaker, parts, reading_of(speaker, wanted), self._on_answer, held=not wanted.stream
        )
        if wanted.stream:
            return _stream(answers, writing, with_usage=wanted.include_usage)
        return await _whole(answers, writing, parts)


async def _whole(answers: Answers, writing: Writing, parts: Sequence[Part]) -> Response:
    whole = Whole(writing, len(parts))
    costs = await answers.run(whole.tell)
    timing = server_timing([cost.report for cost in costs], complete=True)
    return _json(whole.response(costs), headers={"Server-Timing": timing})


def _stream(answers: Answers, writing: Writing, *, with_usage: bool) -> Response:
    async def source(write: Write) -> None:
        stream = Stream(writing, write, response, with_usage=with_usage)
        try:
            costs = await answers.run(stream.tell)
        except Exception as error:
            if not stream.has_begun:
                raise  # there is still a status for it
            await write(event(refusal_of(error).as_dict()))
            return
        await stream.end(costs)

    response = EventStream(source, last_words=_ENDING)
    return response


async def _wanted(request: Request, kind: type[T], put: Callable[[T], U]) -> U:
    data = await request.body()

    def read() -> U:
        return put(decode(data, kind))

    return read() if len(data) < LONG_BODY else await trio.to_thread.run_sync(read)


def _user(request: Request, named: str) -> str:
    """Whose turn it is: who holds the key, else the machine and the user it names."""
    caller = caller_of(request.scope)
    return f"key {caller.key}" if caller.key else f"{caller.address} {named}"


def _text(speaker: Speaker, tokens: Sequence[int]) -> str:
    return b"".join(map(speaker.tokenizer.piece, tokens)).decode(errors="replace")


def _json(
    data: Mapping[str, Any], *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(msgspec.json.encode(data), status, headers, "application/json")
