"""Whom peers have paid, asked and told over real sockets: it counts a little, and lies count nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from market.receipt import CREDIT, Kind, Receipt, SignedReceipt, epoch_of, sign
from market.reputation import HEARSAY, Reputation, standing
from market.vouch_wire import MAX_ANSWER_BYTES, MAX_TOLD, PROTOCOL_ID, decode_told, encode_ask, encode_told
from node.market import settling, vouching
from node.market.vouching import Asker
from routing.identity import Identity
from routing.quic.endpoint import Endpoint
from routing.quic.errors import StreamClosed
from routing.quic.stream import Stream
from tests.integration.test_settling import MODEL, run, settled, side, stranger_to, work
from tests.served import address_of, listening

OWN = 100.0
"""Dealings that whoever asks has had with whom it asks."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers are asked again and again, and receipts signed at once."""
    monkeypatch.setattr(vouching, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(vouching, "ASK_SECONDS", 0.05)
    monkeypatch.setattr(vouching, "ASKED_PER_MINUTE", 10**6)
    monkeypatch.setattr(settling, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(settling, "QUIET_SECONDS", 0.02)


@asynccontextmanager
async def asking(
    endpoint: Endpoint, tells: Callable[[str], bool] = lambda peer: True
) -> AsyncIterator[tuple[Asker, Reputation]]:
    """Who has audits."""
    reputation = Reputation()
    asker = Asker(endpoint.identity.peer_id, reputation, endpoint.connection_to, tells, time.time)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asker.run)
        yield asker, reputation
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def connected(endpoint: Endpoint, others: Sequence[Endpoint]) -> AsyncIterator[None]:
    """Connected again and again, as a node is: a connection may break by streams that are reset."""

    async def keep() -> None:
        while True:
            for other in others:
                await endpoint.connect(address_of(other), timeout=60)
            await trio.sleep(0.05)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep)
        yield
        nursery.cancel_scope.cancel()


async def until(so: Callable[[], bool]) -> None:
    while not so():
        await trio.sleep(0.02)


def test_a_third_hears_whom_its_server_has_paid_and_believes_a_little_of_it(tmp_path: Path) -> None:
    """A paid B. C, which A has worked for, hears A's receipt about B."""

    async def test() -> None:
        async with AsyncExitStack() as sides:
            a, b, c, d = [await sides.enter_async_context(side(tmp_path, name)) for name in "abcd"]
            await a.endpoint.connect(address_of(b.endpoint))
            await c.endpoint.connect(address_of(a.endpoint))
            await d.endpoint.connect(address_of(a.endpoint))
            first = work(a, b, 7)
            await settled(a, b, first)
            await settled(c, a, work(c, a))
            _, of_d = await sides.enter_async_context(asking(d.endpoint))
            _, of_c = await sides.enter_async_context(asking(c.endpoint, c.books.has_receipts))
            of_c.agreed(a.peer_id, OWN)
            of_d.agreed(a.peer_id, OWN)
            await until(lambda: of_c.of(b.peer_id) > 0)
            assert of_c.of(b.peer_id) == pytest.approx(standing(HEARSAY * first / CREDIT))
            assert of_c.of(a.peer_id) == of_c.own(a.peer_id) == standing(OWN), "nobody vouches for itself"
            total = first + work(a, b, 100)
            await settled(a, b, total)
            await until(lambda: of_c.of(b.peer_id) == pytest.approx(standing(HEARSAY * total / CREDIT)))
            assert not of_c.is_proved(b.peer_id)
            # Nothing was ever signed between A and D: it is asked as often, and told nothing.
            assert await told_by(d.endpoint, a.endpoint) == ()
            assert of_d.of(b.peer_id) == 0
            told = await told_by(c.endpoint, a.endpoint)  # two, if the hour has turned
            assert {each.receipt.payee for each in told} == {b.peer_id}
            assert sum(each.receipt.credits for each in told) == total
            assert [each.fault() for each in told] == [""] * len(told)
            weights = {each.peer: each for each in of_c.weights()}
            assert weights[b.peer_id].hearsay == weights[b.peer_id].standing > 0

    run(test)


async def told_by(endpoint: Endpoint, other: Endpoint) -> tuple[SignedReceipt, ...]:
    """A node's answer to one question."""
    connection = await endpoint.connect(address_of(other))
    stream = connection.open_stream(PROTOCOL_ID)
    await stream.send_message(encode_ask())
    answer = decode_told(await stream.receive_message(MAX_ANSWER_BYTES), connection.peer_id)
    await stream.aclose()
    return answer


# --- what a hostile peer tells ---


