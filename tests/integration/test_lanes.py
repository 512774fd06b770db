"""Lanes: one computes while the others wait, and each computes what it would compute alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from node.decode.batch import Batch
from node.decode.batch_answers import BatchRun
from node.decode.batch_report import BatchAnswer
from node.decode.lanes import Lane, Lanes
from node.decode.ledger import TripsLedger
from node.engine.expert_holes import ExpertInputs, ExpertPort
from node.engine.sampler import Sampler, SamplingSettings
from routing.errors import PeerError
from routing.wire.codecs import Float32Array
from tests.model_parts import ModelParts, WatchedPort

Parts = Callable[..., ModelParts]

DRAWN = SamplingSettings(temperature=1.0, seed=3)
WAIT_SECONDS = 20.0


class SharedLocal:
    """A `SharedPort` that computes here; notes calls by the lane's ledger, and who computes at once."""

    def __init__(self, inner: ExpertPort) -> None:
        self.inner = inner
        self.calls: dict[int, list[ExpertInputs]] = {}
        self.computing = 0
        self.most_computing = 0

    def leave(self, inputs: ExpertInputs, ledger: TripsLedger) -> Any:
        self.computing += 1
        self.most_computing = max(self.most_computing, self.computing)
        self.calls.setdefault(id(ledger), []).append(inputs)
        ticket = self.inner.leave(inputs)
        self.computing -= 1
        return ticket

    def enter(self, ticket: Any) -> Float32Array:
        return self.inner.enter(ticket)


class Meeting(SharedLocal):
    """An answer comes only when both lanes wait for one."""

    def __init__(self, inner: ExpertPort) -> None:
        super().__init__(inner)
        self.meeting = threading.Barrier(2)

    def enter(self, ticket: Any) -> Float32Array:
        self.meeting.wait(WAIT_SECONDS)
        return super().enter(ticket)


class Slow(SharedLocal):
    """An answer takes its time."""

    def enter(self, ticket: Any) -> Float32Array:
        time.sleep(0.002)
        return super().enter(ticket)


@contextmanager
def lanes_of(model: ModelParts, port: SharedLocal, count: int, **options: Any) -> Iterator[Lanes]:
    settings = {"n_ctx": 128, "n_sequences": 4, "own_caches": True, **options}
    with model.backbone(n_ctx=64) as beside, closing(Lanes(beside, port, count=count, **settings)) as lanes:
        yield lanes


def prompts_of(model: ModelParts, count: int = 8) -> list[list[int]]:
    return [model.tokens(5 + 9 * (number % 4), seed=number) for number in range(count)]


def test_one_computes_while_the_other_waits(parts: Parts) -> None:
    # Every trip of one lane ends only when the other waits, too: without overlap this would never end.
    model = parts("demo")
    port = Meeting(model.local())
    with lanes_of(model, port, 2) as lanes:
        steps = dict.fromkeys(lanes.lanes, 0)
        batches: dict[Lane, Batch] = {}
        samplers = [Sampler(model.library, DRAWN) for _ in range(2)]
        for lane, sampler in zip(lanes.lanes, samplers, strict=True):
            batches[lane] = Batch(lane.backbone, slots=1, on_pass=lane.ledger.count_pass)
            batches[lane].add(model.tokens(9), sampler, 6)

        def step(lane: Lane) -> bool:
            batches[lane].step()
            steps[lane] += 1
            return steps[lane] < 6

        lanes.run(step)
        assert not port.meeting.broken
        assert [member.tokens for member in batches[lanes.lanes[0]].members] == [
            member.tokens for member in batches[lanes.lanes[1]].members
        ]
        for sampler in samplers:
            sampler.close()
    assert port.most_computing == 1
    assert [len(calls) for calls in port.calls.values()] == [6 * 4] * 2


