"""A peer is found out while answers are under way: what rests on it ends or is done again, no more."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager

import pytest
import trio

from node.decode import batch_answers
from node.decode.batch_answers import answer_all
from node.decode.batch_report import BatchAnswer, BatchReport
from node.decode.convictions import Conviction, Spoiled
from node.decode.held_answers import HeldAnswers
from node.decode.live_backbone import LiveBackbone
from node.decode.settled_answer import settled_answer
from node.engine.sampler import SamplingSettings
from tests.integration.test_continuous import GREEDY, SETTINGS, alone, answer, asked, decoding, warm
from tests.model_parts import ModelParts
from tests.served import cells_of, run, serving

Parts = Callable[..., ModelParts]

LONG = 120  # tokens: far more than a conviction takes to be noticed


def convict(live: LiveBackbone, peer: str) -> None:
    """As an auditor does: it is not asked any more, and what rests on it is spoiled."""
    live.table.bar({peer: "gave false answers"})
    live.port.convictions.add(Conviction(peer, -math.inf, math.inf, "by this test"))


@asynccontextmanager
async def two_of_each(model: ModelParts) -> AsyncIterator[LiveBackbone]:
    """A backbone with two servers that hold all experts; the first is asked for them."""
    whole = cells_of(model, [range(12)])
    async with (
        serving(model, whole) as (_, one),
        serving(model, whole) as (_, two),
        decoding(model, SETTINGS, [one, two]) as (_, live),
    ):
        yield live


def test_what_rests_on_it_ends_with_one_error_that_names_it(parts: Parts) -> None:
    model = parts("demo")

    async def main() -> None:
        async with decoding(model, sessions=2) as (decoder, live):
            peer, _ = live.table.peers()
            tokens = 0
            with pytest.raises(Spoiled, match=f"{peer} gave false answers") as told:
                async with decoder.ask(asked(model.tokens(20), LONG)) as answering:
                    async for _ in answering:
                        tokens += 1
                        if tokens == 3:
                            live.port.convictions.add(Conviction(peer, -math.inf, math.inf, "by this test"))
            assert 3 <= tokens < LONG and "\n" not in str(told.value)
            assert answering.report.stopped == "failed"
            assert decoder.stats().cached == 0, "nothing is taken over from what lies in the caches"
            again, report = await answer(decoder, asked(model.tokens(20), 8))
            assert report.cached_tokens == 0
            assert [again] == alone(model, [model.tokens(20)], GREEDY, 8)

    run(main, seconds=120)


def test_who_has_had_nothing_of_it_goes_on(parts: Parts) -> None:
    """A stranger, and one whose answers were all given before it was last found to be right."""
    model = parts("demo")

    async def main() -> None:
        async with decoding(model, sessions=2) as (decoder, live):
            peer, _ = live.table.peers()
            tokens = []
            async with decoder.ask(asked(model.tokens(20), 12)) as answering:
                async for chosen in answering:
                    tokens.append(chosen.token)
                    if len(tokens) == 3:
                        convict(live, "a stranger")
                        later = Conviction(peer, time.perf_counter() + 3000, math.inf, "by this test")
                        live.port.convictions.add(later)
            await answering.settled()
            assert [tokens] == alone(model, [model.tokens(20)], GREEDY, 12)

    run(main, seconds=120)


def test_what_was_taken_from_a_cache_rests_on_whoever_computed_it(parts: Parts) -> None:
    """The prompt was read with the help of a peer that has left since."""
    model = parts("demo")
    prompt = model.tokens(40)

    async def main() -> None:
        whole = cells_of(model, [range(12)])
        async with serving(model, whole) as (_, stays), trio.open_nursery() as nursery:
            stop = trio.Event()
            name = await nursery.start(_leaves, model, stop)
            addresses = [stays, name]
            async with decoding(model, SETTINGS, addresses, sessions=2) as (decoder, live):
                leaver = str(name.identity.peer_id)
                live.table.bar({str(stays.identity.peer_id): "first the other"})
                written, _ = await answer(decoder, asked(prompt, 4))
                live.table.bar({leaver: "it is not asked any more"})
                stop.set()
                tokens = 0
                with pytest.raises(Spoiled, match=leaver):
                    async with decoder.ask(asked([*prompt, *written, 5], LONG)) as answering:
                        async for _ in answering:
                            tokens += 1
                            if tokens == 3:
                                assert answering.report.cached_tokens > 0
                                convict(live, leaver)
            nursery.cancel_scope.cancel()

    run(main, seconds=120)


async def _leaves(model: ModelParts, stop: trio.Event, *, task_status: trio.TaskStatus[object]) -> None:
    async with serving(model, cells_of(model, [range(12)])) as (_, endpoint):
        task_status.started(endpoint)
        await stop.wait()


@pytest.mark.parametrize("sampling", [GREEDY, warm(3)])
def test_generate_begins_anew_where_nothing_was_shown(parts: Parts, sampling: SamplingSettings) -> None:
    """With the same seed, so it gives what it would have given; where text was shown it ends."""
    model = parts("demo")

    async def main() -> None:
        async with two_of_each(model) as live:
            expected = await settled_answer(live, "import os\n", 12, sampling, lambda text: None, held=True)
            shown: list[str] = []
            peer = ""

            def show(text: str) -> None:
                nonlocal peer
                shown.append(text)
                if len(shown) == 2:
                    peer = max(live.port.ledger.used, key=lambda each: live.port.ledger.used[each])
                    trio.from_thread.run_sync(convict, live, peer)

            found = await settled_answer(live, "import os\n", 12, sampling, show, held=True)
            assert found.tokens == expected.tokens and found.text == expected.text
            assert len(found.tokens) == 12 and len("".join(shown)) > len(found.text)
            shown.clear()
            live.table.bar({})
            live.port.convictions._known.clear()
            with pytest.raises(Spoiled, match="gave false answers") as told:
                await settled_answer(live, "import os\n", 12, sampling, show, held=False)
            assert peer in str(told.value)

    run(main, seconds=120)


def test_an_answer_is_held_back_until_its_audits_have_ended(parts: Parts) -> None:
    """A peer that is found out after the last token, but before the answer was given."""
    model = parts("demo")

    async def main() -> None:
        async with two_of_each(model) as live:
            settles: list[list[str]] = []

            async def settle(peers: Collection[str]) -> None:
                settles.append(sorted(peers))
                if len(settles) == 1:
                    convict(live, settles[0][0])

            live.port.settle = settle
            found = await settled_answer(live, "import os\n", 6, GREEDY, lambda text: None, held=True)
            assert len(settles) == 2 and settles[0][0] not in settles[1]
            assert len(found.tokens) == 6

    run(main, seconds=120)


async def batch(
    live: LiveBackbone,
    prompts: list[list[int]],
    on_pass: Callable[[], None] = lambda: None,
    on_answer: Callable[[BatchAnswer], None] = lambda answer: None,
) -> tuple[list[BatchAnswer], list[int], BatchReport]:
    """As `panal generate --prompts`: answers as they are shown, which are taken back, the whole.

    Args:
        on_pass: called on a lane's thread before each of its passes. on_answer: when one was shown.
    """
    shown: list[BatchAnswer] = []
    taken_back: list[int] = []

    def show(answer: BatchAnswer) -> None:
        shown.append(answer)
        on_answer(answer)

    report = await live.in_thread(
        answer_all,
        live,
        prompts,
        64,
        2,
        12,
        warm(3),
        show,
        lambda what, done, total: on_pass(),
        lambda number, conviction: taken_back.append(number),
    )
    return shown, taken_back, report


def in_loop(token: trio.lowlevel.TrioToken, function: Callable[[], None]) -> None:
    """Run something on the event loop, from any thread, and wait for it."""
    done = threading.Event()

    def work() -> None:
        function()
        done.set()

    token.run_sync_soon(work)
    assert done.wait(60)


def calls_of(live: LiveBackbone) -> dict[str, int]:
    """How much each peer has computed."""
    return {peer: live.port.calls.of(peer).made for peer in live.table.peers()}


def batch_of(model: ModelParts) -> list[list[int]]:
    return [model.tokens(5 + 3 * number, seed=number) for number in range(6)]


def test_what_a_batch_has_not_shown_is_done_again(parts: Parts) -> None:
    """A peer is found out in the middle."""
    model = parts("demo")

    async def main() -> None:
        token = trio.lowlevel.current_trio_token()
        async with two_of_each(model) as live:
            expected, _, before = await batch(live, batch_of(model))
            calls = calls_of(live)
            passes = 0

            def found_out() -> None:
                nonlocal passes
                passes += 1
                if passes == 9:
                    peer, _ = max(calls_of(live).items(), key=lambda each: each[1] - calls[each[0]])
                    in_loop(token, lambda: convict(live, peer))

            found, taken_back, report = await batch(live, batch_of(model), found_out)
            assert passes > 9 and live.port.convictions.count == 1
            assert [each.tokens for each in found] == [each.tokens for each in expected]
            assert [each.prompt for each in found] == [1, 2, 3, 4, 5, 6]
            assert not taken_back and not report.failed
            assert report.tokens == sum(len(each.tokens) for each in found) == before.tokens
            assert report.trips.passes > before.trips.passes

    run(main, seconds=120)


def test_a_batch_holds_its_answers_back_until_its_audits_have_ended(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that is found out after the last token of all."""
    model = parts("demo")
    monkeypatch.setattr(batch_answers, "HOLD_SECONDS", math.inf)

    async def main() -> None:
        async with two_of_each(model) as live:
            expected, _, _ = await batch(live, batch_of(model))
            settles: list[set[str]] = []

            async def settle(peers: Collection[str]) -> None:
                settles.append(set(peers))
                if len(settles) == 1:
                    assert not shown
                    convict(live, min(peers))

            shown: list[BatchAnswer] = []
            live.port.settle = settle
            found, taken_back, report = await batch(live, batch_of(model), on_answer=shown.append)
            (liar,) = live.port.convictions._known
            assert len(settles) == 2 and liar.peer_id in settles[0] - settles[1]
            assert [each.tokens for each in found] == [each.tokens for each in expected]
            assert not taken_back and not report.failed

    run(main, seconds=120)


