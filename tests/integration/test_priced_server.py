"""An expert server whose calls have a price: what it refuses, what it counts, and what is under way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import trio

from node.market.further import Further
from node.market.priced import PricedCalls
from node.serve import server as server_module
from routing.dispatch.quic_peer import QuicExpertPeer
from routing.wire.experts import RefusalCode, Refused
from tests.model_parts import ModelParts
from tests.served import cells_of, connected, request, run, serving

PRICE = 3


class Books:
    """A payee that serves anybody who would not owe more than `line`; and the prices it serves at."""

    def __init__(self, line: int) -> None:
        self.line = line
        self.owed: dict[str, int] = {}
        self.asked: list[int] = []
        self.drawn = 0

    def met(self, peer: str, subnet: str) -> None:
        assert subnet == ""

    def refusal(self, peer: str, now: float, pending: int = 0, *, is_alone: bool = False) -> str:
        self.asked.append(pending)
        owed = self.owed.get(peer, 0) + pending
        return f"you would owe {owed} of {self.line}: pay" if owed > self.line else ""

    def served(
        self, peer: str, model_id: bytes, layer: int, experts: npt.NDArray[np.uint16], now: float
    ) -> None:
        self.lent(peer, PRICE * experts.size, now)

    def lent(self, peer: str, credits: int, now: float) -> None:
        self.owed[peer] = self.owed.get(peer, 0) + credits

    def give_back(self, peer: str, credits: int, subnet: str, since: float) -> None:
        raise AssertionError("nothing was drawn")

    def total_lowest(self, model_id: bytes, layer: int, experts: npt.NDArray[np.uint16], now: float) -> int:
        return PRICE * int(experts.size)


@pytest.fixture
def model(parts: Callable[..., ModelParts]) -> ModelParts:
    return parts("demo")


def test_a_caller_over_its_line_is_refused_with_the_reason_and_served_again_after_paying(
    model: ModelParts,
) -> None:
    async def test() -> None:
        async with (
            serving(model, cells_of(model, [range(12)])) as (server, endpoint),
            connected(endpoint) as connection,
        ):
            books = Books(line=4 * PRICE)
            server.accounts = PricedCalls(books, books, lambda: 0.0)
            peer, asked = QuicExpertPeer(connection), request(model, rows=2, experts=(3, 4))
            await peer.call(asked)  # two rows, two experts: all of the line
            payer = next(iter(books.owed))
            with pytest.raises(Refused) as caught:
                await peer.call(asked)
            assert caught.value.refusal.code is RefusalCode.UNPAID
            assert caught.value.refusal.text == f"you would owe {8 * PRICE} of {4 * PRICE}: pay"
            assert caught.value.refusal.load == server_module.UNPAID_AGAIN_MS
            assert server.counts.calls == 1 and server.counts.refused == 1
            books.owed[payer] = 0
            await peer.call(asked)
            assert books.owed == {payer: 4 * PRICE} and server.counts.calls == 2

    run(test)


def test_what_is_under_way_counts_so_nobody_passes_the_line_by_asking_much_at_once(
    model: ModelParts,
) -> None:
    async def test() -> None:
        async with (
            serving(model, cells_of(model, [range(12)])) as (server, endpoint),
            connected(endpoint) as connection,
        ):
            asked = request(model, rows=64, experts=(3, 4))
            cost = PRICE * asked.pairs
            books = Books(line=3 * cost)
            server.accounts = PricedCalls(books, books, lambda: 0.0)
            served = 0

            async def call() -> None:
                nonlocal served
                try:
                    await QuicExpertPeer(connection).call(asked)
                    served += 1
                except Refused as refused:
                    assert refused.refusal.code is RefusalCode.UNPAID

            async with trio.open_nursery() as nursery:
                for _ in range(16):
                    nursery.start_soon(call)
            assert served == 3
            assert list(books.owed.values()) == [3 * cost]

    run(test)


def test_a_call_that_gets_no_answer_costs_nothing(model: ModelParts) -> None:
    async def test() -> None:
        async with (
            serving(model, cells_of(model, [range(12)])) as (server, endpoint),
            connected(endpoint) as connection,
        ):
            asked = request(model, rows=64, experts=(3, 4))
            books = Books(line=PRICE * asked.pairs)
            server.accounts = PricedCalls(books, books, lambda: 0.0)
            peer = QuicExpertPeer(connection)
            huge = dataclasses.replace(asked, x=np.full_like(asked.x, 3e38))
            with pytest.raises(Refused) as caught:  # computed, but what comes out are no numbers
                await peer.call(huge)
            assert caught.value.refusal.code is RefusalCode.INTERNAL
            with pytest.raises(Refused) as caught:  # refused before anybody looks at accounts
                await peer.call(dataclasses.replace(asked, layer=99))
            assert caught.value.refusal.code is RefusalCode.UNKNOWN_CALL
            assert books.owed == {}
            await peer.call(asked)  # nothing is under way any more: the whole line is free
            assert list(books.owed.values()) == [PRICE * asked.pairs]
            assert len(books.asked) == 2

    run(test)


def test_what_no_first_call_is_of_costs_nothing(model: ModelParts) -> None:
    """A server refuses such a call before: the model has none."""
    asked = request(model, call_index=1)
    books = Books(line=0)
    calls = PricedCalls(books, books, lambda: 0.0)
    calls.further = Further(lambda model_id: model.manifest)
    assert calls.refusal("a", asked) == "" and books.asked == [0]
    calls.served("a", asked)
    assert books.owed == {}
