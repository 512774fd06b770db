"""The chat itself: a line, an answer, and again; and what Ctrl-C means meanwhile."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import trio

from node.chat.conversation import COMMANDS, Command, Conversation, parse_line
from node.chat.events import Heard, Refused
from node.chat.lines import PipedLines, TerminalLines
from node.chat.partner import Partner
from node.chat.screen import PROMPT, Screen


class Talk:
    """A chat.

    Args:
        options: further fields of each request: the sampling.
        as_json: lines may be objects (`parse_line`).
    """

    def __init__(
        self,
        partner: Partner,
        screen: Screen,
        conversation: Conversation,
        options: Mapping[str, Any],
        *,
        as_json: bool,
    ) -> None:
        self._partner = partner
        self._screen = screen
        self._conversation = conversation
        self._options = options
        self._as_json = as_json
        self._usage: Mapping[str, Any] = {}
        self._answer: trio.CancelScope | None = None  # of the one under way
        self._refused = False

    async def run(self, lines: TerminalLines | PipedLines) -> bool:
        """Until the lines end; whether all turns were answered.

        Ctrl-C stops the answer under way; a second one, or one at the prompt, is passed on to whoever had
        the signal before.
        """
        passed_on = False
        with trio.open_signal_receiver(signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:

                async def watch() -> None:
                    nonlocal passed_on
                    async for _ in signals:
                        if self._answer is None or self._answer.cancel_called:
                            passed_on = True
                            nursery.cancel_scope.cancel()
                            return
                        self._answer.cancel()

                nursery.start_soon(watch)
                while (line := await lines.next(PROMPT)) is not None:
                    await self._take(line)
                nursery.cancel_scope.cancel()
        if passed_on:
            signal.raise_signal(signal.SIGINT)
            await trio.sleep_forever()
        return not self._refused

    async def _take(self, line: str) -> None:
        match parse_line(line, as_json=self._as_json):
            case None:
                pass
            case Command(name, rest):
                self._command(name, rest)
            case turn:
                await self._turn(turn.text)

    def _command(self, name: str, rest: str) -> None:
        if name == "/reset" and not rest:
            self._conversation.reset()
            self._screen.note("forgotten")
        elif name == "/system":
            self._conversation.system = rest
            self._screen.note("noted" if rest else "taken back")
        elif name == "/stats" and not rest:
            self._screen.stats(self._usage)
        elif name == "/help":
            for command, what in COMMANDS.items():
                self._screen.note(f"{command:<14}{what}")
        else:
            self._screen.note(
                f"{name[:40]} is no command; /help tells which there are, //... says it to the model"
            )

    async def _turn(self, text: str) -> None:
        heard = Heard()
        body = {
            "messages": self._conversation.messages_with(text),
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._options,
        }
        refused: Refused | None = None
        with trio.CancelScope() as scope:
            self._answer = scope
            try:
                await self._listen(body, heard)
            except* Refused as group:
                refused = _first(group)
        stopped, self._answer = scope.cancelled_caught, None
        if refused is not None:
            self._refused = True
            self._screen.error(str(refused), refused.code)
            return
        self._usage = heard.usage
        if heard.text or not stopped:
            self._conversation.note(text, heard.text)
        self._screen.end(heard, stopped=stopped)

    async def _listen(self, body: Mapping[str, Any], heard: Heard) -> None:
        async with self._partner.ask(body) as chunks:
            async for chunk in chunks:
                self._screen.text(heard.take(chunk))


def _first(group: BaseExceptionGroup[Refused]) -> Refused:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, Refused)
    return error