class Hostile:
    """A peer that has standing, and answers with whatever it likes.

    Attributes:
        says: its next answers; asked: how often it was.
    """

    def __init__(self) -> None:
        self.identity = Identity.generate()
        self.friend = Identity.generate()
        self.asked = 0
        self.says = encode_told([])
        self.epoch = epoch_of(time.time())

    async def serve(self, stream: Stream) -> None:
        self.asked += 1
        await stream.receive_message(100)
        await stream.send_message(self.says)

    def signed(self, credits: int, n: int = 1, payee: Identity | None = None) -> SignedReceipt:
        """A receipt that both have signed."""
        payee = payee or self.friend
        told = Receipt(
            Kind.WORK, self.identity.peer_id, payee.peer_id, self.epoch, n, (0, 0), 1, credits,
            MODEL.hex(), 1,
        )  # fmt: skip
        return sign(told, self.identity.private_key).countersigned(payee.private_key)


def forged(hostile: Hostile) -> bytes:
    """Of an honest server that has not signed."""
    good = hostile.signed(10 * CREDIT, n=2)
    return encode_told([good, replace(hostile.signed(CREDIT, payee=Identity.generate()), second=good.second)])


def not_by_itself(hostile: Hostile) -> bytes:
    good = hostile.signed(10 * CREDIT, n=2)
    return encode_told([replace(good, first=bytes(64))])


def foreign(hostile: Hostile) -> bytes:
    """True, and between others."""
    payer = Hostile()
    return encode_told([payer.signed(10 * CREDIT)])


def settlement(hostile: Hostile) -> bytes:
    told = Receipt(
        Kind.FORGIVEN, hostile.identity.peer_id, hostile.friend.peer_id, hostile.epoch, 2, (0, 0), 0,
        10 * CREDIT,
    )  # fmt: skip
    return encode_told([sign(told, hostile.friend.private_key).countersigned(hostile.identity.private_key)])


def twice(hostile: Hostile) -> bytes:
    return encode_told([hostile.signed(10 * CREDIT, n=2), hostile.signed(20 * CREDIT, n=3)])


def oversized(hostile: Hostile) -> bytes:
    return bytes(MAX_ANSWER_BYTES + 1)


def too_many(hostile: Hostile) -> bytes:
    return b"\1\2\x41\0" + hostile.signed(CREDIT).encode() * (MAX_TOLD + 1)


def garbage(hostile: Hostile) -> bytes:
    return b"\xff" * 400


LIES = [forged, not_by_itself, foreign, settlement, twice, oversized, too_many, garbage]


