"""The decoding thread where passes fail: who is ended, who goes on, what a lost sequence costs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from node.decode.batch import Batch
from node.decode.continuous.ask import Ask, Chosen, Stopping
from node.decode.continuous.asked import Asked, Ended
from node.decode.continuous.pass_port import PassPort
from node.decode.continuous.worker import MOST_LOSSES, News, Worker
from node.decode.ledger import TripsLedger
from node.decode.session import Session
from node.engine.expert_holes import ExpertInputs, ExpertPort
from node.engine.sampler import Sampler, SamplingSettings
from routing.dispatch.errors import ExpertsUnavailable
from routing.errors import LocalError, PeerError
from routing.wire.codecs import Float32Array
from tests.model_parts import ModelParts, WatchedPort

Parts = Callable[..., ModelParts]

LIMIT = 6


class Faulty:
    """A port for several that computes here, and fails where it is told to."""

    def __init__(self, inner: ExpertPort) -> None:
        self._inner = inner
        self.fails: Callable[[ExpertInputs], Exception | None] = lambda inputs: None
        self.failures = 0

    def leave(self, inputs: ExpertInputs, ledger: TripsLedger) -> Any:
        if (error := self.fails(inputs)) is not None:
            self.failures += 1
            raise error
        return self._inner.leave(inputs)

    def enter(self, ticket: Any) -> Float32Array:
        return self._inner.enter(ticket)

    def give_up(self, ticket: Any) -> None:
        """Nothing here takes long."""


class Bench:
    """A worker on a thread and those who ask it."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.tokens: list[list[int]] = []
        self.ends: dict[int, Ended] = {}
        self._asked: list[Asked] = []
        self._all = threading.Event()
        self.thread = threading.Thread(target=worker.run)

    def hear(self, news: Sequence[News]) -> None:
        for asked, each in news:
            asked.tell(each)

    def ask(self, prompts: Sequence[Sequence[int]], limit: int = LIMIT) -> None:
        """Ask, wait for all ends."""
        for number, prompt in enumerate(prompts):
            self.tokens.append([])

            def tell(each: Chosen | Ended, number: int = number) -> None:
                if isinstance(each, Chosen):
                    self.tokens[number].append(each.token)
                else:
                    self.ends[number] = each
                    if len(self.ends) == len(prompts):
                        self._all.set()

            asked = Asked(Ask(tuple(prompt), limit, SamplingSettings()), tell, time.perf_counter())
            self._asked.append(asked)
            self.worker.ask(asked)
        self.thread.start()
        assert self._all.wait(20)

    def errors(self) -> dict[int, str]:
        return {number: str(end.error) for number, end in self.ends.items() if end.error is not None}


@contextmanager
def working(model: ModelParts, port: Faulty, sessions: int = 4) -> Iterator[Bench]:
    pass_port = PassPort(port)
    with model.backbone(pass_port, n_sequences=sessions + 1, own_caches=True, n_ctx=128) as backbone:
        batch = Batch(backbone, slots=sessions, places=sessions + 1, keep=True)
        worker = Worker(
            batch,
            backbone.context,
            pass_port,
            slots=sessions,
            queue=9,
            guessed=None,
            is_end=lambda token: False,
            tell=lambda news: bench.hear(news),
        )
        bench = Bench(worker)
        yield bench
        worker.stop()
        bench.thread.join(5)
        assert not bench.thread.is_alive()


def alone(model: ModelParts, prompt: Sequence[int], port: ExpertPort | None = None) -> list[int]:
    with model.backbone(port) as backbone:
        session = Session(backbone)
        session.append(list(prompt))
        sampler = Sampler(model.library, SamplingSettings())
        tokens = list(session.generate(sampler, LIMIT, lambda token: False))
        sampler.close()
    return tokens


def prompts_of(model: ModelParts) -> list[list[int]]:
    return [model.tokens(6 + number, seed=number) for number in range(4)]


