"""Nodes that find each other by mDNS, on loopback; and what strangers on the network can do to them."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import pytest
import trio

from routing import lan
from routing.identity import Identity, PeerId
from routing.lan import LanDiscovery
from routing.lan_peers import MAX_PEERS, SERVICE, LanPeer, announced_properties, instance_name
from routing.membership import Swarm
from routing.multiaddr import PeerAddress

zeroconf = pytest.importorskip("zeroconf")

HERE = Swarm(f"test {os.urandom(8).hex()}")  # other nodes may be at work on this machine
GROUP = ("224.0.0.251", 5353)
SECONDS = 20  # none of it takes two; the machine may be busy


class Node:
    """A discovery on loopback, and what it has found."""

    def __init__(self, port: int, swarm: Swarm = HERE, control_port: int = 0) -> None:
        self.peer_id = Identity.generate().peer_id
        self.found: list[LanPeer] = []
        self.discovery = LanDiscovery(
            swarm, self.peer_id, ("127.0.0.1", port), self.found.append, control_port=control_port
        )

    def has_found(self, other: Node) -> bool:
        return other.peer_id in [each.peer_id for each in self.found]


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(SECONDS):
        while not condition():
            await trio.sleep(0.02)


@asynccontextmanager
async def running(*nodes: Node) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        for node in nodes:
            await nursery.start(node.discovery.run)
        yield
        nursery.cancel_scope.cancel()


def test_two_nodes_find_each_other_without_any_config() -> None:
    async def test() -> None:
        ana, beto = Node(4001), Node(4002, control_port=4003)
        async with running(ana, beto):
            await until(lambda: ana.has_found(beto) and beto.has_found(ana))
            assert ana.found[-1] == LanPeer(
                beto.peer_id, (PeerAddress("127.0.0.1", 4002, beto.peer_id),), control_port=4003
            )
            assert beto.found[-1].control_port == 0
            assert ana.found[-1] in ana.discovery.peers

    trio.run(test)


def test_only_nodes_of_the_same_swarm_are_found() -> None:
    async def test() -> None:
        ana, other, beto = Node(4001), Node(4002, Swarm(f"{HERE.name} too")), Node(4003)
        async with running(ana, other), running(beto):
            await until(lambda: ana.has_found(beto) and beto.has_found(ana))
            assert not ana.has_found(other) and not beto.has_found(other) and not other.found

    trio.run(test)


def test_who_leaves_says_goodbye_and_who_comes_back_is_found_again() -> None:
    async def test() -> None:
        ana, beto = Node(4001), Node(4002)
        async with running(ana):
            async with running(beto):
                await until(lambda: ana.has_found(beto))
            await until(lambda: not ana.discovery.peers)
            ana.found.clear()
            again = Node(4009)
            again.peer_id = beto.peer_id
            again.discovery = LanDiscovery(HERE, beto.peer_id, ("127.0.0.1", 4009), again.found.append)
            async with running(again):
                await until(lambda: ana.has_found(beto))
                await until(lambda: ana.found[-1].addresses[0].port == 4009)

    trio.run(test)


def test_it_ends_when_told_to_at_any_moment() -> None:
    async def test() -> None:
        for delay in (0.0, 0.01, 0.1, 0.4):
            with trio.fail_after(SECONDS), trio.move_on_after(delay) as patience:
                await Node(4001).discovery.run()
            assert patience.cancelled_caught

    trio.run(test)


def test_an_error_of_who_is_told_reaches_the_node() -> None:
    def fail(_: LanPeer) -> None:
        raise ValueError("a bug")

    async def test() -> None:
        node = Node(4001)
        node.discovery = LanDiscovery(HERE, node.peer_id, ("127.0.0.1", 4001), fail)
        async with running(Node(4002)):
            with trio.fail_after(SECONDS):
                await node.discovery.run()

    with pytest.raises(BaseExceptionGroup) as error:
        trio.run(test)
    assert error.group_contains(ValueError, match="a bug")


def test_no_interface_is_one_line(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(lan, "RESCAN_SECONDS", 0.05)  # it looks again, silently

    async def test() -> None:
        discovery = LanDiscovery(HERE, Identity.generate().peer_id, ("203.0.113.77", 4001), print)
        with trio.move_on_after(0.5):
            await discovery.run()

    with caplog.at_level(logging.DEBUG, "panal.lan"):
        trio.run(test)
    assert [each.getMessage() for each in caplog.records] == [
        "LAN discovery is off: no interface of this machine can multicast (there is none)"
    ]


# --- strangers ---


class Stranger:
    """A host on the network that says what it likes."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        self.socket.bind(("127.0.0.1", 0))

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendto(data, GROUP)

    def announce(
        self,
        names: Iterable[str],
        *,
        host: str = "10.0.0.1",
        port: int = 4190,
        text: bytes | None = None,
        only_names: bool = False,
    ) -> None:
        """mDNS responses for service instances, as many as fit into each packet."""
        if text is None:
            pairs = (f"{k}={v}".encode() for k, v in announced_properties(HERE, 0).items())
            text = b"".join(bytes([len(pair)]) + pair for pair in pairs)
        out = zeroconf.DNSOutgoing(0x8400)
        for name in names:
            server = f"{name[:20]}.local."
            out.add_answer_at_time(zeroconf.DNSPointer(SERVICE, 12, 1, 4500, name), 0)
            if not only_names:
                out.add_answer_at_time(zeroconf.DNSService(name, 33, 0x8001, 120, 0, 0, port, server), 0)
                out.add_answer_at_time(zeroconf.DNSText(name, 16, 0x8001, 4500, text), 0)
                out.add_answer_at_time(zeroconf.DNSAddress(server, 1, 0x8001, 120, socket.inet_aton(host)), 0)
        for packet in out.packets():
            self.send(packet)