def test_what_is_not_so_counts_nothing_and_is_not_asked_for_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        liars = [Hostile() for _ in LIES]
        honest = Hostile()
        async with AsyncExitStack() as ends:
            we = await ends.enter_async_context(listening({}))
            _, reputation = await ends.enter_async_context(asking(we))
            there = []
            for each in [*liars, honest]:
                handlers = {PROTOCOL_ID: each.serve}
                there.append(await ends.enter_async_context(listening(dict(handlers), each.identity)))
                each.says = encode_told([each.signed(CREDIT)])
                reputation.agreed(each.identity.peer_id, OWN)
            await ends.enter_async_context(connected(we, there))
            everybody = [*liars, honest]
            await until(lambda: all(reputation.of(each.friend.peer_id) > 0 for each in everybody))
            before = {each.peer: each for each in reputation.weights()}
            for each, lie in zip(liars, LIES, strict=True):
                each.says = lie(each)
            await until(lambda: len(warnings(caplog)) == len(LIES))
            assert all("\n" not in line and "it is not asked for a day" in line for line in warnings(caplog))
            assert all(any(each.identity.peer_id in line for line in warnings(caplog)) for each in liars)
            asked = [each.asked for each in liars]
            honest_before = honest.asked
            honest.says = encode_told([honest.signed(2 * CREDIT, n=2)])
            for each in liars:
                each.says = encode_told([each.signed(3 * CREDIT, n=2)])
            await until(lambda: honest.asked > honest_before + 3)
            assert [each.asked for each in liars] == asked
            after = {each.peer: each for each in reputation.weights()}
            friend = honest.friend.peer_id
            assert after.pop(friend).standing > before.pop(friend).standing
            assert after == before

    run(test)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the owner is told."""
    return [
        each.getMessage()
        for each in caplog.records
        if each.name == "panal.market" and each.levelno >= logging.WARNING
    ]


def test_replays_and_sums_over_a_ring_change_nothing() -> None:
    """A voucher that tells the same again and again, then other true receipts for a hundred identities."""

    async def test() -> None:
        one = Hostile()
        async with (
            listening({}) as we,
            listening({PROTOCOL_ID: one.serve}, one.identity) as there,
            asking(we) as (_, reputation),
            connected(we, [there]),
        ):
            reputation.agreed(one.identity.peer_id, OWN)
            one.says = encode_told([one.signed(CREDIT)])
            await until(lambda: reputation.of(one.friend.peer_id) > 0)
            first = reputation.of(one.friend.peer_id)
            asked = one.asked
            await until(lambda: one.asked > asked + 5)
            assert reputation.of(one.friend.peer_id) == first
            sybils = [Identity.generate() for _ in range(MAX_TOLD)]
            one.says = encode_told([one.signed(10**6 * CREDIT, payee=each) for each in sybils])
            await until(lambda: all(reputation.of(each.peer_id) > 0 for each in sybils))
            names = [one.friend.peer_id, *(each.peer_id for each in sybils)]
            assert reputation.together(names) <= standing(HEARSAY * standing(OWN)) * (1 + 1e-9)

    run(test)


def test_a_peer_that_does_not_know_the_question_is_no_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vouching, "ANSWER_SECONDS", 0.2)

    async def mute(stream: Stream) -> None:
        await trio.sleep_forever()

    async def test() -> None:
        old, silent, new = Identity.generate(), Identity.generate(), Hostile()
        async with AsyncExitStack() as ends:
            we = await ends.enter_async_context(listening({}))
            _, reputation = await ends.enter_async_context(asking(we))
            there = []
            for identity, handlers in (
                (old, {}), (silent, {PROTOCOL_ID: mute}), (new.identity, {PROTOCOL_ID: new.serve}),
            ):  # fmt: skip
                there.append(await ends.enter_async_context(listening(dict(handlers), identity)))
            await ends.enter_async_context(connected(we, there))
            reputation.agreed(old.peer_id, 3 * OWN)  # they come first
            reputation.agreed(silent.peer_id, 2 * OWN)
            reputation.agreed(new.identity.peer_id, OWN)
            new.says = encode_told([new.signed(CREDIT)])
            await until(lambda: reputation.of(new.friend.peer_id) > 0)
            assert reputation.own(old.peer_id) == standing(3 * OWN)
        assert warnings(caplog) == []

    run(test)


def test_strangers_are_not_asked_and_who_comes_again_is_asked_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vouching, "ASK_SECONDS", 1e6)
    monkeypatch.setattr(vouching, "MET_SECONDS", 0.05)

    async def test() -> None:
        known, stranger, barred, without = (Hostile() for _ in range(4))

        def has_receipts(peer: str) -> bool:
            return peer != without.identity.peer_id

        async with AsyncExitStack() as ends:
            we = await ends.enter_async_context(listening({}))
            asker, reputation = await ends.enter_async_context(asking(we, has_receipts))
            reputation.agreed(without.identity.peer_id, 10 * OWN)
            reputation.agreed(barred.identity.peer_id, 10 * OWN)
            reputation.struck(barred.identity.peer_id, 1)
            for each in (stranger, barred, without, known):
                there = await ends.enter_async_context(listening({PROTOCOL_ID: each.serve}, each.identity))
                await we.connect(address_of(there))
            reputation.agreed(known.identity.peer_id, OWN)
            await until(lambda: known.asked == 1)
            for times in (2, 3):
                asker.met(known.identity.peer_id)
                await until(lambda: known.asked == times)  # noqa: B023  (awaited here)
            assert (stranger.asked, barred.asked, without.asked) == (0, 0, 0)

    run(test)


# --- who tells ---


def test_who_asks_all_the_time_is_not_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vouching, "ASKED_PER_MINUTE", 3)

    async def test() -> None:
        async with AsyncExitStack() as sides:
            a, b, c = [await sides.enter_async_context(side(tmp_path, name)) for name in "abc"]
            await a.endpoint.connect(address_of(b.endpoint))
            await c.endpoint.connect(address_of(a.endpoint))
            await settled(a, b, work(a, b))
            await settled(c, a, work(c, a))
            answered = refused = 0
            for _ in range(20):
                try:
                    assert await told_by(c.endpoint, a.endpoint)
                    answered += 1
                except StreamClosed:
                    refused += 1
            assert answered + refused == 20 and 3 <= answered <= 6  # two windows may touch
            async with stranger_to(a) as connection:
                for question in (b"", b"\1\1\0\1", bytes(1_000)):
                    stream = connection.open_stream(PROTOCOL_ID)
                    with pytest.raises(StreamClosed):
                        await stream.send_message(question)
                        await stream.receive_message(MAX_ANSWER_BYTES)
            await settled(c, a, a.owed_by(c) + work(c, a))

    run(test)