@pytest.mark.parametrize("name", ["demo", "gpt-oss", "cohere2moe"])
def test_a_lane_computes_what_it_would_alone(parts: Parts, name: str) -> None:
    model = parts(name)
    prompts = prompts_of(model)

    def calls_of(lanes: Lanes, port: SharedLocal, members: list[list[list[int]]]) -> list[list[bytes]]:
        batches: dict[Lane, Batch] = {}
        samplers: list[Sampler] = []
        for lane, own in zip(lanes.lanes, members, strict=True):
            batches[lane] = Batch(lane.backbone, slots=4)
            for number, prompt in enumerate(own):
                samplers.append(Sampler(model.library, DRAWN))
                batches[lane].add(prompt, samplers[-1], 3 + number)

        def step(lane: Lane) -> bool:
            for member, _ in batches[lane].step():
                if member.is_full:
                    batches[lane].remove(member)
            return bool(batches[lane].members)

        lanes.run(step)
        for sampler in samplers:
            sampler.close()
        return [
            [call.x.tobytes() + call.ids.tobytes() for call in port.calls[id(lane.ledger)]]
            for lane in lanes.lanes
        ]

    halves = [prompts[:4], prompts[4:]]
    port: SharedLocal = Slow(model.local())
    with lanes_of(model, port, 2) as lanes:
        together = calls_of(lanes, port, halves)
    for half, found in zip(halves, together, strict=True):
        port = SharedLocal(model.local())
        with lanes_of(model, port, 1) as lanes:
            assert calls_of(lanes, port, [half]) == [found]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_answers_come_in_order_whoever_gave_them(parts: Parts, exact: bool, count: int) -> None:
    model = parts("demo")
    prompts = prompts_of(model, 10)
    told: list[BatchAnswer] = []
    with lanes_of(model, Slow(model.local()), count, n_ctx=512, n_sequences=10, own_caches=exact) as lanes:
        report = BatchRun(lanes, prompts, 5, DRAWN, on_answer=told.append).run()
        ledgers = [lane.ledger for lane in lanes.lanes]
    assert [answer.prompt for answer in told] == list(range(1, 11))
    assert [answer.prompt_tokens for answer in told] == [len(prompt) for prompt in prompts]
    assert report.prompts == 10 and report.tokens == sum(len(answer.tokens) for answer in told)
    assert report.lanes == count and report.prompt_tokens == sum(map(len, prompts))
    assert report.trips.passes == sum(ledger.passes for ledger in ledgers) > 0
    assert all(ledger.passes for ledger in ledgers)  # every lane had its part
    assert 0 < report.prompt_seconds < report.seconds
    assert {answer.stopped for answer in told} <= {"length", "end"}
    if exact:
        expected = WatchedPort(model.local())
        for answer, prompt in list(zip(told, prompts, strict=True))[::3]:
            with model.backbone(expected, n_sequences=1, own_caches=True) as backbone:
                sampler = Sampler(model.library, DRAWN)
                batch = Batch(backbone, slots=1)
                member = batch.add(prompt, sampler, 5)
                while not member.is_full:
                    batch.step()
                sampler.close()
            assert member.tokens[len(prompt) :][: len(answer.tokens)] == answer.tokens


class Refusing(SharedLocal):
    """Refuses the nth call that leaves."""

    def __init__(self, inner: ExpertPort, number: int) -> None:
        super().__init__(inner)
        self.number = number

    def leave(self, inputs: ExpertInputs, ledger: TripsLedger) -> Any:
        self.number -= 1
        if self.number == 0:
            raise PeerError("gone")
        return super().leave(inputs, ledger)


@pytest.mark.parametrize("number", [1, 2, 37])
def test_an_error_in_one_lane_ends_all(parts: Parts, number: int) -> None:
    model = parts("demo")
    port = Refusing(model.local(), number)
    before = threading.active_count()
    with lanes_of(model, port, 2) as lanes:
        with pytest.raises(PeerError, match="gone"):
            BatchRun(lanes, prompts_of(model), 20, DRAWN).run()
        assert threading.active_count() == before
        # And they can be used again.
        told: list[BatchAnswer] = []
        for lane in lanes.lanes:
            lane.backbone.context.clear()
        BatchRun(lanes, prompts_of(model), 2, DRAWN, on_answer=told.append).run()
    assert len(told) == 8
