"""A batch against its sequences alone: the same tokens, fewer passes, and nothing lost when a pass fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from typing import Any

import pytest

from node.decode.backbone import SequenceLost
from node.decode.batch import Batch
from node.decode.continuous.schedule import MOST_MISSED
from node.decode.ledger import PassDone
from node.decode.members import Member
from node.decode.session import Session
from node.engine.context import Context, Row
from node.engine.expert_holes import ExpertInputs
from node.engine.library import EngineError
from node.engine.sampler import Sampler, SamplingSettings
from routing.errors import PeerError
from tests.model_parts import ModelParts, WatchedPort
from tests.zoo.names import ZOO

Parts = Callable[..., ModelParts]

DRAWN = SamplingSettings(temperature=1.0, seed=11)
LENGTHS = (9, 1, 33, 2, 70, 14, 5, 64, 17)
LIMIT = 8


def prompts_of(model: ModelParts, lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    return [model.tokens(length, seed=number) for number, length in enumerate(lengths)]


def alone(model: ModelParts, prompt: list[int], sampling: SamplingSettings, limit: int = LIMIT) -> list[int]:
    """What a session of its own gives; no token ends it."""
    with model.backbone() as backbone:
        session = Session(backbone)
        session.append(prompt)
        sampler = Sampler(model.library, sampling)
        tokens = list(session.generate(sampler, limit, lambda token: False))
        sampler.close()
    return tokens


@contextmanager
def samplers(model: ModelParts, sampling: SamplingSettings) -> Iterator[Callable[[], Sampler]]:
    made: list[Sampler] = []

    def make() -> Sampler:
        made.append(Sampler(model.library, sampling))
        return made[-1]

    yield make
    for each in made:
        each.close()


def drain(batch: Batch) -> dict[Member, list[int]]:
    """Step until every member has its tokens."""
    found: dict[Member, list[int]] = {}
    while batch.members:
        for member, token in batch.step():
            found.setdefault(member, []).append(token)
            if member.is_full:
                batch.remove(member)
    return found


@pytest.mark.parametrize("sampling", [SamplingSettings(), DRAWN], ids=["greedy", "drawn"])
def test_each_gets_what_it_would_get_alone(parts: Parts, sampling: SamplingSettings) -> None:
    # Nine sequences of a model that takes seven rows: passes are full until the first of them are done.
    model = parts("demo")
    prompts = prompts_of(model)
    passes: list[PassDone] = []
    with (
        model.backbone(n_ctx=128, n_sequences=9, own_caches=True) as backbone,
        samplers(model, sampling) as make,
    ):
        assert backbone.most_rows == 7
        batch = Batch(backbone, slots=9, on_pass=passes.append)
        members = [batch.add(prompt, make(), LIMIT) for prompt in prompts]
        found = drain(batch)
    for member, prompt in zip(members, prompts, strict=True):
        assert found[member] == alone(model, prompt, sampling), len(prompt)
    assert [done.rows for done in passes[:9]] == list(LENGTHS) and not any(p.decoding for p in passes[:9])
    rows = [done.rows for done in passes[9:]]
    assert rows[:7] == [7] * 7 and sum(rows) == 9 * (LIMIT - 1) and all(done.decoding for done in passes[9:])
    assert sum(done.tokens for done in passes) == 9 * LIMIT


def test_nobody_is_left_behind(parts: Parts) -> None:
    # Eight where seven rows are a pass: the two at the ends are in every other one, and change places.
    model = parts("demo")
    limit = 60
    prompts = [model.tokens(4 + number, seed=number) for number in range(8)]
    passes: list[PassDone] = []
    with (
        model.backbone(n_ctx=128, n_sequences=9, own_caches=True) as backbone,
        samplers(model, DRAWN) as make,
    ):
        batch = Batch(backbone, slots=8, places=9, on_pass=passes.append)
        members = [batch.add(prompt, make(), limit) for prompt in prompts]
        found: dict[Member, list[int]] = {}
        while batch.members:
            for member, token in batch.step():
                found.setdefault(member, []).append(token)
                if member.is_full:
                    batch.remove(member)
            lengths = [len(found[member]) for member in batch.members if member in found]
            assert max(lengths, default=0) - min(lengths, default=0) <= MOST_MISSED + 2
    rows = [done.rows for done in passes[8:]]
    assert sum(rows) == 8 * (limit - 1) and len(rows) <= 8 * (limit - 1) / 7 + MOST_MISSED
    for member, prompt in zip(members, prompts, strict=True):
        assert found[member] == alone(model, prompt, DRAWN, limit)


def test_sequences_come_and_go(parts: Parts) -> None:
    # Each of them takes the place of one that was finished, beside others that are under way.
    model = parts("qwen3moe")
    prompts = prompts_of(model)
    waiting = list(enumerate(prompts))
    found: dict[int, list[int]] = {}
    with (
        model.backbone(n_ctx=128, n_sequences=3, own_caches=True) as backbone,
        samplers(model, DRAWN) as make,
    ):
        batch = Batch(backbone, slots=3)
        numbers: dict[Member, int] = {}
        while waiting or batch.members:
            while waiting and batch.fits(len(waiting[0][1]), LIMIT):
                number, prompt = waiting.pop(0)
                numbers[batch.add(prompt, make(), 3 + number)] = number
            for member, token in batch.step():
                found.setdefault(numbers[member], []).append(token)
                if member.is_full:
                    batch.remove(member)
    assert found == {number: alone(model, prompt, DRAWN, 3 + number) for number, prompt in enumerate(prompts)}


def test_prompts_may_share_a_pass_where_bits_may_differ(parts: Parts) -> None:
    model = parts("demo")
    passes: list[PassDone] = []
    with model.backbone(n_ctx=512, n_ubatch=64, n_sequences=9) as backbone, samplers(model, DRAWN) as make:
        batch = Batch(backbone, slots=9, on_pass=passes.append)
        for prompt in prompts_of(model):
            batch.add(prompt, make(), LIMIT)
        found = drain(batch)
    assert all(len(tokens) == LIMIT for tokens in found.values()) and len(found) == 9
    # 215 rows of prompts in passes of 64; who is read already goes on with the others' prompts.
    assert [done.rows for done in passes[:2]] == [64, 64]
    assert len(passes) < 9 + LIMIT and max(done.rows for done in passes) <= 64
    assert sum(done.tokens for done in passes) == 9 * LIMIT


@pytest.mark.parametrize("exact", [True, False])
def test_a_long_prompt_takes_several_passes(parts: Parts, exact: bool) -> None:
    model = parts("qwen3moe")
    passes: list[PassDone] = []
    prompt = model.tokens(50)
    with (
        model.backbone(n_ctx=256, n_ubatch=16, n_sequences=2, own_caches=exact) as backbone,
        samplers(model, DRAWN) as make,
    ):
        batch = Batch(backbone, slots=2, on_pass=passes.append)
        member = batch.add(prompt, make(), 2)
        batch.add(model.tokens(3, seed=4), make(), 2)
        assert len(drain(batch)[member]) == 2
    assert [done.rows for done in passes] == ([16, 16, 16, 2, 3, 2] if exact else [16, 16, 16, 5, 2])


class FailingOnce(WatchedPort):
    """Refuses one call, by number."""

    def __init__(self, inner: Any, call: int) -> None:
        super().__init__(inner)
        self.call = call

    def leave(self, inputs: ExpertInputs) -> Any:
        result = super().leave(inputs)
        if len(self.calls) == self.call:
            raise PeerError("gone")
        return result


@pytest.mark.parametrize("name", ["qwen3moe", "granitehybrid"])
@pytest.mark.parametrize("own_caches", [True, False])
@pytest.mark.parametrize("call", [2, 14, 23])
def test_a_pass_that_fails_is_made_again(parts: Parts, name: str, call: int, own_caches: bool) -> None:
    # Models that cannot go back read the prompts and what followed again.
    model = parts(name)
    prompts = prompts_of(model, (5, 9, 12))

    def tokens(port: WatchedPort) -> tuple[list[list[int]], int]:
        found: dict[Member, list[int]] = {}
        failures = 0
        with (
            model.backbone(port, n_ctx=128, n_sequences=3, own_caches=own_caches) as backbone,
            samplers(model, DRAWN) as make,
        ):
            batch = Batch(backbone, slots=3)
            members = [batch.add(prompt, make(), LIMIT) for prompt in prompts]
            while batch.members:
                try:
                    chosen = batch.step()
                except (PeerError, SequenceLost):
                    failures += 1
                    continue
                for member, token in chosen:
                    found.setdefault(member, []).append(token)
                    if member.is_full:
                        batch.remove(member)
        return [found[member] for member in members], failures

    expected, none = tokens(WatchedPort(model.local()))
    found, failures = tokens(FailingOnce(model.local(), call))
    assert (none, failures) == (0, 1)
    assert found == expected


def test_room(parts: Parts) -> None:
    model = parts("demo")
    with model.backbone(n_ctx=100, n_sequences=2) as backbone, samplers(model, SamplingSettings()) as make:
        batch = Batch(backbone, slots=2)
        with pytest.raises(EngineError, match="the prompt is empty"):
            batch.add([], make(), 5)
        assert batch.fits(60, 1000) and not batch.fits(101, 1)
        first = batch.add(model.tokens(60), make(), 11)  # the last token is never computed: 70
        assert batch.fits(30, 1) and not batch.fits(30, 2) and batch.fits(20, 11)
        with pytest.raises(EngineError, match="a context of 100 tokens has no room for a prompt of 31"):
            batch.add(model.tokens(31), make(), 1)
        batch.add(model.tokens(30), make(), 1)
        assert not batch.fits(1, 1)  # no place
        batch.remove(first)
        assert batch.fits(70, 1)


def test_a_context_that_becomes_full(parts: Parts) -> None:
    model = parts("demo")
    prompt = model.tokens(90)
    with model.backbone(n_ctx=100) as backbone:
        session = Session(backbone)
        session.append(prompt)
        sampler = Sampler(model.library, DRAWN)
        expected = list(session.generate(sampler, 50, lambda token: False))
        sampler.close()
    with model.backbone(n_ctx=100) as backbone, samplers(model, DRAWN) as make:
        batch = Batch(backbone, slots=1)
        member = batch.add(prompt, make(), 50)
        while not member.is_full:
            batch.step()
    assert member.tokens[90:] == expected and len(expected) == 11


def test_single_rows_have_company(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    model = parts("demo")
    port = WatchedPort(model.local())
    rows: list[int] = []
    with model.backbone(port, own_caches=True) as backbone, samplers(model, DRAWN) as make:
        compute = backbone.context.compute

        def counted(batch: Sequence[Row]) -> None:
            rows.append(len(batch))
            compute(batch)

        monkeypatch.setattr(backbone.context, "compute", counted)
        batch = Batch(backbone, slots=1)
        batch.add(model.tokens(1), make(), 3)
        drain(batch)
    assert rows == [2, 2, 2]
    assert {len(inputs.ids) for inputs in port.calls} == {1}


CANNOT_REWIND = {
    "deepseek4", "granitehybrid", "jamba", "jamba@dense", "kimi-k3", "minimax-01", "nemotron_h_moe",
    "nemotron_h_moe@nolatent", "qwen3next",
}  # fmt: skip
"""Alone they decode one row a pass, without company."""

NO_FLASH_ATTENTION = {"grok", "minimax-m3"}
"""Their attention multiplies the rows of a sequence, of which a batch has one and company makes two."""

NOT_CAUSAL = {"llada-moe"}


@pytest.mark.parametrize("name", [name for name in ZOO if name not in ("nomic-bert-moe",)])
def test_bits_of_the_zoo(parts: Parts, name: str) -> None:
    """Logits of a batch, whose members come to their ends one by one, against each alone."""
    model = parts(name)
    lengths, limits = (9, 3, 20, 5), (6, 3, 7, 9)
    outputs: list[list[bytes]] = []

    class Watched(Sampler):
        def __init__(self) -> None:
            super().__init__(model.library, DRAWN)
            self.seen: list[bytes] = []
            outputs.append(self.seen)

        def sample(self, context: Context, row: int) -> int:
            self.seen.append(context.outputs([row]).tobytes())
            return super().sample(context, row)

    prompts = prompts_of(model, lengths)
    for prompt, limit in zip(prompts, limits, strict=True):
        with model.backbone(n_ctx=64) as backbone, closing(Watched()) as sampler:
            session = Session(backbone)
            session.append(prompt)
            list(session.generate(sampler, limit, lambda token: False))
    expected, outputs = outputs, []
    with model.backbone(n_ctx=64, n_sequences=4, own_caches=True) as backbone, ExitStack() as opened:
        batch = Batch(backbone, slots=4)
        for prompt, limit in zip(prompts, limits, strict=True):
            batch.add(prompt, opened.enter_context(closing(Watched())), limit)
        drain(batch)
    assert [len(each) for each in outputs] == list(limits)
    assert [each[0] for each in outputs] == [each[0] for each in expected]  # the prompts
    others = CANNOT_REWIND | NO_FLASH_ATTENTION | NOT_CAUSAL
    assert (outputs == expected) is (name not in others)


@pytest.mark.parametrize("name", [name for name in ZOO if name not in ("nomic-bert-moe",)])
def test_caches_of_the_zoo(parts: Parts, name: str) -> None:
    """Sequences come and go, change places, take what others have read, and come back with a further turn."""
    model = parts(name)
    grid, limit = 8, 5
    common, more = model.tokens(19, seed=5), model.tokens(6, seed=99)
    prompts = [common + model.tokens(3 + number, seed=number) for number in range(3)]
    prompts += [model.tokens(length, seed=length) for length in (9, 3, 20, 5)]

    def talk(prompt: list[int]) -> list[list[int]]:
        answers = []
        with model.backbone(n_ctx=96, n_ubatch=grid) as backbone, samplers(model, DRAWN) as make:
            session = Session(backbone)
            for turn in (prompt, more):
                session.append(turn)
                answers.append(list(session.generate(make(), limit, lambda token: False)))
        return answers

    expected = [talk(prompt) for prompt in prompts]
    found: dict[tuple[int, int], list[int]] = {}
    kept: dict[tuple[int, int], int] = {}
    moved = False
    with (
        model.backbone(n_ctx=96, n_ubatch=grid, n_sequences=5, own_caches=True) as backbone,
        samplers(model, DRAWN) as make,
    ):
        ticks = count()  # each pass takes as long as any other
        batch = Batch(
            backbone, slots=4, places=5, keep=True, reading_share=0.5, clock=lambda: float(next(ticks))
        )
        waiting = [(number, 0, prompt) for number, prompt in enumerate(prompts)]
        which: dict[Member, tuple[int, int]] = {}
        while waiting or batch.members:
            while waiting and len(batch.members) < 4:
                number, turn, prompt = waiting.pop(0)
                member = batch.add(prompt, make(), limit + number % 3 if turn else limit)
                which[member] = (number, turn)
            places = {member: member.sequence for member in batch.members}
            for member, token in batch.step():
                moved |= member.sequence != places[member]
                number, turn = which[member]
                answer = found.setdefault((number, turn), [])
                answer.append(token)
                kept[number, turn] = member.cached
                if member.is_full:
                    batch.remove(member)
                    if not turn:
                        waiting.insert(0, (number, 1, prompts[number] + answer + more))
    assert moved
    assert [kept[number, 0] for number in range(3)] == ([0, 16, 16] if backbone.can_rewind else [0] * 3)
    for number, prompt in enumerate(prompts):
        assert found[number, 0] == expected[number][0] or name in NOT_CAUSAL
        # Its old place may have been needed: then the turn was read anew, with other last bits.
        assert kept[number, 1] in (0, 16, len(prompt) + limit - 1)
        if kept[number, 1] > 16:
            assert found[number, 1][:limit] == expected[number][1] or name in NOT_CAUSAL
    assert sum(kept[number, 1] > 16 for number in range(len(prompts))) >= 4
