"""The decoder over real servers: each gets what it would get alone, and nobody pays for others."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio

from node.decode.continuous import opening
from node.decode.continuous.ask import Ask, QueueFull, Stopping
from node.decode.continuous.decoder import Decoder
from node.decode.continuous.opening import DecoderSettings
from node.decode.continuous.report import AnswerReport
from node.decode.live_backbone import BackboneSettings, LiveBackbone, live_backbone
from node.decode.session import Session
from node.engine.kernels import Kernels
from node.engine.library import EngineError
from node.engine.logprobs import logprob_of
from node.engine.sampler import Sampler, SamplingSettings
from node.serve.server import ExpertServer
from node.swarm.place import Place
from routing.dispatch.errors import ExpertsUnavailable
from routing.errors import PanalError
from routing.identity import Identity
from routing.quic.endpoint import Endpoint
from routing.quic.stream import Stream
from routing.wire import messages
from tests.model_parts import ModelParts, WatchedPort, rows
from tests.served import address_of, cells_of, handlers_of, listening, run, serving

Parts = Callable[..., ModelParts]

GREEDY = SamplingSettings()
SETTINGS = BackboneSettings(threads=1, context=256, deadline=10.0)


def warm(seed: int) -> SamplingSettings:
    return SamplingSettings(temperature=0.8, seed=seed)


@asynccontextmanager
async def decoding(
    model: ModelParts,
    settings: BackboneSettings = SETTINGS,
    endpoints: Sequence[Endpoint] = (),
    **decoder: Any,
) -> AsyncIterator[tuple[Decoder, LiveBackbone]]:
    """A decoder over these servers, or over two with half of the experts each."""
    if not endpoints:
        half = model.manifest.calls[0].n_experts // 2
        first, second = cells_of(model, [range(half)]), cells_of(model, [range(half, 2 * half)])
        async with (
            serving(model, first) as (_, one),
            serving(model, second) as (_, two),
            decoding(model, settings, (one, two), **decoder) as opened,
        ):
            yield opened
        return
    place = Place.among([address_of(each) for each in endpoints], identity=Identity.generate())
    async with live_backbone(model.library, model.stored, place=place, settings=settings) as live:
        await live.covered()
        made = Decoder(live, DecoderSettings(**decoder))
        async with trio.open_nursery() as nursery:
            await nursery.start(made.run)
            yield made, live
            nursery.cancel_scope.cancel()


async def answer(decoder: Decoder, ask: Ask, most: int | None = None) -> tuple[list[int], AnswerReport]:
    """The tokens of an answer, up to `most` of them, and what it took."""
    tokens: list[int] = []
    async with decoder.ask(ask) as answering:
        async for chosen in answering:
            tokens.append(chosen.token)
            if len(tokens) == most:
                break
    return tokens, answering.report


def alone(
    model: ModelParts, turns: Sequence[Sequence[int]], sampling: SamplingSettings, limit: int, **options: Any
) -> list[list[int]]:
    """What a session of its own gives to each turn of a talk."""
    answers = []
    with model.backbone(**{"n_ctx": 256, **options}) as backbone:
        session = Session(backbone)
        for turn in turns:
            sampler = Sampler(model.library, sampling)
            session.append(list(turn))
            answers.append(list(session.generate(sampler, limit, lambda token: False)))
            sampler.close()
    return answers


def asked(tokens: Sequence[int], limit: int = 12, sampling: SamplingSettings = GREEDY, user: str = "") -> Ask:
    return Ask(tuple(tokens), limit, sampling, user)


def test_each_gets_what_it_would_get_alone(parts: Parts) -> None:
    # K-quants: seven rows of a pass at most, so eight sessions are two passes; half of them leave early.
    model = parts("demo")
    lengths = (9, 1, 33, 2, 70, 14, 5, 64, 17, 90, 3, 20)
    prompts = [model.tokens(length, seed=number) for number, length in enumerate(lengths)]
    found: dict[int, list[int]] = {}
    reports: dict[int, AnswerReport] = {}

    async def main() -> None:
        async with decoding(model, sessions=8) as (decoder, _):

            async def one(number: int) -> None:
                await trio.sleep(0.02 * number)
                sampling = warm(number) if number % 2 else GREEDY
                ask = asked(prompts[number], 10 + number, sampling, user=f"{number % 3}")
                most = 4 if number % 4 == 1 else None
                found[number], reports[number] = await answer(decoder, ask, most)

            async with trio.open_nursery() as nursery:
                for number in range(len(prompts)):
                    nursery.start_soon(one, number)
            stats = decoder.stats()
        assert (stats.asked, stats.answered, stats.left, stats.failed) == (12, 9, 3, 0)
        assert stats.active == stats.waiting == stats.reading == 0 and stats.cached > 0
        assert stats.tokens >= sum(map(len, found.values())) and stats.prompt_tokens == sum(lengths)
        assert stats.trips.trips_per_layer_token < 0.5 and stats.trips.passes < sum(map(len, found.values()))
        # Bytes and waits are split, nothing is counted twice; a pass that all have left may not be told.
        assert 0 < sum(report.trips.bytes_out for report in reports.values()) <= stats.trips.bytes_out

    run(main)
    for number, prompt in enumerate(prompts):
        sampling = warm(number) if number % 2 else GREEDY
        expected = alone(model, [prompt], sampling, 10 + number)[0]
        if number % 4 == 1:
            assert found[number] == expected[:4] and reports[number].stopped == "closed"
        else:
            assert found[number] == expected and reports[number].stopped == "length", number
            assert reports[number].tokens == 10 + number == reports[number].trips.decoded + 1


def test_parts_of_shared_passes_add_up(parts: Parts) -> None:
    model = parts("demo")

    async def main() -> None:
        async with decoding(model, sessions=4) as (decoder, _):
            reports: list[AnswerReport] = []

            async def one(number: int) -> None:
                prompt = model.tokens(10 + number, seed=number)
                reports.append((await answer(decoder, asked(prompt, 6)))[1])

            async with trio.open_nursery() as nursery:
                for number in range(4):
                    nursery.start_soon(one, number)
            whole = decoder.stats().trips
            each = [report.trips for report in reports]
            for name in ("bytes_out", "bytes_back"):
                assert sum(getattr(trips, name) for trips in each) == getattr(whole, name)
            assert sum(trips.waited for trips in each) == pytest.approx(whole.waited, abs=1e-3)
            assert sum(trips.tokens for trips in each) == whole.tokens
            assert all(trips.trips <= whole.trips < sum(t.trips for t in each) for trips in each)
            assert all(trips.trips_per_layer_token == 1 for trips in each)

    run(main)


def test_the_queue_has_an_end(parts: Parts) -> None:
    model = parts("demo")

    async def main() -> None:
        async with decoding(model, sessions=1, queue=1) as (decoder, _):
            async with decoder.ask(asked(model.tokens(5), 200)) as first:
                await first.__anext__()
                async with decoder.ask(asked(model.tokens(5), 3)) as second:
                    with pytest.raises(QueueFull, match="1 request is waiting already") as full:
                        async with decoder.ask(asked(model.tokens(5))):
                            pass
                    assert full.value.waiting == 1 and full.value.retry_after >= 1
                    assert decoder.stats().waiting == 1 and decoder.stats().refused == 1
                    assert second.report.stopped == "" and second.report.queued > 0
                # Who gave up waiting makes room.
                async with decoder.ask(asked(model.tokens(5), 3)) as third:
                    assert decoder.stats().waiting == 1
                    await first.__anext__()
            assert first.report.stopped == "closed" and third.report.stopped == "closed"
            assert len((await answer(decoder, asked(model.tokens(5), 3)))[0]) == 3

    run(main)


def test_places_go_round_among_users(parts: Parts) -> None:
    model = parts("demo")
    order: list[str] = []

    async def main() -> None:
        async with decoding(model, sessions=1) as (decoder, _):

            async def one(user: str) -> None:
                await answer(decoder, asked(model.tokens(5), 3, user=user))
                order.append(user)

            async with trio.open_nursery() as nursery:
                for user in ("greedy",) * 4:
                    nursery.start_soon(one, user)
                await trio.sleep(0)
                await trio.sleep(0)
                nursery.start_soon(one, "modest")

    run(main)
    assert order.index("modest") <= 2 and len(order) == 5


def test_a_long_prompt_does_not_stop_the_others(parts: Parts) -> None:
    # 14 chunks; between two of them the others get passes.
    model = parts("demo")
    settings = replace(SETTINGS, ubatch=16)
    times: list[float] = []
    read: list[float] = []

    async def main() -> None:
        async with decoding(model, settings, sessions=3) as (decoder, _):

            async def write(seed: int) -> None:
                async with decoder.ask(asked(model.tokens(5, seed=seed), 200)) as answering:
                    async for _ in answering:
                        times.append(trio.current_time())
                        if read:
                            return

            async with trio.open_nursery() as nursery:
                nursery.start_soon(write, 1)
                nursery.start_soon(write, 2)
                while len(times) < 6:
                    await trio.sleep(0.01)
                begun = trio.current_time()
                _, report = await answer(decoder, asked(model.tokens(220), 1))
                read.append(trio.current_time())
            assert report.trips.passes == 14
            meanwhile = sum(begun <= each <= read[0] for each in times)
            assert meanwhile >= 14  # two a pass; a prompt of its own time would leave them none

    run(main)


def test_a_further_turn_reads_only_what_is_new(parts: Parts) -> None:
    # In a small grid, beside a stranger, drawn: the tokens are those of a session that goes on.
    model = parts("qwen3moe")
    settings = replace(SETTINGS, ubatch=16)
    turns = [model.tokens(37, seed=1), model.tokens(9, seed=2), model.tokens(30, seed=3)]
    expected = alone(model, turns, warm(5), 8, n_ubatch=16)

    async def main() -> None:
        async with decoding(model, settings, sessions=4) as (decoder, _):
            text: list[int] = []
            for number, turn in enumerate(turns):
                before = len(text)
                text += turn
                async with decoder.ask(asked(model.tokens(20, seed=40 + number), 6)) as stranger:
                    await stranger.__anext__()
                    tokens, report = await answer(decoder, asked(text, 8, warm(5)))
                assert tokens == expected[number]
                # The last token of an answer was chosen, never computed.
                assert report.cached_tokens == max(0, before - 1) and report.prompt_tokens == len(text)
                assert report.trips.tokens == len(text) - report.cached_tokens + 7
                text += tokens
            assert decoder.stats().cached_tokens == 44 + 61

    run(main)


def test_what_prompts_have_in_common_is_read_once(parts: Parts) -> None:
    model = parts("demo")
    settings = replace(SETTINGS, ubatch=16)
    common = model.tokens(70, seed=9)
    prompts = [common + model.tokens(3 + number, seed=number) for number in range(5)]
    prompts.append(prompts[1])  # the same once more
    expected = [alone(model, [p], warm(n), 6, n_ubatch=16)[0] for n, p in enumerate(prompts)]

    async def main() -> None:
        async with decoding(model, settings, sessions=6) as (decoder, _):
            found: dict[int, list[int]] = {}
            cached: dict[int, int] = {}

            async def one(number: int) -> None:
                ask = asked(prompts[number], 6, warm(number), user=str(number))
                found[number], report = await answer(decoder, ask)
                cached[number] = report.cached_tokens

            async with trio.open_nursery() as nursery:
                for number in range(len(prompts)):
                    nursery.start_soon(one, number)
            assert [found[number] for number in range(6)] == expected
            # Whole chunks of sixteen, four of them; all of it where the prompt is the same.
            assert sorted(cached.values()) == [0, 64, 64, 64, 64, len(prompts[1])]
            # Afterwards, too.
            again, report = await answer(decoder, asked(prompts[3], 6, warm(3)))
            assert again == expected[3] and report.cached_tokens == 64

    run(main)


def test_without_a_prefix_cache_nothing_is_taken(parts: Parts) -> None:
    model = parts("demo")

    async def main() -> None:
        async with decoding(model, replace(SETTINGS, ubatch=16), sessions=2, prefix_cache=False) as (
            decoder,
            _,
        ):
            for _ in range(2):
                _, report = await answer(decoder, asked(model.tokens(50), 3))
                assert report.cached_tokens == 0
            assert decoder.stats().cached == 0

    run(main)


@pytest.mark.parametrize("exact", [True, False])
def test_a_model_that_cannot_go_back(parts: Parts, exact: bool) -> None:
    # Its state is taken at its very end, or not at all.
    model = parts("granitehybrid")
    settings = replace(SETTINGS, exact=exact)
    prompt, more = model.tokens(30, seed=1), model.tokens(6, seed=2)
    expected = alone(model, [prompt, more], GREEDY, 5)

    async def main() -> None:
        async with decoding(model, settings, sessions=3) as (decoder, _):
            first, _ = await answer(decoder, asked(prompt, 5))
            text = prompt + first + more
            second, report = await answer(decoder, asked(text, 5))
            assert ([first, second], report.cached_tokens) == (expected, len(prompt) + 4)
            # Told otherwise, from the middle of the answer on: nothing can be taken, all is read anew.
            text = prompt + first[:2] + more
            other, report = await answer(decoder, asked(text, 5))
            assert report.cached_tokens == 0 and other == alone(model, [text], GREEDY, 5)[0]
            found: list[tuple[list[int], int]] = []

            async def one() -> None:
                tokens, report = await answer(decoder, asked(more, 5))
                found.append((tokens, report.cached_tokens))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(one)
                nursery.start_soon(one)
            assert sorted(cached for _, cached in found) == [0, len(more)]
            assert [tokens for tokens, _ in found] == alone(model, [more], GREEDY, 5) * 2

    run(main)


def only_one_needs(model: ModelParts, prompts: Sequence[Sequence[int]], limit: int) -> tuple[int, int, int]:
    """A layer, an expert and the prompt that alone needs it, and that only after its own text."""
    needs: dict[tuple[int, int], dict[int, int]] = {}
    for number, prompt in enumerate(prompts):
        port = WatchedPort(model.local())
        with model.backbone(port) as backbone:
            session = Session(backbone)
            session.append(list(prompt))
            sampler = Sampler(model.library, GREEDY)
            list(session.generate(sampler, limit, lambda token: False))
            sampler.close()
        passes = 0
        for inputs in port.calls:
            passes += inputs.call.layer == model.manifest.calls[0].layer
            for expert in set(inputs.ids.ravel().tolist()):
                needs.setdefault((inputs.call.layer, expert), {}).setdefault(number, passes)
    found = [(cell, by) for cell, by in needs.items() if len(by) == 1 and min(by.values()) >= 3]
    (layer, expert), by = found[0]
    return layer, expert, next(iter(by))


def test_a_lost_expert_ends_only_who_needs_it(parts: Parts, shared_dir: Any) -> None:
    model = parts(shared_dir / "models" / "tiny-qwen3moe-32e4.Q8_0.gguf")
    prompts = [model.tokens(2, seed=seed) for seed in range(4)]
    limit = 8
    layer, expert, victim = only_one_needs(model, prompts, limit)
    expected = [alone(model, [prompt], GREEDY, limit)[0] for prompt in prompts]
    layers = sorted({call.layer for call in model.manifest.calls})
    rest = cells_of(model, [range(expert), range(expert + 1, 32)], [layer])
    others = cells_of(model, [range(32)], [each for each in layers if each != layer])
    lone = cells_of(model, [range(expert, expert + 1)], [layer])
    identity = Identity.generate()

    async def main() -> None:
        kernels = Kernels(model.library, threads=1)
        server = ExpertServer(lone, kernels, name="lone")
        found: dict[int, list[int]] = {}
        errors: dict[int, PanalError] = {}

        async def one(decoder: Decoder, number: int) -> None:
            found[number] = []
            try:
                async with decoder.ask(asked(prompts[number], limit)) as answering:
                    async for chosen in answering:
                        found[number].append(chosen.token)
            except PanalError as error:
                errors[number] = error
                assert answering.report.stopped == "failed"

        async with (
            serving(model, rest) as (_, a),
            serving(model, others) as (_, b),
            trio.open_nursery() as outer,
        ):
            lone_scope = trio.CancelScope()

            async def serve_lone(port: int = 0, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
                with lone_scope:
                    async with listening(handlers_of(server), identity, port) as endpoint:
                        task_status.started(endpoint)
                        await trio.sleep_forever()

            endpoint = await outer.start(serve_lone)
            port = endpoint.local_address[1]
            async with decoding(model, endpoints=(a, b, endpoint), sessions=4) as (decoder, live):
                lone_scope.cancel()
                while not live.table.missing():
                    await trio.sleep(0.01)
                async with trio.open_nursery() as nursery:
                    for number in range(4):
                        nursery.start_soon(one, decoder, number)
                assert list(errors) == [victim]
                error = errors[victim]
                assert isinstance(error, ExpertsUnavailable) and (error.layer, error.experts) == (
                    layer,
                    (expert,),
                )
                for number in range(4):
                    want = expected[number]
                    assert found[number] == (want[: len(found[number])] if number == victim else want)
                assert decoder.stats().failed == 1 and decoder.stats().answered == 3

                lone_scope = trio.CancelScope()
                await outer.start(serve_lone, port)
                await live.covered(10)
                assert (await answer(decoder, asked(prompts[victim], limit)))[0] == expected[victim]
            outer.cancel_scope.cancel()
        server.close()
        kernels.close()

    run(main, seconds=30)


@asynccontextmanager
async def deaf(model: ModelParts) -> AsyncIterator[tuple[Endpoint, trio.Event]]:
    """A server of everything that never answers a call."""
    called = trio.Event()

    async def never(stream: Stream) -> None:
        called.set()
        await trio.sleep_forever()

    kernels = Kernels(model.library, threads=1)
    server = ExpertServer(cells_of(model, [range(12)]), kernels, name="deaf")
    try:
        async with listening({**handlers_of(server), messages.PROTOCOL_ID: never}) as endpoint:
            yield endpoint, called
    finally:
        server.close()
        kernels.close()


def test_it_ends_while_it_waits_for_experts(parts: Parts) -> None:
    model = parts("demo")
    ended: list[str] = []

    async def main() -> None:
        async with deaf(model) as (endpoint, called), trio.open_nursery() as outer:
            async with decoding(model, endpoints=(endpoint,), sessions=2) as (decoder, _):
                # Whoever leaves is not waited for: the pass is given up, its place is free at once.
                async with decoder.ask(asked(model.tokens(5))) as answering:
                    await called.wait()
                    assert decoder.stats().active == 1
                while decoder.stats().active:
                    await trio.sleep(0.01)
                assert answering.report.stopped == "closed"

                async def one() -> None:
                    with pytest.raises(Stopping):
                        await answer(decoder, asked(model.tokens(5)))
                    ended.append("stopped")

                outer.start_soon(one)
                await trio.sleep(0.2)
                begun = time.monotonic()
            assert time.monotonic() - begun < 15
            with pytest.raises(Stopping):
                async with decoder.ask(asked(model.tokens(5))):
                    pass

    run(main)
    assert ended == ["stopped"]


def test_a_slow_listener_keeps_nobody_waiting(parts: Parts) -> None:
    model = parts("demo")

    async def main() -> None:
        async with (
            decoding(model, sessions=2) as (decoder, _),
            decoder.ask(asked(model.tokens(4), 30)) as slow,
        ):
            tokens, _ = await answer(decoder, asked(model.tokens(9), 40))
            assert len(tokens) == 40 and slow.report.tokens == 30
            found = [chosen.token async for chosen in slow]
            assert found == alone(model, [model.tokens(4)], GREEDY, 30)[0]
            assert slow.report.stopped == "length"

    run(main)


@pytest.mark.parametrize("draft", ["ngram", "self"])
def test_one_alone_guesses(parts: Parts, draft: str) -> None:
    model = parts("demo")
    prompt = model.tokens(6) * 4
    limit = 40
    expected = alone(model, [prompt], warm(3), limit)[0]

    async def main() -> None:
        async with decoding(model, replace(SETTINGS, draft=draft), sessions=3) as (decoder, _):
            ask = Ask(tuple(prompt), limit, warm(3), top_logprobs=1)
            async with decoder.ask(ask) as answering:
                chosen = [each async for each in answering]
            assert [each.token for each in chosen] == expected
            assert all(each.logprob is not None and each.logprob.token == each.token for each in chosen)
            trips = answering.report.trips
            assert trips.drafted >= trips.accepted and trips.decoded == limit - 1
            assert trips.passes == limit - trips.accepted
            if draft == "ngram":
                assert trips.drafted > 0
            # Two at once share passes instead.
            passes = decoder.stats().trips.passes
            drafted = decoder.stats().trips.drafted

            async def one(seed: int) -> None:
                tokens, _ = await answer(decoder, asked(prompt, 10, warm(seed)))
                assert tokens == alone(model, [prompt], warm(seed), 10)[0]

            async with trio.open_nursery() as nursery:
                nursery.start_soon(one, 7)
                nursery.start_soon(one, 8)
            after = decoder.stats().trips
            assert after.passes - passes <= 18 and after.drafted - drafted <= 12

    run(main)


def test_logprobs_are_those_of_the_row(parts: Parts) -> None:
    model = parts("demo")
    prompt = model.tokens(7)

    async def main() -> None:
        async with decoding(model, sessions=2) as (decoder, _):
            async with decoder.ask(Ask(tuple(prompt), 3, GREEDY, top_logprobs=4)) as answering:
                found = [each async for each in answering]
            text = list(prompt)
            for each in found:
                with model.backbone() as backbone:
                    output = backbone.run(rows(text, wanted="last"))[0]
                assert each.logprob is not None
                want = logprob_of(output, each.token, 4)
                assert each.logprob.token == each.token == want.top[0][0]
                assert each.logprob.logprob == pytest.approx(want.logprob, abs=0.05)
                assert len(each.logprob.top) == 4
                text.append(each.token)

    run(main)


def test_a_shared_cache(parts: Parts) -> None:
    # Bits may differ: prompts share passes and cells.
    model = parts("demo")
    settings = replace(SETTINGS, exact=False, context=200)
    common = model.tokens(60, seed=1)

    async def main() -> None:
        async with decoding(model, settings, sessions=4) as (decoder, _):
            cached = []

            async def one(number: int) -> None:
                tokens, report = await answer(decoder, asked([*common, number, 7], 10, user=str(number)))
                assert len(tokens) == 10
                cached.append(report.cached_tokens)

            await one(0)
            async with trio.open_nursery() as nursery:
                for number in range(1, 4):
                    nursery.start_soon(one, number)
            assert cached[0] == 0 and sorted(cached[1:]) == [60, 60, 60]
            # Two that the cache cannot be sure to hold wait for each other.
            both: list[int] = []

            async def long(seed: int) -> None:
                both.append(len((await answer(decoder, asked(model.tokens(70, seed=seed), 40)))[0]))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(long, 21)
                nursery.start_soon(long, 22)
            assert both == [40, 40]
            assert decoder.stats().trips.decoded == 4 * 9 + 2 * 39

    run(main)


def test_a_shared_cache_that_becomes_full(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    # Long answers are begun together, as most answers end early; these do not.
    model = parts("demo")
    monkeypatch.setattr(opening, "RESERVED_TOKENS", 30)
    errors: list[str] = []
    lengths: list[int] = []

    async def main() -> None:
        async with decoding(model, replace(SETTINGS, exact=False, context=200), sessions=2) as (decoder, _):

            async def long(seed: int) -> None:
                try:
                    lengths.append(len((await answer(decoder, asked(model.tokens(70, seed=seed), 90)))[0]))
                except EngineError as error:
                    errors.append(str(error))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(long, 21)
                nursery.start_soon(long, 22)

    run(main)
    assert lengths == [90] and len(errors) == 1
    assert "the cache of 200 tokens that all sessions share is full: 2 of them hold" in errors[0]


def test_what_cannot_be_asked(parts: Parts) -> None:
    model = parts("demo")

    async def main() -> None:
        async with decoding(model, sessions=1) as (decoder, _):
            for tokens, limit, why in (
                ([], 1, "the prompt is empty"),
                (model.tokens(257), 1, "the prompt has 257 tokens, and a context holds 256"),
                ([10**6], 1, "token 1000000 is outside the vocabulary"),
                ([1], 0, "at least one has to be asked for"),
            ):
                with pytest.raises(EngineError, match=why):
                    await answer(decoder, asked(tokens, limit))
            # A full context ends an answer; it may be filled to the last token.
            tokens, report = await answer(decoder, asked(model.tokens(250), 50))
            assert len(tokens) == 7 and report.stopped == "context"
            tokens, report = await answer(decoder, asked(model.tokens(256), 50))
            assert len(tokens) == 1 and report.stopped == "context"

    run(main)
