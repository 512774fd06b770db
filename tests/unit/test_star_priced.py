"""What a star tells of its answers where they have a price, and what it does when a server wants its pay."""

from __future__ import annotations

import pytest

from routing.dispatch.call import CallStats, MoeCall, WireSettings
from routing.dispatch.errors import ExpertsUnavailable
from routing.dispatch.plan import ServerCall
from routing.dispatch.star import OnAnswer, Star
from routing.wire.messages import ExpertsAnswer, ExpertsRequest, RefusalCode, Refused, refusal_to
from tests.star_servers import (
    THIRDS,
    Server,
    direct,
    gone,
    holders_for,
    make_call,
    nan,
    on_a_mock_clock,
)

UNPAID = "you owe 3 credits of the 2 that you may: provide as much, or pay"


def unpaid(request: ExpertsRequest, answer: ExpertsAnswer) -> ExpertsAnswer:
    raise Refused(refusal_to(request, RefusalCode.UNPAID, UNPAID, load=1000), peer="b")


class Prices:
    """An `OnAnswer` at 5 micro-credits a pair, which remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, str]] = []

    def __call__(
        self, call: MoeCall, part: ServerCall, request: ExpertsRequest, answer: ExpertsAnswer, path: str
    ) -> int:
        assert request.pairs == part.pairs.size and answer.call_id == request.call_id
        self.told.append((part.peer_id, request.pairs, path))
        return 5 * request.pairs


def star(servers: list[Server], on_answer: OnAnswer | None) -> Star:
    return Star({server.peer_id: server for server in servers}.get, on_answer=on_answer)


@pytest.mark.parametrize("trouble", [None, gone, nan, unpaid])
def test_every_answer_that_counts_is_priced_once(trouble: object) -> None:
    async def test() -> None:
        call, prices = make_call(), Prices()
        servers = [Server("a"), Server("b", trouble=trouble), Server("c"), Server("d", delay=0.01)]  # type: ignore[arg-type]
        held = THIRDS | {"d": range(16)}
        holders = holders_for(call, WireSettings().combine, THIRDS if trouble is None else held)
        result, stats = await star(servers, prices).dispatch(call, holders, WireSettings())
        assert result.tobytes() == direct(call).tobytes()
        assert sum(pairs for _, pairs, _ in prices.told) == call.ids.size
        assert {peer for peer, _, _ in prices.told} == {each.peer_id for each in stats.servers}
        assert [each.price for each in stats.servers] == [5 * each.pairs for each in stats.servers]
        assert all(path == "direct" for _, _, path in prices.told)

    on_a_mock_clock(test)


def test_answers_are_free_where_nobody_prices_them() -> None:
    async def test() -> None:
        call = make_call()
        servers = [Server("a"), Server("b"), Server("c")]
        _, stats = await star(servers, None).dispatch(
            call, holders_for(call, WireSettings().combine, THIRDS), WireSettings()
        )
        assert [each.price for each in stats.servers] == [0, 0, 0]

    on_a_mock_clock(test)


def test_who_wants_to_be_paid_is_not_distrusted_but_asked_after_others() -> None:
    async def test() -> None:
        call = make_call()
        asked = star([Server("a"), Server("b", trouble=unpaid), Server("c"), Server("d")], None)
        holders = holders_for(call, WireSettings().combine, THIRDS | {"d": THIRDS["b"]})
        holders = holders.demoted({"d"})
        stats = CallStats()
        await asked.dispatch(call, holders, WireSettings(), stats)
        assert [failure.peer_id for failure in stats.failures] == ["b"] and stats.moved == 1
        now = 0.0  # of the mock clock, on which nothing has taken time
        assert asked.estimates.doubted("b", "direct", now) and not asked.estimates.doubted("d", "direct", now)
        assert not asked.estimates.doubted("b", "direct", now + 1.1)

    on_a_mock_clock(test)


def test_where_nobody_is_left_the_error_says_what_would_settle_it() -> None:
    async def test() -> None:
        call = make_call()
        servers = [Server("a"), Server("b", trouble=unpaid), Server("c")]
        with pytest.raises(ExpertsUnavailable) as caught:
            await star(servers, None).dispatch(
                call, holders_for(call, WireSettings().combine, THIRDS), WireSettings()
            )
        assert "it is owed too much" in str(caught.value) and UNPAID in str(caught.value)
        assert "\n" not in str(caught.value)

    on_a_mock_clock(test)
