"""All answers of one request: asked for together, told of as they come."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import trio

from node.decode.continuous.ask import Ask
from node.decode.continuous.report import AnswerReport
from node.decode.convictions import Spoiled
from node.gateway.bodies import MOST_CHOICES
from node.gateway.errors import refusal_for
from node.gateway.reading import Heard, Reader, Reading
from node.gateway.speaker import Answered, Speaker
from node.gateway.usage import Cost
from routing.errors import PanalError

AT_ONCE = MOST_CHOICES
"""Answers of one request that are asked for at the same time: a request of many prompts must not fill the
queue that others wait in."""


@dataclass(frozen=True)
class Part:
    """One answer that is wanted.

    Attributes:
        index: among the choices; prompt: number of its prompt.
    """

    index: int
    prompt: int
    ask: Ask


@dataclass(frozen=True)
class Spoken:
    """What has come of one answer.

    Attributes:
        report: what it took so far.
        finish: why it ended; None: more comes.
    """

    index: int
    heard: Heard
    report: AnswerReport
    finish: str | None = None


Tell = Callable[[Spoken], Awaitable[None]]

MOST_TIMES = 4
"""How often an answer is asked for that a false server has spoiled: each time without one more of them."""


class Answers:
    """Asks a speaker for all parts of a request.

    Args:
        on_answer: told of each answer that has ended, however it did.
        held: nothing is told of an answer before it and its audits (node.market.auditor) have ended; one that
            rests on false answers is asked for again, with the same seed. Else it ends with an error.
    """

    def __init__(
        self,
        speaker: Speaker,
        parts: Sequence[Part],
        reading: Reading,
        on_answer: Callable[[Answered], None],
        *,
        held: bool = False,
    ) -> None:
        self._speaker = speaker
        self._parts = parts
        self._reading = reading
        self._on_answer = on_answer
        self._held = held

    async def run(self, tell: Tell) -> list[Cost]:
        """Answer; what each has cost, in the order of the parts.

        Args:
            tell: gets what has come, of all answers in turn.

        Raises:
            Refusal: one of them failed, perhaps in a group; the others are given up.
        """
        if len(self._parts) == 1:
            return [await self._speak(self._parts[0], tell)]
        costs: dict[int, Cost] = {}
        room = trio.CapacityLimiter(AT_ONCE)

        async def speak(part: Part) -> None:
            async with room:
                costs[part.index] = await self._speak(part, tell)

        async with trio.open_nursery() as nursery:
            for part in self._parts:
                nursery.start_soon(speak, part)
        return [costs[part.index] for part in self._parts]

    async def _speak(self, part: Part, tell: Tell) -> Cost:
        for again in range(MOST_TIMES):
            said: list[Spoken] = []

            async def keep(spoken: Spoken, said: list[Spoken] = said) -> None:
                said.append(spoken)

            try:
                cost = await self._speak_once(part, keep if self._held else tell)
            except Spoiled as error:
                if not self._held or again + 1 == MOST_TIMES:
                    raise refusal_for(error) from error
            except PanalError as error:
                raise refusal_for(error) from error
            else:
                for spoken in said:
                    await tell(spoken)
                return cost
        raise AssertionError("the last time has returned or raised")

    async def _speak_once(self, part: Part, tell: Tell) -> Cost:
        reader = Reader(self._reading, self._speaker.tokenizer.piece)
        report: AnswerReport | None = None
        read = 0
        try:
            async with self._speaker.ask(part.ask) as answering:
                try:
                    async for chosen in answering:
                        read += 1
                        heard = reader.feed(chosen.token, chosen.logprob)
                        if heard.is_something:
                            await tell(Spoken(part.index, heard, answering.report))
                        if reader.is_over:
                            break
                    if self._held:
                        await answering.settled()
                finally:
                    report = answering.report
            report = answering.report
        except PanalError as error:
            self._note(report, "failed", str(error))
            raise
        except trio.Cancelled:
            self._note(report, "left")
            raise
        last, finish = reader.finish(), reader.finish_reason(report.stopped)
        self._note(report, finish)
        await tell(Spoken(part.index, last, report, finish))
        return Cost(part.prompt, read, report)

    def _note(self, report: AnswerReport | None, finish: str, error: str = "") -> None:
        if report is not None:
            speaker = self._speaker
            self._on_answer(Answered(report, speaker.name, speaker.model_id, time.time(), finish, error))
