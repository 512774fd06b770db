"""Audits over real servers: liars are found, what rests on them is done again, the honest are left alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from random import Random

import pytest
import trio
from msgspec import structs

from market.audit import Audits
from market.evidence_sqlite import AuditBook
from market.quarantine import Quarantine
from market.reputation import Reputation
from node.decode.continuous.ask import Ask
from node.decode.continuous.decoder import Decoder
from node.decode.continuous.opening import DecoderSettings
from node.decode.live_backbone import BackboneSettings, LiveBackbone, live_backbone
from node.engine.sampler import SamplingSettings
from node.gateway.answering import Answers, Part, Spoken
from node.gateway.backbone_speaker import BackboneSpeaker
from node.gateway.reading import Reading
from node.gateway.speaker import Answered
from node.http.refusals import Refusal
from node.market import auditor
from node.market.audit_part import LivePeers
from node.market.auditor import Auditor
from node.market.checkers import Checkers
from node.market.home_audit import HomeAudit
from node.serve.cells import Cells
from node.swarm.place import Place
from routing.identity import Identity
from routing.quic.endpoint import Endpoint
from tests.lying_server import Lie, garbage, lying, scaled, stale
from tests.model_parts import ModelParts
from tests.other_kernels import requantised
from tests.plain_answers import PlainAnswers, plain_answers
from tests.served import address_of, cells_of, run, serving

Parts = Callable[..., ModelParts]

PROMPT = "def read_config(path):\n    with open(path) as file:\n"
TOKENS = 16
SHARE = 1.0  # of so few calls, so that whoever was asked what is no matter of luck


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine, an answer's audits end before it is shown."""
    monkeypatch.setattr(auditor, "SETTLE_SECONDS", 200.0)


@pytest.fixture(scope="module")
def plain(parts: Parts) -> Iterator[PlainAnswers]:
    model = parts("demo")
    with plain_answers(model.library, model.path, n_ctx=256) as opened:
        yield opened


class Audited:
    """A backbone with a decoder and audits."""

    def __init__(self, live: LiveBackbone, decoder: Decoder, auditor: Auditor, book: AuditBook) -> None:
        self.live, self.decoder, self.auditor, self.book = live, decoder, auditor, book
        self.ended: list[Answered] = []

    async def answer(self, *, held: bool = True, seed: int = 0) -> str:
        """The text of an answer, as the API gives it where it does not stream."""
        speaker = BackboneSpeaker(self.live.backbone, self.decoder, "demo")
        ask = Ask(tuple(speaker.tokenizer.encode(PROMPT)), TOKENS, SamplingSettings(seed=seed))
        texts: list[str] = []

        async def tell(spoken: Spoken) -> None:
            texts.append(spoken.heard.text)

        answers = Answers(speaker, [Part(0, 0, ask)], Reading(), self.ended.append, held=held)
        await answers.run(tell)
        return "".join(texts)

    def quarantined(self) -> set[str]:
        return set(self.auditor.report().quarantined)


@asynccontextmanager
async def audited(
    model: ModelParts, endpoints: Sequence[Endpoint], folder: Path, *, by_home: bool = False
) -> AsyncIterator[Audited]:
    """A backbone that asks these servers and runs a share of their answers again."""
    place = Place.among([address_of(each) for each in endpoints], identity=Identity.generate())
    settings = BackboneSettings(threads=1, context=256, deadline=10.0)
    rng = Random(7)
    async with live_backbone(model.library, model.stored, place=place, settings=settings) as live:
        await live.covered()
        reputation, peers = Reputation(), LivePeers(live)
        with (
            closing(AuditBook(folder / "audit.db")) as book,
            HomeAudit(model.library, model.stored, lambda: live.port.home) as home,
        ):
            checkers = Checkers(peers, home if by_home else None, rng, lambda *paid: None)
            audits = Auditor(
                peers,
                checkers,
                live.port.convictions,
                Audits(SHARE, reputation),
                reputation,
                Quarantine(book.strikes()),
                book,
                rng,
            )
            live.port.settle = audits.settle
            live.port.watch_answers(audits.watch)
            decoder = Decoder(live, DecoderSettings(sessions=2))
            async with trio.open_nursery() as nursery:
                await nursery.start(audits.run)
                await nursery.start(decoder.run)
                yield Audited(live, decoder, audits, book)
                nursery.cancel_scope.cancel()