def a_name() -> str:
    return instance_name(PeerId(Identity.generate().peer_id))


def test_a_strangers_announcement_counts_only_if_it_is_proper() -> None:
    async def test() -> None:
        ana, beto = Node(4001), Node(4002)
        async with running(ana):
            await trio.sleep(0.3)
            with Stranger() as stranger:
                proper = a_name()
                for packet in (
                    b"",
                    b"\0" * 11,
                    os.urandom(300),
                    b"\0\0\x84\0" + b"\xff" * 8 + b"\xc0\x0c" * 40,
                ):
                    stranger.send(packet)
                stranger.announce([a_name()], host="8.8.8.8")
                stranger.announce([a_name()], text=b"\x05swarm\xff\xff")
                stranger.announce([a_name()], text=b"")
                stranger.announce([a_name()], port=0)
                stranger.announce([f"not a peer id.{SERVICE}", instance_name(ana.peer_id)])
                stranger.announce([proper])  # the control
            async with running(beto):
                await until(lambda: ana.has_found(beto))
                await until(lambda: len(ana.found) >= 2)
            assert {each.peer_id for each in ana.found} == {proper.split(".")[0], beto.peer_id}

    trio.run(test)


def test_a_flood_of_names_does_not_hide_who_announces_properly() -> None:
    async def test() -> None:
        ana, beto = Node(4001), Node(4002)
        async with running(ana):
            await trio.sleep(0.3)
            with Stranger() as stranger:
                for _ in range(60):
                    stranger.announce([a_name() for _ in range(10)], only_names=True)
                    await trio.sleep(0.002)
            assert len(ana.discovery._pending) == lan.MAX_PENDING, "the flood fills what it can"
            async with running(beto):
                await until(lambda: ana.has_found(beto))
            assert {each.peer_id for each in ana.found} == {beto.peer_id}

    trio.run(test)


@pytest.mark.slow
def test_thousands_of_services_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lan, "MAX_NAMES", 1500)
    monkeypatch.setattr(lan, "FLOOD_PAUSE", 0.5)

    async def test() -> None:
        ana, beto = Node(4001), Node(4002)
        async with running(ana):
            await trio.sleep(0.3)
            with Stranger() as stranger:
                with trio.fail_after(SECONDS):
                    while "over 1500 services" not in caplog.text:  # packets are lost, too
                        stranger.announce([a_name() for _ in range(10)], only_names=True)
                        stranger.announce([a_name() for _ in range(3)])
                        await trio.sleep(0.002)
                        assert len(ana.discovery.peers) <= MAX_PEERS
                        assert len(ana.discovery._pending) <= lan.MAX_PENDING
            await until(lambda: not ana.discovery.peers)  # dropped with all the rest
            assert len(ana.found) <= MAX_PEERS
            async with running(beto):  # after the pause all is well again
                await until(lambda: ana.has_found(beto))

    with caplog.at_level(logging.WARNING, "panal.lan"):
        trio.run(test)
    assert len(caplog.records) == 1