def test_one_bad_sequence_is_found_by_halves(parts: Parts) -> None:
    # The error tells nothing; passes with this row fail, and only they.
    model = parts("demo")
    prompts = prompts_of(model)
    expected = [alone(model, prompt) for prompt in prompts]
    watched = WatchedPort(model.local())
    alone(model, prompts[2], watched)
    decoded = [inputs.x for inputs in watched.calls if inputs.call.layer == 0 and len(inputs.x) == 1]
    bad = decoded[1][0].tobytes()
    port = Faulty(model.local())

    def fails(inputs: ExpertInputs) -> Exception | None:
        return LocalError("no") if any(row.tobytes() == bad for row in inputs.x) else None

    port.fails = fails
    with working(model, port) as bench:
        bench.ask(prompts)
        assert bench.errors() == {2: "no"}
        stats = bench.worker.stats()
    assert bench.tokens[2] == expected[2][:2]
    assert [bench.tokens[number] for number in (0, 1, 3)] == [expected[number] for number in (0, 1, 3)]
    assert stats.failed == 1 and stats.answered == 3
    assert port.failures == 3  # all four, two, one


def test_who_needs_what_is_missing_is_known(parts: Parts) -> None:
    model = parts("demo")
    prompts = prompts_of(model)
    expected = [alone(model, prompt) for prompt in prompts]
    port = Faulty(model.local())
    gone: list[set[int]] = []

    def fails(inputs: ExpertInputs) -> Exception | None:
        if inputs.call.layer != 2 or len(inputs.ids) != 4 or gone:
            return None
        gone.append({int(inputs.ids[1][0])})
        return ExpertsUnavailable(2, sorted(gone[0]), {})

    port.fails = fails
    with working(model, port) as bench:
        bench.ask(prompts)
        errors = bench.errors()
        stats = bench.worker.stats()
    assert 1 in errors and len(errors) < 4 and port.failures == 1
    assert all("layer 2: no peer holds expert" in error for error in errors.values())
    for number in range(4):
        if number in errors:
            assert bench.tokens[number] == expected[number][: len(bench.tokens[number])]
        else:
            assert bench.tokens[number] == expected[number]
    assert stats.failed == len(errors) and stats.answered == 4 - len(errors)


@pytest.mark.parametrize("times", [1, MOST_LOSSES])
def test_models_that_cannot_go_back_read_again(parts: Parts, times: int) -> None:
    model = parts("granitehybrid")
    prompts = prompts_of(model)
    port = Faulty(model.local())

    def run() -> tuple[list[list[int]], dict[int, str]]:
        with working(model, port) as bench:
            bench.ask(prompts)
            return bench.tokens, bench.errors()

    expected, errors = run()
    assert not errors
    left = times

    def fails(inputs: ExpertInputs) -> Exception | None:
        nonlocal left
        if left and len(inputs.ids) == 4:
            left -= 1
            return PeerError("gone")
        return None

    port.fails = fails
    found, errors = run()
    if times == 1:
        assert found == expected and not errors
    else:
        assert set(errors.values()) == {"gone"} and len(errors) == 4


def test_a_thread_that_ends_tells_everybody(parts: Parts) -> None:
    model = parts("demo")
    with working(model, Faulty(model.local()), sessions=1) as bench:
        bench.worker.stop()
        with pytest.raises(Stopping):
            bench.ask([[1]])
        bench.thread.start()


def test_what_a_sampler_refuses_ends_one(parts: Parts) -> None:
    model = parts("demo")
    told: list[Chosen | Ended] = []
    with working(model, Faulty(model.local())) as bench:
        wrong = SamplingSettings(logit_bias=((10**6, 1.0),))
        bench.worker.ask(Asked(Ask((1,), 2, wrong), told.append, time.perf_counter()))
        bench.ask([[1, 2]])
        assert not bench.errors() and len(bench.tokens[0]) == LIMIT
    (end,) = told
    assert isinstance(end, Ended) and "vocabulary" in str(end.error)
