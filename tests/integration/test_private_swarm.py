"""Swarms on real sockets: who is not a member reaches no handler, and its user is told why."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from routing.errors import PeerError
from routing.identity import Identity
from routing.membership import OPEN_SWARM, MemberCertificate, Membership, Swarm
from routing.multiaddr import PeerAddress
from routing.quic.core import BACKENDS
from routing.quic.endpoint import Endpoint
from routing.quic.errors import WrongPeer
from routing.quic.stream import Stream

ECHO = "/test/echo/1"
KEY = Identity.generate().private_key
CASA = Swarm("casa", KEY.public_key().public_bytes_raw())

each_backend = pytest.mark.parametrize("backend", BACKENDS)


Shown = Callable[[Identity], Membership | None]
"""What a node of this identity shows."""


def membership(
    identity: Identity, swarm: Swarm = CASA, key: Ed25519PrivateKey = KEY, age_days: int = 0
) -> Membership:
    issued = time.time() - 86400 * age_days
    certificate = MemberCertificate.issue(key, swarm, identity.peer_id, issued, 1)
    return Membership(swarm, certificate.encode())


class Node:
    """An endpoint that answers, and remembers whom."""

    def __init__(self, backend: str, identity: Identity, shown: Membership | None) -> None:
        self.served: list[str] = []
        self.endpoint = Endpoint(
            identity,
            listen=("127.0.0.1", 0),
            backend=backend,
            handlers={ECHO: self._echo},
            membership=shown,
        )

    async def _echo(self, stream: Stream) -> None:
        self.served.append(stream.peer_id)
        await stream.send_message(await stream.receive_message(100))

    @property
    def address(self) -> PeerAddress:
        return PeerAddress(*self.endpoint.local_address, self.endpoint.peer_id)

    async def ask(self, other: Node) -> bytes:
        connection = await self.endpoint.connect(other.address, timeout=5)
        stream = connection.open_stream(ECHO)
        await stream.send_message(b"hola")
        return await stream.receive_message(100)


@asynccontextmanager
async def nodes(backend: str, *shown: Shown) -> AsyncIterator[list[Node]]:
    """One node for each membership."""
    async with trio.open_nursery() as nursery:
        made = []
        for each in shown:
            identity = Identity.generate()
            made.append(Node(backend, identity, each(identity)))
            await nursery.start(made[-1].endpoint.run)
        with trio.fail_after(20):
            yield made
        nursery.cancel_scope.cancel()


@each_backend
def test_members_reach_each_other(backend: str) -> None:
    async def test() -> None:
        async with nodes(backend, membership, membership) as (ana, beto):
            assert await ana.ask(beto) == b"hola"
            assert await beto.ask(ana) == b"hola"

    trio.run(test)


STRANGERS: dict[str, Shown] = {
    "the open swarm": lambda identity: None,
    "an open swarm of that name": lambda identity: Membership(Swarm("casa")),
    "no certificate": lambda identity: Membership(CASA),
    "an expired certificate": lambda identity: membership(identity, age_days=3),
    "a certificate of somebody else": lambda identity: membership(Identity.generate()),
}


@each_backend
@pytest.mark.parametrize("kind", STRANGERS)
def test_a_stranger_reaches_no_handler(backend: str, kind: str) -> None:
    async def test() -> None:
        async with nodes(backend, membership, STRANGERS[kind]) as (member, stranger):
            with pytest.raises(PeerError):
                await stranger.ask(member)
            with pytest.raises(WrongPeer) as error:
                await member.ask(stranger)
            text = str(error.value)
            assert text.startswith(f"dialing {stranger.address}: {stranger.endpoint.peer_id} ")
            assert len(text.splitlines()) == 1
            assert member.served == stranger.served == []
            assert not member.endpoint.connections

    trio.run(test)


@each_backend
def test_an_expired_member_is_told_what_to_do(backend: str) -> None:
    async def test() -> None:
        async with nodes(backend, membership, lambda i: membership(i, age_days=3)) as (member, late):
            # its own dial may look done before the refusal arrives: then the connection says it
            with pytest.raises(PeerError, match=r"expired on .*, ask for a new invitation"):
                await late.ask(member)
            assert member.served == []

    trio.run(test)


@each_backend
def test_swarms_of_one_name_and_two_keys_do_not_mix(backend: str) -> None:
    other_key = Identity.generate().private_key
    other = Swarm("casa", other_key.public_key().public_bytes_raw())

    async def test() -> None:
        async with nodes(backend, membership, lambda i: membership(i, other, other_key)) as (ana, beto):
            for asker, asked in ((ana, beto), (beto, ana)):
                with pytest.raises(WrongPeer, match="belongs to another swarm"):
                    await asker.ask(asked)
            assert ana.served == beto.served == []

    trio.run(test)


@each_backend
def test_open_swarms_of_two_names_do_not_mix(backend: str) -> None:
    def opened(_: Identity) -> Membership:
        return Membership(OPEN_SWARM)

    def nothing(_: Identity) -> None:
        return None

    def elsewhere(_: Identity) -> Membership:
        return Membership(Swarm("other"))

    async def test() -> None:
        async with nodes(backend, opened, nothing, elsewhere) as (a, b, other):
            assert await a.ask(b) == b"hola", "the open swarm is where a node is that says nothing else"
            with pytest.raises(WrongPeer, match="belongs to another swarm"):
                await a.ask(other)
            with pytest.raises(PeerError):
                await other.ask(a)
            assert a.served == [] and other.served == []

    trio.run(test)