def lower_precision(model: ModelParts) -> Cells:
    """All experts, as a server holds them that saves memory by it."""
    cells = Cells()
    held = {key: requantised(model.library, each, "Q3_K") for key, each in model.held.items()}
    cells.add(model.stored.model_id, model.manifest, held)
    return cells


LIES: dict[str, Callable[[], Lie | None]] = {
    "scaled": lambda: scaled,
    "garbage": lambda: garbage,
    "stale": stale,
    "lower precision": lambda: None,
}


@pytest.mark.parametrize("kind", LIES)
def test_a_liar_is_found_and_the_answer_is_right(
    parts: Parts, plain: PlainAnswers, tmp_path: Path, kind: str
) -> None:
    """It holds all experts, so it is asked for all of them until it is found out."""
    model = parts("demo")
    expected = plain.answer(PROMPT, TOKENS).text

    async def main() -> None:
        whole = cells_of(model, [range(12)])
        cells = lower_precision(model) if kind == "lower precision" else whole
        async with (
            serving(model, cells_of(model, [range(6)])) as (_, low),
            serving(model, cells_of(model, [range(6, 12)])) as (_, high),
            lying(model, cells, LIES[kind]()) as (_, liar),
            audited(model, [low, high, liar], tmp_path, by_home=True) as swarm,
        ):
            name = str(liar.identity.peer_id)
            while not swarm.quarantined():  # a busy machine may ask others first
                assert await swarm.answer() == expected
            assert swarm.quarantined() == {name}
            assert name not in swarm.live.table.peers()
            assert swarm.ended[-1].finish == "length"
            assert all(each.finish == "length" or name in each.error for each in swarm.ended)
            found = swarm.book.evidence()[0]
            assert found.peer_id == name and found.answer != found.other_answer
            assert await swarm.answer(held=False) == expected, "nobody asks it any more"

    run(main, seconds=240)


def test_two_who_agree_outweigh_a_third_and_what_was_shown_ends_with_an_error(
    parts: Parts, plain: PlainAnswers, tmp_path: Path
) -> None:
    """Without any cells of its own, a backbone has only others' words."""
    model = parts("demo")
    expected = plain.answer(PROMPT, TOKENS).text

    async def main() -> None:
        low, high = cells_of(model, [range(6)]), cells_of(model, [range(6, 12)])
        async with (
            serving(model, low) as (_, one),
            serving(model, low) as (_, two),
            serving(model, high) as (_, three),
            serving(model, high) as (_, four),
            lying(model, cells_of(model, [range(12)]), scaled) as (server, liar),
            audited(model, [one, two, three, four, liar], tmp_path) as swarm,
        ):
            name = str(liar.identity.peer_id)
            errors = []
            while not swarm.quarantined():
                try:
                    await swarm.answer(held=False)
                except Refusal as error:
                    errors.append(str(error))
                await swarm.auditor.settle([name])
            assert swarm.quarantined() == {name}
            assert server.lies and all(name in each for each in errors)
            assert await swarm.answer() == expected

    run(main, seconds=240)