def test_what_a_batch_has_shown_is_taken_back_and_the_others_go_on(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = parts("demo")
    rests_on: dict[int, Mapping[str, float]] = {}

    class Watched(HeldAnswers):
        def add(self, answer: BatchAnswer, used: Mapping[str, float], now: float) -> None:
            rests_on[answer.prompt] = used
            super().add(answer, used, now)

    monkeypatch.setattr(batch_answers, "HeldAnswers", Watched)

    async def main() -> None:
        token = trio.lowlevel.current_trio_token()
        async with two_of_each(model) as live:
            expected, _, _ = await batch(live, batch_of(model))

            def found_out(answer: BatchAnswer) -> None:
                if answer.prompt == 1:
                    in_loop(token, lambda: convict(live, min(rests_on[1])))

            found, taken_back, report = await batch(live, batch_of(model), on_answer=found_out)
            assert taken_back == report.failed == [1]
            assert [each.tokens for each in found] == [each.tokens for each in expected]

    run(main, seconds=120)


def test_one_that_is_found_out_while_others_are_shown(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the very end: what is left is done again, and not forgotten."""
    model = parts("demo")
    monkeypatch.setattr(batch_answers, "HOLD_SECONDS", math.inf)

    async def main() -> None:
        token = trio.lowlevel.current_trio_token()
        async with two_of_each(model) as live:
            expected, _, _ = await batch(live, batch_of(model))
            settled: list[str] = []

            async def settle(peers: Collection[str]) -> None:
                settled.extend(sorted(peers))

            def found_out(answer: BatchAnswer) -> None:
                if answer.prompt == 2:
                    in_loop(token, lambda: convict(live, settled[0]))

            live.port.settle = settle
            found, taken_back, report = await batch(live, batch_of(model), on_answer=found_out)
            assert [each.prompt for each in found] == [1, 2, 3, 4, 5, 6]
            assert [each.tokens for each in found] == [each.tokens for each in expected]
            assert report.failed == sorted(taken_back) and set(taken_back) <= {1, 2}

    run(main, seconds=120)


def test_a_batch_says_which_prompts_have_no_answer(parts: Parts) -> None:
    """As all who could compute them are found out, and asked all the same."""
    model = parts("demo")

    async def main() -> None:
        token = trio.lowlevel.current_trio_token()
        async with two_of_each(model) as live:

            def all_lie() -> None:
                if not live.port.convictions.count:
                    for peer in live.table.peers():
                        live.port.convictions.add(Conviction(peer, -math.inf, math.inf, "by this test"))

            found, taken_back, report = await batch(live, batch_of(model), lambda: in_loop(token, all_lie))
            assert report.failed == [each.prompt for each in found] == [1, 2, 3, 4, 5, 6]
            assert not taken_back and report.tokens == 0
            for each in found:
                assert (each.stopped, each.text, each.tokens) == ("failed", "", [])
                assert any(f"{peer} gave false answers" in each.error for peer in live.table.peers())

    run(main, seconds=120)


def test_whoever_holds_an_answer_back_is_told(parts: Parts) -> None:
    """As `settled_answer`, in the decoder's own words."""
    model = parts("demo")

    async def main() -> None:
        async with (
            decoding(model) as (decoder, live),
            decoder.ask(asked(model.tokens(9), 4)) as answering,
        ):
            async for _ in answering:
                pass
            await answering.settled()
            convict(live, live.table.peers()[0])
            with pytest.raises(Spoiled):
                await answering.settled()

    run(main, seconds=120)
