"""Links to configured peers over real sockets: they come, go, come back, and say nonsense."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from routing import links as links_module
from routing.errors import PeerError
from routing.identity import Identity
from routing.links import PeerLinks, ask_holdings
from routing.multiaddr import PeerAddress
from routing.quic import endpoint as endpoint_module
from routing.quic.endpoint import Endpoint
from routing.quic.stream import Stream
from routing.wire import holdings
from routing.wire.holdings import Holdings, Slice, encode_holdings
from tests.served import address_of, connected, listening, run

MODEL = "ab" * 32


def told(name: str) -> Holdings:
    held = [Slice(kind="experts", model_id=MODEL, architecture="test", experts=[(0, 0, [(0, 3)])])]
    return Holdings([1], name, held, ["f32"], ["rows"], 16)


class Speaker:
    """Answers `/panal/slices/1` with whatever `says` is; None: never."""

    def __init__(self, says: bytes | None) -> None:
        self.says = says
        self.asked = 0

    async def answer(self, stream: Stream) -> None:
        while True:
            await stream.receive_message(holdings.MAX_REQUEST_BYTES)
            self.asked += 1
            if self.says is None:
                await trio.sleep_forever()
            else:
                await stream.send_message(self.says)


class Events:
    """What the links reported."""

    def __init__(self) -> None:
        self.connected: list[tuple[str, str]] = []
        self.lost: list[tuple[str, str]] = []

    def on_connected(self, peer_id: str, said: Holdings) -> None:
        self.connected.append((peer_id, said.name))

    def on_lost(self, peer_id: str, reason: str) -> None:
        self.lost.append((peer_id, reason))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "FIRST_RETRY", 0.02)
    monkeypatch.setattr(links_module, "LAST_RETRY", 0.08)


@asynccontextmanager
async def linked(*addresses: PeerAddress) -> AsyncIterator[tuple[PeerLinks, Events]]:
    events = Events()
    async with listening({}) as client, trio.open_nursery() as nursery:
        links = PeerLinks(client, addresses, on_connected=events.on_connected, on_lost=events.on_lost)
        nursery.start_soon(links.run)
        yield links, events
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(5):
        while not condition():
            await trio.sleep(0.002)


def speaking(says: bytes | None = None, name: str = "kitchen") -> Speaker:
    return Speaker(says if says is not None else encode_holdings(told(name)))


def handlers(speaker: Speaker) -> dict[str, endpoint_module.Handler]:
    return {holdings.PROTOCOL_ID: speaker.answer}


def nobody(port: int = 1) -> PeerAddress:
    return PeerAddress("127.0.0.1", port, Identity.generate().peer_id)


def test_a_peer_is_connected_and_found() -> None:
    async def test() -> None:
        async with listening(handlers(speaking())) as server, linked(address_of(server)) as (links, events):
            await links.first_round()
            peer_id = str(server.identity.peer_id)
            assert events.connected == [(peer_id, "kitchen")] and events.lost == []
            peer = links.find(peer_id)
            assert peer is not None and peer.peer_id == peer_id
            assert links.find("12D3KooWnobody") is None
            assert links.failures() == {}

    run(test)


def test_no_peers_at_all() -> None:
    async def test() -> None:
        async with linked() as (links, _):
            await links.first_round()
            assert links.failures() == {}

    run(test)


def test_the_first_round_waits_for_all_also_for_those_who_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "DIAL_TIMEOUT", 0.15)

    async def test() -> None:
        missing = nobody()
        async with (
            listening(handlers(speaking())) as server,
            linked(address_of(server), missing, address_of(server)) as (links, events),
        ):
            await links.first_round()
            assert {name for _, name in events.connected} == {"kitchen"}
            assert list(links.failures()) == [missing]
            assert "\n" not in links.failures()[missing]

    run(test)


def test_a_server_that_comes_back_on_its_port_is_linked_again() -> None:
    async def test() -> None:
        identity = Identity.generate()
        first = speaking(name="before")
        async with trio.open_nursery() as nursery:
            server = Endpoint(identity, listen=("127.0.0.1", 0), handlers=handlers(first))
            scope = trio.CancelScope()

            async def serve(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
                with scope:
                    await server.run(task_status=task_status)

            await nursery.start(serve)
            address = address_of(server)
            peer_id = str(identity.peer_id)
            async with linked(address) as (links, events):
                await links.first_round()
                scope.cancel()
                await until(lambda: events.lost)
                assert events.lost[0][0] == peer_id and events.lost[0][1]
                assert links.find(peer_id) is None
                assert address in links.failures()
                async with listening(handlers(speaking(name="after")), identity, address.port):
                    await until(lambda: len(events.connected) == 2)
                    assert events.connected == [(peer_id, "before"), (peer_id, "after")]
                    assert links.find(peer_id) is not None and links.failures() == {}
                await until(lambda: len(events.lost) == 2)

    run(test)


def test_another_identity_on_the_port_is_not_the_peer() -> None:
    async def test() -> None:
        async with listening(handlers(speaking())) as server:
            wrong = PeerAddress(*server.local_address, Identity.generate().peer_id)
            async with linked(wrong) as (links, events):
                await links.first_round()
                await trio.sleep(0.1)
                assert events.connected == [] and wrong in links.failures()

    run(test)


NONSENSE = [
    b"",
    b"\xff\xfe",
    b"null",
    b"[" * 10_000,
    b'{"versions":[1]}',
    encode_holdings(told("x")).replace(b"[0,3]", b"[3,0]"),
    encode_holdings(told("x")).replace(b'"ab', b'"\\n'),
    bytes(holdings.MAX_ANSWER_BYTES + 1),
]


@pytest.mark.parametrize("says", NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_never_ends_a_link(says: bytes) -> None:
    async def test() -> None:
        speaker = speaking(says)
        good = speaking(name="good")
        async with (
            listening(handlers(speaker)) as server,
            listening(handlers(good)) as other,
            linked(address_of(server), address_of(other)) as (links, events),
        ):
            await links.first_round()
            await until(lambda: speaker.asked >= 3)
            assert [name for _, name in events.connected] == ["good"]
            (reason,) = links.failures().values()
            assert reason and "\n" not in reason and len(reason) < 500
            # It comes to its senses.
            speaker.says = encode_holdings(told("better"))
            await until(lambda: len(events.connected) == 2)
            assert events.connected[1][1] == "better" and links.failures() == {}

    run(test)


def test_a_peer_without_the_protocol() -> None:
    async def test() -> None:
        async with listening({}) as server, linked(address_of(server)) as (links, events):
            await links.first_round()
            await trio.sleep(0.1)
            assert events.connected == [] and len(links.failures()) == 1

    run(test)


def test_a_peer_that_says_nothing_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "DIAL_TIMEOUT", 0.1)

    async def test() -> None:
        speaker = Speaker(None)
        async with listening(handlers(speaker)) as server:
            async with connected(server) as connection:
                with pytest.raises(PeerError) as caught:
                    await ask_holdings(connection)
                assert "did not say what it serves in 0.1 s" in str(caught.value)
                assert caught.value.peer == connection.peer_id and connection.is_open
            async with linked(address_of(server)) as (links, events):
                await links.first_round()
                await until(lambda: speaker.asked >= 3)
                assert "did not say" in next(iter(links.failures().values()))
                speaker.says = encode_holdings(told("awake"))
                await until(lambda: events.connected)

    run(test)


def test_names_of_peers_are_made_printable() -> None:
    async def test() -> None:
        rude = encode_holdings(told("xyz")).replace(b"xyz", b"a\\u001b[31m\\nb")
        async with (
            listening(handlers(speaking(rude))) as server,
            linked(address_of(server)) as (links, events),
        ):
            await links.first_round()
            assert events.connected and events.connected[0][1].isprintable()

    run(test)