def test_a_server_that_turns_liar_contradicts_itself(
    parts: Parts, plain: PlainAnswers, tmp_path: Path
) -> None:
    """Nobody else holds its cells; its own answers of before stand against it."""
    model = parts("demo")

    async def main() -> None:
        async with (
            lying(model, cells_of(model, [range(12)])) as (server, only),
            audited(model, [only], tmp_path) as swarm,
        ):
            name = str(only.identity.peer_id)
            for _ in range(3):
                await swarm.answer()
            assert not swarm.quarantined() and len(swarm.auditor._canaries)
            server.lie = scaled
            while not swarm.quarantined():
                try:
                    await swarm.answer()
                except Refusal as error:
                    assert name in str(error), error
            assert swarm.quarantined() == {name}
            server.lie = None
            await swarm.auditor.settle([name])
            assert await swarm.auditor.pardon(name) is not None
            assert not swarm.quarantined() and await swarm.auditor.pardon(name) is None
            assert await swarm.answer() == plain.answer(PROMPT, TOKENS).text, "it is asked again at once"
            assert swarm.book.strikes() == [] and all(each.pardoned for each in swarm.book.evidence())
            assert swarm.auditor.findings.tallies.of(name).differed > 0, "and what it did is not forgotten"

    run(main, seconds=240)


def test_the_honest_are_left_alone(parts: Parts, plain: PlainAnswers, tmp_path: Path) -> None:
    """By home and by each other; one of them is of another build class, as it says."""
    model = parts("demo")
    expected = plain.answer(PROMPT, TOKENS).text

    async def main() -> None:
        low, high = cells_of(model, [range(7)]), cells_of(model, [range(5, 12)])
        async with (
            serving(model, low) as (_, one),
            serving(model, high) as (_, two),
            serving(model, cells_of(model, [range(12)])) as (other, three),
        ):
            other.holdings = structs.replace(other.holdings, build="of another kind")
            other.resume()  # tells it
            async with audited(model, [one, two, three], tmp_path, by_home=True) as swarm:
                while swarm.auditor.report().checked <= 20:  # on a busy machine fewer of an answer
                    assert await swarm.answer() == expected
                report = swarm.auditor.report()
                assert report.agreed == report.same_bytes == report.checked
                assert not report.quarantined and not report.suspected
                assert swarm.live.port.convictions.count == 0

    run(main, seconds=240)


def test_what_audits_ask_looks_like_work(parts: Parts, tmp_path: Path) -> None:
    """To a server that sees all that it is asked: calls run again, arbitration, canaries."""
    model = parts("demo")

    async def main() -> None:
        whole = cells_of(model, [range(12)])
        async with (
            lying(model, whole) as (first, one),
            lying(model, whole) as (second, two),
            audited(model, [one, two], tmp_path) as swarm,
        ):
            while min(swarm.auditor.report().checked, swarm.auditor.report().canaries) <= 10:
                await swarm.answer()
            asked = [*first.seen, *second.seen]
            calls = swarm.decoder.stats().trips
            numbers = [each.call_id for each in asked]
            assert len(set(numbers)) == len(numbers), "none is asked twice under one number"
            assert max(numbers) < len(numbers) + calls.hedges + 10, "and all are of one row of numbers"
            forms = {
                (
                    each.deadline_ms,
                    each.codec,
                    each.codec_back,
                    each.combine,
                    each.run_length,
                    each.x.shape[1],
                )
                for each in asked
            }
            assert len(forms) == 1

    run(main, seconds=240)


def test_strikes_outlast_the_process(parts: Parts, tmp_path: Path) -> None:
    model = parts("demo")

    async def main() -> None:
        whole = cells_of(model, [range(12)])
        async with serving(model, whole) as (_, honest), lying(model, whole, garbage) as (server, liar):
            async with audited(model, [liar], tmp_path, by_home=True) as swarm:
                with pytest.raises(Refusal, match=r"is not asked .*gave false answers"):
                    await swarm.answer()
            before = server.lies
            async with audited(model, [liar, honest], tmp_path, by_home=True) as swarm:
                assert swarm.quarantined() == {str(liar.identity.peer_id)}
                await swarm.answer()
            assert server.lies == before

    run(main, seconds=240)
