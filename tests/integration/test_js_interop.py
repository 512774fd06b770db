"""A foreign implementation, js-libp2p, as bootstrap peer and DHT server of panal nodes."""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from routing.control_address import ControlAddress
from routing.identity import Identity, PeerId
from routing.libp2p.advert_records import provider_key, record_key
from routing.libp2p.directory import Directory, Mode
from routing.libp2p.host import ControlHost
from routing.libp2p.kad_wire import KAD
from routing.libp2p.muxed_stream import MuxedStream
from routing.wire.advert import Advert, sign_advert
from tests.interop.js_node import js_node

pytestmark = pytest.mark.slow

SWARM_ID = bytes(range(32))
ECHO = "/panal-test/echo/1"


def make_advert(identity: Identity, seq: int = 1) -> bytes:
    return sign_advert(
        Advert(
            swarm_id=SWARM_ID,
            peer_id=identity.peer_id,
            instance=7,
            seq=seq,
            issued_at=int(time.time()),
            addresses=["/ip4/198.51.100.7/udp/4001/quic-v1"],
        ),
        identity,
    )


async def echo(stream: MuxedStream) -> None:
    while data := await stream.read(1 << 16):
        await stream.write(data)


@asynccontextmanager
async def node(mode: Mode, listen: bool = True) -> AsyncIterator[tuple[Identity, ControlHost, Directory]]:
    identity = Identity.generate()
    host = ControlHost(identity, listen=("127.0.0.1", 0) if listen else None)
    host.set_handler(ECHO, echo)
    directory = Directory(host, SWARM_ID, clock=time.time, mode=mode)
    async with trio.open_nursery() as nursery:
        await nursery.start(host.run)
        yield identity, host, directory
        nursery.cancel_scope.cancel()


def test_connect_identify_ping() -> None:
    async def main() -> None:
        async with js_node() as js, node(Mode.SERVER) as (_, host, _directory):
            await host.connect(js.address, timeout=10)
            info = await host.wait_identified(js.peer_id)
            assert info is not None and info.agent.startswith("js-libp2p")
            assert KAD in info.protocols
            assert js.address.with_peer(None) in info.addresses
            assert info.observed is not None and info.observed.host == "127.0.0.1"
            assert 0 < await host.ping(js.peer_id, timeout=10) < 10
            assert (await js.ask(do="peers"))["peers"] == [host.peer_id]

    trio.run(main)


def test_js_dials_and_opens_a_stream() -> None:
    async def main() -> None:
        async with js_node() as js, node(Mode.SERVER) as (_, host, _directory):
            address = ControlAddress.parse(host.local_addresses[0]).with_peer(host.peer_id)
            assert await js.ask(do="dial", address=str(address)) == {"peer": host.peer_id}
            data = bytes(range(256)) * 2048  # more than a window
            answer = await js.ask(
                do="echo", peer=host.peer_id, protocol=ECHO, data=base64.b64encode(data).decode()
            )
            assert base64.b64decode(answer["data"]) == data

    trio.run(main)


@pytest.mark.parametrize("listen", [True, False], ids=["dialable", "client"])
def test_advert_through_js_dht(listen: bool) -> None:
    """One node publishes; the other, which knows only the js node, finds it by provider and value."""

    async def main() -> None:
        mode = Mode.CLIENT
        async with (
            js_node() as js,
            node(mode, listen) as (identity, publisher, out),
            node(mode, listen) as (_, seeker, into),
        ):
            for host, directory in ((publisher, out), (seeker, into)):
                await host.connect(js.address, timeout=10)
                assert await directory.join([js.peer_id]) == 1
            advert = make_advert(identity)
            assert await out.publish(advert, ["a-model"]) == 1
            assert await into.find() == [advert]
            assert await into.find_peer(identity.peer_id) == advert
            assert await into.find("another-model") == []

            newer = make_advert(identity, seq=2)
            assert await out.publish(newer, []) == 1
            assert await into.find_peer(identity.peer_id) == newer

            # and the js node's own lookups return it
            key = base64.b64encode(record_key(SWARM_ID, identity.peer_id)).decode()
            answer = await js.ask(do="get", key=key)
            assert base64.b64decode(answer["value"]) == newer
            key = base64.b64encode(provider_key(SWARM_ID, None)).decode()
            assert await js.ask(do="providers", key=key) == {"providers": [identity.peer_id]}

    trio.run(main)


def test_js_refuses_what_is_no_advert() -> None:
    async def main() -> None:
        async with js_node() as js, node(Mode.CLIENT) as (identity, host, directory):
            await host.connect(js.address, timeout=10)
            await directory.join([js.peer_id])
            advert = bytearray(make_advert(identity))
            advert[40] ^= 1  # within the signature
            assert await directory.publish(bytes(advert), []) == 0
            assert await directory.find_peer(identity.peer_id) is None

    trio.run(main)


def test_js_without_our_validator_keeps_no_adverts() -> None:
    """What a foreign DHT server needs besides the protocol: a validator for /panal."""

    async def main() -> None:
        async with js_node(validator=False) as js, node(Mode.CLIENT) as (identity, host, directory):
            await host.connect(js.address, timeout=10)
            await directory.join([js.peer_id])
            assert await directory.publish(make_advert(identity), []) == 0
            # the list of providers needs none
            key = base64.b64encode(provider_key(SWARM_ID, None)).decode()
            assert await js.ask(do="providers", key=key) == {"providers": [identity.peer_id]}

    trio.run(main)


def test_js_queries_our_server() -> None:
    """A js node looks up an advert that only a panal server holds."""

    async def main() -> None:
        async with js_node() as js, node(Mode.SERVER) as (identity, host, directory):
            advert = make_advert(identity)
            assert await directory.publish(advert, []) == 0  # nobody else is there: kept here
            await host.connect(js.address, timeout=10)
            with trio.fail_after(30):
                while (await js.ask(do="peers"))["table"] < 1:
                    await trio.sleep(0.1)
            key = base64.b64encode(record_key(SWARM_ID, PeerId(identity.peer_id))).decode()
            answer = await js.ask(do="get", key=key)
            assert base64.b64decode(answer["value"]) == advert
            key = base64.b64encode(provider_key(SWARM_ID, None)).decode()
            assert await js.ask(do="providers", key=key) == {"providers": [identity.peer_id]}

    trio.run(main)
